//! The kernel of a simulated host: network namespaces, bridges, veth pairs and tunnels by netlink; address translation and access rules by
//! nf_tables.
//!
//! What it makes, and how it knows its own: bridges `hns…`, tunnels `hvx…`, ports `ep…`, tables `hns…`, files named by GUIDs in the
//! compartments' directory, routing rules of priorities 100, 200 and 201 with the tables that they name. A plan is links first, then rules
//! inside compartments, then one nf_tables transaction for the host's rules; when a step is refused, the steps before it are undone in reverse.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use hcn::document::EndpointStats;
use hcn::{Guid, HResult};
use linux_sys::netlink::Rtnl;
use linux_sys::ns::NetNs;
use nft::{Engine, Nft};

use crate::fact::{Fact, Plan};
use crate::kernel::{Kernel, KernelError};

mod access;
mod hops;
mod links;
mod ports;
mod rules;
mod tunnels;
mod uplink;

use links::is_link;

/// The host's kernel.
pub struct LinuxKernel {
    node: NetNs,
    rtnl: Rtnl,
    /// Programs the tables of rules.
    engine: Engine,
    netns_dir: PathBuf,
    uplink: String,
    /// Numbers of links by name.
    known: RefCell<HashMap<String, u32>>,
    /// Hops that stay without a fact.
    staying: RefCell<hops::Staying>,
    /// Fingerprint of the tables of rules.
    fingerprint: rules::Fingerprint,
    /// What the uplink is without for a while.
    blanked: Option<uplink::Blanked>,
}

/// Names the step of a plan that failed, and the code that HNS gives for it.
fn refused(action: impl ToString, source: io::Error) -> KernelError {
    let hresult = match source.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HResult::OUT_OF_MEMORY,
        io::ErrorKind::AlreadyExists => HResult::ALREADY_EXISTS,
        _ => HResult::FAIL,
    };
    KernelError { action: action.to_string(), hresult, source: flattened(source) }
}

/// The error with its causes in its text: HNS's record has one text.
fn flattened(error: io::Error) -> io::Error {
    let (kind, mut text) = (error.kind(), error.to_string());
    let mut cause = error.get_ref().and_then(|inner| inner.source());
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    io::Error::new(kind, text)
}

impl LinuxKernel {
    /// The kernel under the current network namespace. Compartments are bind-mounted in `netns_dir`; `uplink` is the host's adapter.
    pub fn open(netns_dir: &Path, uplink: &str) -> io::Result<Self> {
        Self::open_in(NetNs::current()?, netns_dir, uplink)
    }

    /// The kernel under the network namespace `node`.
    pub fn open_in(node: NetNs, netns_dir: &Path, uplink: &str) -> io::Result<Self> {
        let (rtnl, nft) = (Rtnl::open_in(&node)?, Nft::open_in(&node)?);
        std::fs::create_dir_all(netns_dir)?;
        Ok(Self {
            node,
            rtnl,
            engine: Engine::new(nft),
            netns_dir: netns_dir.to_owned(),
            uplink: uplink.to_owned(),
            known: RefCell::default(),
            staying: RefCell::default(),
            fingerprint: rules::Fingerprint::default(),
            blanked: None,
        })
    }

    /// Its rules change by no transaction of more bytes, as on a system whose buffers are smaller than this one's.
    #[must_use]
    pub fn with_largest_transaction(mut self, bytes: usize) -> Self {
        self.engine.nft_mut().take_most(bytes);
        self
    }

    /// Does the links and the compartments' rules of a plan; what was done stands in `done`, in order, also on an error.
    fn change_links<'a>(&self, plan: &'a Plan, done: &mut Vec<(bool, &'a Fact)>) -> Result<(), KernelError> {
        let here = |fact: &&Fact| is_link(fact) || access::inside(fact).is_some();
        for fact in plan.remove.iter().filter(here) {
            self.undo_one(fact).map_err(|error| refused(format_args!("- {fact}"), error))?;
            done.push((false, fact));
        }
        for fact in plan.add.iter().filter(here) {
            self.do_one(fact).map_err(|error| refused(format_args!("+ {fact}"), error))?;
            done.push((true, fact));
        }
        Ok(())
    }

    fn do_one(&self, fact: &Fact) -> io::Result<()> {
        access::inside(fact).map_or_else(|| self.make(fact), |list| self.make_inside(list))
    }

    fn undo_one(&self, fact: &Fact) -> io::Result<()> {
        access::inside(fact).map_or_else(|| self.unmake(fact), |list| self.unmake_inside(list))
    }

    /// Undoes what was done. Its own failures are logged: the caller has an error to report already.
    fn undo(&self, done: &[(bool, &Fact)]) {
        for (made, fact) in done.iter().rev() {
            let undone = if *made { self.undo_one(fact) } else { self.do_one(fact) };
            if let Err(error) = undone {
                tracing::error!(%error, %fact, "a refused plan could not be undone");
            }
        }
    }
}

impl Kernel for LinuxKernel {
    fn management(&self) -> Option<Ipv4Addr> {
        self.uplink_address().unwrap_or_else(|error| {
            tracing::warn!(%error, uplink = self.uplink, "the uplink's address cannot be read");
            None
        })
    }

    fn management_ipv6(&self) -> Option<Ipv6Addr> {
        self.uplink_ipv6().unwrap_or_else(|error| {
            tracing::warn!(%error, uplink = self.uplink, "the uplink's IPv6 address cannot be read");
            None
        })
    }

    fn survived(&self) -> Result<bool, KernelError> {
        rules::exist(self.engine.nft()).map_err(|error| refused("listing nf_tables' tables", error))
    }

    fn blank_uplink(&mut self) -> Result<(), KernelError> {
        self.take_addresses().map_err(|error| refused("taking the uplink's addresses away", error))
    }

    fn restore_uplink(&mut self, all_routes: bool) -> Result<(), KernelError> {
        self.give_addresses_back(all_routes).map_err(|error| refused("giving the uplink its addresses back", error))
    }

    fn stats(&self, endpoint: &Guid) -> Option<EndpointStats> {
        self.port_stats(endpoint).unwrap_or_else(|error| {
            tracing::warn!(%error, %endpoint, "the counters of an endpoint cannot be read");
            None
        })
    }

    fn reconcile(&mut self, facts: &BTreeSet<Fact>) -> Result<(), KernelError> {
        self.prepare_host().map_err(|error| refused("preparing the host to forward", error))?;
        self.reconcile_links(facts).map_err(|(action, error)| refused(action, error))?;
        for list in facts.iter().filter_map(access::inside) {
            self.make_inside(list).map_err(|error| refused(list, error))?;
        }
        self.fingerprint = rules::reconcile(&self.engine, facts).map_err(|error| refused("writing the tables of rules", error))?;
        Ok(())
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), KernelError> {
        let mut done = Vec::new();
        let changed = self
            .change_links(plan, &mut done)
            .and_then(|()| rules::change(&self.engine, plan, self.fingerprint).map_err(|error| refused("changing the tables of rules", error)));
        match changed {
            Ok(fingerprint) => {
                self.fingerprint = fingerprint;
                Ok(())
            }
            Err(error) => {
                self.undo(&done);
                Err(error)
            }
        }
    }
}
