//! Settings of one join: the JoinConfiguration with the flags merged into it, defaults filled in, everything checked. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::config::{self, JoinConfiguration, TokenDiscovery};
use crate::pins::{PinError, Pins};
use crate::token::{BootstrapToken, NotAToken};

/// containerd's endpoint, kubeadm's default.
const CONTAINERD: &str = if cfg!(windows) { "npipe:////./pipe/containerd-containerd" } else { "unix:///var/run/containerd/containerd.sock" };
/// Sockets of runtimes that are looked for on Linux.
pub const KNOWN_SOCKETS: [&str; 2] = ["/var/run/containerd/containerd.sock", "/var/run/crio/crio.sock"];
/// kubeadm's phases of a worker's join that can be left out.
const PHASES: [&str; 2] = ["preflight", "kubelet-wait-bootstrap"];

/// What is wrong with flags or file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("no cluster is named: give HOST:PORT with --token, or --discovery-file, or --config")]
    NoDiscovery,
    #[error("both a token and a file are given for discovery: give HOST:PORT with --token, or --discovery-file")]
    TwoDiscoveries,
    #[error("invalid API server {0:?}: write HOST:PORT, such as 10.0.0.2:6443 or [fd00::2]:6443")]
    Endpoint(String),
    #[error("no token for discovery: give --token, or discovery.bootstrapToken.token in --config")]
    NoToken,
    #[error(transparent)]
    Token(#[from] NotAToken),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(
        "no --discovery-token-ca-cert-hash: whoever has the token could pretend to be the cluster; mullion token create --print-join-command prints \
         the hash; --discovery-token-unsafe-skip-ca-verification joins without it"
    )]
    Unpinned,
    #[error("--discovery-file {0:?} is neither a file nor an https URL")]
    Location(String),
    #[error("invalid node name {0:?}: use lower-case letters, digits, hyphens and dots, at most 253; give --node-name")]
    NodeName(String),
    #[error("this machine has no name: give --node-name")]
    NoNodeName,
    #[error("invalid {0:?} among kubeletExtraArgs: names have letters, digits and hyphens, and values no blanks or control characters")]
    ExtraArg(String),
    #[error("invalid taint {0:?}: taints have no blanks or control characters")]
    Taint(String),
    #[error("invalid caCertPath {0:?}: write a path without ..")]
    CaPath(String),
    #[error("several container runtimes are on this machine ({0}): choose one with --cri-socket")]
    Runtimes(String),
    #[error("invalid --cri-socket {0:?}: write unix:///PATH, or npipe:////./pipe/NAME on Windows")]
    CriSocket(String),
    #[error("controlPlane is given: mullion join makes workers; use kubeadm for control planes")]
    ControlPlane,
    #[error("patches of {0:?} are not applied: put the settings into drop-in files of the node agent's --config-dir")]
    Patches(String),
    #[error("phase {0:?} cannot be left out: preflight and kubelet-wait-bootstrap can")]
    Phase(String),
    #[error("the list of preflight errors to ignore has \"all\" and {0:?}: leave one of them out")]
    All(String),
}

/// What the machine says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name, as it writes it.
    pub host_name: String,
    /// Those of [`KNOWN_SOCKETS`] that are there.
    pub sockets: Vec<String>,
}

/// Flags of `mullion join` that a file has too. They count more than the file.
#[derive(Clone, Default)]
pub struct Flags {
    pub endpoint: Option<String>,
    pub token: Option<String>,
    pub discovery_token: Option<String>,
    pub ca_cert_hashes: Vec<String>,
    pub is_unpinned: bool,
    pub discovery_file: Option<String>,
    pub tls_bootstrap_token: Option<String>,
    pub node_name: Option<String>,
    pub cri_socket: Option<String>,
    pub ignore_preflight_errors: Vec<String>,
    pub skip_phases: Vec<String>,
    pub dry_run: bool,
}

impl Flags {
    /// The configuration with these flags in it.
    #[must_use]
    pub fn merged_into(self, mut config: JoinConfiguration) -> JoinConfiguration {
        let discovery = &mut config.discovery;
        if let Some(endpoint) = self.endpoint {
            discovery.token.get_or_insert_default().endpoint = Some(endpoint);
        }
        // Beside a discovery file they would prove nothing: that is refused, as two ways to find the cluster.
        if self.discovery_token.is_some() || !self.ca_cert_hashes.is_empty() || self.is_unpinned {
            discovery.token.get_or_insert_default();
        }
        if let Some(token) = &mut discovery.token {
            token.token = self.discovery_token.or_else(|| token.token.take()).or_else(|| self.token.clone());
            if !self.ca_cert_hashes.is_empty() {
                token.ca_cert_hashes = self.ca_cert_hashes;
            }
            token.is_unpinned |= self.is_unpinned;
        }
        discovery.file = self.discovery_file.or_else(|| discovery.file.take());
        discovery.tls_bootstrap_token = self.tls_bootstrap_token.or_else(|| discovery.tls_bootstrap_token.take()).or(self.token);
        config.node_name = self.node_name.or(config.node_name);
        config.cri_socket = self.cri_socket.or(config.cri_socket);
        config.ignore_preflight_errors.extend(self.ignore_preflight_errors);
        if !self.skip_phases.is_empty() {
            config.skip_phases = self.skip_phases;
        }
        config.dry_run |= self.dry_run;
        config
    }
}

/// How the cluster is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// Anonymously at `HOST:PORT`; the token, and the pins if there are any, prove that it is the right cluster.
    Token { endpoint: String, token: BootstrapToken, pins: Option<Pins> },
    /// By a kubeconfig in a file.
    File(String),
    /// By a kubeconfig at an https URL.
    Url(String),
}

/// Names of preflight errors that count as warnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    names: BTreeSet<String>,
}

impl Ignored {
    fn new(names: &[String]) -> Result<Self, SettingsError> {
        let names: BTreeSet<String> = names.iter().map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect();
        match names.iter().find(|name| *name != "all") {
            Some(other) if names.contains("all") => Err(SettingsError::All(other.clone())),
            _ => Ok(Self { names }),
        }
    }

    /// Whether errors of a check count as warnings. Upper and lower case are the same, as for kubeadm.
    #[must_use]
    pub fn has(&self, check: &str) -> bool {
        self.names.contains("all") || self.names.contains(&check.to_lowercase())
    }
}

/// Settings of one join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub discovery: Discovery,
    /// With which the cluster's configuration is read and the certificate is asked for; a file may have other credentials.
    pub tls_token: Option<BootstrapToken>,
    pub node_name: String,
    pub host_name: String,
    pub cri_socket: String,
    pub taints: Vec<String>,
    pub extra_args: Vec<(String, String)>,
    pub ca_path: String,
    pub ignored: Ignored,
    pub has_preflight: bool,
    pub waits: bool,
    pub is_dry_run: bool,
    pub discovery_timeout: Duration,
    pub tls_bootstrap_timeout: Duration,
    pub health_timeout: Duration,
    pub call_timeout: Duration,
}

impl Settings {
    /// Checks a configuration and fills in what it leaves open.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(config: JoinConfiguration, machine: &Machine) -> Result<Self, SettingsError> {
        if config.is_control_plane {
            return Err(SettingsError::ControlPlane);
        }
        if let Some(directory) = config.patches {
            return Err(SettingsError::Patches(directory));
        }
        if let Some(phase) = config.skip_phases.iter().find(|phase| !PHASES.contains(&phase.as_str())) {
            return Err(SettingsError::Phase(phase.clone()));
        }
        for (name, value) in &config.kubelet_extra_args {
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
            if !is_name || value.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err(SettingsError::ExtraArg(name.clone()));
            }
        }
        if let Some(taint) = config.taints.iter().find(|taint| taint.chars().any(|c| c.is_whitespace() || c.is_control())) {
            return Err(SettingsError::Taint(taint.clone()));
        }
        let ca_path = config.ca_cert_path.unwrap_or_else(|| "/etc/kubernetes/pki/ca.crt".to_owned());
        if ca_path.split(['/', '\\']).any(|part| part == "..") {
            return Err(SettingsError::CaPath(ca_path));
        }
        let (discovery, tls_token) = discovery(config.discovery)?;
        let host_name = machine.host_name.trim().to_lowercase();
        let overriding = config.kubelet_extra_args.iter().rev().find(|(name, _)| name == "hostname-override").map(|(_, value)| value.clone());
        let skips = |phase: &str| config.skip_phases.iter().any(|skipped| skipped == phase);
        let config::Timeouts { discovery: find, tls_bootstrap, kubelet_health, api_call } = config.timeouts;
        Ok(Self {
            discovery,
            tls_token,
            node_name: node_name(overriding.or(config.node_name).unwrap_or_else(|| host_name.clone()))?,
            host_name,
            cri_socket: cri_socket(config.cri_socket, &machine.sockets)?,
            taints: config.taints,
            has_preflight: !skips(PHASES[0]),
            waits: !skips(PHASES[1]),
            extra_args: config.kubelet_extra_args,
            ca_path,
            ignored: Ignored::new(&config.ignore_preflight_errors)?,
            is_dry_run: config.dry_run,
            discovery_timeout: find.unwrap_or(Duration::from_secs(300)),
            tls_bootstrap_timeout: tls_bootstrap.unwrap_or(Duration::from_secs(300)),
            health_timeout: kubelet_health.unwrap_or(Duration::from_secs(240)),
            call_timeout: api_call.unwrap_or(Duration::from_secs(60)),
        })
    }
}

fn discovery(raw: config::Discovery) -> Result<(Discovery, Option<BootstrapToken>), SettingsError> {
    let config::Discovery { token, file, tls_bootstrap_token } = raw;
    let tls_token = tls_bootstrap_token.map(|token| token.parse::<BootstrapToken>()).transpose()?;
    match (token, file) {
        (None, None) => Err(SettingsError::NoDiscovery),
        (Some(_), Some(_)) => Err(SettingsError::TwoDiscoveries),
        (Some(TokenDiscovery { token, endpoint, ca_cert_hashes, is_unpinned }), None) => {
            let endpoint = endpoint.ok_or(SettingsError::NoDiscovery)?;
            if !is_endpoint(&endpoint) {
                return Err(SettingsError::Endpoint(endpoint));
            }
            let token: BootstrapToken = token.ok_or(SettingsError::NoToken)?.parse()?;
            let pins = Pins::parse(ca_cert_hashes.iter().map(String::as_str))?;
            if pins.is_empty() && !is_unpinned {
                return Err(SettingsError::Unpinned);
            }
            let tls_token = Some(tls_token.unwrap_or_else(|| token.clone()));
            Ok((Discovery::Token { endpoint, token, pins: (!pins.is_empty()).then_some(pins) }, tls_token))
        }
        (None, Some(location)) if location.starts_with("https://") => match location.parse::<http::Uri>() {
            Ok(uri) if uri.host().is_some_and(|host| !host.is_empty()) => Ok((Discovery::Url(location), tls_token)),
            _ => Err(SettingsError::Location(location)),
        },
        (None, Some(location)) if location.is_empty() || location.contains("://") => Err(SettingsError::Location(location)),
        (None, Some(location)) => Ok((Discovery::File(location), tls_token)),
    }
}

/// Whether a text is HOST:PORT, the host a name or an address, IPv6 in brackets.
fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0) && port.bytes().all(|byte| byte.is_ascii_digit());
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match inner {
        Some(address) => address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')),
    };
    is_port && is_host
}

/// A name that a Node can have: a DNS subdomain.
fn node_name(name: String) -> Result<String, SettingsError> {
    if name.is_empty() {
        return Err(SettingsError::NoNodeName);
    }
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-');
    if name.len() <= 253 && name.split('.').all(is_label) { Ok(name) } else { Err(SettingsError::NodeName(name)) }
}

/// The runtime's endpoint: the given one, else that of the only runtime that is there, else containerd's.
fn cri_socket(given: Option<String>, there: &[String]) -> Result<String, SettingsError> {
    match (given, there) {
        (Some(socket), _) if socket.starts_with('/') => Ok(format!("unix://{socket}")),
        (Some(socket), _) if socket.starts_with("unix:///") || socket.starts_with("npipe://") || socket.starts_with("tcp://") => Ok(socket),
        (Some(socket), _) => Err(SettingsError::CriSocket(socket)),
        (None, []) => Ok(CONTAINERD.to_owned()),
        (None, [one]) => Ok(format!("unix://{one}")),
        (None, several) => Err(SettingsError::Runtimes(several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIN: &str = "sha256:fd0e3bea72cc0695ec982ec2f63d7ac225d5808c4924aaf02b80087ed9e1e9d2";
    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn machine() -> Machine {
        Machine { host_name: "Win01\n".into(), sockets: Vec::new() }
    }

    fn flags() -> Flags {
        Flags { endpoint: Some("10.0.0.2:6443".into()), token: Some(TOKEN.into()), ca_cert_hashes: vec![PIN.into()], ..Flags::default() }
    }

    fn settle(flags: Flags) -> Result<Settings, SettingsError> {
        Settings::new(flags.merged_into(JoinConfiguration::default()), &machine())
    }

    #[test]
    fn kubeadms_command_line_is_all_that_is_needed() {
        let settings = settle(flags()).unwrap();
        let Discovery::Token { endpoint, token, pins } = &settings.discovery else { panic!("{settings:?}") };
        assert_eq!((endpoint.as_str(), token.id(), pins.is_some()), ("10.0.0.2:6443", "abcdef", true));
        assert_eq!((settings.tls_token.as_ref().unwrap(), settings.node_name.as_str()), (token, "win01"));
        assert_eq!((settings.discovery_timeout, settings.cri_socket.as_str()), (Duration::from_secs(300), CONTAINERD));
        assert!(!format!("{settings:?}").contains("0123456789abcdef"), "tokens are in no debug text");
    }

    #[test]
    fn flags_count_more_than_the_file() {
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {{name: a, ignorePreflightErrors: [Swap]}}\n\
             discovery: {{bootstrapToken: {{apiServerEndpoint: 'b:1', token: aaaaaa.0123456789abcdef, caCertHashes: ['{PIN}']}}}}\n"
        );
        let (config, _) = config::parse(&text).unwrap();
        let of_file = Settings::new(config.clone(), &machine()).unwrap();
        assert_eq!((of_file.node_name.as_str(), of_file.tls_token.unwrap().id()), ("a", "aaaaaa"));
        let given = Flags { node_name: Some("c".into()), ignore_preflight_errors: vec!["port-10250".into()], ..flags() };
        let both = Settings::new(given.merged_into(config), &machine()).unwrap();
        let Discovery::Token { endpoint, token, .. } = &both.discovery else { panic!("{both:?}") };
        // --token stands in where the file has none, as for kubeadm.
        assert_eq!((endpoint.as_str(), token.id(), both.tls_token.as_ref().unwrap().id()), ("10.0.0.2:6443", "aaaaaa", "abcdef"));
        assert_eq!(both.node_name, "c");
        assert!(both.ignored.has("Swap") && both.ignored.has("Port-10250") && !both.ignored.has("CRI"));
    }

    #[test]
    fn discovery_by_file_needs_no_token() {
        let of = |location: &str| settle(Flags { discovery_file: Some(location.into()), ..Flags::default() });
        assert_eq!(of("/tmp/a.conf").unwrap().discovery, Discovery::File("/tmp/a.conf".into()));
        assert_eq!(of("https://a/b").unwrap().discovery, Discovery::Url("https://a/b".into()));
        for wrong in ["http://a/b", "https://", "ftp://a", ""] {
            assert_eq!(of(wrong), Err(SettingsError::Location(wrong.into())));
        }
        let with_token = settle(Flags { discovery_file: Some("a".into()), token: Some(TOKEN.into()), ..Flags::default() }).unwrap();
        assert_eq!(with_token.tls_token.unwrap().id(), "abcdef");
    }

    #[test]
    fn what_cannot_work_is_refused_before_anything_happens() {
        let with = |change: &dyn Fn(&mut Flags)| {
            let mut flags = flags();
            change(&mut flags);
            settle(flags).unwrap_err()
        };
        assert_eq!(with(&|flags| flags.ca_cert_hashes.clear()), SettingsError::Unpinned);
        assert_eq!(with(&|flags| flags.token = None), SettingsError::NoToken);
        assert_eq!(with(&|flags| flags.token = Some("abc".into())), SettingsError::Token(NotAToken));
        assert_eq!(with(&|flags| flags.endpoint = None), SettingsError::NoDiscovery);
        assert_eq!(with(&|flags| flags.discovery_file = Some("a".into())), SettingsError::TwoDiscoveries);
        assert_eq!(with(&|flags| flags.skip_phases = vec!["kubelet-start".into()]), SettingsError::Phase("kubelet-start".into()));
        assert_eq!(with(&|flags| flags.ignore_preflight_errors = vec!["all".into(), "Swap".into()]), SettingsError::All("swap".into()));
        assert_eq!(with(&|flags| flags.cri_socket = Some("containerd".into())), SettingsError::CriSocket("containerd".into()));
        for name in ["A", "a_b", "-a", "a..b", &"a".repeat(254)] {
            assert_eq!(with(&|flags| flags.node_name = Some(name.into())), SettingsError::NodeName(name.into()));
        }
        for endpoint in ["10.0.0.2", "10.0.0.2:0", "10.0.0.2:+1", "fd00::2:6443", "https://a:1", "[a]:1", ":1", "a b:1"] {
            assert_eq!(with(&|flags| flags.endpoint = Some(endpoint.into())), SettingsError::Endpoint(endpoint.into()));
        }
        for endpoint in ["[fd00::2]:6443", "a.example:443"] {
            assert!(settle(Flags { endpoint: Some(endpoint.into()), ..flags() }).is_ok());
        }
    }

    #[test]
    fn members_that_only_a_file_has_are_checked_too() {
        let base = || flags().merged_into(JoinConfiguration::default());
        let refused = |config: JoinConfiguration| Settings::new(config, &machine()).unwrap_err();
        assert_eq!(refused(JoinConfiguration { is_control_plane: true, ..base() }), SettingsError::ControlPlane);
        assert_eq!(refused(JoinConfiguration { patches: Some("/p".into()), ..base() }), SettingsError::Patches("/p".into()));
        for (name, value) in [("a b", ""), ("", "x"), ("v", "2 3"), ("v", "a\nb")] {
            let kubelet_extra_args = vec![(name.to_owned(), value.to_owned())];
            assert_eq!(refused(JoinConfiguration { kubelet_extra_args, ..base() }), SettingsError::ExtraArg(name.into()));
        }
        let taint = "a=b --node-ip=1.2.3.4:NoSchedule".to_owned();
        assert_eq!(refused(JoinConfiguration { taints: vec![taint.clone()], ..base() }), SettingsError::Taint(taint));
        let outside = "/etc/../../ca.crt".to_owned();
        assert_eq!(refused(JoinConfiguration { ca_cert_path: Some(outside.clone()), ..base() }), SettingsError::CaPath(outside));
        let file = Flags { endpoint: None, discovery_file: Some("/f".into()), ..flags() };
        assert_eq!(settle(file).unwrap_err(), SettingsError::TwoDiscoveries, "a hash beside a file would prove nothing");
        let kubelet_extra_args = vec![("hostname-override".to_owned(), "other".to_owned())];
        assert_eq!(Settings::new(JoinConfiguration { kubelet_extra_args, ..base() }, &machine()).unwrap().node_name, "other");
        let two = Machine { sockets: KNOWN_SOCKETS.map(str::to_owned).to_vec(), ..machine() };
        assert!(matches!(Settings::new(base(), &two), Err(SettingsError::Runtimes(_))));
        let one = Machine { sockets: vec![KNOWN_SOCKETS[1].to_owned()], ..machine() };
        assert_eq!(Settings::new(base(), &one).unwrap().cri_socket, "unix:///var/run/crio/crio.sock");
    }
}
