//! Secrets, ConfigMaps, Nodes, Events and Leases (pkg/apis/core/validation, pkg/apis/coordination/validation).

use super::field::{Errors, Field};
use super::{names, scheduling};

/// A Secret's or ConfigMap's data, all of it.
const DATA_LIMIT: usize = 1024 * 1024;

/// A new or changed Secret.
pub fn secret(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let data = new.get("data");
    let mut size = 0;
    for (key, value) in data.members() {
        keys(&data, key, errors);
        // Stored in base64: three bytes in four characters.
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_LIMIT {
        errors.too_long(&data, DATA_LIMIT);
    }
    let mut need = |key: &str| {
        if data.value.get(key).is_none() {
            errors.required(&data.key(key), "");
        }
    };
    match new.get("type").text() {
        "kubernetes.io/service-account-token" => {
            let name = new.get("metadata").get("annotations").key("kubernetes.io/service-account.name");
            if name.is_empty() {
                errors.required(&name, "");
            }
        }
        "kubernetes.io/dockercfg" => need(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson"),
        "kubernetes.io/basic-auth" if data.value.get("username").is_none() && data.value.get("password").is_none() => {
            need("username");
            need("password");
        }
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
    if let Some(old) = old {
        errors.immutable(&new.get("type"), &old.get("type"));
        frozen(new, old, &["data"], errors);
    }
}

/// A new or changed ConfigMap.
pub fn config_map(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (data, binary) = (new.get("data"), new.get("binaryData"));
    let mut size = 0;
    for (key, value) in data.members() {
        keys(&data, key, errors);
        if binary.value.get(key).is_some() {
            errors.invalid_value(&data.key(key), key.as_str(), "duplicate of key present in binaryData");
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary.members() {
        keys(&binary, key, errors);
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_LIMIT {
        errors.too_long(&Field { path: String::new(), value: new.value }, DATA_LIMIT);
    }
    if let Some(old) = old {
        frozen(new, old, &["data", "binaryData"], errors);
    }
}

fn keys(data: &Field, key: &str, errors: &mut Errors) {
    for problem in names::config_key(key) {
        errors.invalid_value(&data.key(key), key, problem);
    }
}

/// With `immutable` set, neither it nor the data change.
fn frozen(new: &Field, old: &Field, members: &[&str], errors: &mut Errors) {
    const WHY: &str = "field is immutable when `immutable` is set";
    if !old.get("immutable").is_true() {
        return;
    }
    if !new.get("immutable").is_true() {
        errors.forbidden(&new.get("immutable"), WHY);
    }
    for member in members {
        if new.get(member).value != old.get(member).value {
            errors.forbidden(&new.get(member), WHY);
        }
    }
}

/// A new or changed Node.
pub fn node(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let before = old.map(|old| old.get("spec"));
    if before.as_ref().is_none_or(|before| before.value != spec.value) {
        scheduling::taints(&spec.get("taints"), errors);
        for range in spec.get("podCIDRs").items() {
            let valid = range.text().parse::<ipnet::IpNet>().is_ok();
            if !valid {
                errors.invalid(&range, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
            }
        }
    }
    let Some(before) = before else { return };
    let had = before.get("podCIDRs");
    if !had.is_empty() && spec.get("podCIDRs").value != had.value {
        errors.forbidden(&spec.get("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid");
    }
    let provider = before.get("providerID");
    if !provider.is_empty() && spec.get("providerID").value != provider.value {
        errors.forbidden(&spec.get("providerID"), "node updates may not change providerID except from \"\" to valid");
    }
}

/// An Event lies where its object lies, or in `default` when that has no namespace.
pub fn event(new: &Field, errors: &mut Errors) {
    let own = new.get("metadata").get("namespace").text();
    let involved = new.get("involvedObject").get("namespace");
    let expected = if involved.is_empty() { matches!(own, "default" | "kube-system" | "") } else { involved.text() == own };
    if !expected {
        errors.invalid_value(&involved, involved.text(), "does not match event.namespace");
    }
}

/// An Event as events.k8s.io writes it: what that version made obligatory is there, what it deprecated is not.
pub fn new_event(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    event(new, errors);
    if old.is_some() {
        return;
    }
    let at = |shown: &str, stored: &str| Field { path: shown.to_string(), value: new.get(stored).value };
    let controller = at("reportingController", "reportingComponent");
    if controller.is_empty() {
        errors.required(&controller, "");
    }
    errors.invalid_each(&controller, if controller.is_empty() { Vec::new() } else { names::qualified(controller.text()) });
    for (shown, limit) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let field = new.get(shown);
        if field.is_empty() {
            errors.required(&field, "");
        } else if field.text().len() > limit {
            errors.invalid_value(&field, "", format!("can have at most {limit} characters"));
        }
    }
    let note = at("message", "message");
    if note.text().len() > 1024 {
        errors.invalid_value(&note, "", "can have at most 1024 characters");
    }
    if !new.get("eventTime").is_set() {
        errors.required(&new.get("eventTime"), "");
    }
    let kind = new.get("type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        errors.invalid_value(&kind, "", format!("has invalid value: {}", kind.text()));
    }
    for member in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !new.get(member).is_empty() && new.get(member).number() != Some(0) {
            errors.invalid_value(&new.get(member), "", "needs to be unset");
        }
    }
}

pub fn lease(new: &Field, errors: &mut Errors) {
    let spec = new.get("spec");
    let duration = spec.get("leaseDurationSeconds");
    if duration.number().is_some_and(|seconds| seconds <= 0) {
        errors.invalid(&duration, "must be greater than 0");
    }
    errors.not_negative(&spec.get("leaseTransitions"));
}
