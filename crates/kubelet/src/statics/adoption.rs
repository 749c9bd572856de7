//! Static pods that an earlier agent runs under another UID.
//!
//! Upstream's kubelet hashes Go's form of the pod to its UID, which changes with the fields of each release. So that a static pod goes on when
//! a node changes its agent, it keeps the UID of its sandbox where the runtime and the manifest's file say that the sandbox is of this very
//! manifest: nothing about the file has changed since the sandbox was made. A manifest from a web server has no time, and is not adopted.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::Key;
use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use kube_rules::static_pod::{HASH, SOURCE};
use thiserror_ext::AsReport as _;

use crate::agent::Agent;
use crate::pod::{container_hash, containers};
use crate::runtime::annotations;

/// After a runtime that did not answer.
const RETRY: Duration = Duration::from_secs(2);

/// A sandbox that runs for the static pod of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Earlier {
    key: Key,
    uid: String,
    /// Nanoseconds since 1970.
    made_at: i64,
    /// Hashes of its containers by name, of the newest of each.
    containers: BTreeMap<String, String>,
}

/// The UID under which the pod of a file runs already. `changed` is when the file changed last.
pub(crate) fn uid_of(pod: &Pod, changed: SystemTime, all: &[Earlier]) -> Option<String> {
    let changed = changed.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    let spec = pod.spec.as_ref()?;
    let key = Key::of(pod);
    let newest = all.iter().filter(|earlier| earlier.key == key).max_by_key(|earlier| earlier.made_at)?;
    let made_at = u128::try_from(newest.made_at).ok()?;
    let is_same = |(name, hash): (&String, &String)| containers(spec).any(|(_, c)| c.name == *name && container_hash(c) == *hash);
    (changed <= made_at && newest.containers.iter().all(is_same)).then(|| newest.uid.clone())
}

/// Gives a pod the UID of its sandbox.
pub(crate) fn adopt(pod: &mut Pod, uid: &str) {
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.annotations.get_or_insert_default().insert(HASH.to_owned(), uid.to_owned());
}

/// The sandboxes that run for static pods. Waits for the runtime.
pub(crate) async fn find(agent: &Agent) -> Vec<Earlier> {
    let _ = agent.health.clone().wait_for(|health| !health.name.is_empty()).await;
    loop {
        match list(&agent.cri).await {
            Ok(all) => return all,
            Err(error) => tracing::warn!(error = %error.as_report(), "looking for static pods that run already failed; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn list(cri: &cri::Client) -> Result<Vec<Earlier>, cri::Error> {
    let sandboxes = cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?;
    let containers = cri.list_containers(v1::ListContainersRequest::default()).await?;
    Ok(sandboxes.iter().filter_map(|sandbox| earlier(sandbox, &containers)).collect())
}

fn earlier(sandbox: &v1::PodSandbox, all: &[v1::Container]) -> Option<Earlier> {
    let label = |name: &str| sandbox.labels.get(name).cloned().filter(|value| !value.is_empty());
    let (namespace, name, uid) = (label(POD_NAMESPACE)?, label(POD_NAME)?, label(POD_UID)?);
    let note = |name: &str| sandbox.annotations.get(name).map(String::as_str);
    let ready = sandbox.state == v1::PodSandboxState::SandboxReady as i32;
    if !ready || note(SOURCE) != Some("file") || note(HASH) != Some(&uid) {
        return None;
    }
    let mut newest: BTreeMap<String, (i64, String)> = BTreeMap::new();
    for c in all.iter().filter(|c| c.pod_sandbox_id == sandbox.id) {
        let (Some(name), hash) = (c.labels.get(CONTAINER_NAME), c.annotations.get(annotations::HASH).cloned().unwrap_or_default()) else { continue };
        let known = newest.entry(name.clone()).or_insert((c.created_at, hash.clone()));
        if c.created_at > known.0 {
            *known = (c.created_at, hash);
        }
    }
    let containers = newest.into_iter().map(|(name, (_, hash))| (name, hash)).collect();
    Some(Earlier { key: Key::new(namespace, name), uid, made_at: sandbox.created_at, containers })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};

    use super::*;

    fn pod(containers: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web-n", "namespace": "ns"}, "spec": {"containers": containers}})).unwrap()
    }

    fn with(uid: &str, made_at: i64, containers: &[(&str, &str)]) -> Earlier {
        let containers = containers.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned())).collect();
        Earlier { key: Key::new("ns", "web-n"), uid: uid.to_owned(), made_at, containers }
    }

    #[test]
    fn a_pod_keeps_the_sandbox_of_its_manifest() {
        let pod = pod(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]));
        let hash = |index: usize| container_hash(&pod.spec.as_ref().unwrap().containers[index]);
        let (a, b) = (hash(0), hash(1));
        let elsewhere = Earlier { key: Key::new("other", "web-n"), ..with("u", 2000, &[]) };
        for (what, all, want) in [
            ("nothing runs", vec![], None),
            ("it runs", vec![with("u", 2000, &[("a", &a), ("b", &b)])], Some("u")),
            ("made in the same moment", vec![with("u", 1000, &[("a", &a)])], Some("u")),
            ("its containers are still to come", vec![with("u", 2000, &[])], Some("u")),
            ("the file changed since", vec![with("u", 999, &[("a", &a), ("b", &b)])], None),
            ("another image", vec![with("u", 2000, &[("a", &b)])], None),
            ("a container that the manifest does not have", vec![with("u", 2000, &[("a", &a), ("c", &b)])], None),
            ("another pod's", vec![elsewhere], None),
            ("the newest counts", vec![with("u", 2000, &[("a", &a)]), with("v", 3000, &[("a", &a)])], Some("v")),
            ("also where it is of something else", vec![with("u", 2000, &[("a", &a)]), with("v", 3000, &[("a", &b)])], None),
        ] {
            let found = uid_of(&pod, UNIX_EPOCH + Duration::from_nanos(1000), &all);
            assert_eq!(found.as_deref(), want, "{what}");
        }
    }

    #[test]
    fn sandboxes_of_static_pods_are_known_by_what_is_written_on_them() {
        let text = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<HashMap<_, _>>();
        let sandbox = v1::PodSandbox {
            id: "s".into(),
            labels: text(&[(POD_NAME, "web-n"), (POD_NAMESPACE, "ns"), (POD_UID, "u")]),
            annotations: text(&[(SOURCE, "file"), (HASH, "u"), ("kubernetes.io/config.seen", "2026-11-25T03:47:09.324Z")]),
            state: v1::PodSandboxState::SandboxReady as i32,
            created_at: 7,
            ..Default::default()
        };
        let container = |id: &str, of: &str, name: &str, at: i64| v1::Container {
            id: id.into(),
            pod_sandbox_id: of.into(),
            created_at: at,
            labels: text(&[(CONTAINER_NAME, name)]),
            annotations: text(&[(annotations::HASH, id)]),
            ..Default::default()
        };
        let containers = [container("1", "s", "a", 1), container("3", "s", "a", 3), container("2", "s", "a", 2), container("4", "t", "b", 4)];
        assert_eq!(earlier(&sandbox, &containers), Some(with("u", 7, &[("a", "3")])));
        let but = |change: fn(&mut v1::PodSandbox)| {
            let mut other = sandbox.clone();
            change(&mut other);
            earlier(&other, &containers)
        };
        assert_eq!(but(|s| s.state = v1::PodSandboxState::SandboxNotready as i32), None);
        assert_eq!(but(|s| drop(s.annotations.insert(SOURCE.into(), "api".into()))), None, "a pod of the API");
        assert_eq!(but(|s| drop(s.annotations.insert(SOURCE.into(), "http".into()))), None, "a web server's");
        assert_eq!(but(|s| drop(s.annotations.insert(HASH.into(), "other".into()))), None, "somebody else's");
        assert_eq!(but(|s| drop(s.labels.remove(POD_UID))), None);
    }
}
