//! What pods mount.

use std::sync::Arc;

use serde_json::json;

use crate::cluster::{Cluster, kubectl};

pub async fn api_objects_are_files_that_follow_them(cluster: Arc<Cluster>) {
    cluster.create("ConfigMap", "settings", json!({"data": {"greeting": "hello", "other": "x"}})).await;
    cluster.create("Secret", "password", json!({"stringData": {"word": "s3cret"}})).await;
    let field = |path: &str| json!({"path": path.replace('.', "-"), "fieldRef": {"fieldPath": path}});
    let projected = json!([
        {"configMap": {"name": "settings", "items": [{"key": "greeting", "path": "deep/greeting", "mode": 0o400}]}},
        {"secret": {"name": "password"}},
        {"downwardAPI": {"items": [field("metadata.name"), field("metadata.labels")]}},
        {"serviceAccountToken": {"path": "token", "audience": "tests", "expirationSeconds": 600}},
    ]);
    let mounts = ["settings", "password", "all"].map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let variables = json!([
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "password", "key": "word"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "BOTH", "value": "$(WORD) at $(POD_IP)"},
    ]);
    let spec = json!({
        "securityContext": {"fsGroup": 4321},
        "containers": [{"name": "c", "command": ["sleep", "1000"], "volumeMounts": mounts, "env": variables,
            "envFrom": [{"prefix": "MAP_", "configMapRef": {"name": "settings"}}], "resources": {"limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "8Mi"}}}],
        "volumes": [{"name": "settings", "configMap": {"name": "settings"}}, {"name": "password", "secret": {"secretName": "password", "defaultMode": 0o400}},
            {"name": "all", "projected": {"sources": projected}}],
    });
    cluster.annotated_pod("files", json!({"labels": {"color": "blue"}}), spec).await;
    let status = cluster.until_ready("files").await;
    let read = async |script: &str| cluster.exec("files", "c", script).await.trim_end().to_owned();
    assert_eq!(
        read("cat /settings/greeting /password/word /all/deep/greeting /all/word /all/metadata-name; echo; cat /all/metadata-labels").await,
        "hellos3crethellos3cretfiles\ncolor=\"blue\""
    );
    // Upstream lets the group of the pod read what it owns.
    assert_eq!(read("stat -L -c '%a %g' /password/word /all/deep/greeting").await, "440 4321\n440 4321");
    assert_eq!(read("cut -d. -f2 /all/token | wc -l").await, "1");
    assert_eq!(read("stat -f -c %T /password").await, "tmpfs", "secrets are never on a disk");
    assert_eq!(read("touch /settings/new 2>&1; ls /settings").await, "touch: /settings/new: Read-only file system\ngreeting\nother");
    let ip = status["podIP"].as_str().unwrap();
    assert_eq!(read("echo $BOTH, $CPUS, $MAP_greeting").await, format!("s3cret at {ip}, 2, hello"));
    cluster.merge("ConfigMap", "settings", json!({"data": {"greeting": "bonjour", "other": null}})).await;
    cluster.merge("Pod", "files", json!({"metadata": {"labels": {"color": "red"}}})).await;
    cluster
        .until("the changed files", async || {
            let seen = read("cat /settings/greeting /all/metadata-labels; ls /settings | wc -l").await;
            if seen == "bonjourcolor=\"red\"1" { Ok(()) } else { Err(seen) }
        })
        .await;
}

pub async fn directories_of_pods_and_of_the_node(cluster: Arc<Cluster>) {
    std::fs::create_dir_all("/var/lib/given").unwrap();
    std::fs::write("/var/lib/given/from-node", "node").unwrap();
    let mounts = json!([{"name": "scratch", "mountPath": "/scratch"}, {"name": "memory", "mountPath": "/memory"}, {"name": "node", "mountPath": "/node"},
        {"name": "fixed", "mountPath": "/fixed", "readOnly": true}]);
    let part = |name: &str, script: &str| json!({"name": name, "command": ["sh", "-c", script], "volumeMounts": mounts});
    let node = |path: &str, kind: &str| json!({"path": path, "type": kind});
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [part("writer", "echo shared > /scratch/file; echo pod > /node/from-pod; df -P /memory | tail -n 1 | cut -d' ' -f1")],
        "containers": [part("reader", "cat /scratch/file /fixed/from-node; echo; stat -c %a /scratch /memory; touch /fixed/x 2>/dev/null || echo fixed")],
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "node", "hostPath": node("/var/lib/given", "Directory")}, {"name": "fixed", "hostPath": node("/var/lib/given", "")}],
    });
    cluster.pod("directories", spec).await;
    cluster.until_phase("directories", "Succeeded").await;
    // Of all containers at once kubectl prints them in any order.
    let said = async |name: &str| kubectl(&["logs", "directories", "-c", name]).await.unwrap();
    assert_eq!(said("writer").await, "tmpfs\n");
    // A file system in memory keeps its own mode, as upstream.
    assert_eq!(said("reader").await, "shared\nnode\n777\n1777\nfixed\n");
    assert_eq!(std::fs::read_to_string("/var/lib/given/from-pod").unwrap(), "pod\n");
    let absent = json!({"containers": [{"name": "c", "command": ["true"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "hostPath": node("/var/lib/absent", "Directory")}]});
    cluster.pod("homeless", absent).await;
    cluster.until_event("homeless", "FailedMount").await;
    std::fs::create_dir("/var/lib/absent").unwrap();
    cluster.until_status("homeless", "the directory", |status| status["phase"] == "Running").await;
}

pub async fn sub_paths_are_parts_of_volumes(cluster: Arc<Cluster>) {
    cluster.create("ConfigMap", "parts", json!({"data": {"one": "1", "two": "2"}})).await;
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{"name": "c", "env": [{"name": "NAME", "value": "mine"}],
            "command": ["sh", "-c", "cat /etc/one; echo; ls /part; echo kept > /part/file; ls /whole/mine /whole/deep; cat /proc/mounts | grep -c /part"],
            "volumeMounts": [{"name": "parts", "mountPath": "/etc/one", "subPath": "one"}, {"name": "scratch", "mountPath": "/whole"},
                {"name": "scratch", "mountPath": "/part", "subPathExpr": "$(NAME)"}, {"name": "scratch", "mountPath": "/x", "subPath": "deep/er"}]}],
        "volumes": [{"name": "parts", "configMap": {"name": "parts"}}, {"name": "scratch", "emptyDir": {}}],
    });
    cluster.pod("parts", spec).await;
    assert_eq!(cluster.output("parts").await, "1\n/whole/deep:\ner\n\n/whole/mine:\nfile\n1\n");
    let escape = json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "link/etc"}]}],
        "initContainers": [{"name": "i", "command": ["ln", "-s", "/", "/v/link"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": {}}]});
    cluster.pod("escape", escape).await;
    let refused = |status: &serde_json::Value| crate::cluster::container(status, "c")["state"]["waiting"]["reason"] == "CreateContainerConfigError";
    cluster.until_status("escape", "a refused sub-path", refused).await;
}

/// A pod gets such a volume from a node with huge pages alone, which this machine need not have: the mount itself takes none.
pub async fn huge_pages_are_mounted_once_and_found_again(_: Arc<Cluster>) {
    const PAGE: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mount = || host::HostRoot::linux(dir.path()).unwrap();
    let (root, path) = (mount(), mount().parse("/pod/huge").unwrap());
    root.create_dir_all(&path, 0o777).unwrap();
    root.mount_huge_pages(&path, PAGE).unwrap();
    assert_eq!(linux_sys::mount::huge_page_size(&dir.path().join("pod/huge")).unwrap(), Some(PAGE));
    // As the next agent does.
    mount().mount_huge_pages(&path, PAGE).unwrap();
    assert_eq!(linux_sys::mount::mounts_below(dir.path()).unwrap().len(), 1);
    let other = root.mount_huge_pages(&path, 1 << 30).unwrap_err();
    assert!(std::error::Error::source(&other).unwrap().to_string().contains("2097152 bytes, not 1073741824"), "{other:?}");
    root.unmount_below(&root.parse("/pod").unwrap()).unwrap();
    assert!(!root.is_mount(&path).unwrap());
}
