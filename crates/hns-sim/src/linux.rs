//! Kernel of a simulated host: network namespaces, bridges, veth pairs and tunnels by netlink; address translation and access rules by
//! nf_tables.
//!
//! What it makes, and how it knows its own: bridges `hns…`, tunnels `hvx…`, ports `ep…`, tables `hns…`, files named by GUIDs in the
//! compartments' directory, routing rules of priorities 100, 200 and 201 with the tables that they name. Each kind of
//! facts has an adapter: `compartments`, `links` (with `ports`, `hops` and `uplink`), `access` for the rules inside compartments, and `rules` for
//! the host's. [`crate::fact::order`] has the order in which a plan is applied.

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
use thiserror_ext::AsReport as _;

use crate::fact::{Fact, Plan, Step};
use crate::kernel::{Kernel, KernelError};

mod access;
mod compartments;
mod hops;
mod links;
mod ports;
mod rules;
mod tunnels;
mod uplink;

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
    // HNS's record has one text.
    KernelError { action: action.to_string(), hresult, source: io::Error::new(source.kind(), source.to_report_string()) }
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

    /// Takes the steps of a plan that precede its transaction; what was done is in `done`, in order, also on an error.
    fn take_steps<'a>(&self, plan: &'a Plan, done: &mut Vec<Step<'a>>) -> Result<(), KernelError> {
        for step in plan.steps() {
            self.take(step).map_err(|error| refused(step, error))?;
            done.push(step);
        }
        Ok(())
    }

    fn take(&self, step: Step<'_>) -> io::Result<()> {
        match step {
            Step::Add(Fact::Compartment(id)) => self.make_compartment(id),
            Step::Add(Fact::Link(link)) => self.make(link),
            Step::Add(Fact::Firewall(list)) => self.make_inside(list),
            Step::Remove(Fact::Compartment(id)) => self.remove_compartment(id),
            Step::Remove(Fact::Link(link)) => self.unmake(link),
            Step::Remove(Fact::Firewall(list)) => self.unmake_inside(list),
            // The transaction changes the host's rules.
            Step::Add(Fact::Rule(_)) | Step::Remove(Fact::Rule(_)) => Ok(()),
        }
    }

    /// Undoes what was done. Its own failures are logged: the caller has an error to report already.
    fn undo(&self, done: &[Step<'_>]) {
        for step in done.iter().rev() {
            if let Err(error) = self.take(step.inverse()) {
                tracing::error!(error = %error.as_report(), %step, "a refused plan could not be undone");
            }
        }
    }
}

impl Kernel for LinuxKernel {
    fn management(&self) -> Option<Ipv4Addr> {
        self.uplink_address().unwrap_or_else(|error| {
            tracing::warn!(error = %error.as_report(), uplink = self.uplink, "the uplink's address cannot be read");
            None
        })
    }

    fn management_ipv6(&self) -> Option<Ipv6Addr> {
        self.uplink_ipv6().unwrap_or_else(|error| {
            tracing::warn!(error = %error.as_report(), uplink = self.uplink, "the uplink's IPv6 address cannot be read");
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
            tracing::warn!(error = %error.as_report(), %endpoint, "the counters of an endpoint cannot be read");
            None
        })
    }

    fn reconcile(&mut self, facts: &BTreeSet<Fact>) -> Result<(), KernelError> {
        self.prepare_host().map_err(|error| refused("preparing the host to forward", error))?;
        let named = |(action, error)| refused(action, error);
        let existing = self.remove_stray_links(facts).map_err(named)?;
        self.remove_stray_compartments(facts).map_err(|error| refused("stray compartments", error))?;
        self.make_compartments(facts).map_err(named)?;
        self.make_links(facts, &existing).map_err(named)?;
        for fact in facts {
            if let Fact::Firewall(list) = fact {
                self.make_inside(list).map_err(|error| refused(list, error))?;
            }
        }
        self.fingerprint = rules::reconcile(&self.engine, facts).map_err(|error| refused("writing the tables of rules", error))?;
        Ok(())
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), KernelError> {
        let mut done = Vec::new();
        let changed = self
            .take_steps(plan, &mut done)
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
