//! Pods with users of their own.

use cri::v1;
use host::NodeOs;
use kube::api::DeleteParams;
use serde_json::json;

use crate::common::World;

fn ids(config: &v1::ContainerConfig) -> v1::UserNamespace {
    config.linux.clone().unwrap().security_context.unwrap().namespace_options.unwrap().userns_options.unwrap()
}

#[tokio::test]
async fn a_pod_has_its_own_ids_until_it_is_gone_also_over_a_restart() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    std::fs::create_dir_all(world.drive().join("etc")).unwrap();
    std::fs::write(world.drive().join("etc/passwd"), "kubelet:x:998:998::/:/bin/false\n").unwrap();
    for file in ["etc/subuid", "etc/subgid"] {
        std::fs::write(world.drive().join(file), "kubelet:131072:13107200\n").unwrap();
    }
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let node = json!(world.node().await.unwrap());
    assert_eq!(node["status"]["runtimeHandlers"], json!([{"name": "", "features": {"recursiveReadOnlyMounts": false, "userNamespaces": true}}]));

    let own = |name: &str| json!({"hostUsers": false, "containers": [{"name": name, "image": "serve:1"}]});
    world.pod("one", own("a")).await;
    world.until_running("one").await;
    world.pod("plain", json!({"containers": [{"name": "p", "image": "serve:1"}]})).await;
    world.until_running("plain").await;
    let (sandbox, container, plain) = {
        let state = world.runtime.state.lock().unwrap();
        let container = state.named("a")[0].clone();
        (state.sandboxes[&container.sandbox].config.clone(), container.config, state.named("p")[0].config.clone())
    };
    let wanted = vec![v1::IdMapping { host_id: 131_072, container_id: 0, length: 65536 }];
    let users = v1::UserNamespace { mode: v1::NamespaceMode::Pod as i32, uids: wanted.clone(), gids: wanted.clone() };
    assert_eq!(ids(&container), users);
    let of_sandbox = sandbox.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
    assert_eq!(of_sandbox.userns_options, Some(users));
    assert!(container.mounts.iter().all(|mount| mount.uid_mappings == wanted && mount.gid_mappings == wanted) && !container.mounts.is_empty());
    assert_eq!((ids(&plain).mode, plain.mounts[0].uid_mappings.len()), (v1::NamespaceMode::Node as i32, 0));

    world.stop_agent().await;
    world.start_agent();
    world.pod("two", own("b")).await;
    world.until_running("two").await;
    let first = |name: &str| ids(&world.runtime.state.lock().unwrap().named(name)[0].config).uids[0].host_id;
    assert_eq!(first("b"), 196_608, "the first pod has its own still");
    world.pods().delete("one", &DeleteParams::default()).await.unwrap();
    world.eventually("pod gone", async || world.pods().get_opt("one").await.unwrap().is_none()).await;
    // Its directory, with what it had, goes before it is gone from the API; its ids right after.
    let mut number = 0;
    loop {
        number += 1;
        let name = format!("c{number}");
        world.pod(&name, own(&name)).await;
        world.until_running(&name).await;
        if first(&name) == 131_072 {
            break;
        }
    }
}

#[tokio::test]
async fn a_pod_without_ids_to_be_had_says_why() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    std::fs::create_dir_all(world.drive().join("etc")).unwrap();
    std::fs::write(world.drive().join("etc/passwd"), "kubelet:x:998:998::/:/bin/false\n").unwrap();
    for file in ["etc/subuid", "etc/subgid"] {
        std::fs::write(world.drive().join(file), "kubelet:131072:65536\n").unwrap();
    }
    world.start_agent();
    world.pod("one", json!({"hostUsers": false})).await;
    world
        .until_event(
            "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, this node has no ids for it: kubelet user \
             assigned IDs are not enough to support 20 pods",
        )
        .await;
    world.pod("plain", json!({})).await;
    world.until_running("plain").await;
}

/// CVE-2019-11245: a container that restarted, and one whose image was there already, ran as root.
#[tokio::test]
async fn a_container_that_restarts_has_the_user_of_its_image_again() {
    let world = World::linux().await;
    world.runtime.state.lock().unwrap().users.insert("serve:1".into(), 1000);
    let context = json!({"runAsNonRoot": true});
    world.pod("web", json!({"securityContext": context, "containers": [{"name": "c", "image": "serve:1"}]})).await;
    world.until_running("web").await;
    let id = world.runtime.state.lock().unwrap().named("c")[0].id.clone();
    world.runtime.exit(&id, 1);
    world.until("web", "restarted", |s| s["containerStatuses"][0]["restartCount"] == 1 && s["containerStatuses"][0]["ready"] == true).await;
    let user = |config: &v1::ContainerConfig| config.linux.clone()?.security_context?.run_as_user.map(|user| user.value);
    let users: Vec<_> = world.runtime.state.lock().unwrap().named("c").iter().map(|c| user(&c.config)).collect();
    assert_eq!(users, [Some(1000), Some(1000)]);
}
