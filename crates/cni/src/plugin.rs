//! Plug-in side of CNI: the request from `CNI_*` variables and standard input, and the answer on standard output.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::ipam;
use crate::spec::{AddResult, CniError, PluginConfig, SpecVersion, code, valid_id};
use crate::win_bridge::{self, Kind};

/// The names that [`plugin_main`] answers to, each also with `.exe`. `win-l2bridge` is an older name of `win-bridge`.
pub const PLUGINS: &[&str] = &[
    "azure-vnet",
    "azure-vnet-ipam",
    #[cfg(target_os = "linux")]
    "bandwidth",
    #[cfg(target_os = "linux")]
    "bridge",
    "flannel",
    "host-local",
    #[cfg(target_os = "linux")]
    "loopback",
    #[cfg(target_os = "linux")]
    "ovn-k8s-cni-overlay",
    #[cfg(target_os = "linux")]
    "ovn_cni",
    #[cfg(target_os = "linux")]
    "portmap",
    #[cfg(target_os = "linux")]
    "ptp",
    #[cfg(target_os = "linux")]
    "tuning",
    "win-bridge",
    "win-l2bridge",
    "win-overlay",
    "wincni",
];

/// The most that is read as configuration.
const INPUT_LIMIT: u64 = 4 << 20;

/// Whether `name` is one of [`PLUGINS`].
pub fn is_own_plugin(name: &str) -> bool {
    PLUGINS.contains(&stem(name))
}

fn stem(name: &str) -> &str {
    name.strip_suffix(".exe").unwrap_or(name)
}

/// A command of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach.
    Add,
    /// Detach; an unknown attachment is fine.
    Del,
    /// Compare with what ADD made.
    Check,
    /// Free what belongs to no valid attachment.
    Gc,
    /// Whether ADD could succeed.
    Status,
}

impl Command {
    /// The value of `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
        }
    }
}

/// One checked call of a plug-in.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// `CNI_CONTAINERID`; empty for GC and STATUS.
    pub container_id: String,
    /// `CNI_NETNS`; may be empty for DEL.
    pub netns: String,
    /// `CNI_IFNAME`; empty for GC and STATUS.
    pub ifname: String,
    /// `CNI_ARGS` by key.
    pub args: BTreeMap<String, String>,
    /// `CNI_PATH`.
    pub path: String,
    pub config: PluginConfig,
    /// The configuration as it came, for delegates.
    pub stdin: Vec<u8>,
}

/// What the process prints and how it ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For standard output.
    pub stdout: String,
    /// For standard error.
    pub stderr: String,
    /// Whether the exit code is 0.
    pub success: bool,
}

/// Runs plug-in `name` over this process's environment and streams. Exit code 1 and an error object on standard
/// output when it fails.
pub fn plugin_main(name: &str) -> ExitCode {
    let env = |key: &str| std::env::var(key).ok();
    let outcome = run(stem(name), &env, std::io::stdin().lock());
    eprint!("{}", outcome.stderr);
    let written = std::io::stdout().lock().write_all(outcome.stdout.as_bytes());
    if outcome.success && written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the plug-in that this program is called as.
pub fn program_main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    plugin_main(&std::path::Path::new(&called).file_name().unwrap_or_default().to_string_lossy())
}

/// Runs plug-in `name` over a given environment and input.
pub fn run(name: &str, env: &dyn Fn(&str) -> Option<String>, stdin: impl Read) -> Outcome {
    let command = env("CNI_COMMAND").unwrap_or_default();
    if command.is_empty() {
        let about = format!("{name}: CNI plug-in of Mullion, speaks CNI {}\n", SpecVersion::ALL.map(SpecVersion::as_str).join(", "));
        return Outcome { stderr: about, success: true, ..Outcome::default() };
    }
    if command == "VERSION" {
        let doc = json!({"cniVersion": SpecVersion::CURRENT.as_str(), "supportedVersions": SpecVersion::ALL.map(SpecVersion::as_str)});
        return Outcome { stdout: format!("{doc}\n"), success: true, ..Outcome::default() };
    }
    let answer = Request::read(&command, env, stdin).and_then(|request| {
        check_ifname_length(name, &request.ifname)?;
        let version = request.config.cni_version;
        Ok(dispatch(name, &request)?.map(|result| result.to_json(version)))
    });
    match answer {
        Ok(result) => {
            let stdout = result.map(|doc| format!("{doc:#}\n")).unwrap_or_default();
            Outcome { stdout, success: true, ..Outcome::default() }
        }
        Err(error) => {
            let doc = serde_json::to_value(&error).unwrap_or_else(|_| json!({"code": code::INTERNAL}));
            Outcome { stdout: format!("{doc:#}\n"), ..Outcome::default() }
        }
    }
}

fn dispatch(name: &str, request: &Request) -> Result<Option<AddResult>, CniError> {
    match name {
        "host-local" => ipam::host_local::handle(request),
        "azure-vnet-ipam" => ipam::azure::handle(request),
        "azure-vnet" => win_bridge::handle(request, Kind::AzureVnet),
        "win-bridge" | "win-l2bridge" => win_bridge::handle(request, Kind::Bridge),
        "win-overlay" => win_bridge::handle(request, Kind::Overlay),
        "wincni" => win_bridge::handle(request, Kind::Wincni),
        "flannel" => crate::flannel::handle(request),
        #[cfg(target_os = "linux")]
        "bandwidth" => crate::bandwidth::handle(request),
        #[cfg(target_os = "linux")]
        "bridge" => crate::bridge::handle(request),
        #[cfg(target_os = "linux")]
        "loopback" => crate::loopback::handle(request),
        #[cfg(target_os = "linux")]
        "ovn_cni" | "ovn-k8s-cni-overlay" => crate::ovn::handle(request),
        #[cfg(target_os = "linux")]
        "portmap" => crate::portmap::handle(request),
        #[cfg(target_os = "linux")]
        "ptp" => crate::ptp::handle(request),
        #[cfg(target_os = "linux")]
        "tuning" => crate::tuning::handle(request),
        _ => Err(unknown_plugin(name)),
    }
}

/// Reads the configuration of plug-in `name` for an ADD, and does nothing.
///
/// # Errors
/// Those of the plug-in: codes 1, 6 and 7.
pub fn read_config(name: &str, stdin: &[u8]) -> Result<(), CniError> {
    let env = |key: &str| match key {
        "CNI_CONTAINERID" => Some("container".to_owned()),
        "CNI_NETNS" => Some("/run/netns/container".to_owned()),
        "CNI_IFNAME" => Some("eth0".to_owned()),
        _ => None,
    };
    let request = Request::read("ADD", &env, stdin)?;
    match stem(name) {
        "host-local" => ipam::host_local::check_config(&request),
        "azure-vnet-ipam" => ipam::azure::check_config(&request),
        "azure-vnet" => win_bridge::check_config(&request, Kind::AzureVnet),
        "win-bridge" | "win-l2bridge" => win_bridge::check_config(&request, Kind::Bridge),
        "win-overlay" => win_bridge::check_config(&request, Kind::Overlay),
        "wincni" => win_bridge::check_config(&request, Kind::Wincni),
        "flannel" => crate::flannel::check_config(&request),
        #[cfg(target_os = "linux")]
        "bandwidth" => crate::bandwidth::check_config(&request),
        #[cfg(target_os = "linux")]
        "bridge" => crate::bridge::check_config(&request),
        #[cfg(target_os = "linux")]
        "loopback" => crate::loopback::check_config(&request),
        #[cfg(target_os = "linux")]
        "ovn_cni" | "ovn-k8s-cni-overlay" => crate::ovn::check_config(&request),
        #[cfg(target_os = "linux")]
        "portmap" => crate::portmap::check_config(&request),
        #[cfg(target_os = "linux")]
        "ptp" => crate::ptp::check_config(&request),
        #[cfg(target_os = "linux")]
        "tuning" => crate::tuning::check_config(&request),
        _ => Err(unknown_plugin(name)),
    }
}

/// Runs the plug-in of that name with a request that another one made: ours inside this process, any other from `CNI_PATH`.
pub(crate) fn delegate(name: &str, request: &Request) -> Result<Option<AddResult>, CniError> {
    if is_own_plugin(name) { dispatch(stem(name), request) } else { ipam::run_program(request, request.command, name) }
}

fn unknown_plugin(name: &str) -> CniError {
    CniError::internal(format!("{name:?} is not a plug-in of this program; it answers to {}", PLUGINS.join(", ")))
}

impl Request {
    /// Checks the call as the specification demands. Errors: 1 version, 4 environment, 5 input, 6 and 7 configuration.
    pub fn read(command: &str, env: &dyn Fn(&str) -> Option<String>, stdin: impl Read) -> Result<Self, CniError> {
        let command = match command {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            other => return Err(CniError::new(code::INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {other}"))),
        };
        let var = |key: &str| env(key).unwrap_or_default();
        check_environment(command, &var)?;
        let mut bytes = Vec::new();
        stdin.take(INPUT_LIMIT + 1).read_to_end(&mut bytes).map_err(|e| CniError::io("read the configuration from standard input", &e))?;
        if bytes.len() as u64 > INPUT_LIMIT {
            return Err(CniError::new(code::DECODE, format!("the configuration on standard input is longer than {} MiB", INPUT_LIMIT >> 20)));
        }
        let value: Value = serde_json::from_slice(&bytes).map_err(|e| CniError::decode("the configuration on standard input", &e))?;
        let config = PluginConfig::from_value(value)?;
        if !valid_id(&config.name) {
            return Err(CniError::config(format!("network name {:?} is missing or has invalid characters", config.name)));
        }
        let allowed = match command {
            Command::Add | Command::Del => true,
            Command::Check => config.cni_version.has_check(),
            Command::Gc | Command::Status => config.cni_version.has_gc(),
        };
        if !allowed {
            let text = format!("config version {} does not allow {}", config.cni_version, command.as_str());
            return Err(CniError::new(code::INCOMPATIBLE_VERSION, text));
        }
        Ok(Self {
            command,
            container_id: var("CNI_CONTAINERID"),
            netns: var("CNI_NETNS"),
            ifname: var("CNI_IFNAME"),
            args: parse_args(&var("CNI_ARGS"))?,
            path: var("CNI_PATH"),
            config,
            stdin: bytes,
        })
    }

    /// As upstream: an argument that a plug-in does not know is an error, unless `IgnoreUnknown` says otherwise. DEL takes any.
    ///
    /// # Errors
    /// Code 4, with the arguments.
    pub(crate) fn refuse_unknown_args(&self, known: &[&str]) -> Result<(), CniError> {
        let ignores = match self.args.get("IgnoreUnknown").map(|value| value.to_ascii_lowercase()) {
            None => false,
            Some(value) => match value.as_str() {
                "1" | "true" => true,
                "0" | "false" => false,
                _ => return Err(CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_ARGS: IgnoreUnknown={value} is no truth value"))),
            },
        };
        let unknown: Vec<String> = self
            .args
            .iter()
            .filter(|(key, _)| *key != "IgnoreUnknown" && !known.contains(&key.as_str()))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        if ignores || unknown.is_empty() || self.command == Command::Del {
            return Ok(());
        }
        Err(CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_ARGS: unknown args {unknown:?}")))
    }

    /// The interfaces that GC must leave alone, as (container id, interface name).
    pub fn valid_attachments(&self) -> Vec<(String, String)> {
        let list = self.config.document.get("cni.dev/valid-attachments").or_else(|| self.config.document.get("cni.dev/attachments"));
        let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = list.and_then(Value::as_array).cloned().unwrap_or_default();
        list.iter().map(|entry| (text(entry, "containerID"), text(entry, "ifname"))).collect()
    }
}

fn check_environment(command: Command, var: &dyn Fn(&str) -> String) -> Result<(), CniError> {
    let required: &[&str] = match command {
        Command::Add | Command::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
        Command::Gc | Command::Status => &[],
    };
    let missing: Vec<&str> = required.iter().copied().filter(|key| var(key).is_empty()).collect();
    if !missing.is_empty() {
        return Err(CniError::new(code::INVALID_ENVIRONMENT, format!("required env variables [{}] missing", missing.join(","))));
    }
    let id = var("CNI_CONTAINERID");
    if !id.is_empty() && !valid_id(&id) {
        return Err(CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_CONTAINERID {id:?} has invalid characters")));
    }
    let ifname = var("CNI_IFNAME");
    let bad = ifname == "." || ifname == ".." || ifname.contains(|c: char| matches!(c, '/' | ':') || c.is_whitespace());
    if bad {
        return Err(CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_IFNAME {ifname:?} is not an interface name")));
    }
    Ok(())
}

/// The kernel's limit. Windows has none that matters here, and `flannel` leaves it to its delegate.
fn check_ifname_length(name: &str, ifname: &str) -> Result<(), CniError> {
    let is_windows = win_bridge::is_name(name) || matches!(name, "azure-vnet-ipam" | "flannel") || cfg!(windows);
    if is_windows || ifname.len() < 16 {
        return Ok(());
    }
    let error = CniError::new(code::INVALID_ENVIRONMENT, format!("interface name is too long: CNI_IFNAME {ifname:?}"));
    Err(error.with_details("interface name should be less than 16 characters"))
}

/// `K=V;K=V`. A key without value is an error, as in upstream's parser.
fn parse_args(text: &str) -> Result<BTreeMap<String, String>, CniError> {
    text.split(';')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_ARGS: invalid pair {pair:?}"))),
        })
        .collect()
}

#[cfg(test)]
mod tests;
