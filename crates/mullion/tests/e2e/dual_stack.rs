//! Two address families: nodes, pods, Services and names have both, and packets of both pass between all of them.
//!
//! Behaviours of upstream's `test/e2e/network/dual_stack.go`, with Windows nodes among the nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, until};
use crate::commands::hns;
use crate::from_node::{At, from_node, internal_ips};
use crate::http::{fetched, page};
use crate::{busybox, manifests};

/// Networks of pods and Services, the primary family's first.
pub const CLUSTER_CIDR: &str = "192.168.0.0/16,fd00:10:244::/48";
pub const SERVICE_CIDR: &str = "10.96.0.0/12,fd00:10:96::/112";
/// The same with IPv6 as the primary family.
pub const IPV6_FIRST: [&str; 6] =
    ["--cluster-cidr", "fd00:10:244::/48,192.168.0.0/16", "--service-cidr", "fd00:10:96::/112,10.96.0.0/12", "--dns-ip", "fd00:10:96::a"];
/// Two nodes of each system.
pub const NODES_WITH_BOTH: &str = "lin01:linux,lin02:linux,win01:windows:20348,win02:windows:20348";
/// The same, and a Windows whose HNS has no IPv6.
pub const NODES: &str = "lin01:linux,lin02:linux,win01:windows:20348,win02:windows:20348,old01:windows:17763";
const NEW_NODES: [&str; 4] = ["lin01", "lin02", "win01", "win02"];

fn texts(list: &Value, member: &str) -> Vec<String> {
    let text = |item: &Value| if member.is_empty() { item.as_str() } else { item[member].as_str() }.unwrap_or_default().to_owned();
    list.as_array().into_iter().flatten().map(text).collect()
}

fn families(addresses: &[String]) -> Vec<&'static str> {
    let family = |text: &String| match text.split('/').next().unwrap_or_default().parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => "IPv4",
        Ok(IpAddr::V6(_)) => "IPv6",
        Err(_) => "none",
    };
    addresses.iter().map(family).collect()
}

/// The cluster's families, the primary one first.
fn both(cluster: &Cluster) -> Vec<&'static str> {
    families(&texts(&cluster.json(&["servicecidr", "kubernetes"])["spec"]["cidrs"], ""))
}

/// The primary family is IPv6: of Services that ask for none, and of the API's own.
pub fn ipv6_is_primary(cluster: &Cluster) {
    assert_eq!(both(cluster), ["IPv6", "IPv4"]);
    cluster.apply(&service("by-default", "windows", "", ""));
    for name in ["by-default", "kubernetes"] {
        assert_eq!(families(&texts(&cluster.json(&["service", name])["spec"]["clusterIPs"], "")), ["IPv6"], "{name}");
    }
    let dns = texts(&cluster.json(&["service", "kube-dns", "-n", "kube-system"])["spec"]["clusterIPs"], "");
    assert_eq!(families(&dns), ["IPv6", "IPv4"]);
}

/// Whether a server's page says that the client was at `address`.
fn is_seen(page: &str, address: &str) -> bool {
    let client = page.lines().find_map(|line| line.strip_prefix("client: ")).unwrap_or_default();
    // busybox' server of both families shows an IPv4 client as one of IPv6.
    let rest = client.trim_start_matches('[').trim_start_matches("::ffff:").strip_prefix(address);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(']') || (rest.starts_with(':') && !address.contains(':')))
}

/// Every node has an internal address and a range for pods of each family, the primary one first.
pub fn nodes_have_both(cluster: &Cluster) {
    let (mut ranges, both) = (BTreeSet::new(), both(cluster));
    let nodes = cluster.json(&["nodes"])["items"].as_array().cloned().expect("nodes");
    for node in &nodes {
        let name = &node["metadata"]["name"];
        let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
        let internal = addresses.iter().filter(|address| address["type"] == "InternalIP").cloned().collect::<Vec<_>>();
        assert_eq!(families(&texts(&json!(internal), "address")), both, "{name}: {addresses:?}");
        let cidrs = texts(&node["spec"]["podCIDRs"], "");
        assert_eq!((families(&cidrs), node["spec"]["podCIDR"].as_str()), (both.clone(), cidrs.first().map(String::as_str)), "{name}");
        let right =
            |cidr: &String| if cidr.contains(':') { cidr.starts_with("fd00:10:244:") && cidr.ends_with("/64") } else { cidr.ends_with("/24") };
        assert!(cidrs.iter().all(right), "{cidrs:?}");
        ranges.extend(cidrs);
    }
    assert_eq!(ranges.len(), nodes.len() * 2, "each its own: {ranges:?}");
}

/// A web server on every node, the answers of which say who asked.
fn serve(cluster: &Cluster) {
    busybox::load(cluster);
    let script = "mkdir -p /www/cgi-bin && printf '#!/bin/sh\\necho; echo \"client: $REMOTE_ADDR\"; echo \"ips: $IPS\"\\n' > /www/cgi-bin/headers \
                  && /bin/busybox chmod +x /www/cgi-bin/headers && exec httpd -f -p 80 -h /www";
    for node in ["lin01", "lin02"] {
        let ips = "env: [{name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}], name: main,";
        let manifest = manifests::script(&format!("on-{node}"), script, "").replacen("name: main,", ips, 1);
        // They outlive a restart of their nodes.
        let manifest = manifest.replace("restartPolicy: Never", "restartPolicy: Always");
        cluster.apply(
            &manifest
                .replace("{kubernetes.io/os: linux}", &format!("{{kubernetes.io/hostname: {node}}}"))
                .replace("labels: {", "labels: {dual: linux, "),
        );
    }
    for node in ["win01", "win02"] {
        let ips = "        env: [{name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}]";
        cluster.apply(&manifests::web(&format!("on-{node}"), node, "", ips).replace("labels: {app: on-", "labels: {dual: windows, app: on-"));
    }
    for node in ["win01", "win02"] {
        cluster.rolled_out(&format!("on-{node}"));
    }
    for node in ["lin01", "lin02"] {
        cluster.ready(&format!("pod/on-{node}"));
    }
}

fn pod_on(cluster: &Cluster, node: &str) -> Value {
    let pods = cluster.pods(&format!("on-{node}"));
    assert_eq!(pods.len(), 1, "{node}");
    pods.into_iter().next().unwrap_or_default()
}

/// `status.podIPs` of the server on a node.
fn ips(cluster: &Cluster, node: &str) -> Vec<String> {
    texts(&pod_on(cluster, node)["status"]["podIPs"], "ip")
}

/// What a restart keeps: the nodes' addresses and ranges, and the Services' addresses and ports.
pub fn kept(cluster: &Cluster) -> Vec<Value> {
    let all = |kind: &str| cluster.json(&[kind])["items"].as_array().cloned().unwrap_or_default();
    let nodes = all("nodes").into_iter().map(|node| json!([node["metadata"]["name"], node["spec"]["podCIDRs"], node["status"]["addresses"]]));
    let services = all("services").into_iter().map(|service| json!([service["metadata"]["name"], service["spec"]]));
    nodes.chain(services).collect()
}

/// The servers run again, in the same pods.
pub fn pods_have_both_again(cluster: &Cluster) {
    for node in NEW_NODES {
        until(&format!("the server on {node} again"), PATIENCE, || {
            let pod = pod_on(cluster, node);
            let status = &pod["status"]["containerStatuses"][0];
            let both = texts(&pod["status"]["podIPs"], "ip").len() == 2;
            if both && status["ready"] == true && status["restartCount"] == 1 { Ok(()) } else { Err(pod["status"].to_string()) }
        });
    }
    all_have_both(cluster);
}

/// Pods of both systems have an address of each family of their node's ranges, and know them.
pub fn pods_have_both(cluster: &Cluster) {
    serve(cluster);
    all_have_both(cluster);
}

fn all_have_both(cluster: &Cluster) {
    let both = both(cluster);
    for node in NEW_NODES {
        let pod = pod_on(cluster, node);
        let own = texts(&pod["status"]["podIPs"], "ip");
        assert_eq!((families(&own), pod["status"]["podIP"].as_str()), (both.clone(), own.first().map(String::as_str)), "{node}");
        assert_eq!(families(&texts(&pod["status"]["hostIPs"], "ip")), both, "{node}");
        let cidrs = texts(&cluster.json(&["node", node])["spec"]["podCIDRs"], "");
        for (ip, cidr) in own.iter().zip(&cidrs) {
            let cidr: ipnet::IpNet = cidr.parse().expect("a network");
            assert!(cidr.contains(&ip.parse::<IpAddr>().expect("an address")), "{node}: {ip} of {cidr}");
        }
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let told = if node.starts_with("lin") {
            cluster.kubectl(&["exec", name, "--", "sh", "-c", "echo $IPS"])
        } else {
            page(cluster.node_port(&format!("on-{node}")), "/env")
        };
        assert!(told.contains(&own.join(",")), "{node}: the downward API tells {told}");
    }
}

/// A page, asked by the server on a node.
#[track_caller]
fn asked(cluster: &Cluster, from: &str, at: &At) -> String {
    if from.starts_with("win") {
        return fetched(cluster.node_port(&format!("on-{from}")), &at.url());
    }
    let name = format!("on-{from}");
    until(&format!("{} from {from}", at.url()), PATIENCE, || {
        let output = cluster.try_kubectl(&["exec", &name, "--", "sh", "-c", &at.script()], "");
        if output.out.contains(" 200 OK") { Ok(output.out.replace('\r', "")) } else { Err(format!("{output:?}")) }
    })
}

/// The page where a server says who asked.
fn headers(server: &str) -> &'static str {
    if server.starts_with("lin") { "cgi-bin/headers" } else { "headers" }
}

/// Every pod reaches every other one at both addresses, and is seen with its own of that family.
pub fn every_pair_of_pods(cluster: &Cluster) {
    for client in NEW_NODES {
        let own = ips(cluster, client);
        for server in NEW_NODES {
            for (family, address) in ips(cluster, server).iter().enumerate() {
                let at = At { address: address.clone(), port: 80, page: headers(server) };
                let seen = asked(cluster, client, &at);
                assert!(is_seen(&seen, &own[family]), "{client} asked {server} at {address} with {}: {seen}", own[family]);
            }
        }
    }
}

/// Nodes of both systems reach the pods of their own and of other nodes; pods reach a node.
pub fn nodes_and_pods(cluster: &Cluster) {
    for node in ["lin01", "win01"] {
        for server in NEW_NODES {
            for address in ips(cluster, server) {
                let seen = from_node(cluster, node, &At { address: address.clone(), port: 80, page: headers(server) });
                assert!(seen.contains("client: "), "{node} asked {server} at {address}: {seen}");
            }
        }
    }
}

/// What leaves the cluster's networks has its node's address: a host that knows nothing of pods answers. That host is another node's network.
pub fn outside(cluster: &Cluster) {
    let host = manifests::script(
        "outside",
        "mkdir -p /www/cgi-bin && printf '#!/bin/sh\\necho; echo \"client: $REMOTE_ADDR\"\\n' > /www/cgi-bin/headers && /bin/busybox chmod +x /www/cgi-bin/headers && exec httpd -f -p 8099 -h /www",
        "",
    );
    cluster.apply(&host.replace("{kubernetes.io/os: linux}", "{kubernetes.io/hostname: lin02}").replace("spec:\n", "spec:\n  hostNetwork: true\n"));
    cluster.ready("pod/outside");
    for (client, masqueraded) in [("lin01", true), ("win01", false)] {
        // Towards nodes, pods of Windows nodes keep their address: the LAN is an exception of OutBoundNAT.
        let expected = if masqueraded { internal_ips(cluster, client) } else { ips(cluster, client) };
        for (family, address) in internal_ips(cluster, "lin02").iter().enumerate() {
            let seen = asked(cluster, client, &At { address: address.clone(), port: 8099, page: "cgi-bin/headers" });
            assert!(is_seen(&seen, &expected[family]), "{client} asked {address}: {seen}, expected {}", expected[family]);
        }
    }
    cluster.kubectl(&["delete", "pod/outside", "--grace-period=1"]);
}

fn service(name: &str, selector: &str, policy: &str, families: &str) -> String {
    let policy = if policy.is_empty() { String::new() } else { format!(", ipFamilyPolicy: {policy}") };
    let families = if families.is_empty() { String::new() } else { format!(", ipFamilies: [{families}]") };
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: NodePort, selector: {{dual: {selector}}}, ports: [{{port: 80}}]{policy}{families}}}\n"
    )
}

/// Policy, families asked for, and families expected.
const POLICIES: [(&str, &str, &str, &[&str]); 6] = [
    ("by-default", "", "", &["IPv4"]),
    ("only-ipv6", "SingleStack", "IPv6", &["IPv6"]),
    ("prefers-both", "PreferDualStack", "", &["IPv4", "IPv6"]),
    ("requires-both", "RequireDualStack", "", &["IPv4", "IPv6"]),
    ("ipv4-first", "RequireDualStack", "IPv4, IPv6", &["IPv4", "IPv6"]),
    ("ipv6-first", "RequireDualStack", "IPv6, IPv4", &["IPv6", "IPv4"]),
];

/// ClusterIPs come from the networks of their families, and EndpointSlices of each family have the pods' addresses of it.
pub fn services_have_the_families_of_their_policy(cluster: &Cluster) {
    for (name, policy, asked, expected) in POLICIES {
        cluster.apply(&service(name, "windows", policy, asked));
        let spec = cluster.json(&["service", name])["spec"].clone();
        let cluster_ips = texts(&spec["clusterIPs"], "");
        assert_eq!(
            (texts(&spec["ipFamilies"], ""), families(&cluster_ips)),
            (expected.iter().map(|f| (*f).to_owned()).collect(), expected.to_vec()),
            "{name}"
        );
        assert_eq!(spec["clusterIP"].as_str(), cluster_ips.first().map(String::as_str), "{name}");
        assert!(cluster_ips.iter().all(|ip| ip.starts_with("fd00:10:96::") || !ip.contains(':')), "{name}: {cluster_ips:?}");
        let policy = if policy.is_empty() { "SingleStack" } else { policy };
        assert_eq!(spec["ipFamilyPolicy"].as_str(), Some(policy), "{name}");
        let wanted: BTreeSet<String> = ["win01", "win02"].iter().flat_map(|node| ips(cluster, node)).collect();
        until(&format!("the slices of {name}"), PATIENCE, || {
            let slices = cluster.json(&["endpointslices", "-l", &format!("kubernetes.io/service-name={name}")]);
            let mut found = BTreeSet::new();
            let mut kinds = BTreeSet::new();
            for slice in slices["items"].as_array().into_iter().flatten() {
                let kind = slice["addressType"].as_str().unwrap_or_default();
                let addresses: Vec<String> = slice["endpoints"].as_array().into_iter().flatten().flat_map(|e| texts(&e["addresses"], "")).collect();
                assert!(families(&addresses).iter().all(|family| *family == kind), "{slice}");
                kinds.insert(kind.to_owned());
                found.extend(addresses);
            }
            let of_service: BTreeSet<String> = wanted.iter().filter(|ip| kinds.contains(families(&[(*ip).clone()])[0])).cloned().collect();
            let right = kinds == expected.iter().map(|family| (*family).to_owned()).collect() && found == of_service && !found.is_empty();
            if right { Ok(()) } else { Err(format!("{kinds:?} {found:?}")) }
        });
    }
    let both = cluster.json(&["servicecidr", "kubernetes"]);
    assert_eq!(texts(&both["spec"]["cidrs"], ""), SERVICE_CIDR.split(',').collect::<Vec<_>>());
    let one_policy = cluster.try_kubectl(&["apply", "-f", "-"], &service("wrong", "windows", "SingleStack", "IPv4, IPv6"));
    assert!(one_policy.code == Some(1) && one_policy.err.contains("ipFamilyPolicy"), "{one_policy:?}");
}

/// Each ClusterIP and each NodePort, of Services of either system's pods, from pods and nodes of both systems.
pub fn services_answer_in_both_families(cluster: &Cluster) {
    cluster.apply(&service("to-linux", "linux", "RequireDualStack", ""));
    cluster.apply(&service("to-windows", "windows", "RequireDualStack", ""));
    for (name, page) in [("to-linux", "cgi-bin/headers"), ("to-windows", "headers")] {
        let spec = cluster.json(&["service", name])["spec"].clone();
        let port = spec["ports"][0]["nodePort"].as_u64().expect("a NodePort");
        let at = |port: u64| move |address: String| At { address, port, page };
        let mut all: Vec<At> = texts(&spec["clusterIPs"], "").into_iter().map(at(80)).collect();
        for node in ["lin01", "win02"] {
            all.extend(internal_ips(cluster, node).into_iter().map(at(port)));
        }
        assert_eq!(all.len(), 6);
        for at in &all {
            for client in NEW_NODES {
                let seen = asked(cluster, client, at);
                assert!(seen.contains("client: "), "{client} asked {name} at {at:?}: {seen}");
            }
            for node in ["lin02", "win01"] {
                let seen = from_node(cluster, node, at);
                assert!(seen.contains("client: "), "node {node} asked {name} at {at:?}: {seen}");
            }
        }
    }
}

/// A Service's name has an address of each family that it has; the DNS server answers at both of its own.
pub fn names_have_both(cluster: &Cluster) {
    let dns = texts(&cluster.json(&["service", "kube-dns", "-n", "kube-system"])["spec"]["clusterIPs"], "");
    assert_eq!(families(&dns), ["IPv4", "IPv6"]);
    for (name, _, _, expected) in POLICIES {
        let ips = texts(&cluster.json(&["service", name])["spec"]["clusterIPs"], "");
        for server in &dns {
            let line =
                format!("nslookup -type=a {name}.default.svc.cluster.local {server}; nslookup -type=aaaa {name}.default.svc.cluster.local {server}");
            let told = cluster.try_kubectl(&["exec", "on-lin01", "--", "sh", "-c", &line], "").out;
            let found = told.lines().filter_map(|line| line.trim().strip_prefix("Address: ")).filter(|address| ips.contains(&(*address).to_owned()));
            assert_eq!(found.collect::<BTreeSet<_>>().len(), expected.len(), "{name} by {server}: {told}");
        }
    }
    // A name of IPv6 alone, for a Windows pod.
    let seen = fetched(cluster.node_port("on-win01"), "http://only-ipv6/headers");
    let own = ips(cluster, "win01").remove(1);
    // A pod that is its own backend sees its node.
    let expected = if seen.contains(&format!("server: [{own}]")) { internal_ips(cluster, "win01").remove(1) } else { own };
    assert!(is_seen(&seen, &expected), "{seen}");
}

/// The old HNS: pods of IPv4 alone, the reason in the node's log and events, and the rest of the network as ever.
pub fn an_old_windows_has_one_family(cluster: &Cluster) {
    cluster.apply(&manifests::windows_pod(
        "old",
        "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2019",
        ", kubernetes.io/hostname: old01",
    ));
    cluster.ready("pod/old");
    let pod = cluster.json(&["pod", "old"]);
    let own = texts(&pod["status"]["podIPs"], "ip");
    assert_eq!(families(&own), ["IPv4"]);
    let networks = hns(cluster, "networks", "old01");
    assert!(!networks.iter().any(|network| network.to_string().contains("fd00:")), "{networks:?}");
    let why = "its Host Networking Service has no IPv6 for pods; Windows Server 2022 (build 20348) and later have it";
    let log = cluster.place.mullion(&["logs", "old01", "node"]).ok("mullion logs");
    assert!(log.contains("node old01: its pods get no addresses of fd00:10:244:") && log.contains(why), "{log}");
    cluster.event("node", "old01", "AddressFamilyMissing", why);
    for client in ["lin01", "win01"] {
        let seen = asked(cluster, client, &At { address: own[0].clone(), port: 80, page: "" });
        assert!(seen.contains("IIS Windows Server"), "{client}: {seen}");
    }
    cluster.kubectl(&["delete", "pod/old", "--grace-period=1"]);
}

/// A cluster keeps its families, and what carries one family refuses two.
pub fn other_networks_are_refused(cluster: &Cluster) {
    for (options, part) in [
        (&["--cluster-cidr", "192.168.0.0/16"][..], "--cluster-cidr"),
        (&["--cluster-cidr", "192.168.0.0/16,fd00:10:245::/48"], "was made with --cluster-cidr 192.168.0.0/16,fd00:10:244::/48"),
        (&["--service-cidr", "10.96.0.0/12"], "was made with --service-cidr 10.96.0.0/12,fd00:10:96::/112"),
        (&["--node-mask-ipv6", "80"], "was made with --node-mask-ipv6 64"),
    ] {
        let output = cluster.place.mullion(&[&["up"], options].concat());
        assert!(output.code != Some(0) && output.err.contains(part), "{options:?}: {output:?}");
    }
    let place = crate::cluster::Place::new_beside();
    for network in ["vxlan", "transparent"] {
        let output = place.mullion(&["up", "--network", network, "--cluster-cidr", CLUSTER_CIDR, "--service-cidr", SERVICE_CIDR]);
        assert!(output.code != Some(0) && output.err.contains(&format!("--network {network} carries IPv4 alone")), "{output:?}");
    }
    let first = place.mullion(&[&["up", "--nodes", NODES][..], &IPV6_FIRST].concat());
    assert!(first.code != Some(0) && first.err.contains("cannot run the node old01 in a cluster with IPv6 as its primary family"), "{first:?}");
    let alone = place.mullion(&["up", "--cluster-cidr", "fd00:10:244::/48", "--service-cidr", "fd00:10:96::/112"]);
    assert!(alone.code != Some(0) && alone.err.contains("Windows has no pod network of IPv6 alone"), "{alone:?}");
}
