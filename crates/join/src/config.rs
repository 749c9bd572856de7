//! JoinConfiguration, `kubeadm.k8s.io/v1beta4` and `v1beta3`, read strictly: a member that there is not is an error that names it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use node_config::duration::GoDuration;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Bytes that a file may have.
pub const LARGEST: usize = 1 << 20;
/// Documents that a file may have: kubeadm's kinds are fewer.
const MOST_DOCUMENTS: usize = 32;
const GROUP: &str = "kubeadm.k8s.io/";

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("it is larger than {LARGEST} bytes")]
    TooLarge,
    #[error("it has more than {MOST_DOCUMENTS} documents")]
    TooMany,
    #[error("it is no YAML")]
    Yaml(#[source] serde_yaml_ng::Error),
    #[error("it has no JoinConfiguration: write one with apiVersion kubeadm.k8s.io/v1beta4")]
    None,
    #[error("it has two JoinConfigurations: leave one")]
    Twice,
    #[error("its JoinConfiguration has apiVersion {0:?}: write kubeadm.k8s.io/v1beta4 or v1beta3; kubeadm config migrate translates older ones")]
    Version(String),
    #[error("its JoinConfiguration")]
    Document(#[source] serde_yaml_ng::Error),
}

/// A JoinConfiguration of either version; what is not given is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JoinConfiguration {
    pub dry_run: bool,
    pub node_name: Option<String>,
    pub cri_socket: Option<String>,
    /// As `KEY=VALUE:EFFECT`.
    pub taints: Vec<String>,
    /// Flags of the agent: name without hyphens, value.
    pub kubelet_extra_args: Vec<(String, String)>,
    pub ignore_preflight_errors: Vec<String>,
    pub ca_cert_path: Option<String>,
    pub discovery: Discovery,
    pub is_control_plane: bool,
    pub skip_phases: Vec<String>,
    pub patches: Option<String>,
    pub timeouts: Timeouts,
}

/// How the cluster is found.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Discovery {
    pub token: Option<TokenDiscovery>,
    /// A file, or an https URL.
    pub file: Option<String>,
    pub tls_bootstrap_token: Option<String>,
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let endpoint = self.token.as_ref().and_then(|token| token.endpoint.as_deref());
        write!(f, "Discovery {{ endpoint: {endpoint:?}, file: {:?} }}", self.file)
    }
}

/// Discovery with a token.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TokenDiscovery {
    pub token: Option<String>,
    /// `HOST:PORT`.
    pub endpoint: Option<String>,
    pub ca_cert_hashes: Vec<String>,
    pub is_unpinned: bool,
}

/// How long what may take; none is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub discovery: Option<Duration>,
    pub tls_bootstrap: Option<Duration>,
    pub kubelet_health: Option<Duration>,
    pub api_call: Option<Duration>,
}

/// Reads the JoinConfiguration of a file, and names its other documents, which have no effect.
///
/// # Errors
/// [`ConfigError`]; a member that there is not is named in its source.
pub fn parse(text: &str) -> Result<(JoinConfiguration, Vec<String>), ConfigError> {
    if text.len() > LARGEST {
        return Err(ConfigError::TooLarge);
    }
    let mut others = Vec::new();
    let mut found = None;
    for (number, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
        if number >= MOST_DOCUMENTS {
            return Err(ConfigError::TooMany);
        }
        let document = Value::deserialize(document).map_err(ConfigError::Yaml)?;
        let member = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
        match (member("kind").as_str(), document.is_null()) {
            (_, true) => {}
            ("JoinConfiguration", _) if found.is_some() => return Err(ConfigError::Twice),
            ("JoinConfiguration", _) => found = Some((number, member("apiVersion"))),
            (kind, _) => others.push(if kind.is_empty() { "a document without a kind".to_owned() } else { kind.to_owned() }),
        }
    }
    let (number, version) = found.ok_or(ConfigError::None)?;
    let document = serde_yaml_ng::Deserializer::from_str(text).nth(number).ok_or(ConfigError::None)?;
    let read = match version.strip_prefix(GROUP) {
        Some("v1beta4") => V4::deserialize(document).map(V4::into_configuration),
        Some("v1beta3") => V3::deserialize(document).map(V3::into_configuration),
        _ => return Err(ConfigError::Version(version)),
    };
    read.map(|read| (read, others)).map_err(ConfigError::Document)
}

/// Reads whatever bytes as a JoinConfiguration: for fuzzing.
pub fn check(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok((configuration, _)) = parse(text)
    {
        let _ = crate::settings::Settings::new(configuration, &crate::settings::Machine::default());
    }
}

/// As Go reads it: null is the same as nothing.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct V4 {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(deserialize_with = "or_null")]
    dry_run: bool,
    #[serde(deserialize_with = "or_null")]
    node_registration: Registration,
    ca_cert_path: Option<String>,
    #[serde(deserialize_with = "or_null")]
    discovery: RawDiscovery,
    control_plane: Option<ControlPlane>,
    #[serde(deserialize_with = "or_null")]
    skip_phases: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    patches: Patches,
    #[serde(deserialize_with = "or_null")]
    timeouts: RawTimeouts,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct V3 {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(deserialize_with = "or_null")]
    node_registration: Registration3,
    ca_cert_path: Option<String>,
    #[serde(deserialize_with = "or_null")]
    discovery: RawDiscovery3,
    control_plane: Option<ControlPlane>,
    #[serde(deserialize_with = "or_null")]
    skip_phases: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    patches: Patches,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Registration {
    name: Option<String>,
    cri_socket: Option<String>,
    #[serde(deserialize_with = "or_null")]
    taints: Vec<Taint>,
    #[serde(deserialize_with = "or_null")]
    kubelet_extra_args: Vec<Arg>,
    #[serde(deserialize_with = "or_null")]
    ignore_preflight_errors: Vec<String>,
    #[serde(rename = "imagePullPolicy")]
    _image_pull_policy: Option<String>,
    #[serde(rename = "imagePullSerial")]
    _image_pull_serial: Option<bool>,
}

/// Without `imagePullSerial`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Registration3 {
    name: Option<String>,
    cri_socket: Option<String>,
    #[serde(deserialize_with = "or_null")]
    taints: Vec<Taint>,
    #[serde(deserialize_with = "or_null")]
    kubelet_extra_args: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_null")]
    ignore_preflight_errors: Vec<String>,
    #[serde(rename = "imagePullPolicy")]
    _image_pull_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arg {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Taint {
    key: String,
    #[serde(default)]
    value: String,
    effect: String,
    #[serde(default, rename = "timeAdded")]
    _time_added: Option<String>,
}

impl Taint {
    /// As `--register-with-taints` takes it.
    fn text(&self) -> String {
        let Self { key, value, effect, .. } = self;
        if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawDiscovery {
    bootstrap_token: Option<RawToken>,
    file: Option<RawFile>,
    tls_bootstrap_token: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawDiscovery3 {
    bootstrap_token: Option<RawToken>,
    file: Option<RawFile>,
    tls_bootstrap_token: Option<String>,
    timeout: Option<GoDuration>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawToken {
    token: Option<String>,
    api_server_endpoint: Option<String>,
    #[serde(deserialize_with = "or_null")]
    ca_cert_hashes: Vec<String>,
    #[serde(rename = "unsafeSkipCAVerification", deserialize_with = "or_null")]
    is_unpinned: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawFile {
    kube_config_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ControlPlane {
    #[serde(default, rename = "localAPIEndpoint")]
    _local_api_endpoint: Option<Value>,
    #[serde(default, rename = "certificateKey")]
    _certificate_key: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Patches {
    directory: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawTimeouts {
    #[serde(rename = "controlPlaneComponentHealthCheck")]
    _control_plane: Option<GoDuration>,
    kubelet_health_check: Option<GoDuration>,
    #[serde(rename = "kubernetesAPICall")]
    api_call: Option<GoDuration>,
    #[serde(rename = "etcdAPICall")]
    _etcd: Option<GoDuration>,
    tls_bootstrap: Option<GoDuration>,
    discovery: Option<GoDuration>,
    #[serde(rename = "upgradeManifests")]
    _upgrade: Option<GoDuration>,
}

/// A time; zero is the default, as in Go.
fn given(time: Option<GoDuration>) -> Option<Duration> {
    time.map(|time| time.0).filter(|time| !time.is_zero())
}

/// A text; an empty one is none, as in Go.
fn text(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn discovery(token: Option<RawToken>, file: Option<RawFile>, tls: Option<String>) -> Discovery {
    let token = token.map(|raw| TokenDiscovery {
        token: text(raw.token),
        endpoint: text(raw.api_server_endpoint),
        ca_cert_hashes: raw.ca_cert_hashes,
        is_unpinned: raw.is_unpinned,
    });
    Discovery { token, file: file.map(|file| file.kube_config_path), tls_bootstrap_token: text(tls) }
}

impl V4 {
    fn into_configuration(self) -> JoinConfiguration {
        let node = self.node_registration;
        JoinConfiguration {
            dry_run: self.dry_run,
            node_name: text(node.name),
            cri_socket: text(node.cri_socket),
            taints: node.taints.iter().map(Taint::text).collect(),
            kubelet_extra_args: node.kubelet_extra_args.into_iter().map(|arg| (arg.name, arg.value)).collect(),
            ignore_preflight_errors: node.ignore_preflight_errors,
            ca_cert_path: text(self.ca_cert_path),
            discovery: discovery(self.discovery.bootstrap_token, self.discovery.file, self.discovery.tls_bootstrap_token),
            is_control_plane: self.control_plane.is_some(),
            skip_phases: self.skip_phases,
            patches: text(self.patches.directory),
            timeouts: Timeouts {
                discovery: given(self.timeouts.discovery),
                tls_bootstrap: given(self.timeouts.tls_bootstrap),
                kubelet_health: given(self.timeouts.kubelet_health_check),
                api_call: given(self.timeouts.api_call),
            },
        }
    }
}

impl V3 {
    fn into_configuration(self) -> JoinConfiguration {
        let node = self.node_registration;
        JoinConfiguration {
            dry_run: false,
            node_name: text(node.name),
            cri_socket: text(node.cri_socket),
            taints: node.taints.iter().map(Taint::text).collect(),
            kubelet_extra_args: node.kubelet_extra_args.into_iter().collect(),
            ignore_preflight_errors: node.ignore_preflight_errors,
            ca_cert_path: text(self.ca_cert_path),
            discovery: discovery(self.discovery.bootstrap_token, self.discovery.file, self.discovery.tls_bootstrap_token),
            is_control_plane: self.control_plane.is_some(),
            skip_phases: self.skip_phases,
            patches: text(self.patches.directory),
            timeouts: Timeouts { discovery: given(self.discovery.timeout), ..Timeouts::default() },
        }
    }
}

#[cfg(test)]
mod tests;
