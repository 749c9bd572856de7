//! Networks of sandboxes as the container runtime counts them.

use cri::v1;

use super::usage::Interface;

fn number(value: &Option<v1::UInt64Value>) -> Option<u64> {
    value.as_ref().map(|value| value.value)
}

/// The interfaces of a sandbox, the default one first, and when they were counted in nanoseconds since 1970.
pub(crate) fn of_sandbox(stats: &v1::PodSandboxStats) -> Option<(i64, Vec<Interface>)> {
    if let Some(network) = stats.linux.as_ref().and_then(|own| own.network.as_ref()) {
        let of = |own: &v1::NetworkInterfaceUsage| Interface {
            name: own.name.clone(),
            received: [number(&own.rx_bytes), None, number(&own.rx_errors), None],
            sent: [number(&own.tx_bytes), None, number(&own.tx_errors), None],
        };
        return Some((network.timestamp, network.default_interface.iter().chain(&network.interfaces).map(of).collect()));
    }
    let network = stats.windows.as_ref()?.network.as_ref()?;
    let of = |own: &v1::WindowsNetworkInterfaceUsage| Interface {
        name: own.name.clone(),
        received: [number(&own.rx_bytes), None, None, number(&own.rx_packets_dropped)],
        sent: [number(&own.tx_bytes), None, None, number(&own.tx_packets_dropped)],
    };
    Some((network.timestamp, network.default_interface.iter().chain(&network.interfaces).map(of).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(value: u64) -> Option<v1::UInt64Value> {
        Some(v1::UInt64Value { value })
    }

    #[test]
    fn the_default_interface_is_the_first() {
        let windows =
            v1::WindowsNetworkInterfaceUsage { name: "eth0".into(), rx_bytes: value(3), tx_packets_dropped: value(2), ..Default::default() };
        let network = v1::WindowsNetworkUsage { timestamp: 5, default_interface: Some(windows), interfaces: Vec::new() };
        let stats =
            v1::PodSandboxStats { windows: Some(v1::WindowsPodSandboxStats { network: Some(network), ..Default::default() }), ..Default::default() };
        let eth0 = Interface { name: "eth0".into(), received: [Some(3), None, None, None], sent: [None, None, None, Some(2)] };
        assert_eq!(of_sandbox(&stats), Some((5, vec![eth0])));

        let of = |name: &str| v1::NetworkInterfaceUsage { name: name.into(), rx_bytes: value(3), tx_errors: value(1), ..Default::default() };
        let network = v1::NetworkUsage { timestamp: 6, default_interface: Some(of("eth0")), interfaces: vec![of("net1")] };
        let stats =
            v1::PodSandboxStats { linux: Some(v1::LinuxPodSandboxStats { network: Some(network), ..Default::default() }), ..Default::default() };
        let (at, interfaces) = of_sandbox(&stats).unwrap();
        assert_eq!((at, interfaces[0].name.as_str(), interfaces[1].name.as_str()), (6, "eth0", "net1"));
        assert_eq!((interfaces[1].received, interfaces[1].sent), ([Some(3), None, None, None], [None, None, Some(1), None]));
        assert_eq!(of_sandbox(&v1::PodSandboxStats::default()), None);
    }
}
