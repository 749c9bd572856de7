//! The behaviours that upstream's own tests hold its Windows proxy to (proxier_test.go, hns_test.go), from Services and EndpointSlices to
//! what the service has. What those tests say of reference counts, of ids that change and of call order is upstream's design, not behaviour;
//! here ids stay. The four dual-stack tests of overlays are on a bridge here, since overlays of HNS have no IPv6.

mod bugs;
mod calls;
mod features;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::*;
use crate::rows::{ServiceRow, SliceRow};
use crate::vips::{NodePolicy, desired_vips};

const VIP: &str = "10.20.30.41";

/// The service of upstream's fixture: ClusterIP, NodePort 3001; `more` is merged into its spec.
fn service(more: Value) -> Value {
    let mut spec = json!({"clusterIP": VIP, "type": "NodePort", "ports": [{"name": "p80", "port": 80, "nodePort": 3001}]});
    merge(&mut spec, more);
    let status = spec.as_object_mut().and_then(|spec| spec.remove("status")).unwrap_or_default();
    json!({"metadata": {"name": "svc1", "namespace": "ns1"}, "spec": spec, "status": status})
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value)),
        (into, from) => *into = from,
    }
}

/// A slice; this node's pods have addresses of 192.168.4.0/24 and fd00:4::/64.
fn slice(port: u16, addresses: &[&str]) -> Value {
    let node = |ip: &str| if ip.starts_with("192.168.4.") || ip.starts_with("fd00:4:") { "here" } else { "there" };
    slice_of(port, addresses.iter().map(|ip| json!({"addresses": [ip], "nodeName": node(ip)})).collect())
}

fn slice_of(port: u16, endpoints: Vec<Value>) -> Value {
    let v6 = endpoints.first().is_some_and(|endpoint| endpoint["addresses"][0].as_str().is_some_and(|ip| ip.contains(':')));
    json!({"metadata": {"name": "svc1-1", "namespace": "ns1", "labels": {"kubernetes.io/service-name": "svc1"}},
        "addressType": if v6 { "IPv6" } else { "IPv4" }, "ports": [{"name": "p80", "port": port, "protocol": "TCP"}], "endpoints": endpoints})
}

trait Merged {
    fn merged(self, more: Value) -> Value;
}

impl Merged for Value {
    fn merged(mut self, more: Value) -> Value {
        merge(&mut self, more);
        self
    }
}

fn load_balancer(policy: &str) -> Value {
    json!({"type": "LoadBalancer", "externalTrafficPolicy": policy, "healthCheckNodePort": 32000,
        "status": {"loadBalancer": {"ingress": [{"ip": "11.21.31.41"}]}}})
}

impl Proxy {
    /// What the API says of Service `name` from now on.
    async fn say(&mut self, name: &str, service: Value, slices: &[Value]) {
        self.hear(name, service, slices);
        self.once().await;
    }

    /// The same, without waiting for what comes of it.
    fn hear(&mut self, name: &str, service: Value, slices: &[Value]) {
        let service: Service = serde_json::from_value(service).unwrap();
        let row = ServiceRow::of(&service).unwrap();
        let slices: Vec<Arc<SliceRow>> = slices
            .iter()
            .filter_map(|slice| SliceRow::of(&serde_json::from_value::<EndpointSlice>(slice.clone()).unwrap(), "here"))
            .map(Arc::new)
            .collect();
        let key = Key::new("ns1", name);
        let policy = NodePolicy { forwarded_health_port: Some(10256), node_ips: vec!["10.0.0.1".parse().unwrap()], ..NodePolicy::default() };
        let changes = self.table.set_service(&key, desired_vips(&key, &row, &slices, &policy));
        self.hns.touch(changes.into_iter().map(|change| change.key), &self.table);
    }

    /// The API has no Service `name` any more.
    async fn forget(&mut self, name: &str) {
        let changes = self.table.set_service(&Key::new("ns1", name), Vec::new());
        self.hns.touch(changes.into_iter().map(|change| change.key), &self.table);
        self.once().await;
    }
}

struct Case {
    host: Host,
    proxy: Proxy,
}

impl Case {
    async fn overlay(dsr: bool) -> Self {
        let host = Host::overlay(OLD).await;
        let proxy = host.proxy_with(Settings { dsr, ..host.overlay_settings() });
        Self { host, proxy }
    }

    async fn bridge(version: HnsVersion) -> Self {
        let host = Host::new(version).await;
        let proxy = host.proxy();
        Self { host, proxy }
    }

    /// Both families, direct server return, the host's own endpoint.
    async fn dual(version: HnsVersion) -> Self {
        let host = Host::dual(version).await;
        host.dual_endpoint("cbr0", "192.168.4.3", "fd00:4::3").await;
        let proxy = host.proxy_with(Settings { dsr: true, ..host.settings() });
        Self { host, proxy }
    }

    /// VIP, flags of the load balancer and of its port, how many backends.
    async fn flags(&self) -> Vec<String> {
        let line = |(key, b): (&VipKey, &HostComputeLoadBalancer)| {
            format!("{key} {} {} {}", b.flags.0, b.port_mappings[0].flags.0, b.host_compute_endpoints.len())
        };
        self.host.balancers().await.iter().map(line).collect()
    }
}

/// TestCreateServiceVip
#[tokio::test]
async fn overlay_service_without_backends_has_its_vip_endpoint() {
    let mut case = Case::overlay(true).await;
    let spec = json!({"externalIPs": ["50.60.70.81"], "sessionAffinity": "ClientIP"});
    case.proxy.say("svc1", service(spec), &[]).await;
    assert_eq!(case.host.remotes().await, [VIP]);
    assert_eq!(case.flags().await, Vec::<String>::new());
    parity::proved(parity::Hns, &["TestCreateServiceVip"]);
}

/// TestCreateRemoteEndpointOverlay, TestDsrEndpointsAreCreatedCorrectly, TestEndpointSlice
#[tokio::test]
async fn overlay_service_has_source_vip_vip_and_backend_endpoints() {
    let mut case = Case::overlay(true).await;
    case.proxy.say("svc1", service(json!({})), &[slice(80, &[])]).await;
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    assert_eq!(case.host.remotes().await, [VIP, "192.168.2.3"]);
    let all = case.host.client.endpoints().await.unwrap();
    let source = all.iter().find(|e| !e.is_remote()).unwrap();
    assert_eq!((source.ip(), source.mac_address.as_str()), ("192.168.4.2".parse().ok(), "00-15-5D-0A-0B-0C"));
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.2.3", "node:3001/tcp -> 192.168.2.3"]);
    assert!(case.host.balancers().await.values().all(|balancer| balancer.source_vip == "192.168.4.2"));
    // Churn of backends leaves the address alone: upstream takes it down for every change.
    case.host.forget_calls();
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.4"])]).await;
    let address = all.iter().find(|e| e.ip() == VIP.parse().ok()).unwrap().id;
    assert!(case.host.calls().iter().all(|call| call.id != Some(address)), "{:?}", case.host.calls());
    case.proxy.say("svc1", service(json!({})), &[slice(80, &[])]).await;
    assert_eq!(case.host.remotes().await, [VIP]);
    case.proxy.forget("svc1").await;
    assert_eq!(case.host.remotes().await.len(), 0, "the address goes with its Service");
    parity::proved(
        parity::Mode::Hns,
        &[
            "TestCreateRemoteEndpointOverlay",
            "TestDsrEndpointsAreCreatedCorrectly",
            "TestEndpointSlice",
            "An overlay's address of a Service goes and comes with every change",
        ],
    );
}

/// TestCreateRemoteEndpointL2Bridge
#[tokio::test]
async fn bridge_has_only_backend_endpoints() {
    let mut case = Case::bridge(OLD).await;
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    assert_eq!(case.host.remotes().await, ["192.168.2.3"]);
    assert!(case.host.balancers().await.values().all(|balancer| balancer.source_vip.is_empty()));
    parity::proved(parity::Hns, &["TestCreateRemoteEndpointL2Bridge"]);
}

/// TestCreateLoadBalancerWithoutDSR, TestCreateLoadBalancerWithDSR, TestDsrNotAppliedToClusterTrafficPolicy
#[tokio::test]
async fn dsr_applies_to_cluster_ips_when_enabled() {
    for (dsr, flag) in [(false, 0), (true, 1)] {
        let mut case = Case::overlay(dsr).await;
        case.proxy.say("svc1", service(json!({"externalTrafficPolicy": "Cluster"})), &[slice(80, &["192.168.2.3"])]).await;
        assert_eq!(case.flags().await, [format!("10.20.30.41:80/tcp {flag} 0 1"), "node:3001/tcp 0 18 1".into()]);
    }
    parity::proved(
        parity::Mode::Hns,
        &["TestDsrNotAppliedToClusterTrafficPolicy", "TestCreateLoadBalancerWithoutDSR", "TestCreateLoadBalancerWithDSR"],
    );
}

/// TestClusterIPSvcWithITPLocal, #133928
#[tokio::test]
async fn internal_policy_local_follows_the_local_pods_only() {
    let mut case = Case::bridge(OLD).await;
    case.host.pod("192.168.4.4").await;
    case.host.pod("192.168.4.5").await;
    let local = service(json!({"type": "ClusterIP", "internalTrafficPolicy": "Local", "ports": [{"name": "p80", "port": 80}]}));
    case.proxy.say("svc1", local.clone(), &[slice(80, &["192.168.4.4"])]).await;
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.4.4"]);
    case.proxy.say("svc1", local.clone(), &[slice(80, &["192.168.4.4", "192.168.4.5"])]).await;
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.4.4 192.168.4.5"]);
    case.host.forget_calls();
    case.proxy.say("svc1", local, &[slice(80, &["192.168.4.4", "192.168.4.5", "192.168.2.3"])]).await;
    assert!(
        case.host.calls().iter().all(|call| !call.call.contains("LoadBalancer") || call.call.contains("Enumerate")),
        "a remote pod is none of its business"
    );
    parity::proved(parity::Hns, &["TestClusterIPSvcWithITPLocal"]);
}

/// TestSharedRemoteEndpointDelete, TestSharedRemoteEndpointUpdate
#[tokio::test]
async fn services_share_an_endpoint_until_the_last_one_is_gone() {
    let mut case = Case::bridge(OLD).await;
    let other = |port: u16| service(json!({"clusterIP": "10.20.30.42", "ports": [{"name": "p80", "port": 80, "nodePort": port}]}));
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    case.proxy.say("svc2", other(3002), &[slice(80, &["192.168.2.3"])]).await;
    let id = case.host.client.endpoints().await.unwrap()[0].id;
    case.proxy.say("svc2", other(3003), &[slice(80, &["192.168.2.3"])]).await;
    assert_eq!(case.host.client.endpoints().await.unwrap()[0].id, id, "it is the same one");
    assert_eq!(case.host.balancers().await.len(), 4);
    case.proxy.say("svc2", other(3003), &[]).await;
    assert_eq!(case.host.remotes().await, ["192.168.2.3"]);
    case.proxy.say("svc1", service(json!({})), &[]).await;
    assert_eq!(case.host.remotes().await.len(), 0);
    parity::proved(parity::Hns, &["TestSharedRemoteEndpointDelete", "TestSharedRemoteEndpointUpdate"]);
}

/// TestUpdateLoadBalancerWhenSupported, TestUpdateLoadBalancerWhenUnsupported
#[tokio::test]
async fn a_replaced_pod_changes_the_load_balancer_in_place_where_hns_can() {
    for (version, function) in [(NEW, "HcnModifyLoadBalancer"), (OLD, "HcnCreateLoadBalancer")] {
        let mut case = Case::bridge(version).await;
        case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
        let before: Vec<Guid> = case.host.balancers().await.values().map(|balancer| balancer.id).collect();
        case.host.forget_calls();
        case.proxy.say("svc1", service(json!({})), &[slice(80, &["10.0.0.3"])]).await;
        let after: Vec<Guid> = case.host.balancers().await.values().map(|balancer| balancer.id).collect();
        assert_eq!((before, case.host.remotes().await), (after, vec!["10.0.0.3".to_owned()]));
        assert_eq!(case.host.calls().iter().filter(|call| call.call == function).count(), 2);
    }
    parity::proved(parity::Hns, &["TestUpdateLoadBalancerWhenSupported", "TestUpdateLoadBalancerWhenUnsupported"]);
}

/// TestNoopEndpointSlice
#[tokio::test]
async fn slices_without_a_service_cause_no_calls() {
    let mut case = Case::bridge(OLD).await;
    case.proxy.rest().await;
    let mut inputs = crate::inputs::Inputs::default();
    let empty = json!({"metadata": {"name": "svc1-1", "namespace": "ns1", "labels": {"kubernetes.io/service-name": "svc1"}}, "addressType": "IPv4"});
    for text in [json!({"metadata": {}, "addressType": "IPv4"}), empty.clone()] {
        let desired = text == empty;
        let row = SliceRow::of(&serde_json::from_value::<EndpointSlice>(json!({"endpoints": null, "ports": null}).merged(text)).unwrap(), "here");
        assert_eq!(row.is_some(), desired);
        let key = Key::new("ns1", "svc1-1");
        for row in [row.clone(), row, None] {
            inputs.slice(&key, row);
        }
    }
    case.host.forget_calls();
    for service in inputs.take_dirty() {
        assert!(inputs.rows(&service).is_none());
        case.proxy.forget(&service.name).await;
    }
    assert_eq!(case.host.calls().iter().filter(|call| !call.call.starts_with("HcnEnumerate")).count(), 0);
    parity::proved(parity::Hns, &["TestNoopEndpointSlice"]);
}

/// TestWinDSRWithOverlayEnabled
#[tokio::test]
async fn external_policy_local_sets_dsr_on_overlays_too() {
    let mut case = Case::overlay(true).await;
    case.host.pod("192.168.4.4").await;
    case.proxy.say("svc1", service(load_balancer("Local")), &[slice(80, &["192.168.4.4"])]).await;
    assert_eq!(case.flags().await, ["10.20.30.41:80/tcp 1 0 1", "11.21.31.41:80/tcp 1 16 1", "node:3001/tcp 1 18 1"]);
    parity::proved(parity::Hns, &["TestWinDSRWithOverlayEnabled"]);
}

/// TestCreateDsrLoadBalancer, TestClusterIPLBInCreateDsrLoadBalancer, #115783
#[tokio::test]
async fn external_policy_local_needs_a_local_pod_and_the_cluster_ip_does_not() {
    let mut case = Case::bridge(OLD).await;
    case.host.endpoint("cbr0", "192.168.4.3").await;
    case.host.pod("192.168.4.4").await;
    case.proxy.say("svc1", service(load_balancer("Local")), &[slice(80, &["192.168.4.4", "192.168.2.3"])]).await;
    let all = ["10.20.30.41:80/tcp 0 0 2", "11.21.31.41:80/tcp 1 16 1", "11.21.31.41:32000/tcp 0 0 1", "node:3001/tcp 1 18 1"];
    assert_eq!(case.flags().await, all);
    case.proxy.say("svc1", service(load_balancer("Local")), &[slice(80, &["192.168.2.3"])]).await;
    assert_eq!(case.flags().await, ["10.20.30.41:80/tcp 0 0 1"]);
    parity::proved(parity::Hns, &["TestCreateDsrLoadBalancer", "TestClusterIPLBInCreateDsrLoadBalancer"]);
}

/// A LoadBalancer of both families with an ingress address of each.
fn dual(policy: &str, families: &str) -> Value {
    let ingress = json!([{"ip": "11.21.31.41"}, {"ip": "fd00:11::41"}]);
    let both = json!({"clusterIPs": [VIP, "fd00:96::41"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": families,
        "status": {"loadBalancer": {"ingress": ingress}}});
    service(load_balancer(policy).merged(both))
}

/// TestETPLocalIngressIPServiceWithPreferDualStack, …RequireDualStack, #136241 and #115501 (families shared identities)
#[tokio::test]
async fn both_families_are_served_with_policy_local_and_never_mixed() {
    for families in ["PreferDualStack", "RequireDualStack"] {
        let mut case = Case::dual(OLD).await;
        let pod = case.host.dual_endpoint("pod", "192.168.4.4", "fd00:4::4").await;
        case.proxy.say("svc1", dual("Local", families), &[slice(80, &["192.168.4.4"]), slice(80, &["fd00:4::4"])]).await;
        let v4 = ["10.20.30.41:80/tcp 1 0 1", "11.21.31.41:80/tcp 1 16 1", "11.21.31.41:32000/tcp 0 0 1"];
        let v6 = ["[fd00:11::41]:80/tcp 3 16 1", "[fd00:11::41]:32000/tcp 2 0 1", "[fd00:96::41]:80/tcp 3 0 1"];
        let nodes = ["node:3001/tcp 1 18 1", "[node]:3001/tcp 3 18 1"];
        assert_eq!(case.flags().await, [&v4[..], &v6, &nodes].concat(), "{families}");
        let balancers = case.host.balancers().await;
        assert!(balancers.iter().all(|(key, b)| key.port == 32000 || b.host_compute_endpoints == [pod]), "one endpoint has both addresses");
    }
    parity::proved(
        parity::Mode::Hns,
        &["TestETPLocalIngressIPServiceWithPreferDualStack", "TestETPLocalIngressIPServiceWithRequireDualStack", "#136241", "IPv6 and dual stack"],
    );
}

/// TestETPClusterIngressIPServiceWithPreferDualStack, …RequireDualStack
#[tokio::test]
async fn both_families_use_every_pod_with_policy_cluster() {
    for families in ["PreferDualStack", "RequireDualStack"] {
        let mut case = Case::dual(OLD).await;
        case.proxy = case.host.proxy();
        case.host.dual_endpoint("pod", "192.168.4.4", "fd00:4::4").await;
        let slices = [slice(80, &["192.168.4.4", "192.168.2.3"]), slice(80, &["fd00:4::4", "fd00:2::3"])];
        case.proxy.say("svc1", dual("Cluster", families), &slices).await;
        let flags = case.flags().await;
        let served: Vec<&str> = flags.iter().filter(|line| line.ends_with(" 2")).map(String::as_str).collect();
        let v4 = ["10.20.30.41:80/tcp 0 0 2", "11.21.31.41:80/tcp 0 16 2"];
        let v6 = ["[fd00:11::41]:80/tcp 2 16 2", "[fd00:96::41]:80/tcp 2 0 2"];
        let nodes = ["node:3001/tcp 0 18 2", "[node]:3001/tcp 2 18 2"];
        assert_eq!(served, [&v4[..], &v6, &nodes].concat(), "{families}");
        assert_eq!(case.host.remotes().await, ["192.168.2.3", "fd00:2::3"], "one for each family");
    }
    parity::proved(parity::Hns, &["TestETPClusterIngressIPServiceWithPreferDualStack", "TestETPClusterIngressIPServiceWithRequireDualStack"]);
}

/// TestEndpointSliceWithInternalPortDifferentFromServicePort, #132646
#[tokio::test]
async fn target_port_comes_from_the_slice() {
    let mut case = Case::bridge(OLD).await;
    case.proxy.say("svc1", service(json!({})), &[slice(8080, &["192.168.2.3"])]).await;
    let mapping = case.host.balancers().await[&key(Some(VIP), 80)].port_mappings.clone();
    assert_eq!((mapping.len(), mapping[0].internal_port, mapping[0].external_port), (1, 8080, 80));
    parity::proved(parity::Hns, &["TestEndpointSliceWithInternalPortDifferentFromServicePort"]);
}

/// TestRemoteAndLocalEndpointsSameIP
#[tokio::test]
async fn local_endpoint_wins_over_a_remote_one_at_the_same_address() {
    let mut case = Case::bridge(OLD).await;
    let pod = case.host.pod("192.168.4.4").await;
    let double = HostComputeEndpoint::remote("192.168.4.4".parse().unwrap());
    case.host.client.create_endpoint(&case.host.network, Guid::random(), &double).await.unwrap();
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.4.4"])]).await;
    assert!(case.host.balancers().await.values().all(|balancer| balancer.host_compute_endpoints == [pod]));
    parity::proved(parity::Hns, &["TestRemoteAndLocalEndpointsSameIP"]);
}

/// TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP
#[tokio::test]
async fn changes_of_a_remote_endpoint_do_not_affect_the_local_one() {
    let mut case = Case::bridge(OLD).await;
    let elsewhere = || slice_of(80, vec![json!({"addresses": ["192.168.4.4"], "nodeName": "there"})]);
    let nth = |n: u16| service(json!({"clusterIP": format!("10.20.30.{n}"), "ports": [{"name": "p80", "port": 80, "nodePort": 3000 + n}]}));
    for n in [1, 2] {
        case.proxy.say(&format!("svc{n}"), nth(n), &[elsewhere()]).await;
    }
    assert_eq!(case.host.remotes().await, ["192.168.4.4"], "both use one");
    let pod = case.host.pod("192.168.4.4").await;
    case.proxy.say("svc3", nth(3), &[slice(80, &["192.168.4.4"])]).await;
    for n in [1, 2] {
        case.proxy.say(&format!("svc{n}"), nth(n), &[]).await;
    }
    case.proxy.rest().await;
    assert!(case.host.client.endpoint(&pod).await.unwrap().is_some());
    assert_eq!(case.host.seen().await, ["10.20.30.3:80/tcp -> 192.168.4.4", "node:3003/tcp -> 192.168.4.4"]);
    assert!(case.host.balancers().await.values().all(|balancer| balancer.host_compute_endpoints == [pod]));
    assert_eq!(case.host.remotes().await.len(), 0);
    parity::proved(parity::Hns, &["TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP"]);
}

/// TestEndpointTransitionWithLBFailures. Upstream deletes endpoints that a load balancer still names; here they stay until it is gone.
#[tokio::test]
async fn endpoints_stay_as_long_as_a_load_balancer_that_cannot_be_deleted_names_them() {
    let mut case = Case::bridge(OLD).await;
    case.host.pod("192.168.4.4").await;
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.4.4", "192.168.2.3", "192.168.2.4"])]).await;
    case.host.fault("lb-delete-fails,count=all");
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.4.4"])]).await;
    assert_eq!(case.host.remotes().await.len(), 2);
    assert!(case.host.seen().await.iter().all(|line| !line.contains("dangling")));
    assert_eq!(case.proxy.failing().len(), 2);
    case.host.simulator.clear_faults();
    case.proxy.rest().await;
    assert_eq!((case.host.remotes().await.len(), case.proxy.failing().len()), (0, 0));
    assert_eq!(case.host.seen().await, ["10.20.30.41:80/tcp -> 192.168.4.4", "node:3001/tcp -> 192.168.4.4"]);
    parity::proved(parity::Hns, &["TestEndpointTransitionWithLBFailures"]);
}
