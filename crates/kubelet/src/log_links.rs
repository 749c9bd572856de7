//! `/var/log/containers`: a link to the log of each container, which log collectors read (upstream kuberuntime/legacy.go). Linux alone.

use std::collections::BTreeSet;

use cri::v1;
use host::{FileKind, HostError, PodPath};
use k8s_openapi::api::core::v1::Pod;
use thiserror_ext::AsReport as _;

use crate::agent::Agent;
use crate::volumes::log_mode;

/// The directory of the links.
pub(crate) const DIR: &str = "/var/log/containers";
const SUFFIX: &str = ".log";
/// The longest name of a file.
const LONGEST: usize = 255;

/// The link of a container: `POD_NAMESPACE_CONTAINER-ID.log`, cut at what a file system takes.
fn name(pod: &Pod, container: &str, id: &str) -> String {
    let (namespace, pod) = (pod.metadata.namespace.as_deref().unwrap_or_default(), pod.metadata.name.as_deref().unwrap_or_default());
    // Names of objects are ASCII, and so are ids.
    let mut name: String = format!("{pod}_{namespace}_{container}-{id}").chars().filter(char::is_ascii).collect();
    name.truncate(LONGEST - SUFFIX.len());
    name + SUFFIX
}

/// The id in the name of a link; None where it was cut off, or somebody else made the link.
fn id(name: &str) -> Option<&str> {
    let (_, id) = name.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    (id.len() >= 6).then_some(id)
}

impl Agent {
    /// Links to the log of a container that was started.
    pub(crate) fn link_log(&self, pod: &Pod, container: &str, id: &str, log: &PodPath) {
        if self.side.os.is_windows() {
            return;
        }
        let made = || -> Result<(), HostError> {
            // A runtime may write no log.
            if self.root.kind(log)?.is_none() {
                return Ok(());
            }
            let dir = self.root.parse(DIR)?;
            self.root.create_dir_all(&dir, log_mode(self.side.os))?;
            self.root.link(&dir.join(&name(pod, container, id))?, log)
        };
        if let Err(error) = made() {
            tracing::warn!(container = id, error = %error.as_report(), "cannot link to the log of a container in {DIR}");
        }
    }

    fn links(&self) -> Vec<(String, PodPath)> {
        let listed = self.root.parse(DIR).and_then(|dir| Ok((self.root.read_dir(&dir)?, dir)));
        let Ok((names, dir)) = listed else { return Vec::new() };
        let links = names.into_iter().filter(|(name, kind)| *kind == FileKind::Link && name.ends_with(SUFFIX));
        links.filter_map(|(name, _)| dir.join(&name).ok().map(|path| (name, path))).collect()
    }

    fn unlink(&self, path: &PodPath) {
        if let Err(error) = self.root.remove_tree(path) {
            tracing::warn!(error = %error.as_report(), "cannot remove a link in {DIR}");
        }
    }

    /// Removes a container from the runtime, and its link.
    pub(crate) async fn remove_container(&self, container: &str) -> Result<(), cri::Error> {
        self.cri.remove_container(v1::RemoveContainerRequest { container_id: container.to_owned() }).await?;
        if !self.side.os.is_windows() {
            self.links().iter().filter(|(name, _)| id(name) == Some(container)).for_each(|(_, path)| self.unlink(path));
        }
        Ok(())
    }

    /// Removes links that lead nowhere, but for those of containers that are there: a log is away for a moment while it is rotated.
    pub(crate) fn remove_dangling_links(&self, containers: &BTreeSet<String>) {
        if self.side.os.is_windows() {
            return;
        }
        for (name, path) in self.links() {
            let is_there = id(&name).is_some_and(|id| containers.contains(id));
            if !is_there && self.root.open_read(&path).is_err_and(|error| error.is_not_found()) {
                self.unlink(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn links_are_named_as_upstream_names_them() {
        let pod = |name: &str| -> Pod { serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap() };
        let link = name(&pod("web-0"), "c", "0123456789abcdef");
        assert_eq!(link, "web-0_ns_c-0123456789abcdef.log");
        assert_eq!(id(&link), Some("0123456789abcdef"));
        let long = name(&pod(&"p".repeat(253)), "c", "0123456789abcdef");
        assert_eq!((long.len(), long.ends_with(".log"), id(&long)), (255, true, None));
        for foreign in ["web_ns_c-012.log", "notes.log", "web_ns_c-0123456789abcdef"] {
            assert_eq!(id(foreign), None, "{foreign}");
        }
    }
}
