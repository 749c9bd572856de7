//! Host ports of pods, and their conflicts (upstream: scheduler plug-in NodePorts, `schedutil.GetHostPorts`, `HostPortInfo`).

use k8s_openapi::api::core::v1::PodSpec;

/// A port that a pod takes on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// `0.0.0.0` stands for all addresses.
    pub address: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The port number.
    pub port: i32,
}

impl HostPort {
    /// A host port; an empty address stands for all addresses, an empty protocol for TCP (upstream: `HostPortInfo.sanitize`).
    pub fn new(address: &str, protocol: &str, port: i32) -> Self {
        let given = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        Self { address: given(address, ALL_ADDRESSES), protocol: given(protocol, "TCP"), port }
    }

    /// Whether both cannot be on one node.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let any = |address: &str| address == ALL_ADDRESSES;
        self.port == other.port && self.protocol == other.protocol && (self.address == other.address || any(&self.address) || any(&other.address))
    }
}

const ALL_ADDRESSES: &str = "0.0.0.0";

/// The host ports of a pod's containers and sidecars.
pub fn host_ports(spec: &PodSpec) -> impl Iterator<Item = HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = sidecars.chain(&spec.containers).flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        let number = port.host_port.filter(|port| *port > 0)?;
        Some(HostPort::new(port.host_ip.as_deref().unwrap_or_default(), port.protocol.as_deref().unwrap_or_default(), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn host_ports_conflict_unless_their_addresses_differ() {
        let port = |address: &str, protocol: &str| HostPort::new(address, protocol, 80);
        assert!(port("", "TCP").conflicts_with(&port("10.0.0.1", "")));
        assert!(port("10.0.0.1", "TCP").conflicts_with(&port("10.0.0.1", "TCP")));
        assert!(!port("10.0.0.2", "TCP").conflicts_with(&port("10.0.0.1", "TCP")));
        assert!(!port("0.0.0.0", "UDP").conflicts_with(&port("0.0.0.0", "TCP")));
        assert!(!port("::", "TCP").conflicts_with(&port("10.0.0.1", "TCP")), "as upstream: only 0.0.0.0 stands for all addresses");
    }

    #[test]
    fn ports_of_sidecars_count_and_of_init_containers_do_not() {
        let ports = |port: i32| json!([{"containerPort": 80, "hostPort": port}, {"containerPort": 81}]);
        let spec: PodSpec = serde_json::from_value(json!({
            "containers": [{"name": "c", "ports": ports(1)}],
            "initContainers": [{"name": "i", "ports": ports(2)}, {"name": "s", "restartPolicy": "Always", "ports": ports(3)}],
        }))
        .unwrap();
        let found: Vec<HostPort> = host_ports(&spec).collect();
        assert_eq!(found.iter().map(|one| one.port).collect::<Vec<_>>(), [3, 1]);
        assert_eq!((found[0].address.as_str(), found[0].protocol.as_str()), ("0.0.0.0", "TCP"));
    }
}
