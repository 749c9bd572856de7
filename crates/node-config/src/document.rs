//! Reading configuration documents of upstream's form: defaults, zero values, ignored and unknown members.
//!
//! A document's members are those of its type, so that a field exists once. A member is set through its path (`winkernel.sourceVip`), from
//! the file and from a flag alike.

use std::path::Path;

use serde::Serialize;
use serde::de::{Deserialize as _, DeserializeOwned};
use serde_json::{Map, Value};

use crate::duration::GoDuration;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not YAML.
    #[error("is no YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The document is of another kind or version.
    #[error("is a {kind:?} of {version:?}, not a {expected}")]
    OtherKind {
        /// Its member `kind`.
        kind: String,
        /// Its member `apiVersion`.
        version: String,
        /// What it should be.
        expected: String,
    },
    /// A kind appears twice in one file.
    #[error("has two documents of kind {0}: leave one")]
    Twice(&'static str),
    /// A value that its member or flag does not take.
    #[error("invalid value {value:?} of {name}: {reason}")]
    Value {
        /// The member's path, or the flag.
        name: String,
        /// The value as written.
        value: String,
        /// Why, and what to write.
        reason: String,
    },
    /// An argument that is not a flag.
    #[error("unknown argument {0:?}: only flags are taken, see --help")]
    Argument(String),
    /// A flag that does not exist.
    #[error("unknown flag: --{0}; see --help")]
    UnknownFlag(String),
    /// A flag without its value.
    #[error("flag needs an argument: --{0}")]
    NoArgument(String),
    /// An option that cannot be followed, and must not be passed over.
    #[error("cannot use {name}: {reason}")]
    Refused {
        /// The member's path, or the flag.
        name: String,
        /// Why, and the way out.
        reason: String,
    },
    /// A drop-in file without content, as upstream refuses it.
    #[error("is empty: write a KubeletConfiguration into it, or remove it")]
    Empty,
    /// A file or directory that is larger than any configuration.
    #[error("is larger than {0}: a configuration is smaller")]
    TooLarge(&'static str),
    /// Two options that do not go together, or a missing one.
    #[error("{0}")]
    Conflict(String),
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read")]
    Read {
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("the configuration file {path}")]
    File {
        path: String,
        /// What is wrong with it.
        source: Box<ConfigError>,
    },
}

/// A kind of configuration document.
pub trait Document: Clone + Default + Serialize + DeserializeOwned {
    /// Its `apiVersion`.
    const API_VERSION: &'static str;
    /// Its `kind`.
    const KIND: &'static str;
    /// Other places that mean the same as a member: other path, path.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];
    /// Numbers whose zero stands for the default.
    const ZERO_IS_DEFAULT: &'static [&'static str] = &[];
    /// Objects whose members are free (`featureGates`).
    const MAPS: &'static [&'static str] = &[];

    /// Texts that are a value of their own when they are empty.
    const EMPTY_COUNTS: &'static [&'static str] = &[];

    /// Why a member that upstream has is without effect here.
    fn ignored(path: &str) -> Option<&'static str>;

    /// Whether this value of an ignored member says what is done anyway.
    fn holds(_path: &str, _value: &str) -> bool {
        false
    }

    /// Why this value of a member cannot be used, and the way out.
    fn refused(_path: &str, _value: &str) -> Option<&'static str> {
        None
    }

    /// Whether members below a path are known, though none of them is a member of the type.
    fn is_section(_path: &str) -> bool {
        false
    }

    /// Completes what was read, where a default depends on other members, and warns of values without effect.
    ///
    /// `is_given` says whether the document has a member.
    fn complete(&mut self, _is_given: &dyn Fn(&str) -> bool, _warnings: &mut Vec<String>) {}
}

/// A document with the remarks of its reader.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed<T> {
    /// The document, defaults filled in.
    pub config: T,
    /// Members without effect, with the reason, each once.
    pub warnings: Vec<String>,
}

/// The text of a configuration file, also as Windows PowerShell writes it.
///
/// # Errors
/// [`ConfigError::Read`].
pub(crate) fn read_file(path: &Path) -> Result<String, ConfigError> {
    let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.display().to_string(), source })?;
    Ok(kube_rules::decode_text(&bytes))
}

/// The YAML documents of a text.
///
/// # Errors
/// [`ConfigError::Yaml`].
pub fn split(text: &str) -> Result<Vec<Value>, ConfigError> {
    let documents = serde_yaml_ng::Deserializer::from_str(text).map(Value::deserialize).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// `kind` and `apiVersion` of a document.
pub fn kind_of(document: &Value) -> (&str, &str) {
    let member = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
    (member("kind"), member("apiVersion"))
}

/// Whether a document is a `T`.
pub fn is_a<T: Document>(document: &Value) -> bool {
    kind_of(document) == (T::KIND, T::API_VERSION)
}

/// Reads a document. Members without effect here and unknown members are reported as warnings.
///
/// # Errors
/// [`ConfigError::OtherKind`], [`ConfigError::Value`].
pub fn read<T: Document>(document: &Value) -> Result<Parsed<T>, ConfigError> {
    if !is_a::<T>(document) {
        let (kind, version) = kind_of(document);
        let expected = format!("{} of {}", T::KIND, T::API_VERSION);
        return Err(ConfigError::OtherKind { kind: kind.to_owned(), version: version.to_owned(), expected });
    }
    let mut reader = Reader::<T> { config: T::default(), template: to_value(&T::default()), given: Vec::new(), warnings: Vec::new() };
    reader.section(document, "")?;
    let Reader { mut config, given, mut warnings, .. } = reader;
    config.complete(&|path| given.iter().any(|given| given == path), &mut warnings);
    Ok(Parsed { config, warnings })
}

/// Reads a text that is one document.
///
/// # Errors
/// As [`read`]; [`ConfigError::Yaml`].
pub fn read_text<T: Document>(text: &str) -> Result<Parsed<T>, ConfigError> {
    match split(text)?.as_slice() {
        [] => read(&Value::Null),
        [document] => read(document),
        _ => Err(ConfigError::Twice(T::KIND)),
    }
}

/// The document with `kind` and `apiVersion`, as files and `/configz` have it.
pub fn to_document<T: Document>(config: &T) -> Value {
    let mut document = Map::new();
    document.insert("apiVersion".to_owned(), T::API_VERSION.into());
    document.insert("kind".to_owned(), T::KIND.into());
    if let Value::Object(members) = to_value(config) {
        document.extend(members);
    }
    Value::Object(document)
}

pub fn to_yaml<T: Document>(config: &T) -> String {
    serde_yaml_ng::to_string(&to_document(config)).unwrap_or_default()
}

/// Sets the member at `path` from the text of a flag, which is called `name` in errors.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn set_text<T: Default + Serialize + DeserializeOwned>(config: &mut T, path: &str, text: &str, name: &str) -> Result<(), ConfigError> {
    let wrong = |reason: &str| ConfigError::Value { name: name.to_owned(), value: text.to_owned(), reason: reason.to_owned() };
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let value = match at(&to_value(&T::default()), path) {
        Value::Bool(_) => Value::Bool(text.parse().map_err(|_| wrong("write true or false"))?),
        Value::Number(_) => Value::from(text.parse::<i64>().map_err(|_| wrong("write a whole number"))?),
        Value::Array(_) => parts().map(Value::from).collect(),
        Value::Object(_) => {
            let pair =
                |part: &str| part.split_once('=').map(|(key, value)| (key.to_owned(), value.parse().map_or_else(|_| value.into(), Value::Bool)));
            let pairs = parts().map(|part| pair(part).ok_or_else(|| wrong(&format!("missing value for {part}: write NAME=VALUE"))));
            Value::Object(pairs.collect::<Result<_, _>>()?)
        }
        _ => text.into(),
    };
    set(config, path, value, name)
}

/// The text of a member, as a flag takes it.
pub fn text_of<T: Serialize>(config: &T, path: &str) -> String {
    text(&at(&to_value(config), path))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(map) => map.iter().map(|(key, value)| format!("{key}={}", text(value))).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn to_value<T: Serialize>(config: &T) -> Value {
    // Types of this crate have string keys and no failing serializers.
    serde_json::to_value(config).unwrap_or_default()
}

fn at(value: &Value, path: &str) -> Value {
    path.split('.').try_fold(value, |place, part| place.get(part)).cloned().unwrap_or_default()
}

fn set<T: Serialize + DeserializeOwned>(config: &mut T, path: &str, value: Value, name: &str) -> Result<(), ConfigError> {
    let written = text(&value);
    let mut document = to_value(config);
    let mut place = &mut document;
    for part in path.split('.') {
        place = &mut place[part];
    }
    *place = value;
    *config =
        serde_json::from_value(document).map_err(|error| ConfigError::Value { name: name.to_owned(), value: written, reason: error.to_string() })?;
    Ok(())
}

/// Go's zero values stand for the default, and tools like kubeadm write every member out.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether an ignored member asks for nothing.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s" | "false"),
        Value::Object(map) => map.values().all(is_zero),
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
    }
}

/// Whether a member whose default this is holds a duration.
fn is_duration(default: &Value) -> bool {
    default.as_str().is_some_and(|text| text.parse::<GoDuration>().is_ok())
}

struct Reader<T> {
    config: T,
    /// The default document: which members exist, and of what type.
    template: Value,
    given: Vec<String>,
    warnings: Vec<String>,
}

impl<T: Document> Reader<T> {
    fn section(&mut self, section: &Value, prefix: &str) -> Result<(), ConfigError> {
        for (name, value) in section.as_object().into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if prefix.is_empty() && matches!(name.as_str(), "kind" | "apiVersion") {
                continue;
            }
            let target = T::ALIASES.iter().find(|(other, _)| *other == path).map_or(path.as_str(), |(_, path)| *path).to_owned();
            let empty_counts = T::EMPTY_COUNTS.contains(&target.as_str()) && value == "";
            match self.member(&target) {
                // An ignored member may have an alias too.
                Some(_) if is_unset(value) && !empty_counts => {}
                Some(shape) => self.member_given(&target, &path, shape, value)?,
                None => self.other(&target, &path, value)?,
            }
        }
        Ok(())
    }

    /// A path that is no member: an ignored or refused one, a section, or unknown.
    fn other(&mut self, target: &str, path: &str, value: &Value) -> Result<(), ConfigError> {
        let written = text(value);
        if let Some(reason) = T::refused(target, &written) {
            return Err(ConfigError::Refused { name: format!("{path}: {written}"), reason: reason.to_owned() });
        }
        match (T::ignored(target), value) {
            (Some(why), value) => {
                if !is_zero(value) && !T::holds(target, &written) {
                    self.warnings.push(format!("{path} has no effect: {why}"));
                }
            }
            (None, Value::Object(_)) if T::is_section(target) || self.is_section(target) => self.section(value, path)?,
            (None, Value::Null) => {}
            // Upstream's words, where it goes on with what it knows.
            (None, _) => self.warnings.push(format!("strict decoding error: unknown field {path:?}; it has no effect")),
        }
        Ok(())
    }

    /// Whether the type has members below a path.
    fn is_section(&self, path: &str) -> bool {
        path.split('.').try_fold(&self.template, |place, part| place.get(part)).is_some_and(Value::is_object) && !T::MAPS.contains(&path)
    }

    /// The default of a member; `None` where there is none of that path, or a section.
    fn member(&self, path: &str) -> Option<Value> {
        // A name with a dot would be taken for two.
        let shape = path.split('.').try_fold(&self.template, |place, part| place.get(part))?;
        (!shape.is_object() || T::MAPS.contains(&path)).then(|| shape.clone())
    }

    fn member_given(&mut self, target: &str, path: &str, shape: Value, value: &Value) -> Result<(), ConfigError> {
        if T::ZERO_IS_DEFAULT.contains(&target) && (value.as_f64() == Some(0.0) || value == "0") {
            return Ok(());
        }
        // A zero duration stands for the default, however it is written.
        if is_duration(&shape) && !value.is_array() && text(value).parse() == Ok(GoDuration::default()) {
            return Ok(());
        }
        match (&shape, value) {
            // What is text in the type may be a number or a switch in YAML.
            (Value::String(_) | Value::Null, Value::Number(_) | Value::Bool(_)) => set_text(&mut self.config, target, &value.to_string(), path)?,
            (Value::Bool(_) | Value::Number(_), Value::String(text)) => set_text(&mut self.config, target, text, path)?,
            (Value::String(_), Value::Array(_)) | (Value::Array(_), Value::String(_)) => set_text(&mut self.config, target, &text(value), path)?,
            _ => set(&mut self.config, target, value.clone(), path)?,
        }
        self.given.push(target.to_owned());
        Ok(())
    }
}
