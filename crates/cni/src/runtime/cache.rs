//! Cache of attachments, in libcni's files and format: `CACHE/results/NETWORK-CONTAINER-INTERFACE`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Attachment, RuntimeError};
use crate::spec::{AddResult, NetworkList, PortMapping, RuntimeDns};

const KIND: &str = "cniCacheV1";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    kind: String,
    container_id: String,
    /// The list as JSON, in base64 (Go's encoding of bytes).
    config: String,
    if_name: String,
    network_name: String,
    #[serde(default)]
    netns: String,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
    #[serde(default)]
    capability_args: Map<String, Value>,
    result: Value,
}

/// What ADD was called with and what it made.
pub(super) struct Entry {
    pub container_id: String,
    pub ifname: String,
    pub network: NetworkList,
    pub result: AddResult,
    remembered: Attachment,
}

impl Entry {
    /// `given` with what only ADD knew.
    pub fn complete(&self, given: &Attachment) -> Attachment {
        let known = &self.remembered;
        Attachment {
            container_id: given.container_id.clone(),
            netns: given.netns.clone(),
            ifname: given.ifname.clone(),
            args: if given.args.is_empty() { known.args.clone() } else { given.args.clone() },
            port_mappings: if given.port_mappings.is_empty() { known.port_mappings.clone() } else { given.port_mappings.clone() },
            dns: given.dns.clone().or_else(|| known.dns.clone()),
        }
    }
}

fn path(cache_dir: &Path, network: &str, attachment: &Attachment) -> PathBuf {
    cache_dir.join("results").join(format!("{network}-{}-{}", attachment.container_id, attachment.ifname))
}

fn list_document(network: &NetworkList) -> Value {
    let plugins: Vec<Value> = network.plugins.iter().map(|p| Value::Object(p.document.clone())).collect();
    json!({"name": network.name, "cniVersion": network.cni_version.as_str(), "disableCheck": network.disable_check,
        "disableGC": network.disable_gc, "plugins": plugins})
}

pub(super) fn write(cache_dir: &Path, network: &NetworkList, attachment: &Attachment, result: &AddResult) -> Result<(), RuntimeError> {
    let path = path(cache_dir, &network.name, attachment);
    let mut capability_args = Map::new();
    if !attachment.port_mappings.is_empty() {
        capability_args.insert("portMappings".into(), json!(attachment.port_mappings));
    }
    if let Some(dns) = &attachment.dns {
        capability_args.insert("dns".into(), json!(dns));
    }
    let document = Document {
        kind: KIND.into(),
        container_id: attachment.container_id.clone(),
        config: STANDARD.encode(list_document(network).to_string()),
        if_name: attachment.ifname.clone(),
        network_name: network.name.clone(),
        netns: attachment.netns.clone(),
        cni_args: attachment.args.clone(),
        capability_args,
        result: result.to_json(network.cni_version),
    };
    write_atomically(&path, &document).map_err(|source| RuntimeError::Cache { what: "write", path, source })
}

fn write_atomically(path: &Path, document: &Document) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    atomic_file::write(path, serde_json::to_vec(document)?)
}

/// Every remembered attachment; files that do not read are left alone and named in the log.
pub(super) fn all(cache_dir: &Path) -> Result<Vec<Entry>, RuntimeError> {
    entries_ending(cache_dir, "")
}

fn entries_ending(cache_dir: &Path, suffix: &str) -> Result<Vec<Entry>, RuntimeError> {
    let dir = cache_dir.join("results");
    let files = match fs::read_dir(&dir) {
        Ok(files) => files,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(RuntimeError::Cache { what: "read", path: dir, source }),
    };
    let mut entries = Vec::new();
    for path in files.filter_map(|f| Some(f.ok()?.path())) {
        let desired = path.file_name().is_some_and(|n| !n.to_string_lossy().starts_with('.') && n.to_string_lossy().ends_with(suffix));
        if !desired {
            continue;
        }
        match read(&path) {
            Ok(entry) => entries.push(entry),
            Err(reason) => tracing::warn!("ignoring remembered attachment {}: {reason}", path.display()),
        }
    }
    Ok(entries)
}

/// The remembered attachments of one interface of one sandbox: one for each network it was attached to.
pub(super) fn find(cache_dir: &Path, attachment: &Attachment) -> Result<Vec<Entry>, RuntimeError> {
    let mut entries = entries_ending(cache_dir, &format!("-{}-{}", attachment.container_id, attachment.ifname))?;
    entries.retain(|e| e.container_id == attachment.container_id && e.ifname == attachment.ifname);
    Ok(entries)
}

fn read(path: &Path) -> Result<Entry, String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    let doc: Document = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    if doc.kind != KIND {
        return Err(format!("its kind is {:?}, not {KIND:?}", doc.kind));
    }
    let config = STANDARD.decode(&doc.config).map_err(|e| e.to_string())?;
    let network = NetworkList::parse(&config).map_err(|e| e.to_string())?;
    let result = AddResult::from_json(&doc.result, network.cni_version).map_err(|e| e.to_string())?;
    let part = |key: &str| doc.capability_args.get(key).cloned().unwrap_or_default();
    let port_mappings: Vec<PortMapping> = serde_json::from_value(part("portMappings")).unwrap_or_default();
    let dns: Option<RuntimeDns> = serde_json::from_value(part("dns")).unwrap_or_default();
    let remembered =
        Attachment { container_id: doc.container_id.clone(), netns: doc.netns, ifname: doc.if_name.clone(), args: doc.cni_args, port_mappings, dns };
    Ok(Entry { container_id: doc.container_id, ifname: doc.if_name, network, result, remembered })
}

/// Removes files of a network that do not read, but for those of `valid` (container id, interface): nobody else asks for what they remember.
pub(super) fn forget_unreadable(cache_dir: &Path, network: &str, valid: &[(String, String)]) {
    for file in fs::read_dir(cache_dir.join("results")).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let is_valid = valid.iter().any(|(container_id, ifname)| name == format!("{network}-{container_id}-{ifname}"));
        if name.starts_with(&format!("{network}-")) && !is_valid && read(&file.path()).is_err() {
            // The next GC finds what stays.
            let _ = fs::remove_file(file.path());
        }
    }
}

pub(super) fn remove(cache_dir: &Path, network: &str, attachment: &Attachment) -> Result<(), RuntimeError> {
    let path = path(cache_dir, network, attachment);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RuntimeError::Cache { what: "remove", path, source }),
        _ => Ok(()),
    }
}
