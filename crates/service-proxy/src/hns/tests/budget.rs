//! Budgets of HNS calls, counted by the simulated service; closes count.

use super::*;

/// Services with a ClusterIP and three backends each on other hosts.
fn many(proxy: &mut Proxy, count: u32) {
    for i in 0..count {
        let address = IpAddr::from((0x0a60_0100u32 + i).to_be_bytes());
        let pods: Vec<String> = (0..3).map(|n| IpAddr::from((0x0ac8_0000u32 + i * 3 + n).to_be_bytes()).to_string()).collect();
        let list: Vec<(&str, u16, bool)> = pods.iter().map(|pod| (pod.as_str(), 80, false)).collect();
        proxy.set(&format!("s{i}"), vec![(key(Some(&address.to_string()), 80), vip(Kind::ClusterIp, &list))]);
    }
}

const THREE: [(&str, u16, bool); 3] = [("192.168.2.3", 80, false), ("192.168.2.4", 80, false), ("192.168.2.5", 80, false)];

/// What was called, without the looks that go on at any time.
fn spent(host: &Host) -> Vec<String> {
    host.calls().into_iter().map(|call| call.call).filter(|call| !call.starts_with("HcnEnumerate")).collect()
}

#[tokio::test]
async fn a_change_costs_the_same_however_many_services_there_are() {
    for (version, others) in [(OLD, 0), (NEW, 0), (NEW, 500)] {
        let host = Host::new(version).await;
        let mut proxy = host.proxy();
        many(&mut proxy, others);
        proxy.web(&[("192.168.2.9", 80, false)]);
        proxy.rest().await;
        proxy.web(&[]);
        proxy.rest().await;
        host.forget_calls();
        proxy.web(&THREE);
        proxy.rest().await;
        let added = spent(&host);
        assert!(added.len() <= 8, "{others} others: {added:?}");
        host.forget_calls();
        proxy.web(&[THREE[0], THREE[1], ("192.168.2.6", 80, false)]);
        proxy.rest().await;
        let replaced = spent(&host);
        assert!(replaced.len() <= 8, "{others} others: {replaced:?}");
        host.forget_calls();
        let mut vips = vec![(web(), vip(Kind::ClusterIp, &[THREE[0], THREE[1], ("192.168.2.6", 80, false)]))];
        vips.push((key(None, 30080), vips[0].1.clone()));
        vips[1].1.kind = Kind::NodePort;
        proxy.set("web", vips);
        proxy.rest().await;
        assert_eq!(spent(&host).len(), 2, "a further VIP costs its create and close");
        host.forget_calls();
        proxy.web(&[]);
        proxy.rest().await;
        assert_eq!(spent(&host).len(), 2 + 3, "deletes ask nothing first");
    }
    parity::proved(parity::Hns, &["#109162", "A change costs its own Service only"]);
}

#[tokio::test]
async fn overlay_service_costs_one_more_endpoint() {
    let host = Host::overlay(NEW).await;
    let mut proxy = host.proxy_with(host.overlay_settings());
    proxy.web(&[("192.168.2.9", 80, false)]);
    proxy.rest().await;
    proxy.web(&[]);
    proxy.rest().await;
    host.forget_calls();
    proxy.web(&THREE);
    proxy.rest().await;
    let added = spent(&host);
    assert!(added.len() <= 10, "{added:?}");
}

/// Calls a minute at rest, counted over simulated time: looks, the network, the slow verify.
#[tokio::test]
async fn idle_calls_stay_within_budget() {
    for (count, most) in [(10, 95.0), (2_000, 100.0), (20_000, 700.0)] {
        let periods = Periods::default();
        let pause = periods.between_reads(count).as_secs_f64();
        let round = pause * count as f64;
        let calls = 60.0 * (2.0 / periods.enumerate.as_secs_f64() + 5.0 / periods.network.as_secs_f64() + 3.0 / pause);
        assert!(calls <= most && round <= 9_000.5, "{count}: {calls} calls a minute, {round} s a round");
    }
    let host = Host::new(NEW).await;
    let mut proxy = host.proxy_with(Settings { periods: Periods::default(), ..host.settings() });
    many(&mut proxy, 300);
    proxy.rest().await;
    host.forget_calls();
    let start = Instant::now();
    drop(tokio::time::timeout(Duration::from_millis(6_200), proxy.until("nothing", |_| false)).await);
    let calls = host.calls();
    let minute = 60.0 / start.elapsed().as_secs_f64();
    assert!(calls.len() as f64 * minute <= 130.0, "{} calls in six seconds: {calls:?}", calls.len());
    assert!(calls.iter().all(|call| !call.call.contains("Create") && !call.call.contains("Delete")));
}

/// The first programming keeps one service lock busy, and does what matters first.
#[tokio::test]
async fn first_programming_has_no_extra_calls_and_starts_with_dns() {
    let host = Host::new(NEW).await;
    let mut proxy = host.proxy();
    many(&mut proxy, 100);
    let dns = Vip { urgent: true, ..vip(Kind::ClusterIp, &[("192.168.2.9", 53, false)]) };
    proxy.set("zz-dns", vec![(key(Some("10.97.0.10"), 53), dns)]);
    host.pod("192.168.4.5").await;
    proxy.set("zz-local", vec![(key(Some("10.97.0.11"), 80), vip(Kind::ClusterIp, &[("192.168.4.5", 80, true)]))]);
    proxy.rest().await;
    let calls = host.calls();
    let writes = calls.iter().filter(|call| call.call.starts_with("HcnCreate") && call.call != "HcnCreateNetwork").count();
    assert_eq!(writes, 100 * 4 + 2 + 1 + 1, "an endpoint a backend, a load balancer a VIP, and CNI's");
    let balancers: Vec<_> = calls.iter().filter(|call| call.call == "HcnCreateLoadBalancer").filter_map(|call| call.id).collect();
    let place = |address: &str, port| balancers.iter().position(|id| *id == load_balancer_id(UID, &key(Some(address), port))).unwrap();
    // Begun first; on a busy machine the threads of others may be done with several before. By address they would be the last.
    for (address, port, what) in [("10.97.0.10", 53, "cluster DNS"), ("10.97.0.11", 80, "a local backend")] {
        let at = place(address, port);
        assert!(at < balancers.len() / 2, "{what} waits for others: it is number {at} of {}", balancers.len());
    }
    let first = calls.iter().position(|call| call.call == "HcnCreateLoadBalancer").unwrap();
    assert!(first < 60, "nothing is read first that is not needed: {first}");
}
