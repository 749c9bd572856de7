//! Alteration of replies: the ManagementIP of networks.

use hcn::NetworkPolicy;
use serde_json::Value;

use super::Shown;

/// An address of a host that got no lease.
const LINK_LOCAL: &str = "169.254.17.1";

/// Alters the networks in a call's reply.
pub(super) fn show(shown: Shown, text: String) -> String {
    let Ok(mut answer) = serde_json::from_str::<Value>(&text) else { return text };
    show_value(shown, &mut answer);
    answer.to_string()
}

fn show_value(shown: Shown, value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| show_value(shown, value)),
        Value::Object(members) => {
            if members.contains_key("ManagementIP") {
                match shown {
                    Shown::NoManagementAddress => drop(members.shift_remove("ManagementIP")),
                    Shown::LinkLocalAddress => drop(members.insert("ManagementIP".into(), LINK_LOCAL.into())),
                }
            }
            if let Some(Value::Array(policies)) = members.get_mut("Policies") {
                let is_it = |policy: &Value| policy.get("Type").is_some_and(|name| name == "ProviderAddress");
                if policies.iter().any(is_it) {
                    policies.retain(|policy| !is_it(policy));
                    if let (Shown::LinkLocalAddress, Ok(address)) = (shown, LINK_LOCAL.parse()) {
                        policies.push(serde_json::to_value(NetworkPolicy::provider_address(address)).unwrap_or_default());
                    }
                }
            }
            members.values_mut().for_each(|value| show_value(shown, value));
        }
        _ => {}
    }
}
