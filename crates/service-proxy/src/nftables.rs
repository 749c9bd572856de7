//! The backend for Linux: one nftables table of data maps.
//!
//! No chain belongs to a Service: a packet's address, protocol and port name a class (how many backends, when to
//! translate the source), the class has a chain that selects a slot, and the slot holds the backend. So the rules are few
//! and a change is a handful of map elements in one transaction, whatever the number of Services. At start the elements
//! that are there are compared with the table's, so a restart changes nothing that is right and cuts no connection.
//! A full pass first asks the kernel whether anybody changed any rules since; only then does it read them.
//! The priority of a connection's first packet is used on the way, marks are not: but for the one bit of masquerading.

pub mod elements;
mod forget;
mod kernel;
mod layout;
mod settings;
pub mod state;

use std::collections::BTreeSet;
use std::net::IpAddr;

use linux_sys::netlink::{NetlinkError, Rtnl};
use linux_sys::sysctl;
use nft::{Engine, Nft, NftError};
use thiserror_ext::AsReport as _;

use crate::backend::{Outcome, Pass};
use crate::node_ports::NodePorts;
use crate::table::{Protocol, Table, VipKey};
use elements::NetworkContext;
use kernel::Kernel;
use layout::{Layout, table};
pub use settings::{Pods, Settings};

/// Keeps the kernel's table equal to ours, in the network namespace of the thread that first syncs.
pub struct Nftables {
    settings: Settings,
    kernel: Option<Kernel>,
    /// Why flows of UDP cannot be removed, once it was logged.
    unforgettable: Option<String>,
}

/// Why Services cannot be programmed.
#[derive(Debug, thiserror::Error)]
pub enum NftablesError {
    /// The kernel refused a listing or a transaction.
    #[error(transparent)]
    Rules(#[from] NftError),
    /// Node ports listen on addresses of the host, which are not known.
    #[error("the host's addresses cannot be read")]
    HostAddresses(#[source] NetlinkError),
    /// The table is still there.
    #[error("the services' nftables table cannot be removed, which takes CAP_NET_ADMIN")]
    Cleanup(#[source] NftError),
}

/// Removes everything that this backend ever makes; true when there was anything. Connections that go on are left to end.
///
/// # Errors
/// The kernel refused it.
pub fn cleanup() -> Result<bool, NftablesError> {
    let remove = || -> Result<bool, NftError> {
        let engine = Engine::new(Nft::open()?);
        let there = engine.nft().tables()?.contains(&table());
        engine.delete([table()])?;
        Ok(there)
    };
    remove().map_err(NftablesError::Cleanup)
}

impl Nftables {
    /// A backend that has not touched anything yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, kernel: None, unforgettable: None }
    }

    /// Makes the VIPs of `dirty` what the table says, or with `full` every one after comparing with the kernel.
    /// A change that the kernel refuses is tried once more against what is really there.
    ///
    /// # Errors
    /// The kernel refused that, too.
    pub fn sync(&mut self, desired: &Table, dirty: &BTreeSet<VipKey>, full: bool) -> Result<Outcome, NftablesError> {
        let done = |writes| Outcome { writes, failures: Vec::new() };
        if full && self.must_read()? {
            self.kernel = None;
        }
        if let Some(kernel) = &mut self.kernel {
            match kernel.change(desired, dirty) {
                Ok(writes) => {
                    self.forget_flows(dirty.iter(), desired);
                    return Ok(done(writes));
                }
                Err(error) => tracing::warn!(error = %error.as_report(), "the services' table is not what it was left as; comparing all of it"),
            }
        }
        let context = self.context()?;
        let layout = Layout::new(&self.settings, forget::has_localhost(&context.node_ips));
        self.kernel = None;
        let (kernel, writes) = Kernel::adopt(layout, desired, context)?;
        self.kernel = Some(kernel);
        let udp: Vec<VipKey> = desired.iter().map(|(key, _)| *key).filter(|key| key.protocol == Protocol::Udp).collect();
        self.forget_flows(udp.iter(), desired);
        Ok(done(writes))
    }

    /// Whether what we know of the kernel or of the node's addresses no longer holds.
    fn must_read(&self) -> Result<bool, NftablesError> {
        let Some(kernel) = &self.kernel else { return Ok(true) };
        Ok(!kernel.is_undisturbed()? || *kernel.context() != self.context()?)
    }

    fn context(&self) -> Result<NetworkContext, NftablesError> {
        let host = match &self.settings.node_ports {
            NodePorts::Primary => Vec::new(),
            NodePorts::Nets(_) => host_addresses().map_err(NftablesError::HostAddresses)?,
        };
        let mut node_ips = self.settings.node_ports.select(&self.settings.node_ips, &host);
        if forget::has_localhost(&node_ips)
            && let Err(error) = sysctl::set("net.ipv4.conf.all.route_localnet", "1")
        {
            tracing::warn!("node ports do not listen on localhost: net.ipv4.conf.all.route_localnet cannot be set: {error}");
            node_ips.retain(|ip| !ip.is_loopback());
        }
        Ok(NetworkContext { node_ips, masquerade_all: self.settings.masquerade_all })
    }

    fn forget_flows<'a>(&mut self, keys: impl Iterator<Item = &'a VipKey>, desired: &Table) {
        let Some(kernel) = &self.kernel else { return };
        match forget::flows(&forget::answerers(keys, desired, kernel.context())) {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "forgot flows of UDP that nobody answered any more"),
            Err(error) => {
                let reason = error.to_report_string();
                if self.unforgettable.as_ref() != Some(&reason) {
                    tracing::warn!("clients of UDP stay with backends that went, until they pause: {reason}");
                    self.unforgettable = Some(reason);
                }
            }
        }
    }
}

impl Pass for Nftables {
    type Error = NftablesError;

    fn pass(&mut self, table: &Table, dirty: &BTreeSet<VipKey>, full: bool) -> Result<Outcome, NftablesError> {
        self.sync(table, dirty, full)
    }
}

fn host_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let rtnl = Rtnl::open()?;
    let mut all = Vec::new();
    for link in rtnl.links()? {
        all.extend(rtnl.addrs(link.index)?.into_iter().map(|net| net.addr()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
