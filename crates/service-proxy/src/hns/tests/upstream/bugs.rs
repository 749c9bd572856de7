//! What upstream's proxy gets wrong by its design, as its issues and its source show (winkernel's `proxier.go`): from Services and slices to
//! the service. `life` and `drift` have those that show below Services.

use super::*;

fn endpoint(ip: &str, conditions: Value) -> Value {
    let node = if ip.starts_with("192.168.4.") { "here" } else { "there" };
    json!({"addresses": [ip], "nodeName": node, "conditions": conditions})
}

/// #112836: each change of backends left one load balancer behind, since the health check's id was kept in the wrong place.
#[tokio::test]
async fn backend_changes_leave_no_stale_load_balancer() {
    for version in [OLD, NEW] {
        let mut case = Case::bridge(version).await;
        case.host.endpoint("cbr0", "192.168.4.3").await;
        for pod in ["192.168.4.4", "192.168.4.5"] {
            case.host.pod(pod).await;
        }
        let mut before = None;
        for pods in [&["192.168.4.4"][..], &["192.168.4.5"], &["192.168.4.4", "192.168.4.5"], &["192.168.4.5"]] {
            case.proxy.say("svc1", service(load_balancer("Local")), &[slice(80, pods)]).await;
            let ids: Vec<Guid> = case.host.balancers().await.values().map(|balancer| balancer.id).collect();
            assert_eq!(ids.len(), 4);
            assert_eq!(*before.get_or_insert_with(|| ids.clone()), ids);
        }
    }
    parity::proved(parity::Hns, &["#112836"]);
}

/// §3.2.11: ports of one Service share the health check's VIP; a port without backends took it from the others.
#[tokio::test]
async fn ports_share_a_health_check_until_the_last_is_gone() {
    let mut case = Case::bridge(OLD).await;
    case.host.endpoint("cbr0", "192.168.4.3").await;
    case.host.pod("192.168.4.4").await;
    let ports = |ports: Value| service(load_balancer("Local").merged(json!({"ports": ports})));
    let (http, dns) = (json!({"name": "p80", "port": 80, "nodePort": 3001}), json!({"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 3002}));
    let both = slice(80, &["192.168.4.4"]).merged(json!({"ports": [
        {"name": "p80", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]}));
    let check = key(Some("11.21.31.41"), 32000);
    for (spec, there) in [(json!([http, dns]), true), (json!([dns]), true), (json!([http]), true)] {
        case.proxy.say("svc1", ports(spec), std::slice::from_ref(&both)).await;
        let balancers = case.host.balancers().await;
        assert_eq!(balancers.keys().filter(|key| key.port == 32000).collect::<Vec<_>>(), [&check], "one, by TCP whatever the ports are");
        assert_eq!(balancers.contains_key(&check), there);
    }
    case.proxy.say("svc1", ports(json!([http])), &[]).await;
    assert!(!case.host.balancers().await.contains_key(&check));
    parity::proved(parity::Hns, &["Ports share a health check that each believes to own", "Health checks at the load balancer's address"]);
}

/// §3.2.6: without a pod on the node, "none serves" was true of the empty set, and unready pods came into the ClusterIP's load balancer.
#[tokio::test]
async fn unready_remote_pods_are_no_backends() {
    let mut case = Case::bridge(OLD).await;
    let endpoints = vec![endpoint("192.168.2.3", json!({"ready": true})), endpoint("192.168.2.4", json!({"ready": false, "serving": false}))];
    case.proxy.say("svc1", service(load_balancer("Local")), &[slice_of(80, endpoints)]).await;
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.2.3"]);
    assert_eq!(case.host.remotes().await, ["192.168.2.3"], "an unready pod needs no endpoint");
}

/// §3.2.12: with all backends terminating, node ports and external addresses kept those that were; §3.2.14: unready ones kept their endpoints.
/// #113841: an all-terminating Service lost its load balancer's address.
#[tokio::test]
async fn terminating_and_unready_pods_are_followed_at_every_vip() {
    for version in [OLD, NEW] {
        let mut case = Case::bridge(version).await;
        let spec = || service(load_balancer("Cluster").merged(json!({"externalIPs": ["50.60.70.81"]})));
        let ready = |ip| endpoint(ip, json!({"ready": true}));
        let leaving = |ip, serving: bool| endpoint(ip, json!({"ready": false, "serving": serving, "terminating": true}));
        case.proxy.say("svc1", spec(), &[slice_of(80, vec![ready("192.168.2.3"), ready("192.168.2.4")])]).await;
        let vips = ["10.20.30.41:80/tcp", "11.21.31.41:80/tcp", "50.60.70.81:80/tcp", "node:3001/tcp"];
        let all = |pods: &str| vips.map(|vip| format!("{vip} -> {pods}")).to_vec();
        assert_eq!(case.host.seen().await, all("192.168.2.3 192.168.2.4"));
        case.proxy.say("svc1", spec(), &[slice_of(80, vec![leaving("192.168.2.3", true), leaving("192.168.2.4", false)])]).await;
        assert_eq!(case.host.seen().await, all("192.168.2.3"), "the one that still serves");
        let unready = endpoint("192.168.2.4", json!({"ready": false, "serving": false}));
        case.proxy.say("svc1", spec(), &[slice_of(80, vec![leaving("192.168.2.3", false), unready])]).await;
        assert_eq!((case.host.seen().await.len(), case.host.remotes().await.len()), (0, 0));
    }
    parity::proved(parity::Hns, &["Unready pods keep their remote endpoints"]);
}

/// #135144: what one Service of a batch let go was forgotten with the next one of the batch.
#[tokio::test]
async fn services_that_change_together_leave_no_endpoint() {
    let mut case = Case::bridge(OLD).await;
    let nth = |n: u16| service(json!({"clusterIP": format!("10.20.30.{n}"), "ports": [{"name": "p80", "port": 80, "nodePort": 3000 + n}]}));
    let pod = |generation: u16, n: u16| slice(80, &[&format!("192.168.2.{}", generation * 100 + n)]);
    for generation in [0, 1] {
        (1..=9).for_each(|n| case.proxy.hear(&format!("svc{n}"), nth(n), &[pod(generation, n)]));
        case.proxy.rest().await;
    }
    let pods: Vec<String> = (1..=9).map(|n| format!("192.168.2.{}", 100 + n)).collect();
    assert_eq!(case.host.remotes().await, pods);
    parity::proved(parity::Hns, &["#135144"]);
}

/// §3.2.8: addresses of Services on an overlay had no owner after a restart, and stayed when the Service went.
#[tokio::test]
async fn overlay_addresses_are_adopted_after_a_restart() {
    let mut case = Case::overlay(true).await;
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    case.proxy = case.host.proxy_with(case.host.overlay_settings());
    case.host.forget_calls();
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    assert!(case.host.calls().iter().all(|call| !call.call.starts_with("HcnCreate")), "nothing is doubled");
    case.proxy.forget("svc1").await;
    case.proxy.rest().await;
    assert_eq!((case.host.remotes().await.len(), case.host.balancers().await.len()), (0, 0));
    parity::proved(parity::Hns, &["An overlay's address of a Service leaks after a restart"]);
}

/// #100962: one failure at the source VIP ended the whole sync. What needs it waits, is named, and follows.
#[tokio::test]
async fn failed_source_vip_is_created_on_retry() {
    let mut case = Case::overlay(true).await;
    case.host.fault("fail-call=0x80004005,call=HcnCreateEndpoint,text=192.168.4.2,count=1");
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    case.proxy.rest().await;
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.2.3", "node:3001/tcp -> 192.168.2.3"]);
    assert!(case.host.client.endpoints().await.unwrap().iter().any(|endpoint| endpoint.ip() == "192.168.4.2".parse().ok()));
    assert!(case.proxy.failing().is_empty());
    parity::proved(parity::Hns, &["#123014"]);
}

/// #137766, #106580: failures are counted by function, so that metrics show them.
#[tokio::test]
async fn failed_calls_are_counted() {
    let mut case = Case::bridge(OLD).await;
    let tallies = case.proxy.hns.call_counter().unwrap();
    case.host.fail("HcnCreateLoadBalancer", HResult::FAIL, 1);
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    case.proxy.rest().await;
    let create = tallies()[&hcn::Function::Create(hcn::Kind::LoadBalancer)];
    assert_eq!((create.calls, create.failed), (3, 1));
    parity::proved(parity::Hns, &["#106580"]);
}

/// A pod of the host's own network has no endpoint and never will: upstream skips it without a word.
#[tokio::test]
async fn host_network_pods_are_reported_and_block_no_other_vip() {
    let mut case = Case::bridge(OLD).await;
    let here = json!({"addresses": ["10.0.0.1"], "nodeName": "here"});
    case.proxy.say("svc1", service(json!({})), &[slice_of(80, vec![here, endpoint("192.168.2.3", json!({}))])]).await;
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.2.3", "node:3001/tcp -> 192.168.2.3"]);
    let engine = case.proxy.hns.engine();
    assert!(engine.is_idle() && engine.failing().is_empty(), "it is nothing to wait for");
    assert_eq!(engine.gaps()[&key(Some(VIP), 80)].iter().map(Gap::name).collect::<Vec<_>>(), ["HostNetworkBackend"]);
    parity::proved(parity::Hns, &["Pods of the host's network are left out in silence"]);
}
