//! The steps of a join, as a list that can be printed. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::discovery::{ClusterConfig, Discovered};
use crate::files::{self, KubeletConfigError};
use crate::journal::{Journal, State};
use crate::places::Places;
use crate::settings::Settings;
use crate::version::Version;

/// The first control plane whose kubeadm reads the runtime's socket from instance-config.yaml alone.
const NO_ANNOTATION: Version = Version { major: 1, minor: 36, patch: 0 };
/// The annotation of older ones.
pub const CRI_SOCKET: &str = "kubeadm.alpha.kubernetes.io/cri-socket";

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("cannot use the ConfigMap kube-system/kubelet-config")]
    KubeletConfig(#[from] KubeletConfigError),
    #[error("a Node named {name:?} is Ready in the cluster: another machine has this name; give another one with --node-name, or delete that Node")]
    NameTaken { name: String },
    #[error("an unfinished join of this machine was to {server} as {name:?}: finish it with the same options, or undo it with mullion reset")]
    OtherJoin { server: String, name: String },
    #[error("this machine is node {name:?} of {server} already: mullion leave, or mullion reset, makes it free")]
    Joined { server: String, name: String },
}

/// What a plan is made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub settings: &'a Settings,
    pub places: &'a Places,
    pub discovered: &'a Discovered,
    /// Pins of the cluster's authority.
    pub authority: &'a [String],
    pub cluster: &'a ClusterConfig,
    pub journal: Option<&'a Journal>,
    /// Content of files that are there.
    pub there: &'a BTreeMap<PathBuf, String>,
    /// Whether the node's kubeconfig has a good certificate of this node.
    pub has_certificate: bool,
    /// Whether there is a service that runs the agent.
    pub has_service: bool,
    /// Whether one is made where there is none.
    pub installs_service: bool,
}

/// A file to be written.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub path: PathBuf,
    pub content: String,
    /// Whether only root may read it, and nobody prints it.
    pub is_secret: bool,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?}, {} bytes)", self.path, self.content.len())
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Write(File),
    StopService,
    /// Makes the service, where there is none.
    InstallService,
    /// Asks the cluster for the client certificate of the node, and writes its kubeconfig.
    RequestCertificate {
        node_name: String,
        within: Duration,
    },
    Remove(PathBuf),
    StartService,
    WaitHealthy {
        url: String,
        within: Duration,
    },
    WaitRegistered {
        node_name: String,
        within: Duration,
    },
    Annotate {
        node_name: String,
        cri_socket: String,
    },
}

/// The steps in their order, and remarks on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub warnings: Vec<String>,
}

/// What is to be done so that the machine is a node of the cluster.
///
/// # Errors
/// [`PlanError`].
pub fn plan(inputs: &Inputs<'_>) -> Result<Plan, PlanError> {
    let Inputs { settings, places, discovered, cluster, .. } = *inputs;
    check_earlier(inputs)?;
    // The Node of a join that was cut off after the agent's start is this machine's own.
    let is_own = inputs.journal.is_some() && inputs.has_certificate;
    if cluster.node_is_ready && !is_own {
        return Err(PlanError::NameTaken { name: settings.node_name.clone() });
    }
    let config = files::kubelet_config(&cluster.kubelet, &settings.cri_socket, places.is_windows())?;
    let mut steps = Vec::new();
    let mut write = |path: PathBuf, content: String, is_secret: bool| {
        if inputs.there.get(&path) != Some(&content) {
            steps.push(Step::Write(File { path, content, is_secret }));
        }
    };
    write(places.at(&settings.ca_path), discovered.ca_pem.clone(), false);
    if !inputs.has_certificate {
        write(places.bootstrap_conf(), discovered.kubeconfig.clone(), true);
    }
    let is_written = !inputs.has_certificate || inputs.there.contains_key(&places.bootstrap_conf());
    write(places.instance_config(), files::instance_config(&settings.cri_socket), false);
    write(places.config(), config.text, false);
    write(places.flags_env(), files::flags_env(settings), false);
    if inputs.has_service {
        // Before the files of a running agent change.
        steps.insert(0, Step::StopService);
    }
    let node_name = || settings.node_name.clone();
    if !inputs.has_certificate {
        steps.push(Step::RequestCertificate { node_name: node_name(), within: settings.tls_bootstrap_timeout });
    }
    if is_written {
        steps.push(Step::Remove(places.bootstrap_conf()));
    }
    // One that an earlier run made is made again: it may have been cut off.
    let installs = inputs.installs_service && (!inputs.has_service || inputs.journal.is_some_and(|journal| journal.installed_service));
    if installs {
        steps.push(Step::InstallService);
    }
    if inputs.has_service || installs {
        steps.push(Step::StartService);
        if settings.waits {
            if let Some(url) = config.healthz {
                steps.push(Step::WaitHealthy { url, within: settings.health_timeout });
            }
            steps.push(Step::WaitRegistered { node_name: node_name(), within: settings.tls_bootstrap_timeout });
            if cluster.version < NO_ANNOTATION {
                steps.push(Step::Annotate { node_name: node_name(), cri_socket: settings.cri_socket.clone() });
            }
        }
    }
    Ok(Plan { steps, warnings: config.warnings })
}

/// The flags in a text of `kubeadm-flags.env`; none when there are none.
#[must_use]
pub fn flags(text: &str) -> Option<String> {
    let quoted = text.trim().strip_prefix("KUBELET_KUBEADM_ARGS=")?.strip_prefix('"')?.strip_suffix('"')?;
    (!quoted.is_empty()).then(|| quoted.replace("\\\"", "\"").replace(r"\\", r"\"))
}

/// Checks that no other join was begun or finished here.
fn check_earlier(inputs: &Inputs<'_>) -> Result<(), PlanError> {
    let Some(journal) = inputs.journal else { return Ok(()) };
    check_joined(journal)?;
    let (server, name) = (journal.server.clone(), journal.node_name.clone());
    let is_same = journal.authority == inputs.authority && name == inputs.settings.node_name;
    if is_same { Ok(()) } else { Err(PlanError::OtherJoin { server, name }) }
}

/// Checks that no join was finished here.
///
/// # Errors
/// [`PlanError::Joined`].
pub fn check_joined(journal: &Journal) -> Result<(), PlanError> {
    match journal.state {
        State::Joined => Err(PlanError::Joined { server: journal.server.clone(), name: journal.node_name.clone() }),
        State::Joining => Ok(()),
    }
}

impl Step {
    /// The step in words; paths as the machine's own programs write them.
    #[must_use]
    pub fn text(&self, places: &Places) -> String {
        let shown = |path: &Path| places.shown(path);
        match self {
            Self::Write(file) => format!("write {} ({} bytes)", shown(&file.path), file.content.len()),
            Self::StopService => "stop the service kubelet".to_owned(),
            Self::InstallService => "make the service kubelet, as mullion install kubelet does".to_owned(),
            Self::RequestCertificate { node_name, .. } => {
                format!("ask for a client certificate of node {node_name:?}, and write {}", shown(&places.kubelet_conf()))
            }
            Self::Remove(path) => format!("remove {}", shown(path)),
            Self::StartService => "start the service kubelet".to_owned(),
            Self::WaitHealthy { url, within } => format!("wait until {url} answers, at most {}s", within.as_secs()),
            Self::WaitRegistered { node_name, within } => format!("wait until Node {node_name:?} exists, at most {}s", within.as_secs()),
            Self::Annotate { node_name, cri_socket } => format!("annotate Node {node_name:?} with {CRI_SOCKET}={cri_socket}"),
        }
    }

    /// The step for programs. Content that is secret is left out.
    #[must_use]
    pub fn json(&self, places: &Places) -> Value {
        let path = |path: &Path| Value::from(places.shown(path));
        match self {
            Self::Write(file) if file.is_secret => json!({"action": "write", "path": path(&file.path), "secret": true}),
            Self::Write(file) => json!({"action": "write", "path": path(&file.path), "content": file.content}),
            Self::StopService => json!({"action": "stopService"}),
            Self::InstallService => json!({"action": "installService"}),
            Self::RequestCertificate { node_name, .. } => {
                json!({"action": "requestCertificate", "node": node_name, "path": path(&places.kubelet_conf())})
            }
            Self::Remove(file) => json!({"action": "remove", "path": path(file)}),
            Self::StartService => json!({"action": "startService"}),
            Self::WaitHealthy { url, within } => json!({"action": "waitHealthy", "url": url, "seconds": within.as_secs()}),
            Self::WaitRegistered { node_name, within } => json!({"action": "waitRegistered", "node": node_name, "seconds": within.as_secs()}),
            Self::Annotate { node_name, cri_socket } => {
                json!({"action": "annotate", "node": node_name, "annotation": CRI_SOCKET, "value": cri_socket})
            }
        }
    }
}

impl Plan {
    /// The plan as `--dry-run` prints it: the steps, then the content of files that hold no secret.
    #[must_use]
    pub fn text(&self, places: &Places) -> String {
        let mut text = String::new();
        for (number, step) in self.steps.iter().enumerate() {
            text += &format!("{:>2}. {}\n", number + 1, step.text(places));
        }
        for step in &self.steps {
            if let Step::Write(File { path, content, is_secret: false }) = step {
                text += &format!("\n{}:\n{}\n", places.shown(path), content.trim_end());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
