//! Labels that a node may give itself, by upstream's rules (ValidateKubeletFlags; staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go).

use std::collections::BTreeMap;

use crate::document::ConfigError;

/// Below `kubernetes.io` and `k8s.io` a node may set these,
const ALLOWED: [&str; 10] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// and all of these namespaces.
const NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Checks labels of `--node-labels`. The API server's admission would refuse others too, but only when the node registers.
pub(super) fn check(labels: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (key, value) in labels {
        let refused = |reason: String| Err(ConfigError::Refused { name: format!("--node-labels={key}={value}"), reason });
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let within = |domain: &str| namespace == domain || namespace.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        if !is_name(name) || (key.contains('/') && !is_domain(namespace)) {
            return refused("the name is no qualified name; write letters, digits, -, _ and . , perhaps after DOMAIN/".to_owned());
        }
        if !(value.is_empty() || is_name(value)) {
            return refused("the value is no label value; write at most 63 letters, digits, -, _ and .".to_owned());
        }
        let is_allowed = ALLOWED.contains(&key.as_str()) || NAMESPACES.iter().any(|namespace| within(namespace));
        if (within("kubernetes.io") || within("k8s.io")) && !is_allowed {
            return refused(format!("nodes may not set it; choose a name below {}, or another domain", NAMESPACES.join(" or ")));
        }
    }
    Ok(())
}

/// At most 63 letters, digits, `-`, `_` and `.`, the first and last of them a letter or digit.
fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && ends(text.chars().next())
        && ends(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Labels of a DNS name, joined by dots.
fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    text.len() <= 253 && text.split('.').all(label)
}
