//! The agents that are measured: `mullion node`, and upstream's kubelet.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use linux_sys::netlink::Rtnl;
use nix::mount::{MsFlags, mount};
use pki::{CertRequest, Credentials, KubeConfig};
use serde_json::{Value, json};

use super::containerd::Containerd;
use crate::control_plane::site::{Server, Site};
use crate::process::Running;

/// The node, whichever agent it has.
const NODE: &str = "bench";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 240, 0, 11);
/// More than are run at once.
const MOST_PODS: u32 = 400;
/// What agents and containerd write outside of their directories; the machine's own is not touched.
const WRITTEN: [&str; 3] = ["/var/lib", "/var/log", "/run"];

/// Gives the node its address and empty directories, in the namespaces of the benchmark.
pub fn add_address() -> Result<()> {
    Rtnl::open()?.add_addr(1, IpNet::new(IpAddr::V4(ADDRESS), 24)?)?;
    for path in WRITTEN {
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), None::<&str>).with_context(|| format!("mounting {path} failed"))?;
    }
    Ok(())
}

/// An agent, and its program.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// All parts of `mullion node`.
    Ours(&'a Path),
    /// The pod network of `mullion node` alone.
    Network(&'a Path),
    /// Upstream's kubelet.
    Upstream(&'a Path),
}

impl Kind<'_> {
    /// What its files are called.
    fn name(self) -> &'static str {
        match self {
            Self::Ours(_) => "node",
            Self::Network(_) => "network",
            Self::Upstream(_) => "kubelet",
        }
    }
}

/// What agents need of a container runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Its address.
    pub endpoint: String,
    /// Where the pod network writes its configuration.
    pub cni_conf: PathBuf,
    /// What the node's machine is declared to have, and its root directory; none of a real one.
    pub simulated: Option<PathBuf>,
}

impl From<&Containerd> for Runtime {
    fn from(containerd: &Containerd) -> Self {
        Self { endpoint: containerd.endpoint(), cni_conf: containerd.cni_conf(), simulated: None }
    }
}

/// An agent that runs.
pub struct Agent {
    process: Running,
    program: PathBuf,
    name: &'static str,
    arguments: Vec<String>,
    started: Instant,
}

impl Agent {
    pub fn start(kind: Kind<'_>, site: &Site, server: &Server, runtime: &Runtime) -> Result<Self> {
        let (program, name) = match kind {
            // A file of its own: no other process maps its pages.
            Kind::Ours(program) | Kind::Network(program) => (site.copy(program, &format!("mullion-{}", kind.name()))?, kind.name()),
            Kind::Upstream(program) => (program.to_owned(), kind.name()),
        };
        let files = Files::new(site, server, name)?;
        let arguments = match kind {
            Kind::Ours(_) => files.ours(site, runtime, &[])?,
            Kind::Network(_) => files.ours(site, runtime, &["kubelet", "proxy"])?,
            Kind::Upstream(_) => files.upstreams(runtime)?,
        };
        let started = Instant::now();
        let process = site.spawn(&program, name, &arguments, None)?;
        Ok(Self { process, program, name, arguments, started })
    }

    /// All parts of `mullion node`, as arguments behind `own` of another program.
    pub fn start_below(program: &Path, own: &[String], mullion: &Path, site: &Site, server: &Server, runtime: &Runtime) -> Result<Self> {
        let arguments = Files::new(site, server, "node")?.ours(site, runtime, &[])?;
        let arguments: Vec<String> = own.iter().cloned().chain([mullion.display().to_string()]).chain(arguments).collect();
        let started = Instant::now();
        let process = site.spawn(program, "node", &arguments, None)?;
        Ok(Self { process, program: program.to_owned(), name: "node", arguments, started })
    }

    /// Ends it.
    pub fn end(mut self) -> Result<()> {
        self.process.interrupt()?;
        let status = self.process.0.wait()?;
        ensure!(status.success(), "the node agent ended with {status}");
        Ok(())
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process.0);
        rustix::process::kill_process(pid, signal).context("signalling the node agent failed")
    }

    /// The node's name.
    pub fn name(&self) -> &'static str {
        NODE
    }

    /// Its share of memory, in bytes.
    pub fn memory(&self) -> Result<u64> {
        Ok(self.process.memory(&self.program)?.all)
    }

    pub fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// When its process was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Ends it, and starts it again with the same arguments.
    pub fn restart(mut self, site: &Site) -> Result<Self> {
        self.process.interrupt()?;
        self.process.0.wait()?;
        let started = Instant::now();
        let process = site.spawn(&self.program, self.name, &self.arguments, None)?;
        Ok(Self { process, started, ..self })
    }
}

/// An agent's identity: paths of its files.
struct Files {
    kubeconfig: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    authority: PathBuf,
    config: PathBuf,
}

impl Files {
    fn new(site: &Site, server: &Server, name: &str) -> Result<Self> {
        let path = |suffix: &str| site.path(&format!("{name}{suffix}"));
        let (user, orgs) = (format!("system:node:{NODE}"), vec!["system:nodes".to_owned()]);
        let request = CertRequest { cn: user, orgs, days: 1, ..CertRequest::default() };
        let identity = site.ca().issue(&CertRequest { client: true, ..request.clone() })?;
        let serving = site.ca().issue(&CertRequest { server: true, ips: vec![ADDRESS.into()], dns: vec![NODE.to_owned()], ..request })?;
        let credentials = Credentials::Certificate { cert_pem: identity.cert_pem, key_pem: identity.key_pem };
        let files = Self {
            kubeconfig: path(".conf"),
            certificate: path("-serving.crt"),
            key: path("-serving.key"),
            authority: site.path("pki").join("ca.crt"),
            config: path(".yaml"),
        };
        pki::write_private(&files.kubeconfig, &KubeConfig::new(&server.url(), site.ca().cert_pem(), credentials).to_yaml())?;
        pki::write_public(&files.certificate, &serving.cert_pem)?;
        pki::write_private(&files.key, &serving.key_pem)?;
        Ok(files)
    }

    /// What both agents take.
    fn kubelet(&self, runtime: &Runtime) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "tlsCertFile": self.certificate, "tlsPrivateKeyFile": self.key,
            "authentication": {"x509": {"clientCAFile": self.authority}},
            "clusterDomain": "cluster.local", "clusterDNS": ["10.96.0.10"],
            "maxPods": MOST_PODS, "containerRuntimeEndpoint": runtime.endpoint,
            // The disk is the machine's own, as full as its user likes it.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%"}, "imageGCHighThresholdPercent": 100,
        })
    }

    fn ours(&self, site: &Site, runtime: &Runtime, without: &[&str]) -> Result<Vec<String>> {
        let mut node = json!({
            "apiVersion": "mullion.io/v1alpha1", "kind": "NodeConfiguration",
            "kubeconfig": self.kubeconfig, "nodeName": NODE, "nodeIP": ADDRESS, "os": "linux", "roots": ["/"],
            "serviceCIDR": "10.96.0.0/12", "lan": "10.240.0.0/24", "network": "host-gateway",
            "cniConfDir": runtime.cni_conf, "ipamDir": site.path("ipam"), "without": without,
        });
        if let Some(root) = &runtime.simulated {
            node["roots"] = json!([root]);
            node["cpu"] = json!("2");
            node["memory"] = json!("4Gi");
        }
        let proxy = json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "clusterCIDR": "192.168.0.0/16"});
        let text: Vec<String> = [node, self.kubelet(runtime), proxy].iter().map(Value::to_string).collect();
        std::fs::write(&self.config, text.join("\n---\n"))?;
        Ok(vec!["node".to_owned(), "--config".to_owned(), self.config.display().to_string(), "--hostname-override".to_owned(), NODE.to_owned()])
    }

    fn upstreams(&self, runtime: &Runtime) -> Result<Vec<String>> {
        let mut config = self.kubelet(runtime);
        let more = json!({
            "failCgroupV1": false, "cgroupDriver": "cgroupfs", "failSwapOn": false, "resolvConf": "", "enforceNodeAllocatable": [],
            "authorization": {"mode": "Webhook"},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        std::fs::write(&self.config, config.to_string())?;
        let options = [
            ("config", self.config.display().to_string()),
            ("kubeconfig", self.kubeconfig.display().to_string()),
            ("hostname-override", NODE.to_owned()),
            ("node-ip", ADDRESS.to_string()),
        ];
        Ok(options.iter().map(|(name, value)| format!("--{name}={value}")).collect())
    }
}
