//! Drop-in files of `--config-dir`, by upstream's rules (mergeKubeletConfigurations in cmd/kubelet/app/server.go): every file below the
//! directory whose name ends in `.conf`, in lexical order, directories in their place among the names; links to directories are not
//! followed. Each file is a KubeletConfiguration and is merged into what was read before as a JSON merge patch (RFC 7386): objects are
//! merged, lists and other values are replaced, and null takes a member away.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{EvictionHard, KubeletConfiguration};
use crate::document::{self, ConfigError, Document as _};

/// Bytes of a file. No configuration comes near that.
const MAX_FILE: u64 = 1 << 20;
/// Files in a directory and below it.
const MAX_FILES: usize = 1000;

/// A drop-in file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    pub path: PathBuf,
    pub text: String,
}

/// The drop-in files below a directory, in their order.
///
/// # Errors
/// What cannot be read, and what is larger than any configuration.
pub fn read_dir(dir: &Path) -> Result<Vec<DropIn>, ConfigError> {
    let mut files = Vec::new();
    walk(dir, &mut files, &mut 0)?;
    Ok(files)
}

fn walk(dir: &Path, files: &mut Vec<DropIn>, seen: &mut usize) -> Result<(), ConfigError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| ConfigError::Read { path, source }
    };
    let mut entries = fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(failed(dir))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        *seen += 1;
        if *seen > MAX_FILES {
            return Err(at(dir, ConfigError::TooLarge("1000 files")));
        }
        if entry.file_type().map_err(failed(&path))?.is_dir() {
            walk(&path, files, seen)?;
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            if fs::metadata(&path).map_err(failed(&path))?.len() > MAX_FILE {
                return Err(at(&path, ConfigError::TooLarge("1 MiB")));
            }
            let text = document::read_file(&path)?;
            files.push(DropIn { path, text });
        }
    }
    Ok(())
}

fn at(path: &Path, source: ConfigError) -> ConfigError {
    ConfigError::File { path: path.display().to_string(), source: Box::new(source) }
}

/// Merges drop-in files into a document, which is that of `--config`, or none. Where there is one, thresholds of eviction that it does not
/// name have upstream's defaults before the first file is merged, as upstream has it: a drop-in that names one keeps the others.
///
/// # Errors
/// Files that are empty, no YAML, or of another kind; they are named.
pub fn merge(base: Option<Value>, files: &[DropIn], hard: &EvictionHard) -> Result<Value, ConfigError> {
    let mut merged = base.map(|base| with_thresholds(base, hard)).unwrap_or_default();
    for file in files {
        merge_patch(&mut merged, &patch(&file.text).map_err(|error| at(&file.path, error))?);
    }
    if let Value::Object(members) = &mut merged {
        members.insert("apiVersion".to_owned(), KubeletConfiguration::API_VERSION.into());
        members.insert("kind".to_owned(), KubeletConfiguration::KIND.into());
    }
    Ok(merged)
}

fn with_thresholds(mut base: Value, hard: &EvictionHard) -> Value {
    if let Value::Object(members) = &mut base
        && members.get("evictionHard").is_none_or(|given| given.is_null())
    {
        members.insert("evictionHard".to_owned(), serde_json::to_value(hard).unwrap_or_default());
    }
    base
}

/// The document of a drop-in file, which reads as one by itself.
fn patch(text: &str) -> Result<Value, ConfigError> {
    let mut documents = document::split(text)?;
    let patch = match documents.len() {
        0 => return Err(ConfigError::Empty),
        1 => documents.remove(0),
        _ => return Err(ConfigError::Twice(KubeletConfiguration::KIND)),
    };
    let mut alone = Value::Null;
    merge_patch(&mut alone, &patch);
    document::read::<KubeletConfiguration>(&alone)?;
    Ok(patch)
}

/// RFC 7386.
fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(into) = target else { return };
    for (name, value) in members {
        if value.is_null() {
            into.remove(name);
        } else {
            merge_patch(into.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
