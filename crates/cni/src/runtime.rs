//! Runtime side of CNI: ADD, DEL, CHECK, GC and STATUS with a host's network configurations.
//!
//! Mirrors libcni: plug-ins of a list run one after the other with `prevResult`, capabilities decide what of the
//! runtime's arguments a plug-in sees, and each ADD is remembered so that CHECK and DEL get its configuration and
//! result back, even when the configuration on disk has changed since.

mod cache;
mod exec;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::spec::{AddResult, CniError, NetworkList, PluginConfig, PortMapping, RuntimeDns, SpecVersion, code, valid_id};

pub use exec::Call;

/// One interface of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    pub container_id: String,
    /// Its network namespace: a path on Linux, an HCN namespace's GUID on Windows. Empty when it is gone (DEL only).
    pub netns: String,
    /// Name of the interface inside, for example `eth0`.
    pub ifname: String,
    /// `CNI_ARGS`; Kubernetes' runtimes send `IgnoreUnknown`, `K8S_POD_NAMESPACE`, `K8S_POD_NAME`,
    /// `K8S_POD_INFRA_CONTAINER_ID` and `K8S_POD_UID`.
    pub args: Vec<(String, String)>,
    /// Capability `portMappings`.
    pub port_mappings: Vec<PortMapping>,
    /// Capability `dns`.
    pub dns: Option<RuntimeDns>,
}

/// Runs the plug-ins of one host.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Where network configurations lie; the first by name is the one in use.
    pub conf_dir: PathBuf,
    /// Where plug-ins that are not ours lie, searched in order.
    pub bin_dirs: Vec<PathBuf>,
    /// Where attachments are remembered (libcni: `/var/lib/cni`).
    pub cache_dir: PathBuf,
    /// The program that answers for our own plug-ins by the name it is called by.
    pub self_exe: PathBuf,
    /// Variables that plug-ins get beside `CNI_*` and `PATH`, for example `MULLION_HCN`.
    pub env: Vec<(String, String)>,
    /// How long one call of one plug-in may take.
    pub deadline: Duration,
}

/// Why the caller's side failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// There is no usable configuration; it may appear later.
    #[error("no network configuration in {dir}: {reason}; the pod network writes it when it is ready")]
    NotConfigured {
        dir: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The request itself is not valid.
    #[error("cannot attach: {0}")]
    Invalid(String),
    /// A plug-in answered with an error.
    #[error("plug-in {plugin} failed ({command})")]
    Plugin {
        /// The plug-in's type.
        plugin: String,
        /// `ADD`, `DEL`, …
        command: &'static str,
        #[source]
        error: CniError,
    },
    /// A plug-in could not be run.
    #[error("cannot run plug-in {plugin} ({command}): {reason}")]
    Exec {
        /// The plug-in's type.
        plugin: String,
        /// `ADD`, `DEL`, …
        command: &'static str,
        /// What went wrong, with the way out.
        reason: String,
    },
    /// The memory of an attachment could not be written or read.
    #[error("cannot {what} {path}")]
    Cache {
        /// `write`, `read`, `remove`.
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl RuntimeError {
    /// The code of the specification when a plug-in answered with an error object.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Plugin { error, .. } => Some(error.code),
            _ => None,
        }
    }
}

impl Runtime {
    /// A runtime for the given directories that runs our own plug-ins through the current program.
    pub fn new(conf_dir: impl Into<PathBuf>, bin_dir: impl Into<PathBuf>, cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            conf_dir: conf_dir.into(),
            bin_dirs: vec![bin_dir.into()],
            cache_dir: cache_dir.into(),
            self_exe: exec::self_exe(),
            env: Vec::new(),
            deadline: Duration::from_secs(60),
        }
    }

    /// The network in use: the first `.conf`, `.conflist` or `.json` of the directory, by name, that reads well.
    pub fn network(&self) -> Result<NetworkList, RuntimeError> {
        first_network(&self.conf_dir)
    }

    /// Attaches a sandbox to the network in use and remembers the attachment. When a plug-in fails, the list is
    /// detached again before the error is returned.
    pub async fn add(&self, attachment: &Attachment) -> Result<AddResult, RuntimeError> {
        let network = self.network()?;
        check_attachment(attachment)?;
        match self.add_list(&network, attachment).await {
            Ok(result) => {
                cache::write(&self.cache_dir, &network, attachment, &result)?;
                Ok(result)
            }
            Err(error) => {
                if let Err(undo) = self.del_list(&network, attachment, None).await {
                    tracing::warn!(container = attachment.container_id, "detaching after a failed ADD failed too: {undo}");
                }
                Err(error)
            }
        }
    }

    async fn add_list(&self, network: &NetworkList, attachment: &Attachment) -> Result<AddResult, RuntimeError> {
        if !attachment.port_mappings.is_empty() && !network.plugins.iter().any(|plugin| plugin.has_capability("portMappings")) {
            tracing::warn!(container = attachment.container_id, "no plug-in of network {:?} maps host ports: the pod's are not served", network.name);
        }
        let mut result: Option<AddResult> = None;
        for plugin in &network.plugins {
            let stdin = plugin_input(network, plugin, attachment, result.as_ref());
            let output = self.exec("ADD", &plugin.kind, attachment, &stdin).await?;
            let read = output.and_then(|doc| AddResult::from_json(&doc, network.cni_version));
            result = Some(read.map_err(|error| plugin_error(plugin, "ADD", error))?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Detaches a sandbox. An unknown sandbox is fine. Uses the remembered configuration and result when there are
    /// any, else the network in use; with neither, nothing can be left to undo and it succeeds.
    pub async fn del(&self, attachment: &Attachment) -> Result<(), RuntimeError> {
        check_attachment(attachment)?;
        let remembered = cache::find(&self.cache_dir, attachment)?;
        let had_any = !remembered.is_empty();
        for entry in remembered {
            let full = entry.complete(attachment);
            self.del_list(&entry.network, &full, Some(&entry.result)).await?;
            cache::remove(&self.cache_dir, &entry.network.name, attachment)?;
        }
        if had_any {
            return Ok(());
        }
        match self.network() {
            Ok(network) => {
                self.del_list(&network, attachment, None).await?;
                // There may be one that does not read.
                cache::remove(&self.cache_dir, &network.name, attachment)
            }
            Err(RuntimeError::NotConfigured { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn del_list(&self, network: &NetworkList, attachment: &Attachment, result: Option<&AddResult>) -> Result<(), RuntimeError> {
        let result = result.filter(|_| network.cni_version.has_check());
        for plugin in network.plugins.iter().rev() {
            let stdin = plugin_input(network, plugin, attachment, result);
            self.exec("DEL", &plugin.kind, attachment, &stdin).await?.map_err(|error| plugin_error(plugin, "DEL", error))?;
        }
        Ok(())
    }

    /// Asks the plug-ins whether a remembered attachment is still what ADD made. Networks before 0.4.0 or with
    /// `disableCheck` are always fine.
    pub async fn check(&self, attachment: &Attachment) -> Result<(), RuntimeError> {
        check_attachment(attachment)?;
        for entry in cache::find(&self.cache_dir, attachment)? {
            if entry.network.disable_check || !entry.network.cni_version.has_check() {
                continue;
            }
            let full = entry.complete(attachment);
            for plugin in &entry.network.plugins {
                let stdin = plugin_input(&entry.network, plugin, &full, Some(&entry.result));
                self.exec("CHECK", &plugin.kind, &full, &stdin).await?.map_err(|error| plugin_error(plugin, "CHECK", error))?;
            }
        }
        Ok(())
    }

    /// Frees what belongs to no sandbox of `valid` (container id, interface): remembered attachments are detached,
    /// then plug-ins of 1.1.0 networks are asked to collect. Goes on after errors and returns the first.
    pub async fn gc(&self, valid: &[(String, String)]) -> Result<(), RuntimeError> {
        let network = self.network()?;
        if network.disable_gc {
            return Ok(());
        }
        let mut first = Ok(());
        for entry in cache::all(&self.cache_dir)? {
            let id = (entry.container_id.clone(), entry.ifname.clone());
            if entry.network.name != network.name || valid.contains(&id) {
                continue;
            }
            let gone = Attachment { container_id: id.0, ifname: id.1, ..Attachment::default() };
            first = first.and(self.del(&entry.complete(&gone)).await);
        }
        cache::forget_unreadable(&self.cache_dir, &network.name, valid);
        if !network.cni_version.has_gc() {
            return first;
        }
        let list: Vec<Value> = valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
        for plugin in &network.plugins {
            let mut input = base_input(&network, plugin);
            input.insert("cni.dev/valid-attachments".into(), json!(list));
            input.insert("cni.dev/attachments".into(), json!(list));
            let done = self.exec("GC", &plugin.kind, &Attachment::default(), &input).await;
            first = first.and(done.and_then(|answer| answer.map(drop).map_err(|error| plugin_error(plugin, "GC", error))));
        }
        first
    }

    /// Whether an ADD could succeed now, as far as the plug-ins report it: a configuration is there and, for 1.1.0
    /// networks, STATUS of every plug-in succeeds.
    pub async fn status(&self) -> Result<(), RuntimeError> {
        let network = self.network()?;
        if !network.cni_version.has_gc() {
            return Ok(());
        }
        for plugin in &network.plugins {
            let input = base_input(&network, plugin);
            match self.exec("STATUS", &plugin.kind, &Attachment::default(), &input).await? {
                Ok(_) => {}
                // Plug-ins built before 1.1.0 do not know the command; that says nothing about their network.
                Err(error) if error.code == code::INVALID_ENVIRONMENT => {}
                Err(error) => return Err(plugin_error(plugin, "STATUS", error)),
            }
        }
        Ok(())
    }

    /// The versions that plug-in `kind` supports; those unknown here are left out.
    pub async fn versions(&self, kind: &str) -> Result<Vec<SpecVersion>, RuntimeError> {
        let mut input = Map::new();
        input.insert("cniVersion".into(), json!(SpecVersion::CURRENT.as_str()));
        let answer = self.exec("VERSION", kind, &Attachment::default(), &input).await?;
        let doc = answer.map_err(|error| RuntimeError::Plugin { plugin: kind.to_owned(), command: "VERSION", error })?;
        let listed = doc.get("supportedVersions").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(listed.iter().filter_map(|v| v.as_str()?.parse().ok()).collect())
    }

    async fn exec(
        &self,
        command: &'static str,
        kind: &str,
        attachment: &Attachment,
        stdin: &Map<String, Value>,
    ) -> Result<Result<Value, CniError>, RuntimeError> {
        let program =
            exec::program(kind, &self.self_exe, &self.bin_dirs).map_err(|reason| RuntimeError::Exec { plugin: kind.to_owned(), command, reason })?;
        let call = Call {
            command,
            attachment,
            path: exec::join_path(&self.bin_dirs),
            stdin: serde_json::to_vec(stdin).unwrap_or_default(),
            env: &self.env,
            deadline: self.deadline,
        };
        exec::run(&program, &call).await.map_err(|reason| RuntimeError::Exec { plugin: kind.to_owned(), command, reason })
    }
}

fn plugin_error(plugin: &PluginConfig, command: &'static str, error: CniError) -> RuntimeError {
    RuntimeError::Plugin { plugin: plugin.kind.clone(), command, error }
}

fn check_attachment(attachment: &Attachment) -> Result<(), RuntimeError> {
    if !valid_id(&attachment.container_id) {
        return Err(RuntimeError::Invalid(format!(
            "container id {:?} is empty or has characters other than letters, digits, _ . -",
            attachment.container_id
        )));
    }
    if attachment.ifname.is_empty() || attachment.ifname.contains(['/', '\\', ':']) || attachment.ifname.starts_with("..") {
        return Err(RuntimeError::Invalid(format!("interface name {:?} is not a name", attachment.ifname)));
    }
    Ok(())
}

/// The list's plug-in with what every command gets.
fn base_input(network: &NetworkList, plugin: &PluginConfig) -> Map<String, Value> {
    let mut input = plugin.document.clone();
    input.shift_remove("capabilities");
    input.insert("cniVersion".into(), json!(network.cni_version.as_str()));
    input.insert("name".into(), json!(network.name));
    input
}

/// What a plug-in reads on its standard input.
fn plugin_input(network: &NetworkList, plugin: &PluginConfig, attachment: &Attachment, prev: Option<&AddResult>) -> Map<String, Value> {
    let mut input = base_input(network, plugin);
    let mut runtime = Map::new();
    if plugin.has_capability("portMappings") && !attachment.port_mappings.is_empty() {
        runtime.insert("portMappings".into(), json!(attachment.port_mappings));
    }
    if let Some(dns) = attachment.dns.as_ref().filter(|_| plugin.has_capability("dns")) {
        runtime.insert("dns".into(), json!(dns));
    }
    if !runtime.is_empty() {
        input.insert("runtimeConfig".into(), Value::Object(runtime));
    }
    if let Some(prev) = prev {
        input.insert("prevResult".into(), prev.to_json(network.cni_version));
    }
    input
}

fn first_network(dir: &Path) -> Result<NetworkList, RuntimeError> {
    let not_configured = |reason: String| RuntimeError::NotConfigured { dir: dir.to_owned(), reason };
    let entries = std::fs::read_dir(dir).map_err(|e| not_configured(e.to_string()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| matches!(path.extension().and_then(|e| e.to_str()), Some("conf" | "conflist" | "json")))
        .collect();
    files.sort();
    let mut defects = Vec::new();
    for file in files {
        let read = std::fs::read(&file).map_err(|e| e.to_string());
        match read.and_then(|bytes| NetworkList::parse(&bytes).map_err(|e| e.to_string())) {
            Ok(network) => return Ok(network),
            Err(reason) => defects.push(format!("{}: {reason}", file.display())),
        }
    }
    Err(not_configured(if defects.is_empty() { "the directory holds none".to_owned() } else { defects.join("; ") }))
}

#[cfg(test)]
pub(crate) mod tests;
