use std::net::IpAddr;

use cluster::Key;
use hcn::document::{DistributionType, EndpointFlags, IpConfiguration};
use hcn::{LoadBalancerFlags, PortMappingFlags};

use super::*;
use crate::table::{Backend, Front, IpFamily, Kind, Protocol, Vip};

const UID: &str = "5c8d0000-0000-0000-0000-000000000001";

fn key(vip: Option<&str>, port: u16) -> FrontKey {
    FrontKey { vip: vip.map_or(Vip::Node(IpFamily::V4), |ip| Vip::Address(ip.parse().unwrap())), protocol: Protocol::Tcp, port }
}

fn front(kind: Kind, backends: &[(&str, u16, bool)]) -> Front {
    let backends = backends.iter().map(|&(ip, port, local)| Backend { address: ip.parse().unwrap(), port, local }).collect();
    Front { backends, ..Front::new("default/web:80", kind) }
}

fn table(fronts: Vec<(FrontKey, Front)>) -> Table {
    let mut table = Table::default();
    for (i, entry) in fronts.into_iter().enumerate() {
        table.set_service(&Key::new("default", format!("s{i}")), vec![entry]);
    }
    table
}

fn endpoint(ip: &str, remote: bool, id: Guid) -> HostComputeEndpoint {
    HostComputeEndpoint {
        id,
        ip_configurations: vec![IpConfiguration { ip_address: ip.into(), ..IpConfiguration::default() }],
        flags: if remote { EndpointFlags::REMOTE } else { EndpointFlags::default() },
        ..HostComputeEndpoint::default()
    }
}

fn mirror(endpoints: &[HostComputeEndpoint]) -> Mirror {
    let mut mirror = Mirror::default();
    mirror.set_endpoints(UID, endpoints);
    mirror
}

/// Carries a plan out on the mirror alone, as a service that refuses nothing would.
fn carry_out(mirror: &mut Mirror, plan: &Plan) {
    for step in plan.steps.clone() {
        match step {
            Step::CreateRemote { id, address } => drop(mirror.remotes.insert(address, id)),
            Step::Put { key, document, .. } => mirror.put(key, document),
            Step::Delete { key, .. } => mirror.remove(&key),
            Step::DeleteRemote { id, address } => {
                assert_eq!(mirror.uses(&id), 0, "{address} is still named");
                mirror.remotes.remove(&address);
            }
        }
    }
}

fn all(mirror: &Mirror, table: &Table, rules: Rules) -> Plan {
    plan(UID, mirror, table, Scope::All, rules)
}

#[test]
fn first_programming_prefers_dns_and_local_backends() {
    let mut dns = front(Kind::ClusterIp, &[("192.168.2.9", 53, false)]);
    dns.urgent = true;
    let table = table(vec![
        (key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.2.3", 8080, false), ("192.168.2.4", 8080, false)])),
        (key(Some("10.96.0.2"), 80), front(Kind::ClusterIp, &[("192.168.1.5", 80, true), ("192.168.2.3", 80, false)])),
        (key(Some("10.96.0.10"), 53), dns),
        (key(None, 30080), front(Kind::NodePort, &[("192.168.2.3", 8080, false)])),
        (key(Some("10.96.0.3"), 80), front(Kind::ClusterIp, &[])),
    ]);
    let mut mirror = mirror(&[endpoint("192.168.1.5", false, Guid::random())]);
    let first = all(&mirror, &table, Rules::default());
    insta::assert_snapshot!(first.to_string(), @r"
    create remote endpoint 192.168.2.3
    create remote endpoint 192.168.2.4
    create remote endpoint 192.168.2.9
    create load balancer 10.96.0.10:53/tcp -> 1 endpoints at 53
    create load balancer 10.96.0.2:80/tcp -> 2 endpoints at 80
    create load balancer 10.96.0.1:80/tcp -> 2 endpoints at 8080
    create load balancer node:30080/tcp -> 1 endpoints at 8080
    ");
    carry_out(&mut mirror, &first);
    assert_eq!(all(&mirror, &table, Rules::default()), Plan::default(), "a second pass has nothing to do");
    // A restart lists the same objects and adopts them.
    let mut again = Mirror::default();
    let remotes: Vec<HostComputeEndpoint> = mirror.remotes.iter().map(|(ip, id)| endpoint(&ip.to_string(), true, *id)).collect();
    let locals = mirror.local.iter().map(|(ip, id)| endpoint(&ip.to_string(), false, *id));
    again.set_endpoints(UID, &remotes.into_iter().chain(locals).collect::<Vec<_>>());
    again.set_load_balancers(UID, mirror.load_balancers().values().cloned().collect());
    assert_eq!(all(&again, &table, Rules::default()), Plan::default());
}

#[test]
fn a_changed_backend_costs_its_own_writes_only() {
    let many: Vec<(FrontKey, Front)> =
        (1..=200).map(|i| (key(Some(&format!("10.96.1.{i}")), 80), front(Kind::ClusterIp, &[("192.168.2.3", 80, false)]))).collect();
    let mut table = table(many);
    let mut mirror = Mirror::default();
    let first = all(&mirror, &table, Rules::default());
    carry_out(&mut mirror, &first);
    let changed = key(Some("10.96.1.1"), 80);
    table.set_service(&Key::new("default", "s0"), vec![(changed, front(Kind::ClusterIp, &[("192.168.2.7", 80, false)]))]);
    let dirty = BTreeSet::from([changed]);
    let modify = Rules { modify: true, ..Rules::default() };
    let next = plan(UID, &mirror, &table, Scope::Some(&dirty), modify);
    insta::assert_snapshot!(next.to_string(), @r"
    create remote endpoint 192.168.2.7
    modify load balancer 10.96.1.1:80/tcp -> 1 endpoints at 80
    ");
    carry_out(&mut mirror, &next);
    table.set_service(&Key::new("default", "s0"), Vec::new());
    let gone = plan(UID, &mirror, &table, Scope::Some(&dirty), Rules::default());
    insta::assert_snapshot!(gone.to_string(), @r"
    delete load balancer 10.96.1.1:80/tcp
    delete remote endpoint 192.168.2.7
    ");
}

#[test]
fn without_modify_it_deletes_and_creates() {
    let mut table = table(vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.2.3", 80, false)]))]);
    let mut mirror = Mirror::default();
    let first = all(&mirror, &table, Rules::default());
    carry_out(&mut mirror, &first);
    table.set_service(&Key::new("default", "s0"), vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.2.4", 80, false)]))]);
    insta::assert_snapshot!(all(&mirror, &table, Rules::default()).to_string(), @r"
    create remote endpoint 192.168.2.4
    replace load balancer 10.96.0.1:80/tcp -> 1 endpoints at 80
    delete remote endpoint 192.168.2.3
    ");
}

#[test]
fn losing_the_last_backend_deletes_and_never_sends_an_empty_list() {
    let mut table = table(vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.2.3", 80, false)]))]);
    let mut mirror = Mirror::default();
    let first = all(&mirror, &table, Rules::default());
    carry_out(&mut mirror, &first);
    table.set_service(&Key::new("default", "s0"), vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[]))]);
    insta::assert_snapshot!(all(&mirror, &table, Rules::default()).to_string(), @r"
    delete load balancer 10.96.0.1:80/tcp
    delete remote endpoint 192.168.2.3
    ");
}

#[test]
fn what_is_not_ours_is_left_alone_and_used() {
    let foreign = Guid::random();
    let table = table(vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.2.3", 80, false)]))]);
    let mut mirror = mirror(&[endpoint("192.168.2.3", true, foreign), endpoint("192.168.2.4", true, Guid::random())]);
    let mut other = HostComputeLoadBalancer::new(Some("10.96.9.9".parse().unwrap()), hcn::Protocol::TCP, 80, 80, vec![foreign]);
    other.id = Guid::random();
    mirror.set_load_balancers(UID, vec![other, HostComputeLoadBalancer::default()]);
    let plan = all(&mirror, &table, Rules::default());
    insta::assert_snapshot!(plan.to_string(), @"create load balancer 10.96.0.1:80/tcp -> 1 endpoints at 80");
}

#[test]
fn a_local_endpoint_replaces_the_remote_one_with_its_address() {
    let table = table(vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.1.5", 80, false)]))]);
    let mut mirror = Mirror::default();
    let first = all(&mirror, &table, Rules::default());
    carry_out(&mut mirror, &first);
    let pod = Guid::random();
    mirror.local.insert("192.168.1.5".parse().unwrap(), pod);
    let next = all(&mirror, &table, Rules { modify: true, ..Rules::default() });
    insta::assert_snapshot!(next.to_string(), @r"
    modify load balancer 10.96.0.1:80/tcp -> 1 endpoints at 80
    delete remote endpoint 192.168.1.5
    ");
    carry_out(&mut mirror, &next);
    assert_eq!(mirror.load_balancers()[&key(Some("10.96.0.1"), 80)].host_compute_endpoints, [pod]);
}

#[test]
fn a_local_pod_without_endpoint_waits_and_the_others_serve() {
    let table = table(vec![(key(Some("10.96.0.1"), 80), front(Kind::ClusterIp, &[("192.168.1.5", 80, true), ("192.168.2.3", 80, false)]))]);
    let plan = all(&Mirror::default(), &table, Rules::default());
    insta::assert_snapshot!(plan.to_string(), @r"
    create remote endpoint 192.168.2.3
    create load balancer 10.96.0.1:80/tcp -> 1 endpoints at 80
    wait 10.96.0.1:80/tcp: the pod at 192.168.1.5 has no endpoint in HNS yet
    ");
    assert_eq!(plan.missing.into_iter().collect::<Vec<_>>(), ["192.168.1.5".parse::<IpAddr>().unwrap()]);
}

#[test]
fn one_port_a_load_balancer() {
    let table = table(vec![(
        key(Some("10.96.0.1"), 80),
        front(Kind::ClusterIp, &[("192.168.2.3", 80, false), ("192.168.2.4", 8080, false), ("192.168.2.5", 8080, false)]),
    )]);
    let plan = all(&Mirror::default(), &table, Rules::default());
    assert!(plan.to_string().contains("2 endpoints at 8080"), "{plan}");
    assert!(plan.notes[0].contains("1 backends with another port than 8080 are left out"), "{plan}");
}

#[test]
fn documents_carry_upstreams_flags() {
    let rules = Rules { cluster_ip_dsr: true, dsr: true, affinity: true, modify: true };
    let document = |vip: Option<&str>, front: &Front, rules| load_balancer(Guid::NIL, &key(vip, 80), front, 8080, vec![Guid::NIL], rules);
    let mut sticky = front(Kind::ClusterIp, &[]);
    sticky.affinity = Some(60);
    let cluster_ip = document(Some("10.96.0.1"), &sticky, rules);
    assert_eq!((cluster_ip.flags, cluster_ip.port_mappings[0].flags), (LoadBalancerFlags::DSR, PortMappingFlags::default()));
    assert_eq!(cluster_ip.port_mappings[0].distribution_type, DistributionType::SOURCE_IP);
    assert_eq!(cluster_ip.source_vip, "", "an L2Bridge network has none");
    assert_eq!(document(Some("10.96.0.1"), &sticky, Rules::default()).port_mappings[0].distribution_type, 0);
    let mut node_port = front(Kind::NodePort, &[]);
    let plain = document(None, &node_port, rules);
    assert_eq!((plain.frontend_vips.len(), plain.flags.0, plain.port_mappings[0].flags.0), (0, 0, 18));
    node_port.keep_client = true;
    assert_eq!(document(None, &node_port, rules).flags, LoadBalancerFlags::DSR);
    let external = document(Some("192.0.2.9"), &front(Kind::ExternalIp, &[]), rules);
    assert_eq!((external.flags.0, external.port_mappings[0].flags.0), (0, 16));
    assert_eq!(document(Some("fd00::9"), &front(Kind::LoadBalancer, &[]), rules).flags, LoadBalancerFlags::IPV6);
}

/// The backend over the simulated service.
mod over_the_simulator {
    use hcn::{HResult, HnsVersion, HostComputeNetwork, NetworkType, Subnet};
    use hns_sim::Simulator;
    use hns_sim::admin::Fault;
    use hns_sim::kernel::NoKernel;
    use hns_sim::switches::Switches;

    use super::*;

    struct Host {
        simulator: Simulator,
        client: HcnClient,
        network: Guid,
    }

    impl Host {
        async fn new(version: HnsVersion) -> Self {
            let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
            let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
            let client = HcnClient::new(simulator.session());
            let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), "192.168.1.1".parse().unwrap());
            let network = client.create_network(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).await.unwrap().id;
            Self { simulator, client, network }
        }

        async fn pod(&self, ip: &str) -> Guid {
            let address = format!("{ip}/24").parse().unwrap();
            self.client.create_endpoint(&self.network, Guid::random(), &HostComputeEndpoint::local("pod", address, None)).await.unwrap().id
        }

        fn backend(&self) -> Hns {
            Hns::new(self.client.clone(), UID, "pods", false)
        }

        fn fail(&self, call: &str, hresult: HResult, count: u32) {
            let fault = Fault { name: "fail-call".into(), call: Some(call.into()), hresult: Some(hresult), count: Some(count), ..Fault::default() };
            self.simulator.desk().add_fault(fault).unwrap();
        }

        /// Front end → addresses of its backends, as the service has them.
        async fn seen(&self) -> Vec<String> {
            let endpoints = self.client.endpoints().await.unwrap();
            let ip = |id: &Guid| {
                endpoints.iter().find(|e| e.id == *id).and_then(HostComputeEndpoint::ip).map_or("dangling".to_owned(), |ip| ip.to_string())
            };
            let mut lines: Vec<String> = self
                .client
                .load_balancers()
                .await
                .unwrap()
                .iter()
                .map(|lb| {
                    let mut ips: Vec<String> = lb.host_compute_endpoints.iter().map(ip).collect();
                    ips.sort();
                    format!("{} -> {}", front_key(lb).unwrap(), ips.join(" "))
                })
                .collect();
            lines.sort();
            lines
        }

        async fn remotes(&self) -> usize {
            self.client.endpoints().await.unwrap().iter().filter(|e| e.is_remote()).count()
        }
    }

    const OLD: HnsVersion = HnsVersion::new(13, 3);
    const NEW: HnsVersion = HnsVersion::new(15, 5);

    fn web() -> FrontKey {
        key(Some("10.96.0.1"), 80)
    }

    fn set(table: &mut Table, backends: &[(&str, u16, bool)]) -> BTreeSet<FrontKey> {
        let fronts = if backends.is_empty() { Vec::new() } else { vec![(web(), front(Kind::ClusterIp, backends))] };
        table.set_service(&Key::new("default", "web"), fronts).into_iter().map(|change| change.key).collect()
    }

    #[tokio::test]
    async fn follows_a_service_through_its_life() {
        for version in [OLD, NEW] {
            let host = Host::new(version).await;
            let (mut backend, mut table) = (host.backend(), Table::default());
            let dirty = set(&mut table, &[("192.168.2.3", 80, false)]);
            assert_eq!(backend.sync(&table, &dirty, false).await.unwrap().failures, []);
            assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
            host.pod("192.168.1.5").await;
            let dirty = set(&mut table, &[("192.168.1.5", 80, true), ("192.168.2.4", 80, false)]);
            assert_eq!(backend.sync(&table, &dirty, false).await.unwrap().failures, []);
            assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.1.5 192.168.2.4"]);
            assert_eq!(host.remotes().await, 1, "the unused one went");
            let dirty = set(&mut table, &[]);
            backend.sync(&table, &dirty, false).await.unwrap();
            assert_eq!((host.seen().await.len(), host.remotes().await), (0, 0));
        }
    }

    #[tokio::test]
    async fn a_restart_adopts_and_a_full_pass_repairs() {
        let host = Host::new(OLD).await;
        let mut table = Table::default();
        let dirty = set(&mut table, &[("192.168.2.3", 80, false)]);
        host.backend().sync(&table, &dirty, false).await.unwrap();
        let mut second = host.backend();
        assert_eq!(second.sync(&table, &BTreeSet::new(), true).await.unwrap(), Outcome::default(), "nothing is wiped or written");
        let id = load_balancer_id(UID, &web());
        host.client.delete_load_balancer(&id).await.unwrap();
        assert_eq!(second.sync(&table, &BTreeSet::new(), true).await.unwrap().writes, 1);
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
        // Leftovers of a predecessor that knew more Services go.
        let mut fresh = Table::default();
        set(&mut fresh, &[]);
        host.backend().sync(&fresh, &BTreeSet::new(), true).await.unwrap();
        assert_eq!((host.seen().await.len(), host.remotes().await), (0, 0));
    }

    #[tokio::test]
    async fn failures_are_named_and_retried() {
        let host = Host::new(OLD).await;
        let (mut backend, mut table) = (host.backend(), Table::default());
        let dirty = set(&mut table, &[("192.168.2.3", 80, false), ("192.168.2.4", 80, false)]);
        host.fail("HcnCreateLoadBalancer", HResult::FAIL, 1);
        let first = backend.sync(&table, &dirty, false).await.unwrap();
        assert!(first.failures[0].reason.contains("cannot create load balancer 10.96.0.1:80/tcp"), "{first:?}");
        assert_eq!(backend.sync(&table, &dirty, false).await.unwrap().failures, []);
        let dirty = set(&mut table, &[("192.168.2.5", 80, false), ("192.168.2.6", 80, false)]);
        host.fail("HcnCreateEndpoint", HResult::FAIL, 1);
        let part = backend.sync(&table, &dirty, false).await.unwrap();
        assert!(part.failures[0].reason.contains("serves with the others"), "{part:?}");
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.6"], "half a service is better than none");
        assert_eq!(backend.sync(&table, &dirty, false).await.unwrap().failures, []);
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.5 192.168.2.6"]);
    }

    #[tokio::test]
    async fn a_modify_that_is_refused_falls_back_for_good() {
        let host = Host::new(NEW).await;
        let (mut backend, mut table) = (host.backend(), Table::default());
        let dirty = set(&mut table, &[("192.168.2.3", 80, false)]);
        backend.sync(&table, &dirty, false).await.unwrap();
        host.fail("HcnModifyLoadBalancer", HResult::NOT_IMPLEMENTED, 1);
        let dirty = set(&mut table, &[("192.168.2.4", 80, false)]);
        assert_eq!(backend.sync(&table, &dirty, false).await.unwrap().failures, []);
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.4"]);
        backend.sync(&table, &BTreeSet::new(), true).await.unwrap();
        assert!(!backend.state.as_ref().unwrap().rules.modify);
    }

    #[tokio::test]
    async fn a_pod_that_comes_late_is_found() {
        let host = Host::new(OLD).await;
        let (mut backend, mut table) = (host.backend(), Table::default());
        let dirty = set(&mut table, &[("192.168.1.5", 80, true)]);
        let waiting = backend.sync(&table, &dirty, false).await.unwrap();
        assert!(waiting.failures[0].reason.contains("has no endpoint in HNS yet"), "{waiting:?}");
        host.pod("192.168.1.5").await;
        assert_eq!(backend.sync(&table, &dirty, false).await.unwrap().failures, []);
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.1.5"]);
    }

    #[tokio::test]
    async fn another_programs_load_balancer_is_named_and_left() {
        let host = Host::new(OLD).await;
        let pod = host.pod("192.168.1.5").await;
        let theirs = HostComputeLoadBalancer::new(Some("10.96.0.1".parse().unwrap()), hcn::Protocol::TCP, 80, 9999, vec![pod]);
        let id = host.client.create_load_balancer(Guid::random(), &theirs).await.unwrap().id;
        let (mut backend, mut table) = (host.backend(), Table::default());
        let dirty = set(&mut table, &[("192.168.2.3", 80, false)]);
        let outcome = backend.sync(&table, &dirty, false).await.unwrap();
        assert!(outcome.failures[0].reason.contains(&id.to_string()), "{outcome:?}");
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.1.5"]);
    }

    #[tokio::test]
    async fn without_the_network_it_waits_and_touches_nothing() {
        let host = Host::new(OLD).await;
        let mut table = Table::default();
        let dirty = set(&mut table, &[("192.168.2.3", 80, false)]);
        let mut backend = Hns::new(host.client.clone(), UID, "later", false);
        assert!(backend.sync(&table, &dirty, false).await.unwrap_err().contains("does not exist yet"));
        let mut backend = host.backend();
        backend.sync(&table, &dirty, false).await.unwrap();
        host.fail("HcnEnumerateNetworks", HResult::FAIL, 1);
        backend.sync(&table, &BTreeSet::new(), true).await.unwrap_err();
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"], "an error proves nothing");
    }
}

/// With real packets: the simulated service over this kernel.
#[cfg(target_os = "linux")]
mod with_packets {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use hcn::{EndpointPolicy, HnsVersion, HostComputeNamespace, HostComputeNetwork, NetworkType, Subnet};
    use hns_sim::Simulator;
    use hns_sim::linux::LinuxKernel;
    use hns_sim::switches::Switches;
    use linux_sys::netlink::{Route, Rtnl};
    use linux_sys::ns::{NetNs, in_lab};

    use super::*;

    struct Lab {
        dir: tempfile::TempDir,
        client: HcnClient,
        network: Guid,
        peer: NetNs,
    }

    fn link(rtnl: &Rtnl, name: &str, address: &str) -> u32 {
        let index = rtnl.link(name).unwrap().unwrap().index;
        rtnl.add_addr(index, address.parse().unwrap()).unwrap();
        rtnl.set_up(index).unwrap();
        index
    }

    impl Lab {
        /// This namespace is a Windows node; beyond `eth0` is a peer with pods of its own.
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let peer = NetNs::new_anonymous().unwrap();
            let (node, there) = (Rtnl::open().unwrap(), Rtnl::open_in(&peer).unwrap());
            node.add_veth("eth0", "eth0", Some(&peer)).unwrap();
            link(&node, "eth0", "10.240.0.12/24");
            let uplink = link(&there, "eth0", "10.240.0.11/24");
            there.add_addr(uplink, "192.168.2.3/32".parse().unwrap()).unwrap();
            node.add_route(&Route::new("192.168.2.0/24".parse().unwrap()).via("10.240.0.11".parse().unwrap())).unwrap();
            node.add_route(&Route::new("0.0.0.0/0".parse().unwrap()).via("10.240.0.11".parse().unwrap())).unwrap();
            there.add_route(&Route::new("192.168.1.0/24".parse().unwrap()).via("10.240.0.12".parse().unwrap())).unwrap();
            let kernel = LinuxKernel::open(dir.path(), "eth0").unwrap();
            let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
            let client = HcnClient::new(simulator.session());
            let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), "192.168.1.1".parse().unwrap());
            let network = client.create_network(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).await.unwrap().id;
            let host = HostComputeEndpoint::local("pods_ep", "192.168.1.2/24".parse().unwrap(), None);
            let host = client.create_endpoint(&network, Guid::random(), &host).await.unwrap().id;
            client.attach_endpoint_to_host(&host).await.unwrap();
            Self { dir, client, network, peer }
        }

        async fn pod(&self, ip: &str) -> NetNs {
            let wanted = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
            let namespace = self.client.create_namespace(Guid::random(), &wanted).await.unwrap().id;
            let cidrs = ["192.168.0.0/16", "10.96.0.0/12", "10.240.0.0/24"].map(|cidr| cidr.parse().unwrap());
            let endpoint = HostComputeEndpoint::local(ip, format!("{ip}/24").parse().unwrap(), "192.168.1.2".parse().ok())
                .with_policy(EndpointPolicy::outbound_nat(cidrs))
                .with_policy(EndpointPolicy::sdn_route(cidrs[1]))
                .with_policy(EndpointPolicy::sdn_route("10.240.0.12/32".parse().unwrap()));
            let endpoint = self.client.create_endpoint(&self.network, Guid::random(), &endpoint).await.unwrap().id;
            self.client.add_endpoint_to_namespace(&namespace, &endpoint).await.unwrap();
            NetNs::open(&self.dir.path().join(namespace.to_string())).unwrap()
        }
    }

    fn serve(ns: &NetNs, name: &'static str) {
        let listener = ns.run(|| TcpListener::bind("0.0.0.0:8080").unwrap()).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(name.as_bytes());
            }
        });
    }

    fn ask(ns: &NetNs, to: &str) -> String {
        let to: SocketAddr = to.parse().unwrap();
        ns.run(|| match TcpStream::connect_timeout(&to, Duration::from_millis(800)) {
            Ok(mut stream) => {
                let mut text = String::new();
                stream.read_to_string(&mut text).map(|_| text).unwrap_or_else(|error| error.to_string())
            }
            Err(error) => error.to_string(),
        })
        .unwrap()
    }

    /// Asking for a link makes the kernel act on its carrier now; by itself it may take a second. Bridges need their ports.
    fn settle(rtnl: &Rtnl) {
        let mut links = rtnl.links().unwrap();
        links.sort_by_key(|link| link.kind == "bridge");
        links.iter().for_each(|link| drop(rtnl.link(&link.name).unwrap()));
    }

    async fn services_answer() {
        let lab = Lab::new().await;
        let (a, b) = (lab.pod("192.168.1.5").await, lab.pod("192.168.1.6").await);
        for ns in [&a, &b, &lab.peer, &NetNs::current().unwrap()] {
            settle(&Rtnl::open_in(ns).unwrap());
        }
        serve(&b, "local");
        serve(&lab.peer, "remote");
        let mut table = Table::default();
        let local = front(Kind::ClusterIp, &[("192.168.1.6", 8080, true)]);
        let remote = front(Kind::ClusterIp, &[("192.168.2.3", 8080, false)]);
        let node_port = front(Kind::NodePort, &[("192.168.1.6", 8080, true)]);
        let fronts = vec![(key(Some("10.96.0.1"), 80), local), (key(Some("10.96.0.2"), 80), remote), (key(None, 30080), node_port)];
        let api = (key(Some("10.96.0.3"), 443), front(Kind::ClusterIp, &[("10.240.0.11", 8080, false)]));
        table.set_service(&Key::new("default", "kubernetes"), vec![api]);
        table.set_service(&Key::new("default", "web"), fronts);
        let outcome = Hns::new(lab.client.clone(), UID, "pods", false).sync(&table, &BTreeSet::new(), true).await.unwrap();
        assert_eq!(outcome.failures, []);
        assert_eq!(ask(&a, "10.96.0.1:80"), "local");
        assert_eq!(ask(&b, "10.96.0.1:80"), "local", "a pod reaches itself through its Service");
        assert_eq!(ask(&a, "10.96.0.2:80"), "remote");
        assert_eq!(ask(&a, "10.96.0.3:443"), "remote", "a backend off the pod network, as the API server is");
        assert_eq!(ask(&lab.peer, "10.240.0.12:30080"), "local", "by node port from another node");
        let node = NetNs::current().unwrap();
        assert_eq!(ask(&node, "10.96.0.1:80"), "local", "from the node itself");
        assert_eq!(ask(&node, "10.240.0.12:30080"), "local");
    }

    #[test]
    fn pods_nodes_and_neighbours_reach_services() {
        in_lab("hns::tests::with_packets::pods_nodes_and_neighbours_reach_services", || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(services_answer());
        });
    }
}
