//! `flannel`: makes another plug-in's configuration from flannel's `subnet.env`, and calls it. Source: flannel-io/cni-plugin.
//!
//! The delegate is `bridge`, or `win-bridge` on Windows, unless `delegate.type` names another. What ADD gave it is kept in a file of `dataDir`
//! by the container's id, so that DEL gives it the same even when `subnet.env` has changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::fold::fold_map;
use crate::plugin::{Command, Request, delegate};
use crate::spec::{AddResult, CniError, PluginConfig};

/// What flannel tells of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SubnetEnv {
    networks: Vec<IpNet>,
    subnets: Vec<IpNet>,
    mtu: u32,
    masquerades: bool,
}

impl SubnetEnv {
    fn read(path: &Path) -> Result<Self, CniError> {
        let bytes = fs::read(path).map_err(|error| {
            let way_out = if error.kind() == io::ErrorKind::NotFound { "; flannel writes it when the node has its subnet" } else { "" };
            CniError::new(crate::spec::code::TRY_AGAIN, format!("cannot read {}: {error}{way_out}", path.display()))
        })?;
        Self::parse(&host::decode_text(&bytes)).map_err(|reason| {
            let text = format!("cannot use {}: {reason}; restart flannel on this node, which writes it anew", path.display());
            CniError::config(text)
        })
    }

    /// `KEY=VALUE` a line; unknown keys are passed over. IPv4 is required, as networks without it have no Windows nodes.
    fn parse(text: &str) -> Result<Self, String> {
        let (mut networks, mut subnets) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let (mut mtu, mut masquerades) = (None, None);
        let list = |key: &str, value: &str| -> Result<Vec<IpNet>, String> {
            value.split(',').map(|net| net.trim().parse().map_err(|_| format!("{key} is {value:?}, no network"))).collect()
        };
        for (key, value) in text.lines().filter_map(|line| line.trim().split_once('=')) {
            let value = value.trim();
            match key.trim() {
                "FLANNEL_NETWORK" => networks[0] = list(key, value)?,
                "FLANNEL_IPV6_NETWORK" => networks[1] = list(key, value)?,
                "FLANNEL_SUBNET" => subnets[0] = list(key, value)?,
                "FLANNEL_IPV6_SUBNET" => subnets[1] = list(key, value)?,
                "FLANNEL_MTU" => mtu = Some(value.parse::<u32>().map_err(|_| format!("{key} is {value:?}, no number"))?),
                "FLANNEL_IPMASQ" => masquerades = Some(value.parse::<bool>().map_err(|_| format!("{key} is {value:?}, not true or false"))?),
                _ => {}
            }
        }
        let missing = |key: &str| format!("it has no {key}");
        if networks[0].is_empty() && networks[1].is_empty() {
            return Err(missing("FLANNEL_NETWORK"));
        }
        if subnets[0].is_empty() && subnets[1].is_empty() {
            return Err(missing("FLANNEL_SUBNET"));
        }
        Ok(Self {
            networks: networks.concat(),
            subnets: subnets.concat().into_iter().map(|subnet| subnet.trunc()).collect(),
            mtu: mtu.ok_or_else(|| missing("FLANNEL_MTU"))?,
            masquerades: masquerades.ok_or_else(|| missing("FLANNEL_IPMASQ"))?,
        })
    }
}

struct Config {
    subnet_file: PathBuf,
    data_dir: PathBuf,
    delegate: Map<String, Value>,
    /// What `ipam` of the configuration adds to the delegate's.
    ipam: Map<String, Value>,
    windows: bool,
}

const KEYS: &[&str] = &["subnetFile", "dataDir", "delegate", "ipam"];

impl Config {
    fn read(request: &Request) -> Result<Self, CniError> {
        let mut document = request.config.document.clone();
        fold_map(&mut document, KEYS);
        let path = |key: &str, default: &str| match document.get(key).and_then(Value::as_str) {
            Some(text) if !text.is_empty() => PathBuf::from(text),
            _ => PathBuf::from(default),
        };
        let map = |key: &str| match document.get(key) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map.clone()),
            Some(_) => Err(CniError::config(format!("{key} of flannel's configuration must be an object"))),
        };
        let delegate = map("delegate")?;
        if let Some(key) = ["name", "ipam"].into_iter().find(|key| delegate.contains_key(*key)) {
            return Err(CniError::config(format!("'delegate' dictionary must not have '{key}' field, it'll be set by flannel")));
        }
        if delegate.get("type").is_some_and(|kind| !kind.is_string()) {
            return Err(CniError::config("'delegate' dictionary, if present, must have (string) 'type' field"));
        }
        // A simulated Windows host is known by its service.
        let windows = cfg!(windows) || std::env::var_os("MULLION_HCN").is_some();
        let (subnet_file, data_dir) = if cfg!(windows) {
            (r"C:\run\flannel\subnet.env", r"C:\var\lib\cni\flannel")
        } else {
            ("/run/flannel/subnet.env", "/var/lib/cni/flannel")
        };
        Ok(Self { subnet_file: path("subnetFile", subnet_file), data_dir: path("dataDir", data_dir), delegate, ipam: map("ipam")?, windows })
    }

    fn kept(&self, request: &Request) -> PathBuf {
        self.data_dir.join(&request.container_id)
    }

    /// The delegate's configuration (pure).
    fn delegated(&self, request: &Request, env: &SubnetEnv) -> Result<Map<String, Value>, CniError> {
        let mut conf = self.delegate.clone();
        conf.insert("name".into(), json!(request.config.name));
        conf.insert("cniVersion".into(), json!(request.config.cni_version.as_str()));
        for key in ["runtimeConfig", "args", "prevResult"] {
            if let Some(value) = request.config.document.get(key) {
                conf.insert(key.into(), value.clone());
            }
        }
        let mut default = |key: &str, value: Value| {
            conf.entry(key).or_insert(value);
        };
        if self.windows {
            let [subnet] = env.subnets.as_slice() else { return Err(CniError::config("a Windows node has one subnet of IPv4")) };
            default("type", json!("win-bridge"));
            default("ipMasq", json!(env.masquerades));
            default("ipMasqNetwork", json!(env.networks[0]));
            conf.insert("ipam".into(), self.ipam(json!({"type": "host-local", "subnet": subnet})));
            return Ok(conf);
        }
        default("type", json!("bridge"));
        // What flannel does not translate, the delegate does.
        default("ipMasq", json!(!env.masquerades));
        default("mtu", json!(env.mtu));
        if conf.get("type").is_some_and(|kind| kind == "bridge") {
            conf.entry("isGateway").or_insert(json!(true));
        }
        let ranges: Vec<Value> = env.subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
        let routes: Vec<Value> = env.networks.iter().map(|network| json!({"dst": network})).collect();
        conf.insert("ipam".into(), self.ipam(json!({"type": "host-local", "ranges": ranges, "routes": routes})));
        Ok(conf)
    }

    /// The configuration's own `ipam` counts more, but for its ranges and routes, which are added.
    fn ipam(&self, base: Value) -> Value {
        let Value::Object(mut ipam) = base else { return base };
        for (key, value) in &self.ipam {
            match (ipam.get_mut(key), value) {
                (Some(Value::Array(ours)), Value::Array(theirs)) => ours.extend(theirs.iter().cloned()),
                _ => drop(ipam.insert(key.clone(), value.clone())),
            }
        }
        Value::Object(ipam)
    }
}

/// Serves one request.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    match request.command {
        Command::Add => {
            let conf = config.delegated(request, &SubnetEnv::read(&config.subnet_file)?)?;
            keep(&config.kept(request), &conf)?;
            call(request, conf)
        }
        Command::Del => del(request, &config).map(|()| None),
        Command::Check => {
            let drift = |text| CniError::new(crate::spec::code::DRIFT, text);
            let conf = kept(&config.kept(request)).map_err(|error| drift(error.msg))?;
            let conf = conf.ok_or_else(|| drift(format!("flannel knows no container {}", request.container_id)))?;
            call(request, with_now(conf, request))
        }
        Command::Gc | Command::Status => {
            let conf = config.delegated(request, &SubnetEnv::read(&config.subnet_file).map_err(unavailable)?)?;
            if request.command == Command::Gc {
                forget_others(request, &config);
            }
            call(request, with_now(conf, request))
        }
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

/// Reads a `subnet.env`.
///
/// # Errors
/// What is missing or wrong.
pub fn check_subnet_env(text: &str) -> Result<(), String> {
    SubnetEnv::parse(text).map(drop)
}

fn unavailable(error: CniError) -> CniError {
    CniError { code: crate::spec::code::NOT_AVAILABLE, ..error }
}

fn call(request: &Request, conf: Map<String, Value>) -> Result<Option<AddResult>, CniError> {
    let stdin = Value::Object(conf.clone()).to_string().into_bytes();
    let config = PluginConfig::from_value(Value::Object(conf))?;
    let kind = config.kind.clone();
    delegate(&kind, &Request { config, stdin, ..request.clone() })
}

/// What the runtime says now, in the configuration that was kept.
fn with_now(mut conf: Map<String, Value>, request: &Request) -> Map<String, Value> {
    for key in ["prevResult", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"] {
        if let Some(value) = request.config.document.get(key) {
            conf.insert(key.into(), value.clone());
        }
    }
    conf
}

fn keep(path: &Path, conf: &Map<String, Value>) -> Result<(), CniError> {
    let text = Value::Object(conf.clone()).to_string();
    let written = fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).and_then(|()| atomic_file::write(path, text));
    written.map_err(|e| CniError::io(format_args!("write {}", path.display()), &e))
}

fn kept(path: &Path) -> Result<Option<Map<String, Value>>, CniError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| CniError::decode(path.display(), &e)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CniError::io(format_args!("read {}", path.display()), &error)),
    }
}

/// A container that is not known was removed before. Where the file of one cannot be read, the delegate gets what ADD would give it now.
fn del(request: &Request, config: &Config) -> Result<(), CniError> {
    let path = config.kept(request);
    let conf = match kept(&path) {
        Ok(None) => return Ok(()),
        Ok(Some(conf)) => conf,
        Err(error) => {
            tracing::warn!("{error}; detaching container {} by {}", request.container_id, config.subnet_file.display());
            config.delegated(request, &SubnetEnv::read(&config.subnet_file)?)?
        }
    };
    call(request, with_now(conf, request))?;
    fs::remove_file(&path).map_err(|e| CniError::io(format_args!("remove {}", path.display()), &e))
}

/// Files of containers that are no more. The delegate frees what they had.
fn forget_others(request: &Request, config: &Config) {
    let valid = request.valid_attachments();
    for entry in fs::read_dir(&config.data_dir).into_iter().flatten().flatten() {
        let dead = entry.file_name().to_str().is_some_and(|name| !valid.iter().any(|(id, _)| id == name));
        let of_network = |conf: &Map<String, Value>| conf.get("name") == Some(&json!(request.config.name));
        // What cannot be read helps no other network either.
        if dead && kept(&entry.path()).map_or(true, |conf| conf.as_ref().is_some_and(of_network)) {
            // Another GC finds what stays.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
