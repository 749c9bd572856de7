//! What the agent removes.

use std::sync::Arc;

use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::cluster::{Cluster, container, kubectl};
use crate::machine::held;
use crate::soak::leaks::control_groups;

pub async fn logs_are_rotated_and_old_runs_removed(cluster: Arc<Cluster>) {
    cluster.pod("chatty", json!({"containers": [{"name": "c", "command": ["sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i of a long text that fills the log; [ $((i % 500)) -ne 0 ] || sleep 0.2; done"]}]})).await;
    cluster.until_ready("chatty").await;
    let uid = cluster.pods().get("chatty").await.unwrap().metadata.uid.unwrap();
    let directory = format!("/var/log/pods/default_chatty_{uid}/c");
    cluster
        .until("rotated logs", async || {
            let mut names: Vec<String> =
                std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            let packed = names.iter().filter(|name| name.ends_with(".gz")).count();
            if names.len() == 3 && packed == 1 { Ok(()) } else { Err(format!("{names:?}")) }
        })
        .await;
    let last = kubectl(&["logs", "chatty", "--tail=1"]).await.unwrap();
    assert!(last.starts_with("line "), "{last}");
    cluster.pod("crashes", json!({"containers": [{"name": "c", "command": ["sh", "-c", "exit 1"]}]})).await;
    let twice = |status: &serde_json::Value| container(status, "c")["restartCount"].as_i64() >= Some(2);
    cluster.until_status("crashes", "its second restart", twice).await;
    // Of three ended runs the newest and the one before it stay, for logs and the last state.
    let pod = cluster.pods().get("crashes").await.unwrap().metadata.uid.unwrap();
    let runs = async || {
        let listed = crate::machine::ctr(&["containers", "list", &format!("labels.\"io.kubernetes.pod.uid\"=={pod}"), "--quiet"])?;
        // The sandbox is one of them.
        let runs = listed.lines().count().saturating_sub(1);
        if runs <= 2 { Ok(()) } else { Err(format!("{runs} runs")) }
    };
    cluster.until("the removal of old runs", runs).await;
}

pub async fn nothing_is_left_of_deleted_pods(cluster: Arc<Cluster>) {
    cluster.pods().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    cluster
        .until("the end of all pods", async || {
            let left: Vec<_> =
                cluster.pods().list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|pod| pod.metadata.name).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    let mounts = || {
        let all = std::fs::read_to_string("/proc/self/mounts").unwrap();
        all.lines().filter(|line| line.contains("/var/lib/kubelet/pods/") || line.contains("/rootfs ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let entries = |directory: &str| std::fs::read_dir(directory).map(Iterator::count).unwrap_or_default();
    cluster
        .until("no trace of pods", async || {
            let left = (held(), mounts(), entries("/var/lib/kubelet/pods"), entries("/var/log/pods"), control_groups());
            if left.0.is_empty() && left.1.is_empty() && left.2 == 0 && left.3 == 0 && left.4.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
}
