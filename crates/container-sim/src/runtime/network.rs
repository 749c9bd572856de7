//! A sandbox's network: its namespace, and the plug-ins that connect it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cni::runtime::{Attachment, Runtime as Cni};
use hcn::watch::Watch;
use hcn::{Guid, HcnClient, HcnError, HostComputeNamespace};
use kube_rules::NodeOs;
use linux_sys::ns::NetNs;
use serde::{Deserialize, Serialize};
use thiserror_ext::AsReport as _;

use super::record::SandboxRecord;
use crate::Config;

/// The network of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Netns {
    /// The node's own.
    Host,
    /// A namespace that we made and pinned in the node's directory.
    Own,
    /// A compartment of HNS.
    Hcn(Guid),
}

/// What a pod calls its interface.
const INTERFACE: &str = "eth0";

/// How long HNS may take to make a namespace's compartment.
const COMPARTMENT: Duration = Duration::from_secs(30);
/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(100);

/// How long freeing what is left over may hold up the start.
const COLLECTION: Duration = Duration::from_secs(5);

/// Connects sandboxes. It alone calls CNI.
pub(crate) struct Network {
    os: NodeOs,
    netns_dir: PathBuf,
    hcn: Option<HcnClient>,
    cni: Cni,
}

impl Network {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let hcn = config.hcn.as_deref().map(HcnClient::connect).transpose().context("the address of HNS cannot be used")?;
        let mut cni = Cni::new(&config.cni.conf_dir, &config.cni.bin_dir, config.state_dir.join("cni").join("cache"));
        cni.env.extend(config.hcn.iter().map(|address| ("MULLION_HCN".to_owned(), address.clone())));
        Ok(Self { os: config.os, netns_dir: config.netns_dir.clone(), hcn, cni })
    }

    /// Why pods cannot be connected yet, if so: there is no network configuration.
    pub(crate) fn not_ready(&self) -> Option<String> {
        self.cni.network().err().map(|error| super::node_paths::replace(error.to_string()))
    }

    /// Lets plug-ins free what belongs to none of these sandboxes: addresses and endpoints that were left when somebody
    /// ended halfway. Nothing is done before there is a configuration.
    pub(crate) async fn collect(&self, sandboxes: Vec<String>) {
        if self.not_ready().is_some() {
            return;
        }
        let valid: Vec<_> = sandboxes.into_iter().map(|sandbox| (sandbox, INTERFACE.to_owned())).collect();
        let done = tokio::time::timeout(COLLECTION, self.cni.gc(&valid)).await;
        let error = match done {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{:#}", anyhow!(error)),
            Err(_) => format!("the plug-ins did not end within {} s", COLLECTION.as_secs()),
        };
        tracing::warn!(error, "freeing addresses and endpoints of former sandboxes failed; the next start tries again");
    }

    /// The namespace a new sandbox shall have.
    pub(crate) fn choose(&self, host_network: bool) -> Netns {
        match self.os {
            _ if host_network => Netns::Host,
            NodeOs::Windows { .. } => Netns::Hcn(Guid::random()),
            NodeOs::Linux => Netns::Own,
        }
    }

    /// The file by which a sandbox's namespace is entered; none for the node's own.
    pub(crate) fn path(&self, sandbox: &SandboxRecord) -> Option<PathBuf> {
        match &sandbox.netns {
            Netns::Host => None,
            Netns::Own => Some(self.netns_dir.join(&sandbox.id)),
            Netns::Hcn(guid) => Some(self.netns_dir.join(guid.to_string())),
        }
    }

    fn hcn(&self) -> Result<&HcnClient> {
        self.hcn.as_ref().context("this Windows node was started without an address of HNS")
    }

    /// Makes the namespace and connects it. What was made is undone by [`Network::detach`], also after an error.
    pub(crate) async fn attach(&self, sandbox: &SandboxRecord) -> Result<Vec<IpAddr>> {
        let Some(path) = self.path(sandbox) else { return Ok(Vec::new()) };
        let mut late = false;
        match &sandbox.netns {
            Netns::Hcn(guid) => {
                // Without this member the compartment would appear with the first container only.
                let namespace = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
                let made = self.hcn()?.create_namespace(*guid, &namespace).await.context("cannot create the pod's namespace in HNS")?;
                late = made.namespace_id == 0;
            }
            Netns::Own => {
                std::fs::create_dir_all(&self.netns_dir).with_context(|| format!("cannot make {}", self.netns_dir.display()))?;
                NetNs::create_at(&path).with_context(|| format!("cannot make network namespace {}", path.display()))?;
            }
            Netns::Host => {}
        }
        let added = self.cni.add(&self.attachment(sandbox)).await.map_err(|error| {
            // containerd's message, which people search for.
            anyhow!(error).context(format!("failed to setup network for sandbox {:?}", sandbox.id))
        })?;
        if let (true, Netns::Hcn(guid)) = (late, &sandbox.netns) {
            self.compartment(guid).await.with_context(|| format!("failed to setup network for sandbox {:?}", sandbox.id))?;
        }
        Ok(added.ips.iter().map(|ip| ip.address.addr()).collect())
    }

    /// Waits until HNS has made the namespace's compartment: on a busy host it shows up after the namespace.
    async fn compartment(&self, namespace: &Guid) -> Result<()> {
        let until = tokio::time::Instant::now() + COMPARTMENT;
        loop {
            match self.hcn()?.namespace(namespace).await.context("cannot read the pod's namespace from HNS")? {
                None => bail!("HNS has lost the pod's namespace {namespace}"),
                Some(found) if found.namespace_id != 0 => return Ok(()),
                Some(_) if tokio::time::Instant::now() >= until => {
                    let seconds = COMPARTMENT.as_secs();
                    bail!(
                        "HNS made no compartment for the pod's namespace {namespace} within {seconds} s; if that lasts, restart the Host Networking Service"
                    );
                }
                Some(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Disconnects the sandbox and removes its namespace. Goes on after errors and returns them together; what is
    /// already gone is fine.
    pub(crate) async fn detach(&self, sandbox: &SandboxRecord) -> Result<()> {
        let Some(path) = self.path(sandbox) else { return Ok(()) };
        let mut errors = Vec::new();
        if let Err(error) = self.cni.del(&self.attachment(sandbox)).await {
            errors.push(format!("failed to destroy network for sandbox {:?}: {:#}", sandbox.id, anyhow!(error)));
        }
        match &sandbox.netns {
            Netns::Hcn(guid) => {
                let deleted = match self.hcn() {
                    Ok(hcn) => hcn.delete_namespace(guid).await.map_err(|error| anyhow!(error)),
                    Err(error) => Err(error),
                };
                if let Err(error) = deleted {
                    errors.push(format!("cannot delete namespace {guid}: {}", error.as_report()));
                }
            }
            Netns::Own => {
                if let Err(error) = NetNs::remove_at(&path) {
                    errors.push(format!("cannot remove network namespace {}: {error}", path.display()));
                }
            }
            Netns::Host => {}
        }
        if errors.is_empty() { Ok(()) } else { Err(anyhow!(errors.join("; "))) }
    }

    /// A watch of HNS; none on Linux nodes.
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.hcn.clone().map(|client| Watch::start(client, hcn::watch::Timing::default()))
    }

    /// The namespaces that HNS has, with the number of their endpoints.
    pub(crate) async fn namespaces(&self) -> Result<BTreeMap<Guid, usize>> {
        let listed = self.hcn()?.namespaces().await?;
        Ok(listed.into_iter().map(|namespace| (namespace.id, namespace.endpoints().count())).collect())
    }

    /// How many endpoints HNS has in a sandbox's namespace; none where there is no such namespace.
    pub(crate) async fn endpoints(&self, namespace: &Guid) -> Result<Option<usize>, HcnError> {
        let Some(client) = &self.hcn else { return Ok(None) };
        Ok(client.namespace(namespace).await?.map(|namespace| namespace.endpoints().count()))
    }

    /// Has the plug-ins compare the attachment with what they made, and repair it.
    pub(crate) async fn check(&self, sandbox: &SandboxRecord) -> Result<(), cni::runtime::RuntimeError> {
        self.cni.check(&self.attachment(sandbox)).await
    }

    fn attachment(&self, sandbox: &SandboxRecord) -> Attachment {
        let metadata = sandbox.config.metadata.clone().unwrap_or_default();
        let netns = match &sandbox.netns {
            Netns::Hcn(guid) => guid.to_string(),
            _ => self.path(sandbox).map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        let args = [
            ("IgnoreUnknown", "1".to_owned()),
            ("K8S_POD_NAMESPACE", metadata.namespace),
            ("K8S_POD_NAME", metadata.name),
            ("K8S_POD_INFRA_CONTAINER_ID", sandbox.id.clone()),
            ("K8S_POD_UID", metadata.uid),
        ];
        let dns = sandbox.config.dns_config.as_ref().map(|dns| cni::spec::RuntimeDns {
            servers: dns.servers.clone(),
            searches: dns.searches.clone(),
            options: dns.options.clone(),
        });
        Attachment {
            container_id: sandbox.id.clone(),
            netns,
            ifname: INTERFACE.to_owned(),
            args: args.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            port_mappings: port_mappings(sandbox),
            dns,
        }
    }
}

/// The ports that the node shall pass on to the pod.
fn port_mappings(sandbox: &SandboxRecord) -> Vec<cni::spec::PortMapping> {
    let published = sandbox.config.port_mappings.iter().filter(|mapping| mapping.host_port > 0);
    let mapping = |mapping: &k8s_cri::v1::PortMapping| {
        Some(cni::spec::PortMapping {
            host_port: u16::try_from(mapping.host_port).ok()?,
            container_port: u16::try_from(mapping.container_port).ok()?,
            protocol: mapping.protocol().as_str_name().to_lowercase(),
            host_ip: mapping.host_ip.clone(),
        })
    };
    published.filter_map(mapping).collect()
}
