//! Scenarios that every proxy mode runs: features of Services, tried with packets.

use parity::proved;

use super::*;

const WEB: &str = "10.96.0.1:80";
const INGRESS: &str = "192.0.2.7:80";

pub(crate) async fn every_address_of_a_service_answers<S: Serve>(mut world: World<S>) {
    let pods = world.slice(8080, &["near1", "far1"]);
    world.set(&balancer(json!({"spec": {"externalIPs": ["192.0.2.9"]}})), &[pods]).await;
    let node_port = world.node_port(30080);
    for (who, to) in [("client", WEB), ("node", WEB), ("outside", &node_port), ("outside", INGRESS), ("outside", "192.0.2.9:80")] {
        world.only(who, to, &["near1", "far1"]);
    }
    world.remove("web").await;
    world.nobody("client", WEB);
    world.nobody("outside", &node_port);
    proved(S::MODE, &["ClusterIP, NodePort, externalIPs, load-balancer addresses"]);
}

pub(crate) async fn tcp_and_udp_share_a_port<S: Serve>(mut world: World<S>) {
    let ports = json!([{"name": "dns-tcp", "port": 53, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    let there = json!([{"name": "dns-tcp", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 5353, "protocol": "UDP"}]);
    let pods = world.slice_of("web", there, &["near1"]);
    world.set(&service(json!({"spec": {"ports": ports}})), &[pods]).await;
    assert_eq!(world.answer("client", "10.96.0.1:53"), "near1:8080");
    let client = world.ns("client");
    assert_eq!(eventually("an answer by UDP", || ask_udp(&client, "10.96.0.1:53")), "near1");
    proved(S::MODE, &["TCP and UDP"]);
}

/// #132646: `targetPort` of the Service was used; the slice says otherwise.
pub(crate) async fn each_port_leads_to_the_port_of_the_slice<S: Serve>(mut world: World<S>) {
    let ports =
        json!([{"name": "a", "port": 80, "protocol": "TCP", "targetPort": 80}, {"name": "b", "port": 81, "protocol": "TCP", "targetPort": 80}]);
    let there = json!([{"name": "b", "port": 9090, "protocol": "TCP"}, {"name": "a", "port": 8080, "protocol": "TCP"}]);
    let pods = world.slice_of("web", there, &["near1"]);
    world.set(&service(json!({"spec": {"ports": ports}})), &[pods]).await;
    assert_eq!(world.answer("client", WEB), "near1:8080");
    assert_eq!(world.answer("client", "10.96.0.1:81"), "near1:9090");
    proved(S::MODE, &["Several ports", "#132646"]);
}

pub(crate) async fn one_port_has_backends_at_several_target_ports<S: Serve>(mut world: World<S>) {
    let slices = [world.slice(8080, &["near1", "near2"]), world.slice(9090, &["near1"])];
    world.set(&service(json!({})), &slices).await;
    assert_eq!(world.answers("client", WEB, 60).into_iter().collect::<Vec<_>>(), ["near1:8080", "near1:9090", "near2:8080"]);
    let left = world.slice(8080, &["near2"]);
    world.set(&service(json!({})), &[left]).await;
    world.only("client", WEB, &["near2"]);
    proved(S::MODE, &["Several target ports behind one port", "Two ports of one pod cancel each other out"]);
}

pub(crate) async fn sticky_clients_stay_until_their_timeout<S: Serve>(mut world: World<S>) {
    let sticky =
        |seconds: u32| service(json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}}));
    let pods = world.slice(8080, &["near1", "near2", "far1"]);
    world.set(&sticky(600), std::slice::from_ref(&pods)).await;
    let first = world.answer("client", WEB);
    assert_eq!(world.answers("client", WEB, 20), [first].into(), "the client stays");
    world.set(&sticky(1), &[pods]).await;
    let before = world.answer("client", WEB);
    until("the client to meet others after a pause that is longer than its timeout", || {
        std::thread::sleep(Duration::from_millis(1_500));
        world.answer("client", WEB) != before
    });
    proved(S::MODE, &["Session affinity", "Session affinity's timeout"]);
}

/// #133928: a change of pods elsewhere took the load balancer of policy Local away.
pub(crate) async fn internal_policy_local_keeps_to_the_node<S: Serve>(mut world: World<S>) {
    let local = service(json!({"spec": {"internalTrafficPolicy": "Local"}}));
    for (pods, answer) in [
        (&["near1"][..], &["near1"][..]),
        (&["near1", "near2"], &["near1", "near2"]),
        (&["near1", "near2", "far1"], &["near1", "near2"]),
        (&["near2", "far1"], &["near2"]),
        (&["near2", "far1", "far2"], &["near2"]),
    ] {
        let slice = world.slice(8080, pods);
        world.set(&local, &[slice]).await;
        world.only("client", WEB, answer);
    }
    let elsewhere = world.slice(8080, &["far1"]);
    world.set(&local, &[elsewhere]).await;
    world.nobody("client", WEB);
    proved(S::MODE, &["internalTrafficPolicy Local", "#133928"]);
}

/// #115783: where only pods of other nodes serve, the ClusterIP was lost too.
pub(crate) async fn external_policy_local_keeps_to_the_node_and_leaves_the_cluster_ip_alone<S: Serve>(mut world: World<S>) {
    let local = balancer(json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}}));
    let node_port = world.node_port(30080);
    let pods = world.slice(8080, &["near1", "far1"]);
    world.set(&local, &[pods]).await;
    world.only("outside", INGRESS, &["near1"]);
    world.only("outside", &node_port, &["near1"]);
    world.only("client", WEB, &["near1", "far1"]);
    let elsewhere = world.slice(8080, &["far1", "far2"]);
    world.set(&local, &[elsewhere]).await;
    world.nobody("outside", INGRESS);
    world.nobody("outside", &node_port);
    world.only("client", WEB, &["far1", "far2"]);
    proved(S::MODE, &["externalTrafficPolicy Local: only backends on the node answer", "#115783"]);
}

/// #106636: the node itself answers for the load balancer's address, so policy Local is not for clients inside the cluster.
pub(crate) async fn with_external_policy_local_clients_inside_reach_every_backend<S: Serve>(mut world: World<S>) {
    let local = balancer(json!({"spec": {"externalTrafficPolicy": "Local"}}));
    let node_port = world.node_port(30080);
    for pods in [&["near1", "far1"][..], &["far1"]] {
        let slice = world.slice(8080, pods);
        world.set(&local, &[slice]).await;
        for to in [INGRESS, &node_port] {
            world.only("client", to, pods);
            world.only("node", to, pods);
        }
    }
    proved(S::MODE, &["externalTrafficPolicy Local: clients inside the cluster reach every backend", "#106636"]);
}

/// #113841: a load balancer whose pods all terminated lost its address; node ports kept pods that had ended.
pub(crate) async fn terminating_backends_answer_when_nobody_is_ready<S: Serve>(mut world: World<S>) {
    let node_port = world.node_port(30080);
    for (endpoints, answer) in [
        (["near1", "far1"], &["near1", "far1"][..]),
        (["near1", "far1 st"], &["near1"]),
        (["near1 st", "far1 st"], &["near1", "far1"]),
        (["near1 t", "far1 st"], &["far1"]),
        (["near1 st", "far1 s"], &["near1"]),
    ] {
        let slice = world.slice(8080, &endpoints);
        world.set(&balancer(json!({})), &[slice]).await;
        for (who, to) in [("client", WEB), ("outside", &node_port), ("outside", INGRESS)] {
            world.only(who, to, answer);
        }
    }
    let ended = world.slice(8080, &["near1 t", "far1 t"]);
    world.set(&balancer(json!({})), &[ended]).await;
    for (who, to) in [("client", WEB), ("outside", &node_port), ("outside", INGRESS)] {
        world.nobody(who, to);
    }
    proved(S::MODE, &["Terminating backends as a last resort", "#113841", "All pods terminate, and node ports keep the old ones"]);
}

/// The control plane writes `ready` for `publishNotReadyAddresses`, though nothing serves.
pub(crate) async fn published_backends_answer_though_they_are_not_ready<S: Serve>(mut world: World<S>) {
    let published = world.slice(8080, &["near1 r", "far1 rt"]);
    world.set(&service(json!({})), &[published]).await;
    world.only("client", WEB, &["near1", "far1"]);
    proved(S::MODE, &["publishNotReadyAddresses", "publishNotReadyAddresses has no effect"]);
}

/// Of policy Local and no pod on the node upstream concluded that no pod serves anywhere, and took those that are not ready.
pub(crate) async fn unready_backends_elsewhere_get_nothing<S: Serve>(mut world: World<S>) {
    let pods = world.slice(8080, &["far1", "far2 t"]);
    world.set(&balancer(json!({"spec": {"externalTrafficPolicy": "Local"}})), &[pods]).await;
    world.only("client", WEB, &["far1"]);
    proved(S::MODE, &["Unready pods elsewhere get the ClusterIP's traffic"]);
}

/// The node is `here`, in zone `a`.
pub(crate) async fn topology_hints_are_followed<S: Serve>(mut world: World<S>) {
    for (endpoints, answer) in [
        (["near1 zone=a", "far1 zone=b", "far2 zone=b"], &["near1"][..]),
        (["near1 zone=b", "far1 zone=a", "far2 zone=a"], &["far1", "far2"]),
        (["near1 zone=a node=there", "far1 zone=a node=here", "far2 zone=a node=there"], &["far1"]),
        (["near1 zone=b", "far1 zone=b", "far2 zone=b"], &["near1", "far1", "far2"]),
        (["near1 zone=a", "far1 zone=b", "far2"], &["near1", "far1", "far2"]),
    ] {
        let slice = world.slice(8080, &endpoints);
        world.set(&service(json!({"spec": {"trafficDistribution": "PreferSameNode"}})), &[slice]).await;
        world.only("client", WEB, answer);
    }
    proved(S::MODE, &["Topology hints of EndpointSlices (forNodes, forZones)"]);
}

pub(crate) async fn source_ranges_keep_others_out<S: Serve>(mut world: World<S>) {
    let pods = world.slice(8080, &["near1"]);
    let guarded = |range: &str| balancer(json!({"spec": {"loadBalancerSourceRanges": [range]}}));
    world.set(&guarded("203.0.113.0/24"), std::slice::from_ref(&pods)).await;
    world.nobody("outside", INGRESS);
    world.only("client", WEB, &["near1"]);
    world.set(&guarded("10.240.0.0/24"), &[pods]).await;
    world.only("outside", INGRESS, &["near1"]);
    proved(S::MODE, &["loadBalancerSourceRanges"]);
}

pub(crate) async fn a_service_without_backends_refuses<S: Serve>(mut world: World<S>) {
    world.set(&service(json!({})), &[]).await;
    assert_eq!(world.nobody("client", WEB), "connection refused");
    let pods = world.slice(8080, &["near1"]);
    world.set(&service(json!({})), &[pods]).await;
    world.only("client", WEB, &["near1"]);
    world.set(&service(json!({})), &[]).await;
    assert_eq!(world.nobody("client", WEB), "connection refused");
    proved(S::MODE, &["A Service without backends refuses at once"]);
}

pub(crate) async fn a_pod_reaches_itself<S: Serve>(mut world: World<S>) {
    let pods = world.slice(8080, &["near1"]);
    world.set(&service(json!({})), &[pods]).await;
    world.only("near1", WEB, &["near1"]);
    proved(S::MODE, &["A pod that is its own backend"]);
}

pub(crate) async fn services_and_slices_of_other_proxies_are_left_alone<S: Serve>(mut world: World<S>) {
    let pods = world.slice(8080, &["near1"]);
    world.set(&service(json!({})), std::slice::from_ref(&pods)).await;
    world.only("client", WEB, &["near1"]);
    let other = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}});
    world.set(&service(other), std::slice::from_ref(&pods)).await;
    world.nobody("client", WEB);
    let mut headless = pods.clone();
    merge(&mut headless, json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}}));
    world.set(&service(json!({})), &[headless]).await;
    world.nobody("client", WEB);
    world.set(&service(json!({})), std::slice::from_ref(&pods)).await;
    world.only("client", WEB, &["near1"]);
    world.set(&service(json!({"spec": {"clusterIP": "None"}})), &[pods]).await;
    world.nobody("client", WEB);
    proved(S::MODE, &["Labels service-proxy-name and headless"]);
}

/// #91703: what two Services share went with the first of them.
pub(crate) async fn a_shared_pod_serves_until_its_last_service_goes<S: Serve>(mut world: World<S>) {
    for (name, ip) in [("a", "10.96.0.5"), ("b", "10.96.0.6")] {
        let pods = world.slice_of(name, json!([{"name": "", "port": 8080, "protocol": "TCP"}]), &["near1", "far1"]);
        world.set(&service(json!({"metadata": {"name": name}, "spec": {"clusterIP": ip}})), &[pods]).await;
    }
    world.remove("a").await;
    world.nobody("client", "10.96.0.5:80");
    world.only("client", "10.96.0.6:80", &["near1", "far1"]);
    world.remove("b").await;
    world.nobody("client", "10.96.0.6:80");
    proved(S::MODE, &["#91703"]);
}

/// #78574: the node port has the number of the Service's port. Whichever comes first, after a restart and after a change, both answer.
pub(crate) async fn a_node_port_may_have_the_number_of_the_port<S: Serve>(mut world: World<S>) {
    let plain = service(json!({"spec": {"ports": [{"port": 30080, "protocol": "TCP"}]}}));
    let both = service(json!({"spec": {"type": "NodePort", "ports": [{"port": 30080, "protocol": "TCP", "nodePort": 30080}]}}));
    let (inner, outer) = ("10.96.0.1:30080", world.node_port(30080));
    let near = world.slice(8080, &["near1"]);
    world.set(&plain, std::slice::from_ref(&near)).await;
    world.only("client", inner, &["near1"]);
    world.nobody("outside", &outer);
    world.set(&both, &[near]).await;
    world.only("client", inner, &["near1"]);
    world.only("outside", &outer, &["near1"]);
    world.restart().await;
    world.only("outside", &outer, &["near1"]);
    let far = world.slice(8080, &["far1"]);
    world.set(&both, std::slice::from_ref(&far)).await;
    world.only("client", inner, &["far1"]);
    world.only("outside", &outer, &["far1"]);
    world.set(&plain, std::slice::from_ref(&far)).await;
    world.only("client", inner, &["far1"]);
    world.nobody("outside", &outer);
    world.remove("web").await;
    world.set(&both, &[far]).await;
    world.only("client", inner, &["far1"]);
    world.only("outside", &outer, &["far1"]);
    proved(S::MODE, &["#78574"]);
}

/// #113842: a pod of a load balancer with externalTrafficPolicy Local ends or comes, and open connections to the others broke.
pub(crate) async fn connections_to_pods_that_stay_outlive_scaling<S: Serve>(mut world: World<S>) {
    let local = balancer(json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "externalIPs": ["192.0.2.9"]}}));
    let three = world.slice(8080, &["near1", "near2", "near3"]);
    world.set(&local, std::slice::from_ref(&three)).await;
    let (outside, node_port) = (world.ns("outside"), world.node_port(30080));
    let mut connections = Vec::new();
    for to in [INGRESS, "192.0.2.9:80", &node_port] {
        connections.extend((0..30).map(|_| eventually("a connection", || connect(&outside, to))));
    }
    let pods: BTreeSet<&str> = connections.iter().map(|(pod, _)| pod.as_str()).collect();
    assert_eq!(pods, ["near1:8080", "near2:8080", "near3:8080"].into(), "clients are spread over the pods");
    connections.retain(|(pod, _)| pod != "near2:8080");
    world.proxy.check_kept_connections().await;
    for endpoints in [&["near1", "near2 st", "near3"][..], &["near1", "near3"], &["near1", "near2", "near3"], &["near1", "near3", "far1"]] {
        let slice = world.slice(8080, endpoints);
        world.set(&local, &[slice]).await;
        let broken = connections.iter_mut().filter_map(|(pod, stream)| (!is_alive(stream)).then_some(pod.as_str())).count();
        assert_eq!(broken, 0, "of {} connections to near1 and near3, with {endpoints:?}", connections.len());
        world.proxy.check_kept_connections().await;
    }
    proved(S::MODE, &["#113842"]);
}

pub(crate) async fn pods_of_the_hosts_network_answer<S: Serve>(mut world: World<S>) {
    let pods = world.slice(8080, &["near-host", "near1"]);
    world.set(&balancer(json!({})), &[pods]).await;
    for (who, to) in [("client", WEB), ("node", WEB), ("outside", INGRESS)] {
        world.only(who, to, &["near-host", "near1"]);
    }
    proved(S::MODE, &["Pods of the host's network are left out in silence"]);
}

/// #136241: IPv4 and IPv6 of one Service were given one identity, and one took the other's backends.
pub(crate) async fn both_families_are_served_and_never_mixed<S: Serve>(mut world: World<S>) {
    let both = service(json!({"spec": {"type": "NodePort", "clusterIPs": ["10.96.0.1", "fd00:96::1"], "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}}));
    let v6 = |world: &World<S>, pod: &str| {
        let address = world.places.pods.iter().find(|there| there.name == pod).unwrap().addresses[1];
        let mut slice = world.slice(8080, &[pod]);
        merge(&mut slice, json!({"addressType": "IPv6"}));
        slice["endpoints"][0]["addresses"] = json!([address]);
        slice
    };
    for (first, second) in [("near1", "near2"), ("near3", "near1")] {
        let slices = [world.slice(8080, &[first]), v6(&world, second)];
        world.set(&both, &slices).await;
        world.only("client", WEB, &[first]);
        world.only("client", "[fd00:96::1]:80", &[second]);
        world.only("outside", &world.node_port(30080), &[first]);
    }
    let one = [world.slice(8080, &["near1"])];
    world.set(&both, &one).await;
    world.only("client", WEB, &["near1"]);
    world.nobody("client", "[fd00:96::1]:80");
    proved(S::MODE, &["IPv6 and dual stack", "#136241"]);
}
