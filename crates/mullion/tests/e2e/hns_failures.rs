//! Failures of a Windows node's Host Networking Service.

use crate::cluster::{Cluster, PATIENCE, until};
use crate::http::{fetched, page};
use crate::manifests;

/// `mullion hns … --node NODE`, which must succeed.
#[track_caller]
fn hns(cluster: &Cluster, node: &str, args: &[&str]) -> String {
    cluster.place.mullion(&[&["hns"], args, &["--node", node]].concat()).ok(&format!("mullion hns {args:?}"))
}

/// Both Windows nodes lose all that their Host Networking Services know: pods get another sandbox, with the reason in events and logs.
pub fn wiped(cluster: &Cluster) {
    for node in ["win01", "win02"] {
        cluster.apply(&manifests::web(&format!("wiped-{node}"), node, "", ""));
    }
    for node in ["win01", "win02"] {
        cluster.rolled_out(&format!("wiped-{node}"));
        page(cluster.node_port(&format!("wiped-{node}")), "/hostname");
    }
    ["win01", "win02"].iter().for_each(|node| drop(hns(cluster, node, &["fault", "add", "wipe,count=1"])));
    for node in ["win01", "win02"] {
        let app = format!("wiped-{node}");
        until("one restart", PATIENCE, || {
            let pods = cluster.pods(&app);
            let restarts = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
            if pods.iter().all(|pod| restarts(pod) == Some(1) && crate::pods::ready(pod)) { Ok(()) } else { Err(format!("{pods:?}")) }
        });
        let pod = cluster.pods(&app).remove(0);
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        assert_eq!(page(cluster.node_port(&app), "/hostname").trim(), name, "the same pod serves");
        cluster.event("pod", &name, "NetworkNotReady", "network is not ready: HNS has lost namespace");
        cluster.event("pod", &name, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
        let log = cluster.place.mullion(&["logs", node, "node"]).ok("mullion logs");
        let line = log.lines().find(|line| line.contains(&name) && line.contains("HNS has lost namespace"));
        assert!(line.is_some_and(|line| line.contains("WARN")), "no warning about {name}: {log}");
        let clients = fetched(cluster.node_port("wiped-win01"), &format!("http://{}/headers", pod["status"]["podIP"].as_str().unwrap_or_default()));
        assert!(clients.contains("client: "), "pods reach each other: {clients}");
    }
    cluster.kubectl(&["delete", "--grace-period=1", "deployment,service", "wiped-win01", "wiped-win02"]);
}

/// A Host Networking Service that does not answer shows in the Node, and goes away by itself. Sandboxes that fail meanwhile are logged.
pub fn host_network_down(cluster: &Cluster) {
    let conditions = || {
        let node = cluster.json(&["node", "win02"]);
        let of = |kind: &str| {
            let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
            format!("{} {}", found["status"].as_str().unwrap_or_default(), found["reason"].as_str().unwrap_or_default())
        };
        (of("Ready"), of("HNSUnavailable"))
    };
    let is = |ready: &str, unavailable: &str| {
        until(unavailable, PATIENCE, || match conditions() {
            (r, u) if r == ready && u == unavailable => Ok(()),
            other => Err(format!("{other:?}")),
        });
    };
    is("True KubeletReady", "False HNSResponding");
    hns(cluster, "win02", &["fault", "add", "svc-down"]);
    is("False KubeletNotReady", "True HNSDown");
    cluster.event("node", "win02", "HNSDown", "the Host Networking Service does not answer");
    hns(cluster, "win02", &["fault", "clear"]);
    is("True KubeletReady", "False HNSResponding");
    cluster.event("node", "win02", "HNSResponding", "the Host Networking Service answers");
    // One sandbox that HNS refuses: the node's log has the pod and the reason.
    hns(cluster, "win02", &["fault", "add", "fail-call=0x80004005,call=HcnCreateEndpoint,count=1"]);
    cluster.apply(&manifests::windows_pod("refused", "microsoft/iis", ", kubernetes.io/hostname: win02"));
    cluster.ready("pod/refused");
    let log = cluster.place.mullion(&["logs", "win02", "node"]).ok("mullion logs");
    let line = log.lines().find(|line| line.contains("FailedCreatePodSandBox") && line.contains("default/refused")).unwrap_or_default();
    assert!(line.contains("WARN") && line.contains("0x80004005"), "{line:?} of {log}");
    cluster.kubectl(&["delete", "--grace-period=1", "pod/refused"]);
}
