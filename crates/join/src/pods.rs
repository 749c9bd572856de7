//! Pods of a machine that leaves its cluster: nobody would end them any more.

use std::future::Future;
use std::io::Read as _;

use k8s_cri::v1::{ListPodSandboxRequest, RemovePodSandboxRequest, StopPodSandboxRequest};
use thiserror_ext::AsReport as _;

use crate::places::Places;

/// Bytes of a configuration that are read.
const MOST: u64 = 1 << 20;

/// The endpoint of the container runtime that a join has written down here; none where there is no such file.
#[must_use]
pub fn endpoint(places: &Places) -> Option<String> {
    [places.instance_config(), places.config()].into_iter().find_map(|path| {
        let mut text = String::new();
        std::fs::File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
        let config: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).ok()?;
        config.get("containerRuntimeEndpoint")?.as_str().filter(|endpoint| !endpoint.is_empty()).map(str::to_owned)
    })
}

/// What is asked of a container runtime.
pub trait Runtime: Sync {
    /// Id and name of each pod's sandbox.
    fn sandboxes(&self) -> impl Future<Output = Result<Vec<(String, String)>, String>> + Send;
    fn stop(&self, id: &str) -> impl Future<Output = Result<(), String>> + Send;
    fn remove(&self, id: &str) -> impl Future<Output = Result<(), String>> + Send;
}

impl Runtime for cri::Client {
    async fn sandboxes(&self) -> Result<Vec<(String, String)>, String> {
        let all = self.list_pod_sandbox(ListPodSandboxRequest::default()).await.map_err(|error| error.to_report_string())?;
        // Others may use the runtime without Kubernetes.
        let pods = all.into_iter().filter(|sandbox| sandbox.labels.contains_key(cri::labels::POD_UID));
        Ok(pods
            .map(|sandbox| {
                let named = sandbox.metadata.map(|of| format!("{}/{}", of.namespace, of.name));
                (sandbox.id, named.unwrap_or_default())
            })
            .collect())
    }

    async fn stop(&self, id: &str) -> Result<(), String> {
        self.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: id.to_owned() }).await.map_err(|error| error.to_report_string())
    }

    async fn remove(&self, id: &str) -> Result<(), String> {
        self.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() }).await.map_err(|error| error.to_report_string())
    }
}

/// Whether there is no container runtime at an endpoint: no socket. One that does not answer may have pods that run.
#[must_use]
pub fn is_absent(endpoint: &str) -> bool {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    path.starts_with('/') && std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Stops and removes all pods; what cannot be removed does not keep the rest.
///
/// # Errors
/// The pods that are left, in words; or the runtime does not answer.
pub async fn remove(runtime: &impl Runtime) -> Result<usize, String> {
    let silent = |reason| format!("the container runtime does not answer ({reason}): start it, or give --keep-pods to leave its pods as they are");
    let sandboxes = runtime.sandboxes().await.map_err(silent)?;
    let count = sandboxes.len();
    let mut problems = Vec::new();
    for (id, name) in sandboxes {
        let stopped = runtime.stop(&id).await;
        let removed = match stopped {
            Ok(()) => runtime.remove(&id).await,
            refused => refused,
        };
        problems.extend(removed.err().map(|reason| format!("pod {name:?}: {reason}")));
    }
    if problems.is_empty() { Ok(count) } else { Err(problems.join("; ")) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;

    /// Three pods, of which one does not stop; or no answer.
    #[derive(Default)]
    struct Double {
        calls: Mutex<Vec<String>>,
        is_away: bool,
    }

    impl Runtime for Double {
        async fn sandboxes(&self) -> Result<Vec<(String, String)>, String> {
            let pod = |id: &str| (id.to_owned(), format!("n/{id}"));
            if self.is_away { Err("refused".into()) } else { Ok(["a", "stuck", "b"].map(pod).into()) }
        }

        async fn stop(&self, id: &str) -> Result<(), String> {
            self.calls.lock().unwrap().push(format!("stop {id}"));
            if id == "stuck" { Err("busy".into()) } else { Ok(()) }
        }

        async fn remove(&self, id: &str) -> Result<(), String> {
            self.calls.lock().unwrap().push(format!("remove {id}"));
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_pod_that_does_not_go_is_named_and_the_others_go() {
        let runtime = Double::default();
        assert_eq!(remove(&runtime).await, Err(r#"pod "n/stuck": busy"#.to_owned()));
        assert_eq!(*runtime.calls.lock().unwrap(), ["stop a", "remove a", "stop stuck", "stop b", "remove b"]);
        let silent = remove(&Double { is_away: true, ..Double::default() }).await.unwrap_err();
        assert!(silent.contains("does not answer (refused)") && silent.contains("--keep-pods"), "{silent}");
    }

    #[test]
    fn a_runtime_is_absent_without_its_socket_alone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a.sock");
        assert!(is_absent(&format!("unix://{}", socket.display())) && is_absent(&socket.display().to_string()));
        std::fs::write(&socket, "").unwrap();
        assert!(!is_absent(&format!("unix://{}", socket.display())));
        assert!(!is_absent("npipe:////./pipe/containerd-containerd") && !is_absent("tcp://127.0.0.1:1"));
    }

    #[test]
    fn the_runtime_is_the_one_that_the_join_wrote_down() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Path::new(dir.path()), false);
        assert_eq!(endpoint(&places), None);
        std::fs::create_dir_all(places.kubelet_dir()).unwrap();
        std::fs::write(places.config(), "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///a.sock\n").unwrap();
        assert_eq!(endpoint(&places).as_deref(), Some("unix:///a.sock"));
        std::fs::write(places.instance_config(), "containerRuntimeEndpoint: unix:///b.sock\n").unwrap();
        assert_eq!(endpoint(&places).as_deref(), Some("unix:///b.sock"));
        std::fs::write(places.instance_config(), "a: [").unwrap();
        assert_eq!(endpoint(&places).as_deref(), Some("unix:///a.sock"));
    }
}
