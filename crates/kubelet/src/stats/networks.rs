//! Networks of sandboxes as the container runtime counts them, or else the Host Networking Service.

use cri::v1;
use futures::StreamExt as _;
use hcn::document::{EndpointStats, v1::Endpoint};
use jiff::Timestamp;
use thiserror_ext::AsReport as _;

use super::usage::Interface;
use crate::agent::Agent;

/// Endpoints whose counters are asked for at once.
const AT_ONCE: usize = 8;

/// What the runtime counts of its sandboxes. Where it counts no networks, as containerd on Windows before 1.7, HNS does.
pub(crate) async fn of_sandboxes(agent: &Agent) -> Vec<v1::PodSandboxStats> {
    // Runtimes before containerd 1.6 have none.
    let counted = agent.cri.list_pod_sandbox_stats(v1::ListPodSandboxStatsRequest { filter: None }).await.unwrap_or_default();
    match &agent.hcn {
        Some(client) if !counted.iter().any(|stats| of_sandbox(stats).is_some()) => with_hns(agent, client, counted).await,
        _ => counted,
    }
}

/// Adds what HNS counts at the endpoints of sandboxes that are ready.
async fn with_hns(agent: &Agent, client: &hcn::HcnClient, counted: Vec<v1::PodSandboxStats>) -> Vec<v1::PodSandboxStats> {
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
    let filter = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
    let Ok(sandboxes) = agent.cri.list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(filter) }).await else { return counted };
    if sandboxes.is_empty() {
        return counted;
    }
    let endpoints = match client.v1_endpoints().await {
        Ok(endpoints) => endpoints,
        Err(error) => {
            tracing::debug!(error = %error.as_report(), "statistics are without the pods' networks: the Host Networking Service does not tell them");
            return counted;
        }
    };
    let of_pods = endpoints.into_iter().filter(|endpoint| !endpoint.shared_containers.is_empty());
    let asked = of_pods.map(async |endpoint| {
        // One that has gone meanwhile has none.
        let stats = client.endpoint_stats(&endpoint.id).await.ok().flatten()?;
        Some((endpoint, stats))
    });
    let found: Vec<_> = futures::stream::iter(asked).buffered(AT_ONCE).filter_map(async |found| found).collect().await;
    joined(counted, sandboxes, &found, Timestamp::now())
}

/// The statistics of sandboxes with the counters of their endpoints, of which the first is the default one.
fn joined(
    mut counted: Vec<v1::PodSandboxStats>,
    sandboxes: Vec<v1::PodSandbox>,
    endpoints: &[(Endpoint, EndpointStats)],
    at: Timestamp,
) -> Vec<v1::PodSandboxStats> {
    for sandbox in sandboxes {
        let is_at = |endpoint: &Endpoint| endpoint.shared_containers.iter().any(|id| id.eq_ignore_ascii_case(&sandbox.id));
        let mut interfaces = endpoints.iter().filter(|(endpoint, _)| is_at(endpoint)).map(|(endpoint, stats)| interface(endpoint, stats));
        let Some(first) = interfaces.next() else { continue };
        let timestamp = i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX);
        let network = v1::WindowsNetworkUsage { timestamp, default_interface: Some(first), interfaces: interfaces.collect() };
        let known = counted.iter_mut().find(|stats| stats.attributes.as_ref().is_some_and(|attributes| attributes.id == sandbox.id));
        if let Some(stats) = known {
            stats.windows.get_or_insert_default().network = Some(network);
            continue;
        }
        let attributes =
            v1::PodSandboxAttributes { id: sandbox.id, metadata: sandbox.metadata, labels: sandbox.labels, annotations: sandbox.annotations };
        let windows = v1::WindowsPodSandboxStats { network: Some(network), ..Default::default() };
        counted.push(v1::PodSandboxStats { attributes: Some(attributes), windows: Some(windows), ..Default::default() });
    }
    counted
}

fn interface(endpoint: &Endpoint, stats: &EndpointStats) -> v1::WindowsNetworkInterfaceUsage {
    let value = |value| Some(v1::UInt64Value { value });
    v1::WindowsNetworkInterfaceUsage {
        name: endpoint.name.clone(),
        rx_bytes: value(stats.bytes_received),
        rx_packets_dropped: value(stats.dropped_packets_incoming),
        tx_bytes: value(stats.bytes_sent),
        tx_packets_dropped: value(stats.dropped_packets_outgoing),
    }
}

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

    #[test]
    fn endpoints_are_counted_for_the_sandboxes_that_are_at_them() {
        let endpoint = |name: &str, at: &[&str], bytes: u64| {
            let shared_containers = at.iter().map(|id| (*id).to_owned()).collect();
            let stats = EndpointStats { bytes_received: bytes, bytes_sent: 2, dropped_packets_incoming: 3, ..EndpointStats::default() };
            (Endpoint { name: name.into(), shared_containers, ..Endpoint::default() }, stats)
        };
        let sandbox = |id: &str| v1::PodSandbox { id: id.into(), labels: [("l".to_owned(), id.to_owned())].into(), ..Default::default() };
        let known = v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes { id: "b".into(), ..Default::default() }),
            windows: Some(v1::WindowsPodSandboxStats { cpu: Some(v1::WindowsCpuUsage::default()), ..Default::default() }),
            ..Default::default()
        };
        let endpoints = [endpoint("one", &["A", "other"], 1), endpoint("two", &["b"], 7), endpoint("three", &["a"], 9)];
        let at = Timestamp::from_nanosecond(5).unwrap();
        // A pod on the host's network has no endpoint.
        let all = joined(vec![known], vec![sandbox("a"), sandbox("b"), sandbox("host")], &endpoints, at);
        assert_eq!(all.len(), 2);
        assert!(all[0].windows.as_ref().unwrap().cpu.is_some(), "what the runtime counts stays");
        let names = |stats: &v1::PodSandboxStats| {
            let (at, interfaces) = of_sandbox(stats).unwrap();
            (at, interfaces.iter().map(|one| (one.name.clone(), one.received[0])).collect::<Vec<_>>())
        };
        assert_eq!(names(&all[0]), (5, vec![("two".into(), Some(7))]));
        assert_eq!(names(&all[1]), (5, vec![("one".into(), Some(1)), ("three".into(), Some(9))]));
        assert_eq!(all[1].attributes.as_ref().unwrap().labels["l"], "a");
        let (_, interfaces) = of_sandbox(&all[1]).unwrap();
        assert_eq!((interfaces[0].received, interfaces[0].sent), ([Some(1), None, None, Some(3)], [Some(2), None, None, Some(0)]));
    }
}
