//! What the network does beyond Services: host ports, and what each node's proxy tells of itself.

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};
use crate::http::fetched;
use crate::manifests;

/// A pod of each system at a port of its node, reached from a pod of another node.
pub fn host_ports(cluster: &Cluster) {
    cluster.apply(&manifests::web("asker", "win02", "", ""));
    cluster.apply(
        &manifests::windows_pod("porter", "microsoft/iis", ", kubernetes.io/hostname: win01")
            .replace("image: \"microsoft/iis\"", "image: \"microsoft/iis\", ports: [{containerPort: 80, hostPort: 8081}]"),
    );
    let server = "while true; do printf 'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\nof Linux' | nc -l -p 80; done";
    cluster.apply(&manifests::script("linux-porter", server, "").replace("name: main,", "name: main, ports: [{containerPort: 80, hostPort: 8082}],"));
    cluster.rolled_out("asker");
    cluster.ready("pod/porter");
    cluster.ready("pod/linux-porter");
    let port = cluster.node_port("asker");
    assert_eq!(fetched(port, "http://10.240.0.12:8081/hostname").trim(), "porter");
    assert_eq!(fetched(port, "http://10.240.0.11:8082/"), "of Linux");
    // A second pod for the same port waits.
    cluster.apply(
        &manifests::windows_pod("second", "microsoft/iis", ", kubernetes.io/hostname: win01")
            .replace("image: \"microsoft/iis\"", "image: \"microsoft/iis\", ports: [{containerPort: 80, hostPort: 8081}]"),
    );
    cluster.event("pod", "second", "FailedScheduling", "didn't have free ports for the requested pod ports");
    cluster.kubectl(&["delete", "--grace-period=1", "deployment/asker", "service/asker", "pod/porter", "pod/linux-porter", "pod/second"]);
}

/// Health at every address of a node, which load balancers ask; metrics on the node's own loopback, as upstream's.
pub fn proxies_tell(cluster: &Cluster) {
    for node in ["lin01", "win01", "win02"] {
        for path in ["healthz", "livez"] {
            let said = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}:10256/proxy/{path}")]);
            assert!(said.contains("\"nodeEligible\": true"), "{node}/{path}: {said}");
        }
        let outside = cluster.try_kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}:10249/proxy/metrics")], "");
        assert_ne!(outside.code, Some(0), "metrics are the node's own: {}", outside.out);
    }
    busybox::load(cluster);
    let script = "for path in metrics proxyMode readyz; do busybox wget -qO- http://127.0.0.1:10249/$path; echo; done";
    cluster.apply(&manifests::script("scraper", script, "").replace("spec:\n", "spec:\n  hostNetwork: true\n"));
    let phase = || cluster.json(&["pod/scraper"])["status"]["phase"].as_str().unwrap_or_default().to_owned();
    until("the scraper", PATIENCE, || if phase() == "Succeeded" { Ok(()) } else { Err(phase()) });
    let said = cluster.kubectl(&["logs", "scraper"]);
    for part in ["\nkubeproxy_sync_proxy_rules_last_timestamp_seconds", "\nmullion_service_proxy_missing 0\n", "\nnftables\n", "\"converged\":true"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    cluster.kubectl(&["delete", "pod/scraper"]);
}
