//! The addresses that the Node shows (upstream pkg/kubelet/nodestatus/setters.go `NodeAddress`).

use k8s_openapi::api::core::v1::NodeStatus;
use serde_json::{Value, json};

use crate::config::AddressSource;

/// The annotation that tells a cloud's controllers which addresses somebody chose for the node.
pub(super) const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

/// The addresses for the status; None where it keeps those that it has. `ips` are the agent's own.
pub(super) fn shown(source: AddressSource, ips: &[String], name: &str, old: &NodeStatus) -> Option<Vec<Value>> {
    let internal = |ip: &String| json!({"type": "InternalIP", "address": ip});
    let own = match source {
        AddressSource::Cloud { .. } if old.addresses.as_ref().is_some_and(|all| !all.is_empty()) => return None,
        // The cloud says them: what the machine says of itself may be another address.
        AddressSource::Cloud { given: false } => &[],
        AddressSource::Agent | AddressSource::Cloud { given: true } => ips,
    };
    Some(own.iter().map(internal).chain([json!({"type": "Hostname", "address": name})]).collect())
}

/// The value of [`PROVIDED`]; None where the Node must not have it.
pub(super) fn provided(source: AddressSource, ips: &[String]) -> Option<String> {
    (source == AddressSource::Cloud { given: true }).then(|| ips.join(","))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeAddress;

    use super::*;

    #[test]
    fn a_clouds_controllers_have_the_last_word() {
        let of_cloud = NodeAddress { type_: "ExternalIP".into(), address: "203.0.113.9".into() };
        let known = NodeStatus { addresses: Some(vec![of_cloud]), ..NodeStatus::default() };
        let ips = ["10.0.0.5".to_owned(), "fd00::5".to_owned()];
        let texts = |source, old: &NodeStatus| {
            let shown = shown(source, &ips, "win01", old)?;
            Some(shown.iter().map(|a| format!("{} {}", a["type"].as_str().unwrap(), a["address"].as_str().unwrap())).collect::<Vec<_>>().join(", "))
        };
        let (given, found) = (AddressSource::Cloud { given: true }, AddressSource::Cloud { given: false });
        let all = Some("InternalIP 10.0.0.5, InternalIP fd00::5, Hostname win01".to_owned());
        let new = NodeStatus::default();
        assert_eq!([texts(AddressSource::Agent, &new), texts(AddressSource::Agent, &known)], [all.clone(), all.clone()]);
        assert_eq!([texts(given, &new), texts(given, &known)], [all, None]);
        assert_eq!([texts(found, &new), texts(found, &known)], [Some("Hostname win01".to_owned()), None]);
        let annotations = [AddressSource::Agent, given, found].map(|source| provided(source, &ips));
        assert_eq!(annotations, [None, Some("10.0.0.5,fd00::5".to_owned()), None]);
    }
}
