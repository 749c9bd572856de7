//! What the network does beyond Services: host ports.

use crate::cluster::Cluster;
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
