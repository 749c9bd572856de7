//! Pods that end before their hosts do.

use crate::busybox;
use crate::cluster::Cluster;

/// A pod that says goodbye to a file of its node, later than processes of the lab have without the option.
const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: polite}
spec:
  terminationGracePeriodSeconds: 20
  volumes: [{name: v, hostPath: {path: /goodbye, type: DirectoryOrCreate}}]
  containers:
  - name: c
    image: docker.io/library/busybox:e2e
    command: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 1; done']
    volumeMounts: [{name: v, mountPath: /v}]
    lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 2; echo goodbye > /v/said']}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kept}
spec:
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec: {containers: [{name: c, image: 'docker.io/library/busybox:e2e', command: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 1; done']}]}
";

#[test]
fn pods_say_goodbye_before_the_cluster_goes_down() {
    let mut cluster = Cluster::up_with("lin01:linux", &["--shutdown-grace-period", "30s"]);
    busybox::load(&cluster);
    cluster.apply(POD);
    cluster.ready("pod/polite");
    cluster.rolled_out("kept");
    cluster.down().ok("mullion down");
    let said = cluster.drive("lin01", "root").join("goodbye/said");
    assert_eq!(std::fs::read_to_string(&said).unwrap_or_else(|error| panic!("{}: {error}", said.display())), "goodbye\n");

    cluster.start("");
    let of = |pod: &serde_json::Value| (pod["status"]["phase"].clone(), pod["status"]["reason"].clone());
    let ended = ("Failed".into(), "Terminated".into());
    assert_eq!(of(&cluster.json(&["pod", "polite"])), ended);
    cluster.rolled_out("kept");
    let (failed, running): (Vec<_>, Vec<_>) = cluster.pods("kept").into_iter().partition(|pod| of(pod) == ended);
    assert_eq!((failed.len(), running.len()), (1, 1), "the Deployment has another pod in the place of the one that ended");
}
