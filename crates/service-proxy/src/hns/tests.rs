//! What the tests of this backend share: a simulated service without packets, and a proxy that is driven until it rests.

mod budget;
mod drift;
mod life;
#[cfg(target_os = "linux")]
mod model;
#[cfg(target_os = "linux")]
mod modes;
#[cfg(target_os = "linux")]
mod networks;
#[cfg(target_os = "linux")]
mod packets;
mod plans;
mod upstream;

use std::collections::BTreeMap;

use cluster::Key;
use hcn::document::{NetworkPolicyType, RemoteSubnetRoute};
use hcn::{Guid, HResult, HnsVersion, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNetwork, NetworkPolicy, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::admin::{CallFilter, Count, Fault, LoggedCall};
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use test_lab::LIMIT;

use super::*;
use crate::table::{BackendAddress, IpFamily, Kind, Protocol, Vip, VipAddress};

const UID: &str = "5c8d0000-0000-0000-0000-000000000001";
/// Windows Server 2022: no modify.
const OLD: HnsVersion = HnsVersion::new(13, 3);
/// Windows Server 2025: modify.
const NEW: HnsVersion = HnsVersion::new(15, 5);
/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(1 << 31);
/// Ids are compared, and nothing else is asked for by itself, which would add to counted calls and repair what the comparison missed.
const COMPARED: Periods = Periods { enumerate: Duration::from_secs(3), network: NEVER, round: NEVER, pause: NEVER };

fn key(address: Option<&str>, port: u16) -> VipKey {
    VipKey { address: address.map_or(VipAddress::Node(IpFamily::V4), |ip| VipAddress::Ip(ip.parse().unwrap())), protocol: Protocol::Tcp, port }
}

fn backends(list: &[(&str, u16, bool)]) -> crate::table::Backends {
    list.iter().map(|&(ip, port, local)| BackendAddress { address: ip.parse().unwrap(), port, local }).collect()
}

fn vip(kind: Kind, list: &[(&str, u16, bool)]) -> Vip {
    Vip { backends: backends(list), ..Vip::new("default/web:80", kind) }
}

/// A simulated Windows host without packets.
struct Host {
    simulator: Simulator,
    client: HcnClient,
    network: Guid,
}

impl Host {
    async fn new(version: HnsVersion) -> Self {
        Self::with(Switches::of(version), NetworkType::L2Bridge).await
    }

    async fn overlay(version: HnsVersion) -> Self {
        Self::with(Switches::of(version), NetworkType::Overlay).await
    }

    /// A bridge with addresses of both families.
    async fn dual(version: HnsVersion) -> Self {
        let mut host = Self::new(version).await;
        host.client.delete_network(&host.network).await.unwrap();
        let v4 = Subnet::new("192.168.4.0/24".parse().unwrap(), "192.168.4.1".parse().unwrap());
        let mut network = HostComputeNetwork::new("pods", NetworkType::L2Bridge, v4);
        network.ipams[0].subnets.push(Subnet::new("fd00:4::/64".parse().unwrap(), "fd00:4::1".parse().unwrap()));
        host.network = host.client.create_network(Guid::random(), &network).await.unwrap().id;
        host
    }

    async fn with(switches: Switches, network_type: NetworkType) -> Self {
        let kernel = NoKernel { management: Some("10.0.0.1".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), switches, None).unwrap();
        let client = HcnClient::new(simulator.session());
        let mut subnet = Subnet::new("192.168.4.0/24".parse().unwrap(), "192.168.4.1".parse().unwrap());
        let overlay = network_type == NetworkType::Overlay;
        if overlay {
            subnet.policies.push(NetworkPolicy { settings: serde_json::json!({"IsolationId": 4096}), ..NetworkPolicy::default() });
            subnet.policies[0].policy_type = NetworkPolicyType::Vsid;
        }
        let mut network = HostComputeNetwork::new("pods", network_type, subnet);
        if overlay {
            network = network.with_policy(remote_subnet("192.168.2.0/24", "10.0.0.3"));
        }
        let network = client.create_network(Guid::random(), &network).await.unwrap().id;
        Self { simulator, client, network }
    }

    async fn endpoint(&self, name: &str, ip: &str) -> Guid {
        let address = format!("{ip}/24").parse().unwrap();
        self.client.create_endpoint(&self.network, Guid::random(), &HostComputeEndpoint::local(name, address, None)).await.unwrap().id
    }

    async fn dual_endpoint(&self, name: &str, v4: &str, v6: &str) -> Guid {
        let mut endpoint = HostComputeEndpoint::local(name, format!("{v4}/24").parse().unwrap(), None);
        endpoint.ip_configurations.extend(HostComputeEndpoint::local(name, format!("{v6}/64").parse().unwrap(), None).ip_configurations);
        self.client.create_endpoint(&self.network, Guid::random(), &endpoint).await.unwrap().id
    }

    async fn pod(&self, ip: &str) -> Guid {
        self.endpoint("pod", ip).await
    }

    fn settings(&self) -> Settings {
        Settings { dsr: false, node_ips: vec!["10.0.0.1".parse().unwrap()], periods: COMPARED, ..Settings::new("pods") }
    }

    fn overlay_settings(&self) -> Settings {
        let source_vip = Some("192.168.4.2".parse().unwrap());
        Settings { source_vip, host_mac: Some("00-15-5D-0A-0B-0C".into()), dsr: true, ..self.settings() }
    }

    fn proxy(&self) -> Proxy {
        self.proxy_with(self.settings())
    }

    fn proxy_with(&self, settings: Settings) -> Proxy {
        Proxy { hns: Hns::new(&self.client.clone().with_deadline(LIMIT), UID, settings), table: Table::default() }
    }

    /// A proxy that gives calls up soon, for services whose calls hang.
    fn hasty(&self) -> Proxy {
        let client = self.client.clone().with_deadline(Duration::from_millis(500));
        Proxy { hns: Hns::new(&client, UID, self.settings()), table: Table::default() }
    }

    fn fault(&self, text: &str) {
        self.simulator.add_fault(text.parse().unwrap()).unwrap();
    }

    fn fail(&self, call: &str, hresult: HResult, count: u32) {
        let fault =
            Fault { name: "fail-call".into(), call: Some(call.into()), hresult: Some(hresult), count: Some(Count::Calls(count)), ..Fault::default() };
        self.simulator.add_fault(fault).unwrap();
    }

    /// Every load balancer of the service, by its VIP.
    async fn balancers(&self) -> BTreeMap<VipKey, HostComputeLoadBalancer> {
        let list = self.client.load_balancers().await.unwrap();
        list.into_iter().map(|balancer| (vip_key(&balancer).unwrap(), balancer)).collect()
    }

    /// VIP → addresses of its backends, as the service has them.
    async fn seen(&self) -> Vec<String> {
        let endpoints = self.client.endpoints().await.unwrap();
        let ip =
            |id: &Guid| endpoints.iter().find(|e| e.id == *id).and_then(HostComputeEndpoint::ip).map_or("dangling".to_owned(), |ip| ip.to_string());
        let line = |(key, balancer): (VipKey, HostComputeLoadBalancer)| {
            let mut ips: Vec<String> = balancer.host_compute_endpoints.iter().map(ip).collect();
            ips.sort();
            format!("{key} -> {}", ips.join(" "))
        };
        self.balancers().await.into_iter().map(line).collect()
    }

    /// Addresses of remote endpoints.
    async fn remotes(&self) -> Vec<String> {
        let endpoints = self.client.endpoints().await.unwrap();
        let mut ips: Vec<String> = endpoints.iter().filter(|e| e.is_remote()).filter_map(|e| Some(e.ip()?.to_string())).collect();
        ips.sort();
        ips
    }

    /// The calls since the log was last reset.
    fn calls(&self) -> Vec<LoggedCall> {
        self.simulator.controls().calls.select(&CallFilter::default()).into_iter().cloned().collect()
    }

    fn forget_calls(&self) {
        self.simulator.controls().calls.reset();
    }
}

/// A call that hangs would keep its thread, and the runtime would wait for that.
impl Drop for Host {
    fn drop(&mut self) {
        self.simulator.clear_faults();
    }
}

fn remote_subnet(prefix: &str, provider: &str) -> NetworkPolicy {
    NetworkPolicy::remote_subnet_route(&RemoteSubnetRoute {
        destination_prefix: prefix.into(),
        isolation_id: 4096,
        provider_address: provider.into(),
        distributed_router_mac_address: "00-15-5D-00-00-03".into(),
        ..RemoteSubnetRoute::default()
    })
}

/// A backend with its table.
struct Proxy {
    hns: Hns,
    table: Table,
}

impl Proxy {
    /// What one Service wants from now on.
    fn set(&mut self, service: &str, vips: Vec<(VipKey, Vip)>) {
        let changes = self.table.set_service(&Key::new("default", service), vips);
        self.hns.touch(changes.into_iter().map(|change| change.key), &self.table);
    }

    /// One Service with one ClusterIP; without backends it is gone.
    fn web(&mut self, list: &[(&str, u16, bool)]) {
        self.set("web", if list.is_empty() { Vec::new() } else { vec![(web(), vip(Kind::ClusterIp, list))] });
    }

    /// Goes on until `done`.
    async fn until(&mut self, what: &str, done: impl Fn(&Engine) -> bool) {
        let start = Instant::now();
        loop {
            self.hns.begin(&self.table);
            if done(self.hns.engine()) {
                return;
            }
            let left = LIMIT.saturating_sub(start.elapsed());
            let Ok(event) = tokio::time::timeout(left, self.hns.next_event()).await else { panic!("{what} takes too long: {:?}", self.hns.engine()) };
            self.hns.process(event, &self.table);
        }
    }

    /// Goes on until nothing is left to do but to look and to wait.
    async fn rest(&mut self) {
        self.until("to rest", Engine::is_idle).await;
    }

    /// Goes on until every VIP was tried, and those that failed wait for their retry.
    async fn once(&mut self) {
        self.until("to try once", |engine| engine.is_idle() || engine.is_only_waiting()).await;
    }

    fn failing(&self) -> Vec<String> {
        self.hns.engine().failing().values().cloned().collect()
    }
}

fn web() -> VipKey {
    key(Some("10.96.0.1"), 80)
}
