//! User namespaces of pods (`hostUsers: false`; upstream pkg/kubelet/userns).
//!
//! Each such pod has a range of the machine's ids for itself (`ranges`, pure). It is written into the pod's directory in upstream's form
//! before a runtime hears of it, so that it holds over a restart, and over a change to upstream's kubelet and back.

pub(crate) mod ranges;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cri::v1;
use host::{HostError, HostRoot, PodPath};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use thiserror_ext::AsReport as _;

use crate::agent::uid;
use crate::health::Handler;
use ranges::{Range, RangeError, Ranges};

/// The file in a pod's directory.
const FILE: &str = "userns";
/// Bytes that are read of it.
const MAX_FILE: u64 = 64 << 10;
/// Bytes that are read of the machine's files of users and their ids.
const MAX_USERS: u64 = 4 << 20;

/// Why a pod gets no user namespace. Texts without a way out are upstream's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsersError {
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    Runtime,
    #[error("can't set `spec.hostUsers: false`, RuntimeClass handler {0:?} does not support user namespaces")]
    Handler(String),
    #[error("can't set `spec.hostUsers: false`, RuntimeClass handler {0:?} does not support user namespaces: the handler {0:?} is not known")]
    UnknownHandler(String),
    #[error("can't set `spec.hostUsers: false`, this node has no ids for it: {0}")]
    NoRanges(String),
    #[error("user namespace")]
    Record(#[from] RangeError),
    #[error("create user namespace")]
    Create(#[source] RangeError),
    #[error("user namespace: invalid user namespace mappings file")]
    Json(#[source] serde_json::Error),
    #[error("user namespace: invalid user namespace configuration: {0}")]
    Mappings(&'static str),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] host::PathError),
}

/// What is written into a pod's directory.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    #[serde(default)]
    uid_mappings: Vec<Mapping>,
    #[serde(default)]
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    #[serde(default)]
    host_id: u32,
    #[serde(default)]
    container_id: u32,
    #[serde(default)]
    length: u32,
}

impl Mappings {
    fn of(range: Range) -> Self {
        let all = vec![Mapping { host_id: range.first, container_id: 0, length: range.length }];
        Mappings { uid_mappings: all.clone(), gid_mappings: all }
    }

    /// The range of a file, which another agent may have written.
    fn read(bytes: &[u8]) -> Result<Range, UsersError> {
        let mappings: Mappings = serde_json::from_slice(bytes).map_err(UsersError::Json)?;
        let [Mapping { host_id: first, container_id, length }] = mappings.uid_mappings[..] else {
            return Err(UsersError::Mappings("no more than one mapping allowed."));
        };
        if mappings.uid_mappings != mappings.gid_mappings {
            return Err(UsersError::Mappings("GID and UID mappings should be identical."));
        }
        if container_id != 0 {
            return Err(UsersError::Mappings("UID 0 must be mapped"));
        }
        Ok(Range { first, length })
    }
}

/// The file of a pod's range as a foreign program may have written it, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(range) = Mappings::read(bytes) {
        let again = serde_json::to_vec(&Mappings::of(range)).expect("mappings have a JSON form");
        assert_eq!(Mappings::read(&again).expect("what was written can be read"), range);
    }
}

/// The user namespaces of a node's pods.
pub(crate) struct Users {
    root: std::sync::Arc<HostRoot>,
    /// The directory of pods.
    pods: PodPath,
    ranges: Result<Mutex<Ranges>, String>,
}

impl Users {
    /// Those that earlier agents gave, and the ids of the machine: the ranges of user `kubelet` in /etc/subuid and /etc/subgid, where there
    /// is such a user; else all but the first `ids_per_pod`.
    pub(crate) fn load(root: std::sync::Arc<HostRoot>, pods: PodPath, ids_per_pod: u32, max_pods: u32) -> Self {
        let ranges = Self::ranges(&root, ids_per_pod, max_pods);
        if let Err(reason) = &ranges
            && !root.os().is_windows()
        {
            tracing::error!(reason, "there are no ids for user namespaces: pods with hostUsers false are refused");
        }
        let users = Users { root, pods, ranges: ranges.map(Mutex::new) };
        for (pod, _) in users.root.read_dir(&users.pods).unwrap_or_default() {
            match users.kept(&pod) {
                Ok(None) => {}
                Ok(Some(range)) => {
                    if let Some(Err(error)) = users.lock().map(|mut ranges| ranges.keep(&pod, range)) {
                        tracing::error!(pod, %error, "a pod has ids that are not this node's to give; nobody else gets them");
                    }
                }
                Err(error) => tracing::error!(pod, error = %error.as_report(), "reading which ids a pod has failed"),
            }
        }
        users
    }

    fn ranges(root: &HostRoot, ids_per_pod: u32, max_pods: u32) -> Result<Ranges, String> {
        let read = |path: &str| -> Result<Option<String>, HostError> {
            let bytes = root.read(&root.parse(path)?, MAX_USERS)?;
            Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        if root.os().is_windows() {
            return Err("user namespaces are Linux'".to_owned());
        }
        let files = || -> Result<_, HostError> { Ok((read("/etc/passwd")?, read("/etc/subuid")?, read("/etc/subgid")?)) };
        let (passwd, uids, gids) = files().map_err(|error| error.to_report_string())?;
        let whole = ranges::of_machine(&passwd.unwrap_or_default(), uids.as_deref(), gids.as_deref(), ids_per_pod);
        whole.and_then(|whole| Ranges::new(whole, ids_per_pod, max_pods)).map_err(|error| error.to_string())
    }

    fn lock(&self) -> Option<MutexGuard<'_, Ranges>> {
        Some(self.ranges.as_ref().ok()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The range that is written in a pod's directory.
    fn kept(&self, pod: &str) -> Result<Option<Range>, UsersError> {
        let bytes = self.root.read(&self.pods.join(pod)?.join(FILE)?, MAX_FILE)?;
        bytes.filter(|bytes| !bytes.is_empty()).map(|bytes| Mappings::read(&bytes)).transpose()
    }

    /// What the runtime is told of a pod's users; nothing on Windows.
    ///
    /// # Errors
    /// When the pod wants a namespace of its own and cannot have it.
    pub(crate) fn of(&self, pod: &Pod, handler: &str, handlers: &[Handler]) -> Result<Option<v1::UserNamespace>, UsersError> {
        if self.root.os().is_windows() {
            return Ok(None);
        }
        if !wants(pod) {
            return Ok(Some(v1::UserNamespace { mode: v1::NamespaceMode::Node as i32, ..Default::default() }));
        }
        supports(handler, handlers)?;
        let ranges = self.ranges.as_ref().map_err(|reason| UsersError::NoRanges(reason.clone()))?;
        let mut ranges = ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = uid(pod);
        let range = match self.kept(&uid)? {
            Some(range) => {
                ranges.keep(&uid, range)?;
                range
            }
            None => {
                let range = ranges.give(&uid).map_err(UsersError::Create)?;
                let written = self.pods.join(&uid).map_err(HostError::from).and_then(|dir| {
                    self.root.create_dir_all(&dir, 0o750)?;
                    let bytes = serde_json::to_vec(&Mappings::of(range)).unwrap_or_default();
                    self.root.write_file(&dir.join(FILE)?, &bytes, 0o600)
                });
                if let Err(error) = written {
                    ranges.release(&uid);
                    return Err(error.into());
                }
                range
            }
        };
        let ids = vec![v1::IdMapping { host_id: range.first, container_id: 0, length: range.length }];
        Ok(Some(v1::UserNamespace { mode: v1::NamespaceMode::Pod as i32, uids: ids.clone(), gids: ids }))
    }

    /// Gives back what a pod has whose directory is gone.
    pub(crate) fn release(&self, uid: &str) {
        if let Some(mut ranges) = self.lock() {
            ranges.release(uid);
        }
    }
}

/// Whether a pod has users of its own.
pub(crate) fn wants(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

/// Whether the runtime can do it (upstream `HandlerSupportsUserNamespaces`).
fn supports(handler: &str, handlers: &[Handler]) -> Result<(), UsersError> {
    let by_name: BTreeMap<&str, bool> = handlers.iter().map(|known| (known.name.as_str(), known.user_namespaces)).collect();
    match by_name.get(handler) {
        Some(true) => Ok(()),
        _ if handler.is_empty() => Err(UsersError::Runtime),
        // A runtime that is too old names none.
        None if !handlers.is_empty() => Err(UsersError::UnknownHandler(handler.to_owned())),
        _ => Err(UsersError::Handler(handler.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn handler(name: &str, user_namespaces: bool) -> Handler {
        Handler { name: name.into(), user_namespaces, recursive_read_only: false }
    }

    fn pod(uid: &str, host_users: Option<bool>) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": {"hostUsers": host_users, "containers": []}})).unwrap()
    }

    fn users(root: &std::path::Path) -> Users {
        let root = Arc::new(HostRoot::linux(root).unwrap());
        let pods = root.parse("/pods").unwrap();
        root.create_dir_all(&pods, 0o750).unwrap();
        Users::load(root, pods, 65536, 110)
    }

    #[test]
    fn runtimes_that_cannot_do_it_are_named_in_upstreams_words() {
        let both = [handler("", true), handler("kata", false)];
        let text = |name: &str, handlers: &[Handler]| supports(name, handlers).map_err(|error| error.to_string());
        assert_eq!(text("", &both), Ok(()));
        let refused = "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces";
        assert_eq!(text("kata", &both), Err(refused.into()));
        assert_eq!(text("kata", &[]), Err(refused.into()));
        assert_eq!(text("gvisor", &both).unwrap_err(), refused.replace("kata", "gvisor") + ": the handler \"gvisor\" is not known");
        let old = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        assert_eq!((text("", &[]), text("", &[handler("", false)])), (Err(old.into()), Err(old.into())));
    }

    #[test]
    fn a_pod_keeps_its_range_over_a_restart_in_upstreams_file() {
        let dir = tempfile::tempdir().unwrap();
        let handlers = [handler("", true)];
        let given = |users: &Users, uid: &str| users.of(&pod(uid, Some(false)), "", &handlers).unwrap().unwrap();
        let before = users(dir.path());
        let (a, b) = (given(&before, "a"), given(&before, "b"));
        assert_eq!(a.mode, v1::NamespaceMode::Pod as i32);
        assert_eq!(a.uids, [v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }]);
        assert_eq!((a.uids == a.gids, b.uids[0].host_id), (true, 131_072));
        let file = std::fs::read_to_string(dir.path().join("pods/a/userns")).unwrap();
        let one = r#"[{"hostId":65536,"containerId":0,"length":65536}]"#;
        assert_eq!(file, format!(r#"{{"uidMappings":{one},"gidMappings":{one}}}"#));

        let after = users(dir.path());
        assert_eq!(given(&after, "c").uids[0].host_id, 196_608, "the others have theirs");
        assert_eq!((given(&after, "a"), given(&after, "b")), (a, b));
        std::fs::remove_dir_all(dir.path().join("pods/a")).unwrap();
        after.release("a");
        assert_eq!(given(&after, "d").uids[0].host_id, 65536);
    }

    #[test]
    fn other_pods_have_the_nodes_users_and_windows_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path());
        for host_users in [None, Some(true)] {
            let told = users.of(&pod("a", host_users), "", &[]).unwrap().unwrap();
            assert_eq!((told.mode, told.uids.len()), (v1::NamespaceMode::Node as i32, 0));
        }
        let root = Arc::new(HostRoot::windows(host::NodeOs::Windows { build: 20348 }, [('C', dir.path().to_owned())]).unwrap());
        let pods = root.parse("/pods").unwrap();
        assert_eq!(Users::load(root, pods, 65536, 110).of(&pod("a", Some(false)), "", &[]).unwrap(), None);
    }

    #[test]
    fn files_that_say_something_else_are_refused() {
        for (file, why) in [
            ("x", "user namespace: invalid user namespace mappings file"),
            (r#"{"uidMappings":[]}"#, "user namespace: invalid user namespace configuration: no more than one mapping allowed."),
            (
                r#"{"uidMappings":[{"hostId":65536,"length":65536}]}"#,
                "user namespace: invalid user namespace configuration: GID and UID mappings should be identical.",
            ),
            (
                r#"{"uidMappings":[{"containerId":1}],"gidMappings":[{"containerId":1}]}"#,
                "user namespace: invalid user namespace configuration: UID 0 must be mapped",
            ),
        ] {
            assert_eq!(Mappings::read(file.as_bytes()).unwrap_err().to_string(), why);
        }
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path());
        std::fs::create_dir(dir.path().join("pods/a")).unwrap();
        let length = r#"[{"hostId":131072,"containerId":0,"length":131072}]"#;
        std::fs::write(dir.path().join("pods/a/userns"), format!(r#"{{"uidMappings":{length},"gidMappings":{length}}}"#)).unwrap();
        let error = users.of(&pod("a", Some(false)), "", &[handler("", true)]).unwrap_err();
        assert_eq!(error.to_report_string(), "user namespace: wrong user namespace length 131072");
    }
}
