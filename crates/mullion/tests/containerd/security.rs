//! Whom containers run as, what they may, what they share, and what they are called.

use std::sync::Arc;

use serde_json::json;

use crate::cluster::{Cluster, NODE, container};

pub async fn users_groups_and_capabilities_are_those_of_the_spec(cluster: Arc<Cluster>) {
    let shown = "id -u; id -g; id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '; echo; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t\\n' '  '; touch /file 2>/dev/null && echo writes; true";
    let spec = json!({
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [2500]},
        "containers": [
            {"name": "plain", "command": ["sh", "-c", shown], "securityContext": {"allowPrivilegeEscalation": false, "seccompProfile": {"type": "RuntimeDefault"}}},
            {"name": "root", "command": ["sh", "-c", shown], "securityContext": {"runAsUser": 0, "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}},
            {"name": "all", "command": ["sh", "-c", "grep CapEff /proc/self/status | cut -f2 | cut -c 6-"], "securityContext": {"privileged": true, "runAsUser": 0}},
        ],
    });
    cluster.pod("users", spec).await;
    cluster.until_phase("users", "Succeeded").await;
    let said = async |name: &str| crate::cluster::kubectl(&["logs", "users", "-c", name]).await.unwrap();
    let plain = said("plain").await;
    // The image's own group of that user counts too: supplementalGroupsPolicy Merge.
    assert_eq!(plain.lines().take(3).collect::<Vec<_>>(), ["1000", "3000", "2000 2500 3000 4000 "]);
    assert!(plain.contains("CapEff: 0000000000000000") && plain.contains("NoNewPrivs: 1") && plain.contains("Seccomp: 2"), "{plain}");
    let root = said("root").await;
    assert!(root.starts_with("0\n3000\n") && root.contains("CapEff: 0000000000001000") && !root.contains("writes"), "{root}");
    let all = said("all").await;
    assert!(all.starts_with("1ff") || all.starts_with("1fe"), "{all}");
    let refused = json!({"containers": [{"name": "c", "command": ["true"], "securityContext": {"runAsNonRoot": true}}]});
    cluster.pod("non-root", refused).await;
    let waits = |status: &serde_json::Value| container(status, "c")["state"]["waiting"]["reason"] == "CreateContainerConfigError";
    let status = cluster.until_status("non-root", "its refusal", waits).await;
    let message = container(&status, "c")["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("image will run as root"), "{message}");
}

pub async fn pods_share_what_they_ask_for_with_each_other_and_the_node(cluster: Arc<Cluster>) {
    let sleeper = |name: &str, seconds: &str| json!({"name": name, "command": ["sleep", seconds]});
    cluster.pod("together", json!({"shareProcessNamespace": true, "containers": [sleeper("a", "111111"), sleeper("b", "222222")]})).await;
    cluster.pod("apart", json!({"containers": [sleeper("a", "333333"), sleeper("b", "444444")]})).await;
    let node = json!({"hostNetwork": true, "hostPID": true, "hostIPC": true, "containers": [sleeper("a", "555555")]});
    cluster.pod("on-node", node).await;
    for name in ["together", "apart", "on-node"] {
        cluster.until_ready(name).await;
    }
    let together = cluster.exec("together", "a", "ps").await;
    assert!(together.contains("sleep 111111") && together.contains("sleep 222222"), "{together}");
    let apart = cluster.exec("apart", "a", "ps").await;
    assert!(apart.contains("sleep 333333") && !apart.contains("sleep 444444"), "{apart}");
    // One network for both containers of a pod, and the node's for who asks for it.
    cluster.exec("apart", "a", "nc -l -p 7000 -e echo over-localhost >/dev/null 2>&1 & sleep 0.2").await;
    let answer = async || match cluster.exec("apart", "b", "nc 127.0.0.1 7000 </dev/null || true").await {
        text if text == "over-localhost\n" => Ok(()),
        text => Err(text),
    };
    cluster.until("the neighbour's answer", answer).await;
    let status = cluster.status("on-node").await;
    assert_eq!((status["podIP"].as_str(), status["hostIP"].as_str()), (Some("10.99.0.1"), Some("10.99.0.1")));
    let seen = cluster.exec("on-node", "a", "ps; ip address show node0; hostname").await;
    assert!(seen.contains("containerd") && seen.contains("10.99.0.1/24") && seen.ends_with(&format!("{NODE}\n")), "{seen}");
}

pub async fn names_and_resolvers_are_the_pods_own(cluster: Arc<Cluster>) {
    let shown = "hostname; cat /etc/resolv.conf; grep -v '^#' /etc/hosts; cat /proc/sys/net/ipv4/ip_local_port_range";
    let spec = json!({
        "restartPolicy": "Never", "hostname": "web-1", "subdomain": "sub",
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["alias", "other"]}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        "securityContext": {"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 30000"}]},
        "containers": [{"name": "c", "command": ["sh", "-c", shown]}],
    });
    cluster.pod("named", spec).await;
    let text = cluster.output("named").await;
    let ip = cluster.status("named").await["podIP"].as_str().unwrap().to_owned();
    for line in [
        "web-1",
        "nameserver 10.96.0.10",
        "options ndots:2",
        "192.0.2.1\talias\tother",
        &format!("{ip}\tweb-1.sub.default.svc.cluster.local\tweb-1"),
        "20000\t30000",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
    }
    assert!(text.contains("search default.svc.cluster.local svc.cluster.local cluster.local"), "{text}");
    cluster.pod("unsafe", json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "containers": [{"name": "c"}]})).await;
    let status = cluster.until_phase("unsafe", "Failed").await;
    assert_eq!(status["reason"], "SysctlForbidden");
}
