//! Clusters beside each other, and the cluster of the examples.

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};
use crate::http::page;
use crate::manifests;

/// Two clusters at the same time: the same names and addresses in both, and the end of one is nothing to the other.
pub fn side_by_side(first: &Cluster) {
    first.apply(&manifests::web("here", "win01", "", ""));
    first.rolled_out("here");
    let port = first.node_port("here");
    let mut second = first.beside("win01:windows:20348");
    second.apply(&manifests::web("here", "win01", "", ""));
    second.rolled_out("here");
    let other = second.node_port("here");
    let name = |cluster: &Cluster| cluster.pods("here")[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let (ours, theirs) = (name(first), name(&second));
    assert_eq!((page(port, "/hostname").trim(), page(other, "/hostname").trim()), (ours.as_str(), theirs.as_str()));
    assert_ne!(ours, theirs);
    second.down().ok("mullion down");
    assert_eq!(page(port, "/hostname").trim(), ours, "the first one goes on");
    first.kubectl(&["delete", "deployment,service", "here"]);
}

/// `examples/demo-cluster`: a master that takes no ordinary pods, a Linux worker, a Windows worker.
#[test]
fn the_demo_cluster_keeps_pods_off_its_master() {
    let cluster = Cluster::up(include_str!("../../../../examples/demo-cluster/nodes").trim());
    let role = "node-role.kubernetes.io/control-plane";
    cluster.kubectl(&["label", "node", "master", &format!("{role}=")]);
    cluster.kubectl(&["taint", "node", "master", &format!("{role}:NoSchedule")]);
    busybox::load(&cluster);
    cluster.place.mullion(&["image", "tag", busybox::IMAGE, "docker.io/library/busybox:latest"]).ok("mullion image tag");
    cluster.apply(include_str!("../../../../examples/demo-cluster/pods.yaml"));
    for (app, node, count) in [("linux", "worker", 2), ("windows", "win01", 1)] {
        cluster.rolled_out(app);
        until(&format!("pods of {app} on {node}"), PATIENCE, || {
            let nodes: Vec<_> = cluster.pods(app).iter().filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect();
            if nodes == vec![node; count] { Ok(()) } else { Err(format!("{nodes:?}")) }
        });
    }
    assert!(cluster.kubectl(&["get", "nodes"]).lines().any(|line| line.starts_with("master") && line.contains("control-plane")));
}
