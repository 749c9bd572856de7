//! Foreign changes and restarts of HNS: found in time, repaired in order, and nothing else is touched.

use hns_sim::admin::{Restart, RestartMode};
use hns_sim::latency::mix;
use hns_sim::state::Balancer;

use super::*;

fn services(proxy: &mut Proxy, count: u8) {
    for i in 0..count {
        let (address, pod) = (format!("10.96.1.{i}"), format!("192.168.2.{i}"));
        proxy.set(&address, vec![(key(Some(&address), 80), vip(Kind::ClusterIp, &[(&pod, 80, false)]))]);
    }
    // Behind all others in the order of addresses: only their urgency brings them forward.
    for (name, address, port) in [("kubernetes", "10.97.0.2", 443), ("zz-dns", "10.97.0.10", 53)] {
        let urgent = Vip { urgent: true, ..vip(Kind::ClusterIp, &[("192.168.2.250", port, false)]) };
        proxy.set(name, vec![(key(Some(address), port), urgent)]);
    }
}

impl Host {
    fn count(&self) -> (usize, usize) {
        self.simulator.with_state(|state| (state.balancers.len(), state.endpoints.len()))
    }

    /// The VIPs of creates, in the order in which the service got them: the log has them as they end.
    fn created(&self, proxy: &Proxy) -> Vec<VipKey> {
        let mut calls = self.calls();
        calls.sort_by_key(|call| call.number);
        let ids = calls.iter().filter(|call| call.call == "HcnCreateLoadBalancer").filter_map(|call| call.id);
        ids.filter_map(|id| proxy.table.iter().map(|(key, _)| *key).find(|key| load_balancer_id(UID, key) == id)).collect()
    }
}

/// #135802: a load balancer that something else removed was never remade in the life of the process.
#[tokio::test]
async fn deleted_load_balancer_is_recreated_and_nothing_else_is_written() {
    let host = Host::new(NEW).await;
    let mut proxy = host.proxy();
    services(&mut proxy, 20);
    proxy.rest().await;
    let before = host.balancers().await;
    let id = load_balancer_id(UID, &key(Some("10.96.1.7"), 80));
    host.client.delete_load_balancer(&id).await.unwrap();
    host.forget_calls();
    proxy.until("the repair", |engine| engine.is_idle() && host.count().0 == before.len()).await;
    assert_eq!(host.balancers().await, before);
    let writes: Vec<_> = host.calls().into_iter().filter(|call| call.call.contains("Create") || call.call.contains("Delete")).collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    parity::proved(parity::Hns, &["#135802", "Damage by others is repaired"]);
}

/// #110674: 577 load balancers lost within a minute, days until they were back.
#[tokio::test]
async fn objects_lost_in_a_restart_are_recreated_dns_and_api_server_first() {
    for loss in ["restart-loses-lbs", "restart-loses-endpoints"] {
        let host = Host::new(NEW).await;
        let mut proxy = host.proxy();
        services(&mut proxy, 60);
        proxy.rest().await;
        let (before, seen) = (host.count(), host.seen().await);
        host.fault(loss);
        host.forget_calls();
        host.simulator.restart(Restart { mode: RestartMode::Clean, away_ms: 300, wipe: false }).unwrap();
        host.simulator.clear_faults();
        let back = |engine: &Engine| engine.is_idle() && engine.is_up() && host.count() == before && engine.failing().is_empty();
        proxy.until("the service to be away", |engine| !engine.is_up()).await;
        proxy.until("the repair", back).await;
        assert_eq!(host.seen().await, seen, "{loss}");
        let order = host.created(&proxy);
        if loss == "restart-loses-lbs" {
            let urgent = [key(Some("10.97.0.2"), 443), key(Some("10.97.0.10"), 53)];
            // Begun first; on a busy machine the threads of others may reach the service before. By address they would be the last.
            assert!(urgent.iter().all(|key| order[..order.len() / 2].contains(key)), "{order:?}");
        }
    }
    parity::proved(parity::Hns, &["#110674"]);
}

/// A crash loses all load balancers and half of the endpoints; what is left of them is distinguished from what is new.
#[tokio::test]
async fn hns_crash_leaves_no_dangling_reference_and_no_duplicate() {
    let host = Host::new(OLD).await;
    let pod = host.pod("192.168.4.5").await;
    let mut proxy = host.proxy();
    services(&mut proxy, 40);
    proxy.set("local", vec![(key(Some("10.96.0.3"), 80), vip(Kind::ClusterIp, &[("192.168.4.5", 80, true), ("192.168.2.1", 80, false)]))]);
    proxy.rest().await;
    host.simulator.restart(Restart { mode: RestartMode::Crash, away_ms: 100, wipe: false }).unwrap();
    proxy.until("the service to be away", |engine| !engine.is_up()).await;
    proxy.until("the repair", |engine| engine.is_idle() && host.count().0 == 43).await;
    let seen = host.seen().await;
    assert!(seen.iter().all(|line| !line.contains("dangling")), "{seen:?}");
    assert_eq!(host.remotes().await.len(), 41);
    let lost = host.client.endpoint(&pod).await.unwrap().is_none();
    assert_eq!(!proxy.hns.engine().failing().is_empty(), lost, "a pod that lost its endpoint is reported, one that has it is served");
    parity::proved(parity::Hns, &["Load balancers of HNS keep ids of endpoints that are gone"]);
}

/// Windows-Containers#19: load balancers come back without direct server return; their ids say nothing of that.
#[tokio::test]
async fn objects_changed_by_a_restart_are_read_and_repaired() {
    let host = Host::new(NEW).await;
    let mut proxy = host.proxy_with(Settings { dsr: true, ..host.settings() });
    services(&mut proxy, 30);
    proxy.rest().await;
    let before = host.balancers().await;
    assert!(before.values().all(|balancer| balancer.flags.0 == 1));
    host.fault("restart-drops-dsr");
    host.simulator.restart(Restart { mode: RestartMode::Clean, away_ms: 0, wipe: false }).unwrap();
    host.simulator.clear_faults();
    let right = || host.simulator.with_state(|state| state.balancers.values().all(|balancer| balancer.read().document.flags.0 == 1));
    proxy.until("the repair", |engine| engine.is_idle() && right()).await;
    assert_eq!(host.balancers().await, before);
    parity::proved(parity::Hns, &["Windows-Containers#19"]);
}

/// The service answers nothing, and no notification says that it restarted.
#[tokio::test]
async fn silent_outage_is_detected_by_polling() {
    let host = Host::new(NEW).await;
    let mut proxy = host.proxy();
    services(&mut proxy, 5);
    proxy.rest().await;
    host.fault("svc-down");
    proxy.until("to see it", |engine| engine.unavailable().is_some()).await;
    proxy.web(&[("192.168.2.99", 80, false)]);
    proxy.until("to ask again", |engine| engine.pending() > 0 && !engine.is_up()).await;
    host.simulator.clear_faults();
    proxy.until("the change", |engine| engine.is_idle() && engine.unavailable().is_none()).await;
    assert_eq!(host.count().0, 8);
}

/// A deleted endpoint leaves its id in load balancers, and what is sent to it is lost (facts §3.4).
#[tokio::test]
async fn deleted_remote_endpoint_is_recreated_and_its_load_balancers_rewritten() {
    for version in [OLD, NEW] {
        let host = Host::new(version).await;
        let mut proxy = host.proxy();
        services(&mut proxy, 3);
        proxy.rest().await;
        let victim = host.client.endpoints().await.unwrap().into_iter().find(|e| e.ip() == "192.168.2.1".parse().ok()).unwrap();
        host.client.delete_endpoint(&victim.id).await.unwrap();
        host.forget_calls();
        let again = |engine: &Engine| engine.is_idle() && host.simulator.with_state(|state| state.endpoints.contains_key(&victim.id));
        proxy.until("the repair", again).await;
        let written = if version == OLD { "HcnCreateLoadBalancer" } else { "HcnModifyLoadBalancer" };
        assert_eq!(host.calls().iter().filter(|call| call.call == written).count(), 1, "what named it is written again");
        assert!(host.seen().await.contains(&"10.96.1.1:80/tcp -> 192.168.2.1".to_owned()));
    }
}

/// §3.2.7: upstream wipes every Service when the network is another one. Nothing is wiped; everything is moved over.
#[tokio::test]
async fn recreated_network_is_programmed_again() {
    for version in [OLD, NEW] {
        let host = Host::new(version).await;
        let mut proxy = host.proxy();
        services(&mut proxy, 5);
        proxy.rest().await;
        let seen = host.seen().await;
        for _ in 0..2 {
            host.forget_calls();
            renew_network(&host, &mut proxy).await;
            assert_eq!(serving(&host), seen, "{version:?}");
            // For each VIP an endpoint and a load balancer, and what is tried with the old ones.
            let calls = host.calls().iter().filter(|call| !call.call.starts_with("HcnEnumerate")).count();
            assert!(calls < 40 * 7, "{version:?}: {calls} calls");
        }
        // What could not be deleted is recognised, and neither written nor taken for another program's.
        let mut later = host.proxy();
        services(&mut later, 5);
        later.rest().await;
        assert_eq!((serving(&host), later.hns.engine().writes(), later.failing()), (seen.clone(), 0, Vec::new()), "{version:?}");
        // And the service's restart takes it away.
        host.simulator.restart(Restart { mode: RestartMode::Clean, away_ms: 100, wipe: false }).unwrap();
        later.until("the service to be away", |engine| !engine.is_up()).await;
        later.until("the service", |engine| engine.is_up() && engine.is_idle()).await;
        assert_eq!((serving(&host), later.failing()), (seen, Vec::new()), "{version:?}");
    }
}

/// The network goes, and one of the same name comes.
async fn renew_network(host: &Host, proxy: &mut Proxy) {
    let old = host.client.network_by_name("pods").await.unwrap().unwrap().id;
    host.client.delete_network(&old).await.unwrap();
    proxy.until("to see it", |engine| engine.unavailable().is_some()).await;
    let subnet = Subnet::new("192.168.4.0/24".parse().unwrap(), "192.168.4.1".parse().unwrap());
    let network = host.client.create_network(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).await.unwrap().id;
    proxy.until("the repair", |engine| engine.is_idle() && engine.unavailable().is_none() && engine.is_up()).await;
    let endpoints = host.client.endpoints().await.unwrap();
    assert!(endpoints.iter().all(|endpoint| endpoint.host_compute_network == network));
}

/// VIP → addresses of its backends, of the load balancers that have a network.
fn serving(host: &Host) -> Vec<String> {
    let line = |row: Balancer| {
        let mut ips: Vec<String> = row.backends.iter().map(ToString::to_string).collect();
        ips.sort();
        format!("{} -> {}", vip_key(&row.document).unwrap(), ips.join(" "))
    };
    let mut lines: Vec<(VipKey, String)> = host.simulator.with_state(|state| {
        let rows = state.balancers.values().map(|row| row.read()).filter(|row| !row.network.is_nil());
        rows.map(|row| (vip_key(&row.document).unwrap(), line(row))).collect()
    });
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// A verify finds what ids cannot show: a load balancer of ours that another program rewrote.
#[tokio::test]
async fn foreign_change_of_a_load_balancer_is_found_by_verification() {
    let host = Host::new(NEW).await;
    let mut proxy = host.proxy_with(Settings { periods: Periods { enumerate: NEVER, network: NEVER, ..Periods::default() }, ..host.settings() });
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    let mut other = host.balancers().await.remove(&web()).unwrap();
    other.port_mappings[0].internal_port = 9999;
    host.client.modify_load_balancer(&other.id.clone(), &other).await.unwrap();
    let right = || host.simulator.with_state(|state| state.balancers.values().all(|b| b.read().document.port_mappings[0].internal_port == 80));
    proxy.until("the repair", |engine| engine.is_idle() && right()).await;
}

/// On an overlay, a prefix that moves behind another host takes its endpoints along.
#[tokio::test]
async fn moved_overlay_prefixes_are_followed() {
    let host = Host::overlay(NEW).await;
    let mut proxy = host.proxy_with(host.overlay_settings());
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    let provider = |endpoint: &HostComputeEndpoint| endpoint.policies.iter().find_map(hcn::EndpointPolicy::as_provider_address);
    let of_pod = |list: Vec<HostComputeEndpoint>| list.iter().find(|e| e.ip() == "192.168.2.3".parse().ok()).and_then(provider);
    assert_eq!(of_pod(host.client.endpoints().await.unwrap()), "10.0.0.3".parse().ok());
    let change = |request, policy| hcn::ModifyRequest::network_policies(request, &[policy]);
    let (old, new) = (remote_subnet("192.168.2.0/24", "10.0.0.3"), remote_subnet("192.168.2.0/24", "10.0.0.4"));
    host.client.modify_network(&host.network, change(hcn::RequestType::Remove, old)).await.unwrap();
    host.client.modify_network(&host.network, change(hcn::RequestType::Add, new)).await.unwrap();
    // The network is asked for now and then; a notification of any change of networks has it asked for at once.
    let other = HostComputeNetwork::new("other", NetworkType::Nat, Subnet::new("172.20.0.0/24".parse().unwrap(), "172.20.0.1".parse().unwrap()));
    host.client.create_network(Guid::random(), &other).await.unwrap();
    let moved = || {
        let behind =
            |row: hns_sim::state::Endpoint| row.document.ip() == "192.168.2.3".parse().ok() && provider(&row.document) == "10.0.0.4".parse().ok();
        host.simulator.with_state(|state| state.endpoints.values().any(|row| behind(row.read())))
    };
    proxy.until("the move", |engine| engine.is_idle() && moved()).await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
    assert_eq!(host.remotes().await, ["10.96.0.1", "192.168.2.3"], "the old one went");
}

/// The proxy ends at any step; the next one finishes, doubles nothing and leaves nothing.
#[tokio::test]
async fn proxy_killed_at_any_step_is_recovered_by_its_successor() {
    for steps in 0..14 {
        let host = Host::new(OLD).await;
        host.pod("192.168.4.5").await;
        let mut table = Table::default();
        for (generation, pods) in [["192.168.2.3", "192.168.2.4"], ["192.168.2.4", "192.168.2.5"]].iter().enumerate() {
            let list: Vec<(&str, u16, bool)> = pods.iter().map(|pod| (*pod, 80, false)).chain([("192.168.4.5", 80, true)]).collect();
            let mut proxy = Proxy { table, ..host.proxy() };
            proxy.set("web", vec![(web(), vip(Kind::ClusterIp, &list)), (key(None, 30080), vip(Kind::NodePort, &list))]);
            proxy.set("other", vec![(key(Some("10.96.0.2"), 80), vip(Kind::ClusterIp, &list[generation..]))]);
            let begun = host.calls().len();
            proxy.until("the kill", |engine| host.calls().len() >= begun + steps * 2 || engine.is_idle()).await;
            table = proxy.table;
        }
        let mut last = Proxy { table, ..host.proxy() };
        last.hns.touch(last.table.iter().map(|(key, _)| *key).collect::<Vec<_>>(), &last.table);
        last.rest().await;
        let both = "192.168.2.4 192.168.2.5 192.168.4.5";
        let expected =
            [format!("10.96.0.1:80/tcp -> {both}"), "10.96.0.2:80/tcp -> 192.168.2.5 192.168.4.5".into(), format!("node:30080/tcp -> {both}")];
        assert_eq!(host.seen().await, expected, "killed after {steps}");
        assert_eq!(host.remotes().await, ["192.168.2.4", "192.168.2.5"], "killed after {steps}");
    }
}

/// Random changes and random faults; whatever happened, in the end the service has what the table says, and nothing more.
#[tokio::test]
async fn random_histories_converge_to_the_table() {
    for seed in 0..4 {
        let version = if seed % 2 == 0 { OLD } else { NEW };
        let host = Host::new(version).await;
        let mut proxy = host.proxy_with(Settings { periods: Periods::default(), ..host.settings() });
        let mut number = 0;
        let mut draw = |most: u64| {
            number += 1;
            mix(seed << 32 | number) % most
        };
        for _ in 0..25 {
            match draw(10) {
                0 => {
                    let kinds = [
                        "lb-delete-fails",
                        "error-after-effect",
                        "success-without-effect,call=HcnCreate*",
                        "port-exists",
                        "stale-endpoint",
                        "slow-call=3ms",
                    ];
                    host.fault(&format!("{},count={}", kinds[draw(kinds.len() as u64) as usize], 1 + draw(2)));
                }
                1 => {
                    let id = host.simulator.with_state(|state| state.balancers.keys().nth(draw(8) as usize).copied());
                    if let Some(id) = id {
                        host.client.delete_load_balancer(&id).await.unwrap_or_default();
                    }
                }
                _ => {
                    let pods: Vec<String> = (0..draw(4)).map(|_| format!("192.168.2.{}", 1 + draw(9))).collect();
                    let mut list: Vec<(&str, u16, bool)> = pods.iter().map(|pod| (pod.as_str(), 80, false)).collect();
                    list.sort_unstable();
                    list.dedup();
                    let service = draw(8);
                    let address = format!("10.96.0.{service}");
                    let vips = if draw(5) == 0 { Vec::new() } else { vec![(key(Some(&address), 80), vip(Kind::ClusterIp, &list))] };
                    proxy.set(&address, vips);
                }
            }
            let until = host.calls().len() + draw(12) as usize;
            let _ = tokio::time::timeout(Duration::from_millis(60), proxy.until("a while", |_| host.calls().len() >= until)).await;
        }
        host.simulator.clear_faults();
        let expected: Vec<String> = proxy
            .table
            .iter()
            .filter(|(_, vip)| !vip.backends.is_empty())
            .map(|(key, vip)| {
                let ips: Vec<String> = vip.backends.iter().map(|backend| backend.address.to_string()).collect();
                format!("{key} -> {}", ips.join(" "))
            })
            .collect();
        let needed: std::collections::BTreeSet<IpAddr> = proxy.table.iter().flat_map(|(_, vip)| vip.backends.iter().map(|b| b.address)).collect();
        let done = |engine: &Engine| engine.is_idle() && host.count() == (expected.len(), needed.len());
        let named = |state: &hns_sim::state::State| state.balancers.values().map(|b| b.read().document.host_compute_endpoints.len()).sum::<usize>();
        let total: usize = proxy.table.iter().map(|(_, vip)| vip.backends.len()).sum();
        let right = |engine: &Engine| done(engine) && host.simulator.with_state(named) == total;
        if tokio::time::timeout(LIMIT / 2, proxy.until("the end", right)).await.is_err() {
            panic!("seed {seed}: {:#?}, {:?} are not {expected:#?}, {needed:?}", host.seen().await, host.remotes().await);
        }
        assert_eq!(host.seen().await, expected, "seed {seed}");
    }
}
