//! Flags of `kubelet` and of `mullion node`, as one table: upstream's, and ours.
//!
//! A flag and a member of a configuration document are two names of one option. A flag whose member has no effect is accepted with the
//! member's reason, so that unit files and scripts written for upstream's kubelet keep working.

mod kubeadm;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NodeConfig, NodeConfiguration, Part};
use crate::document::{self, ConfigError, Document as _, Parsed};
use crate::flags::{self, asks_for_nothing, check_switch};
use crate::kubelet::{EvictionHard, FlagError, KubeletConfiguration, drop_ins};
use table::{FLAGS, Flag, Place};

pub use kubeadm::words as kubeadm_flags;

/// The name under which the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `mullion node`: node agent, service proxy and pod network.
    Node,
    /// `kubelet`: the node agent alone.
    Kubelet,
}

/// What a flag does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is followed; with what it means.
    Used(&'static str),
    /// It is accepted, and the log says why nothing follows from it.
    Ignored(&'static str),
    /// It ends the program, with the reason and the way out.
    Refused(&'static str),
}

impl Flag {
    fn effect(&self) -> Effect {
        match self.place {
            Place::Agent(path) => KubeletConfiguration::ignored(path).map_or(Effect::Used(self.what), Effect::Ignored),
            Place::Node(_) | Place::Proxy(_) | Place::Alone => Effect::Used(self.what),
            Place::Ignored => Effect::Ignored(self.what),
            Place::Refused => Effect::Refused(self.what),
        }
    }

    /// The member that means the same, as the file has it; empty for none.
    fn member(&self) -> &'static str {
        match self.place {
            Place::Agent(path) | Place::Node(path) | Place::Proxy(path) => path,
            Place::Alone | Place::Ignored | Place::Refused => "",
        }
    }
}

/// Flags that the configuration documents have no place for. Texts are empty when not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CommandFlags {
    /// The configuration file.
    pub config: String,
    /// The directory of drop-in files.
    pub config_dir: String,
    /// Print the version, and end.
    pub version: bool,
    /// Print the help, and end.
    pub help: bool,
    /// Windows: the service control manager starts and stops this process.
    pub windows_service: bool,
    /// Windows: the class of the process's priority, by the name of its constant.
    pub windows_priorityclass: String,
    /// Append the log to this file.
    pub log_file: String,
    /// kubeadm's file of flags, in whose place its flags have come.
    pub kubeadm_flags: String,
}

/// A command line of a node, with its configuration file and drop-ins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    pub config: NodeConfig,
    pub flags: CommandFlags,
    /// Options without effect, with the reason, each once.
    pub warnings: Vec<String>,
}

impl Options {
    /// Reads a command line and the files that it names. A flag counts more than the drop-ins, these more than the file, and the file more
    /// than the default.
    ///
    /// # Errors
    /// Unknown and refused flags, values that a flag does not take, and what is wrong with a file.
    pub fn parse(program: Program, args: impl IntoIterator<Item = String>) -> Result<Self, ConfigError> {
        let given = flags::split(FLAGS, kubeadm::expand(args)?)?;
        let mut options = Self::default();
        for (flag, value) in given.iter().filter(|(flag, _)| flag.place == Place::Alone) {
            document::set_text(&mut options.flags, flag.name, value, &format!("--{}", flag.name))?;
        }
        if options.flags.help || options.flags.version {
            return Ok(options);
        }
        let os = given.iter().find(|(flag, _)| flag.name == "os").map(|(_, os)| os.as_str());
        let parsed = options.flags.read(os)?;
        (options.config, options.warnings) = (parsed.config, parsed.warnings);
        for (flag, value) in &given {
            options.set(flag, value)?;
        }
        options.config.kubelet.drop_idle_gates(&mut options.warnings);
        if program == Program::Kubelet {
            options.config.node.without = vec![Part::Proxy, Part::Fabric];
            options.config.node.network_policy = false;
        }
        Ok(options)
    }

    /// Checks the names of flags, without the files that they name.
    ///
    /// # Errors
    /// Unknown and refused flags.
    pub fn check(args: impl IntoIterator<Item = String>) -> Result<(), ConfigError> {
        let mut options = Self::default();
        flags::split(FLAGS, args)?.iter().filter(|(flag, _)| flag.place != Place::Alone).try_for_each(|(flag, value)| options.set(flag, value))
    }

    fn set(&mut self, flag: &Flag, value: &str) -> Result<(), ConfigError> {
        let name = format!("--{}", flag.name);
        let refused = |reason: &str| ConfigError::Refused { name: format!("{name}={value}"), reason: reason.to_owned() };
        match (flag.effect(), flag.place) {
            // The alpha's flag gets its value in today's form.
            (Effect::Refused(why), _) => return Err(refused(&why.replace("http://HOST:PORT", &url(value)))),
            (Effect::Ignored(why), _) => {
                check_switch(flag.kind, &name, value)?;
                if let Some(why) = KubeletConfiguration::refused(flag.member(), value) {
                    return Err(refused(why));
                }
                if !asks_for_nothing(flag.kind, value) && !KubeletConfiguration::holds(flag.member(), value) {
                    self.warnings.push(format!("{name} has no effect: {why}"));
                }
            }
            (Effect::Used(_), Place::Agent(path)) => self.set_agent(flag, path, value, &name)?,
            (Effect::Used(_), Place::Node("nodeLabels")) => {
                self.config.node.node_labels = labels(value).map_err(|error| wrong(&name, value, &error))?;
            }
            (Effect::Used(_), Place::Node(path)) if !value.is_empty() => document::set_text(&mut self.config.node, path, value, &name)?,
            (Effect::Used(_), Place::Proxy(path)) => document::set_text(&mut self.config.kube_proxy, path, value, &name)?,
            // Set before the files were read, or an empty value, which stands for the default.
            (Effect::Used(_), _) => {}
        }
        Ok(())
    }

    /// A flag of a member of KubeletConfiguration. A few have a form of their own on command lines.
    fn set_agent(&mut self, flag: &Flag, path: &'static str, value: &str, name: &str) -> Result<(), ConfigError> {
        let agent = &mut self.config.kubelet;
        let wrong = |error: FlagError| wrong(name, value, &error);
        match flag.name {
            "eviction-hard" => {
                agent.eviction_hard = value.parse().map_err(wrong)?;
                agent.eviction_hard.keep_empty();
            }
            "eviction-soft" => agent.eviction_soft = value.parse::<EvictionHard>().map_err(wrong)?.0,
            "manifest-url-header" => agent.static_pod_url_header = headers(value).map_err(wrong)?,
            "register-with-taints" => agent.register_with_taints = parts(value).map(str::parse).collect::<Result<_, _>>().map_err(wrong)?,
            "feature-gates" => {
                let mut gates = KubeletConfiguration::default();
                document::set_text(&mut gates, path, value, name)?;
                agent.feature_gates.extend(gates.feature_gates);
            }
            // Scripts for Windows switch all of it off so, with --cgroups-per-qos=false.
            "enforce-node-allocatable" if value.is_empty() => agent.enforce_node_allocatable.clear(),
            _ if value.is_empty() && !KubeletConfiguration::EMPTY_COUNTS.contains(&path) => {}
            _ => document::set_text(agent, path, value, name)?,
        }
        Ok(())
    }
}

impl CommandFlags {
    /// The configuration of the file and its drop-ins. `os` is what `--os` says.
    fn read(&self, os: Option<&str>) -> Result<Parsed<NodeConfig>, ConfigError> {
        let mut documents = Vec::new();
        let at = |source| ConfigError::File { path: self.config.clone(), source: Box::new(source) };
        if !self.config.is_empty() {
            let text = document::read_file(Path::new(&self.config))?;
            documents = document::split(&text).map_err(at)?;
            let dir = Path::new(&self.config).parent().unwrap_or(Path::new(""));
            documents.iter_mut().filter(|document| document::is_a::<KubeletConfiguration>(document)).for_each(|document| resolve(document, dir));
        }
        if self.config_dir.is_empty() {
            return NodeConfig::of_documents(documents).map_err(at);
        }
        let files = drop_ins::read_dir(Path::new(&self.config_dir))?;
        let of_file = NodeConfig::of_documents(documents.clone()).map_err(at)?;
        let os = os.and_then(|os| os.parse().ok()).unwrap_or(of_file.config.node.os);
        let base = documents.iter().position(document::is_a::<KubeletConfiguration>).map(|place| documents.remove(place));
        let base = base.or_else(|| (!self.config.is_empty()).then(|| Value::Object(serde_json::Map::new())));
        if !files.is_empty() {
            documents.push(drop_ins::merge(base, &files, &EvictionHard::of_system(os))?);
        } else if let Some(base) = base.filter(document::is_a::<KubeletConfiguration>) {
            documents.push(base);
        }
        NodeConfig::of_documents(documents).map_err(|source| ConfigError::File { path: self.config_dir.clone(), source: Box::new(source) })
    }
}

/// Members that are paths on the machine.
const PATHS: [&[&str]; 7] = [
    &["staticPodPath"],
    &["podLogsDir"],
    &["volumePluginDir"],
    &["tlsCertFile"],
    &["tlsPrivateKeyFile"],
    &["resolvConf"],
    &["authentication", "x509", "clientCAFile"],
];

/// Makes relative paths of a file absolute: they are relative to its directory, as upstream.
fn resolve(document: &mut Value, dir: &Path) {
    for path in PATHS {
        let place = path.iter().try_fold(&mut *document, |place, name| place.get_mut(name));
        if let Some(Value::String(text)) = place
            && !text.is_empty()
            && !is_absolute(text)
        {
            *text = dir.join(&*text).display().to_string();
        }
    }
}

/// In the form of either operating system: a simulated node has Windows paths on Linux.
fn is_absolute(text: &str) -> bool {
    text.starts_with(['/', '\\']) || text.as_bytes().get(1) == Some(&b':')
}

fn wrong(name: &str, value: &str, error: &FlagError) -> ConfigError {
    ConfigError::Value { name: name.to_owned(), value: value.to_owned(), reason: error.to_string() }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The URL of an API server; upstream took an address without a scheme as plain HTTP.
fn url(text: &str) -> String {
    let first = text.split(',').next().unwrap_or_default();
    if first.contains("://") { first.to_owned() } else { format!("http://{first}") }
}

/// `NAME:VALUE,…`
fn headers(text: &str) -> Result<BTreeMap<String, Vec<String>>, FlagError> {
    let mut headers = BTreeMap::<String, Vec<String>>::new();
    for part in parts(text) {
        let (name, value) = part.split_once(':').ok_or_else(|| FlagError::Header(part.to_owned()))?;
        headers.entry(name.trim().to_owned()).or_default().push(value.trim().to_owned());
    }
    Ok(headers)
}

/// `NAME=VALUE,…`
fn labels(text: &str) -> Result<BTreeMap<String, String>, FlagError> {
    let pair =
        |part: &str| part.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| FlagError::NoValue(part.into()));
    parts(text).map(pair).collect()
}

/// What `--help` prints.
pub fn help(program: Program) -> String {
    let mut text = match program {
        Program::Kubelet => "Runs the node agent, as upstream's kubelet does and with its flags.\n\nUsage: kubelet [flags]\n".to_owned(),
        Program::Node => {
            "Runs the node: node agent, service proxy and pod network in one process.\n\nUsage: mullion node [flags]\n       mullion node \
                          explain POD: says why a pod is not Ready; see mullion node explain --help\n"
                .to_owned()
        }
    };
    text.push_str("\nFlags count more than drop-in files of --config-dir, these more than the file of --config, and the file more than defaults.\n");
    let line = |text: &mut String, flag: &Flag, what: &str| {
        let default = default_of(flag);
        let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
        let _ = writeln!(text, "      --{:<34} {what}{default}", flag.name);
    };
    text.push_str("\nFlags:\n");
    for flag in FLAGS {
        if let Effect::Used(what) = flag.effect() {
            line(&mut text, flag, what);
        }
    }
    text.push_str("\nTaken for compatibility, without effect:\n");
    for flag in FLAGS {
        if let Effect::Ignored(why) = flag.effect() {
            let _ = writeln!(text, "      --{:<38} {why}", flag.name);
        }
    }
    text
}

/// The default of a flag that is used, as text: that of its member.
fn default_of(flag: &Flag) -> String {
    match flag.place {
        Place::Agent(path) => document::text_of(&KubeletConfiguration::default(), path),
        Place::Node(path) => document::text_of(&NodeConfiguration::default(), path),
        Place::Proxy(_) | Place::Alone | Place::Ignored | Place::Refused => String::new(),
    }
}

/// Names, members and effects of all flags, for tests and the documentation.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str, Effect)> {
    FLAGS.iter().map(|flag| (flag.name, flag.member(), flag.effect()))
}
