//! Where kubeadm has what, on Linux and on Windows, below the root of the machine or of a test.

use std::path::{Path, PathBuf};

/// The places of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    root: PathBuf,
    is_windows: bool,
}

impl Places {
    /// Those of this machine, below another root where one is given.
    #[must_use]
    pub fn of_machine(root: Option<&Path>) -> Self {
        let own = if cfg!(windows) { r"C:\" } else { "/" };
        Self::new(root.unwrap_or(Path::new(own)), cfg!(windows))
    }

    /// Those below a root, in the form of an operating system.
    #[must_use]
    pub fn new(root: &Path, is_windows: bool) -> Self {
        Self { root: root.to_owned(), is_windows }
    }

    #[must_use]
    pub fn is_windows(&self) -> bool {
        self.is_windows
    }

    /// An absolute path of the machine, below the root.
    #[must_use]
    pub fn at(&self, path: &str) -> PathBuf {
        let path = path.strip_prefix("C:").or_else(|| path.strip_prefix("c:")).unwrap_or(path);
        self.root.join(path.trim_start_matches(['/', '\\']))
    }

    /// The path as the machine's own programs write it, without the root.
    #[must_use]
    pub fn shown(&self, path: &Path) -> String {
        let Ok(below) = path.strip_prefix(&self.root) else { return path.display().to_string() };
        let below = below.display().to_string();
        if self.is_windows { format!(r"C:\{}", below.replace('/', r"\")) } else { format!("/{below}") }
    }

    /// Whether a path is below the root.
    #[must_use]
    pub fn is_below_root(&self, path: &Path) -> bool {
        path != self.root && path.starts_with(&self.root)
    }

    /// Whether a path is in one of the directories that are a node's alone.
    #[must_use]
    pub fn is_of_node(&self, path: &Path) -> bool {
        path.starts_with(self.at("/etc/kubernetes")) || path.starts_with(self.kubelet_dir())
    }

    /// The node's kubeconfig.
    #[must_use]
    pub fn kubelet_conf(&self) -> PathBuf {
        self.at("/etc/kubernetes/kubelet.conf")
    }

    /// The kubeconfig of the first signing request.
    #[must_use]
    pub fn bootstrap_conf(&self) -> PathBuf {
        self.at("/etc/kubernetes/bootstrap-kubelet.conf")
    }

    /// Where static pods are.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.at("/etc/kubernetes/manifests")
    }

    #[must_use]
    pub fn kubelet_dir(&self) -> PathBuf {
        self.at("/var/lib/kubelet")
    }

    /// The KubeletConfiguration of the cluster.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.at("/var/lib/kubelet/config.yaml")
    }

    /// The KubeletConfiguration of this machine alone.
    #[must_use]
    pub fn instance_config(&self) -> PathBuf {
        self.at("/var/lib/kubelet/instance-config.yaml")
    }

    /// The agent's flags.
    #[must_use]
    pub fn flags_env(&self) -> PathBuf {
        self.at("/var/lib/kubelet/kubeadm-flags.env")
    }

    /// The agent's certificates.
    #[must_use]
    pub fn cert_dir(&self) -> PathBuf {
        self.at("/var/lib/kubelet/pki")
    }

    /// What a join has done here.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.at("/var/lib/kubelet/mullion-join.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_kubeadms_below_any_root() {
        let linux = Places::new(Path::new("/"), false);
        assert_eq!(linux.kubelet_conf(), Path::new("/etc/kubernetes/kubelet.conf"));
        let below = Places::new(Path::new("/tmp/x"), false);
        assert_eq!(below.config(), Path::new("/tmp/x/var/lib/kubelet/config.yaml"));
        assert_eq!(below.shown(&below.config()), "/var/lib/kubelet/config.yaml");
        assert_eq!(below.shown(Path::new("/other")), "/other");
        assert!(below.is_of_node(&below.cert_dir()) && below.is_of_node(&below.at("/etc/kubernetes/pki")));
        assert!(!below.is_of_node(&below.at("/etc/ssl/certs")) && !below.is_of_node(Path::new("/etc/kubernetes/pki")));
        let windows = Places::new(Path::new("/tmp/x"), true);
        assert_eq!(windows.at(r"C:\etc\a"), windows.at(r"/etc\a"));
        assert_eq!(windows.shown(&windows.kubelet_conf()), r"C:\etc\kubernetes\kubelet.conf");
    }
}
