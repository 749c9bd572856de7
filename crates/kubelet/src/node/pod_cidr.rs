//! The runtime learns the addresses of the node's pods (upstream kubelet_network.go): some write their network's configuration by them.

use std::time::Duration;

use backoff::Backoff;
use cluster::{Informer, Key};
use cri::v1;
use k8s_openapi::api::core::v1::Node;
use thiserror_ext::AsReport as _;

/// What the runtime is told of a Node; None while the Node has no addresses for pods.
fn wanted(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.as_ref().filter(|all| !all.is_empty()).map(|all| all.join(","));
    all.or_else(|| spec.pod_cidr.clone()).filter(|cidr| !cidr.is_empty())
}

/// Tells the runtime at the start and when the Node changes, for ever.
pub(crate) async fn follow(client: cri::Client, node: Informer<Node>, name: String) {
    let mut nodes = node.changed();
    let mut told = None;
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    loop {
        nodes.borrow_and_update();
        let new = node.get(Key::cluster(&name)).and_then(|node| wanted(&node)).filter(|new| told.as_ref() != Some(new));
        let mut again = Duration::MAX;
        if let Some(pod_cidr) = new {
            let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.clone() });
            let request = v1::UpdateRuntimeConfigRequest { runtime_config: Some(v1::RuntimeConfig { network_config }) };
            match client.update_runtime_config(request).await {
                Err(error) if error.kind() != cri::Kind::Unimplemented => {
                    tracing::warn!(pod_cidr, error = %error.as_report(), "telling the runtime the addresses of pods failed; trying again");
                    again = backoff.next_delay();
                }
                _ => {
                    backoff.reset();
                    told = Some(pod_cidr);
                }
            }
        }
        tokio::select! {
            changed = nodes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(again.min(Duration::from_secs(1 << 30))) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_families_are_told_and_nothing_before_there_are_addresses() {
        for (spec, text) in [
            (json!({}), None),
            (json!({"podCIDR": ""}), None),
            (json!({"podCIDRs": []}), None),
            (json!({"podCIDR": "10.1.0.0/24"}), Some("10.1.0.0/24")),
            (json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}), Some("10.1.0.0/24,fd00::/64")),
        ] {
            let node: Node = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(wanted(&node).as_deref(), text);
        }
    }
}
