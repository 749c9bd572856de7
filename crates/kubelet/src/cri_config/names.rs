//! What a pod and its kernel call themselves (upstream kubelet_pods.go `GeneratePodHostNameAndDomain`, util.go `GetNodenameForKernel`).

use k8s_openapi::api::core::v1::Pod;

use super::{NodeSide, text};
use crate::pod::is_host_network;

/// Characters of a host name, without its domain.
const LONGEST: usize = 63;
/// Characters of a name that Linux keeps.
const LONGEST_FQDN: usize = 64;

/// The kernel has no room for a pod's full name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long ({LONGEST_FQDN} characters is the max, {} characters requested)",
    name.len()
)]
pub(crate) struct NameTooLong {
    name: String,
}

/// A pod's host name and domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub host: String,
    pub domain: Option<String>,
}

impl Names {
    pub(crate) fn of(node: &NodeSide, pod: &Pod) -> Self {
        if is_host_network(pod) {
            return Self { host: node.node_name.clone(), domain: None };
        }
        let spec = pod.spec.clone().unwrap_or_default();
        if let Some(name) = spec.hostname_override {
            return Self { host: short(&name), domain: None };
        }
        let own = spec.hostname.filter(|name| !name.is_empty()).unwrap_or_else(|| text(&pod.metadata.name));
        let subdomain = spec.subdomain.filter(|name| !name.is_empty());
        let domain = subdomain.map(|sub| format!("{sub}.{}.svc.{}", text(&pod.metadata.namespace), node.cluster_domain));
        Self { host: short(&own), domain }
    }
}

/// The name that a sandbox gets: none where the pod has the node's.
///
/// # Errors
/// When a pod with `setHostnameAsFQDN` has too long a name.
pub(super) fn of_sandbox(node: &NodeSide, pod: &Pod) -> Result<String, NameTooLong> {
    // Runtimes refuse a name for a pod that has no UTS namespace of its own.
    if is_host_network(pod) {
        return Ok(String::new());
    }
    let names = Names::of(node, pod);
    let full = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn) == Some(true);
    let name = match names.domain.filter(|_| full) {
        Some(domain) => format!("{}.{domain}", names.host),
        None => return Ok(names.host),
    };
    if name.len() > LONGEST_FQDN { Err(NameTooLong { name }) } else { Ok(name) }
}

fn short(name: &str) -> String {
    let mut short: String = name.chars().take(LONGEST).collect();
    short.truncate(short.trim_end_matches(['-', '.']).len());
    short
}

#[cfg(test)]
mod tests {
    use host::NodeOs;
    use serde_json::json;

    use super::super::tests::{node, pod};
    use super::*;

    #[test]
    fn pods_are_called_as_upstream_calls_them() {
        let long = "x".repeat(70);
        for (spec, host, domain, kernel) in [
            (json!({}), "p", None, "p"),
            (json!({"hostname": "web"}), "web", None, "web"),
            (json!({"hostname": "web", "subdomain": "sub"}), "web", Some("sub.ns.svc.cluster.local"), "web"),
            (json!({"subdomain": "sub", "setHostnameAsFQDN": true}), "p", Some("sub.ns.svc.cluster.local"), "p.sub.ns.svc.cluster.local"),
            (json!({"setHostnameAsFQDN": true}), "p", None, "p"),
            (json!({"hostname": "web", "subdomain": "sub", "hostnameOverride": "a.example"}), "a.example", None, "a.example"),
            (json!({"hostNetwork": true, "hostname": "web"}), "win01", None, ""),
            (json!({"hostname": long}), &long[..63], None, &long[..63]),
        ] {
            let (node, pod) = (node(NodeOs::Linux), pod(spec.clone()));
            let names = Names::of(&node, &pod);
            assert_eq!((names.host.as_str(), names.domain.as_deref()), (host, domain), "{spec}");
            assert_eq!(of_sandbox(&node, &pod).unwrap(), kernel, "{spec}");
        }
        let refused = of_sandbox(&node(NodeOs::Linux), &pod(json!({"hostname": long, "subdomain": "sub", "setHostnameAsFQDN": true})));
        let message = refused.unwrap_err().to_string();
        assert!(message.ends_with("is too long (64 characters is the max, 88 characters requested)"), "{message}");
    }
}
