//! The backend over the simulated service: what upstream's design got wrong, one test a bug class. The numbers are of kubernetes/kubernetes.

use super::*;

#[tokio::test]
async fn proxy_follows_a_service_through_its_life() {
    for version in [OLD, NEW] {
        let host = Host::new(version).await;
        let mut proxy = host.proxy();
        proxy.web(&[("192.168.2.3", 80, false)]);
        proxy.rest().await;
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
        host.pod("192.168.4.5").await;
        proxy.web(&[("192.168.4.5", 80, true), ("192.168.2.4", 80, false)]);
        proxy.rest().await;
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.4 192.168.4.5"]);
        assert_eq!(host.remotes().await, ["192.168.2.4"], "the unused one went");
        proxy.web(&[]);
        proxy.rest().await;
        assert_eq!((host.seen().await.len(), host.remotes().await.len()), (0, 0));
        assert!(proxy.hns.engine().failing().is_empty());
    }
}

/// Upstream deletes every load balancer of the node at its start, anybody's (§3.2.16), and leaves remote endpoints behind (§2.1).
#[tokio::test]
async fn restart_adopts_objects_and_removes_only_our_leftovers() {
    let host = Host::new(NEW).await;
    let pod = host.pod("192.168.4.5").await;
    let theirs = HostComputeLoadBalancer::new(Some("10.9.9.9".parse().unwrap()), hcn::Protocol::TCP, 80, 80, vec![pod]);
    host.client.create_load_balancer(Guid::random(), &theirs).await.unwrap();
    host.client.create_endpoint(&host.network, Guid::random(), &HostComputeEndpoint::remote("192.168.2.99".parse().unwrap())).await.unwrap();
    let mut first = host.proxy();
    for i in 0..40 {
        let address = format!("10.96.1.{i}");
        first.set(
            &address,
            vec![(key(Some(&address), 80), vip(Kind::ClusterIp, &[(&format!("192.168.2.{i}"), 80, false), ("192.168.4.5", 80, true)]))],
        );
    }
    first.web(&[("192.168.2.3", 80, false)]);
    first.rest().await;
    let before = host.balancers().await;
    host.forget_calls();
    let mut second = Proxy { hns: host.proxy().hns, table: first.table };
    second.hns.touch(before.keys().copied().filter(|key| second.table.get(key).is_some()).collect::<Vec<_>>(), &second.table);
    second.rest().await;
    let writes: Vec<String> =
        host.calls().iter().filter(|call| call.call.contains("Create") || call.call.contains("Delete")).map(|call| call.call.clone()).collect();
    assert_eq!(writes, Vec::<String>::new(), "nothing is wiped or written");
    assert_eq!(host.balancers().await, before);
    // A predecessor knew Services that are gone.
    let mut third = host.proxy();
    third.web(&[("192.168.2.3", 80, false)]);
    third.rest().await;
    assert_eq!(host.seen().await, ["10.9.9.9:80/tcp -> 192.168.4.5", "10.96.0.1:80/tcp -> 192.168.2.3"]);
    assert_eq!(host.remotes().await, ["192.168.2.3", "192.168.2.99"], "a foreign endpoint is not ours to remove");
    parity::proved(parity::Hns, &["The start wipes what others made", "A restart changes nothing that is right"]);
}

/// A failure marks nothing as applied (§3.2.1 to 3): each VIP is retried by itself, and others are not held up (§3.2.2).
#[tokio::test]
async fn failures_are_reported_retried_and_block_no_other_vip() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    host.fault("fail-call=0x80004005,call=HcnCreateLoadBalancer,text=10.96.0.1,count=2");
    let pods = [("192.168.2.3", 80, false)];
    let outer = vec![(key(None, 30080), vip(Kind::NodePort, &pods)), (key(Some("192.0.2.9"), 80), vip(Kind::LoadBalancer, &pods))];
    proxy.set("web", [vec![(web(), vip(Kind::ClusterIp, &pods))], outer].concat());
    proxy.once().await;
    assert!(proxy.failing()[0].contains("cannot create load balancer 10.96.0.1:80/tcp"), "{:?}", proxy.failing());
    assert_eq!(host.seen().await, ["192.0.2.9:80/tcp -> 192.168.2.3", "node:30080/tcp -> 192.168.2.3"]);
    proxy.rest().await;
    assert_eq!((host.seen().await.len(), proxy.failing().len()), (3, 0));
    parity::proved(
        parity::Mode::Hns,
        &["A failure at an external address is marked as applied", "A failure at a node port skips the other addresses"],
    );
}

/// §3.2.3: a backend whose endpoint fails is left out for good by upstream.
#[tokio::test]
async fn load_balancer_serves_with_existing_endpoints_and_gains_the_rest() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    host.fault("fail-call=0x80004005,call=HcnCreateEndpoint,text=192.168.2.5,count=1");
    proxy.web(&[("192.168.2.5", 80, false), ("192.168.2.6", 80, false)]);
    proxy.once().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.6"]);
    assert!(proxy.failing()[0].contains("1 of its endpoints could not be created; it serves with the others"), "{:?}", proxy.failing());
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.5 192.168.2.6"]);
    parity::proved(parity::Hns, &["A backend whose endpoint HNS refused once stays out"]);
}

/// #106936 (an empty list was sent again and again) and #137530 (an orphan after the backends hit zero).
#[tokio::test]
async fn empty_endpoint_list_is_never_sent_and_leaves_no_orphan() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    proxy.set("web", vec![(web(), vip(Kind::ClusterIp, &[]))]);
    proxy.rest().await;
    assert!(host.calls().iter().all(|call| call.call != "HcnCreateLoadBalancer"));
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    proxy.set("web", vec![(web(), vip(Kind::ClusterIp, &[]))]);
    proxy.rest().await;
    assert_eq!((host.seen().await.len(), host.remotes().await.len()), (0, 0));
    parity::proved(parity::Hns, &["#137530", "#106936"]);
}

/// #131466: HNS 15.4 says that it modified, and did not. Older ones say that they cannot.
#[tokio::test]
async fn ineffective_or_refused_modify_falls_back_to_replace() {
    for fault in ["lb-modify-noop", "fail-call=0x80004001,call=HcnModifyLoadBalancer"] {
        let host = Host::new(NEW).await;
        let mut proxy = host.proxy();
        proxy.web(&[("192.168.2.3", 80, false)]);
        proxy.rest().await;
        host.fault(fault);
        for backend in ["192.168.2.4", "192.168.2.5"] {
            proxy.web(&[(backend, 80, false)]);
            proxy.rest().await;
            assert_eq!(host.seen().await, [format!("10.96.0.1:80/tcp -> {backend}")], "{fault}");
        }
        assert_eq!(host.calls().iter().filter(|call| call.call == "HcnModifyLoadBalancer").count(), 1, "{fault}: it is tried once");
        assert!(!proxy.hns.engine().capabilities().modify);
    }
    parity::proved(parity::Hns, &["#131466"]);
}

/// #113841: delete and create of one load balancer must be back to back, and a failed create after the delete must not be forgotten.
#[tokio::test]
async fn half_done_replace_is_completed() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    host.fail("HcnCreateLoadBalancer", HResult::FAIL, 1);
    host.forget_calls();
    proxy.web(&[("192.168.2.4", 80, false)]);
    proxy.once().await;
    let calls: Vec<String> =
        host.calls().into_iter().map(|call| call.call).filter(|call| call.contains("LoadBalancer") && !call.contains("Enumerate")).collect();
    assert_eq!(calls[..2], ["HcnDeleteLoadBalancer", "HcnCreateLoadBalancer"], "{calls:?}");
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.4"]);
    assert_eq!(host.remotes().await, ["192.168.2.4"]);
}

/// #113524 (a failed delete left a load balancer that looked reusable), §3.2.4 (adopted, then deleted by the stale sweep).
#[tokio::test]
async fn failed_delete_is_retried_unless_the_vip_returns() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    host.fail("HcnDeleteLoadBalancer", HResult::FAIL, 1);
    proxy.web(&[]);
    proxy.once().await;
    assert!(proxy.failing()[0].contains("cannot delete load balancer"), "{:?}", proxy.failing());
    assert_eq!(host.remotes().await, ["192.168.2.3"], "endpoints stay while a load balancer may name them");
    // It is desired again before the retry.
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
    host.fail("HcnDeleteLoadBalancer", HResult::FAIL, 2);
    proxy.web(&[]);
    proxy.rest().await;
    assert_eq!((host.seen().await.len(), host.remotes().await.len()), (0, 0));
    parity::proved(
        parity::Mode::Hns,
        &[
            "#113524",
            "A load balancer of HNS is adopted, then deleted as stale",
            "A failed delete of an external address's load balancer is forgotten",
        ],
    );
}

/// #139519: any error of a read was taken for "gone"; then the create failed with 0xb7 for ever.
#[tokio::test]
async fn failed_create_that_took_effect_is_adopted() {
    for error in ["lb-exists", "port-exists"] {
        let host = Host::new(OLD).await;
        let mut proxy = host.proxy();
        // The create has its effect, and its answer is lost.
        host.fault("error-after-effect,call=HcnCreateLoadBalancer,count=1");
        proxy.web(&[("192.168.2.3", 80, false)]);
        proxy.rest().await;
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
        assert_eq!(host.calls().iter().filter(|call| call.call == "HcnCreateLoadBalancer").count(), 1, "it is read, not made again");
        // The service says that it exists, although nothing is there: not an endless loop, and over once the service is well.
        host.fault(&format!("{error},count=2"));
        proxy.web(&[("192.168.2.4", 80, false)]);
        proxy.once().await;
        assert!(proxy.failing()[0].contains("another program may listen on the port"), "{:?}", proxy.failing());
        proxy.rest().await;
        assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.4"]);
    }
    parity::proved(parity::Hns, &["#139519"]);
}

#[tokio::test]
async fn foreign_load_balancer_is_reported_kept_and_replaced_when_it_goes() {
    let host = Host::new(OLD).await;
    let pod = host.pod("192.168.4.5").await;
    let theirs = HostComputeLoadBalancer::new(Some("10.96.0.1".parse().unwrap()), hcn::Protocol::TCP, 80, 9999, vec![pod]);
    let id = host.client.create_load_balancer(Guid::random(), &theirs).await.unwrap().id;
    let mut proxy = host.proxy();
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.once().await;
    assert!(proxy.failing()[0].contains(&id.to_string()), "{:?}", proxy.failing());
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.4.5"]);
    host.client.delete_load_balancer(&id).await.unwrap();
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
}

/// CNI makes a pod's endpoint without a notification; upstream leaves such a pod out until something else happens (§3.2.3).
#[tokio::test]
async fn late_pod_endpoint_is_found() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    proxy.web(&[("192.168.4.5", 80, true), ("192.168.2.3", 80, false)]);
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
    assert!(proxy.failing()[0].contains("the pod at 192.168.4.5 has no endpoint in HNS yet"), "{:?}", proxy.failing());
    host.pod("192.168.4.5").await;
    proxy.until("the pod to be found", |engine| engine.failing().is_empty()).await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3 192.168.4.5"]);
    parity::proved(parity::Hns, &["A pod whose endpoint comes to HNS late stays out"]);
}

/// #130963, #138000: one address as a remote and as a pod's own endpoint; a delete by address took the pod's.
#[tokio::test]
async fn local_endpoint_replaces_a_remote_one_and_survives_it() {
    for version in [OLD, NEW] {
        let host = Host::new(version).await;
        let mut proxy = host.proxy();
        proxy.web(&[("192.168.4.5", 80, false)]);
        proxy.rest().await;
        assert_eq!(host.remotes().await, ["192.168.4.5"]);
        let pod = host.pod("192.168.4.5").await;
        let local = |engine: &Engine| engine.mirror().local("192.168.4.5".parse().unwrap()).is_some() && engine.is_idle();
        proxy.until("the pod to be found", local).await;
        let balancer = &host.balancers().await[&web()];
        assert_eq!(balancer.host_compute_endpoints, [pod]);
        assert_eq!(host.remotes().await.len(), 0, "the remote one goes as soon as nothing names it");
        proxy.web(&[]);
        proxy.rest().await;
        assert!(host.client.endpoint(&pod).await.unwrap().is_some(), "CNI's is not ours to delete");
    }
    parity::proved(parity::Hns, &["#130963"]);
}

/// Windows-Containers#631, #135144: remote endpoints left after churn break the pod that gets the address.
#[tokio::test]
async fn churn_leaves_no_endpoint_when_deletes_fail_or_report_false_success() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    for fault in ["fail-call=0x80004005,call=HcnDeleteEndpoint,count=1", "stale-endpoint,count=1"] {
        proxy.web(&[("192.168.2.3", 80, false), ("192.168.2.4", 80, false)]);
        proxy.rest().await;
        host.fault(fault);
        proxy.web(&[("192.168.2.3", 80, false)]);
        proxy.rest().await;
        let alone = |_: &Engine| host.simulator.with_state(|state| state.endpoints.len()) == 1;
        proxy.until("the left one to go", alone).await;
    }
    parity::proved(parity::Hns, &["Windows-Containers#631", "A failed delete of an endpoint of HNS is not tried again"]);
}

/// #91703: an endpoint shared by two Services went with the first.
#[tokio::test]
async fn a_shared_endpoint_goes_with_its_last_service() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy();
    for service in ["a", "b"] {
        let address = if service == "a" { "10.96.0.1" } else { "10.96.0.2" };
        proxy.set(service, vec![(key(Some(address), 80), vip(Kind::ClusterIp, &[("192.168.2.3", 80, false)]))]);
    }
    proxy.rest().await;
    proxy.set("a", Vec::new());
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.2:80/tcp -> 192.168.2.3"]);
    proxy.set("b", Vec::new());
    proxy.rest().await;
    assert_eq!(host.remotes().await.len(), 0);
}

/// Upstream wipes every Service when the network cannot be read (#110674's way to lose 577 load balancers).
#[tokio::test]
async fn missing_network_blocks_all_writes() {
    let host = Host::new(OLD).await;
    let mut proxy = host.proxy_with(Settings { network: "later".into(), ..host.settings() });
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.until("to say so", |engine| engine.unavailable().is_some_and(|reason| reason.contains("does not exist yet"))).await;
    let mut proxy = host.proxy();
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    host.fail("HcnEnumerate*", HResult::FAIL, 4);
    proxy.until("to see it", |engine| engine.unavailable().is_some()).await;
    assert_eq!(host.simulator.with_state(|state| state.balancers.len()), 1, "an error proves nothing");
    proxy.until("to come back", Engine::is_idle).await;
    host.simulator.clear_faults();
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
    let created = host.calls().iter().filter(|call| call.call == "HcnCreateLoadBalancer").count();
    assert_eq!(created, 1);
    parity::proved(parity::Hns, &["Any error about the HNS network wipes everything"]);
}

/// image-builder#566: a call that never returns holds up its own VIP only, and no call is waited for for ever.
#[tokio::test]
async fn hanging_call_ends_at_its_deadline_without_blocking_others() {
    let host = Host::new(OLD).await;
    let mut proxy = host.hasty();
    host.fault("lb-create-hang,text=10.96.0.1");
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.set("other", vec![(key(Some("10.96.0.2"), 80), vip(Kind::ClusterIp, &[("192.168.2.3", 80, false)]))]);
    let hangs = |engine: &Engine| engine.failing().get(&web()).is_some_and(|reason| reason.contains("got no answer"));
    proxy.until("the deadline", |engine| hangs(engine) && engine.is_settled(&key(Some("10.96.0.2"), 80))).await;
    assert_eq!(host.seen().await, ["10.96.0.2:80/tcp -> 192.168.2.3"]);
    host.simulator.clear_faults();
    proxy.rest().await;
    assert_eq!(host.seen().await.len(), 2);
    parity::proved(parity::Hns, &["image-builder#566"]);
}

#[tokio::test]
async fn cleanup_removes_only_our_objects() {
    let host = Host::new(OLD).await;
    let pod = host.pod("192.168.4.5").await;
    let theirs = HostComputeLoadBalancer::new(Some("10.9.9.9".parse().unwrap()), hcn::Protocol::TCP, 80, 80, vec![pod]);
    host.client.create_load_balancer(Guid::random(), &theirs).await.unwrap();
    let mut proxy = host.proxy();
    proxy.web(&[("192.168.2.3", 80, false), ("192.168.4.5", 80, true)]);
    proxy.rest().await;
    assert_eq!(cleanup(&host.client, UID, host.settings()).await, Ok(2));
    assert_eq!(host.seen().await, ["10.9.9.9:80/tcp -> 192.168.4.5"]);
    assert_eq!(host.remotes().await.len(), 0);
    let nowhere = Settings { network: "later".into(), ..host.settings() };
    assert!(cleanup(&host.client, UID, nowhere).await.unwrap_err().to_string().contains("does not exist yet"));
    parity::proved(parity::Hns, &["Clean-up on request"]);
}

#[tokio::test]
async fn hung_open_of_the_network_holds_up_no_later_endpoint() {
    let host = Host::new(NEW).await;
    let mut proxy = host.hasty();
    // The network is found before; its handle is opened for the first remote endpoint.
    proxy.rest().await;
    host.fault("hang,call=HcnOpenNetwork,count=1");
    proxy.web(&[("192.168.2.3", 80, false)]);
    proxy.rest().await;
    assert_eq!(host.seen().await, ["10.96.0.1:80/tcp -> 192.168.2.3"]);
}
