//! Port to a host's kernel: it applies a plan, all of it or nothing.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use hcn::document::EndpointStats;
use hcn::{Guid, HResult};

use crate::fact::{Fact, Plan};

/// A kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refused {action}")]
pub struct KernelError {
    /// What was asked: the line of the plan.
    pub action: String,
    /// The code that HNS gives its caller for it.
    pub hresult: HResult,
    #[source]
    pub source: std::io::Error,
}

/// A host's kernel under the model.
pub trait Kernel: Send {
    /// The address of the host's uplink, where it has one.
    fn management(&self) -> Option<Ipv4Addr>;

    /// The IPv6 address of the host's uplink, where it has one.
    fn management_ipv6(&self) -> Option<Ipv6Addr> {
        None
    }

    /// Whether this kernel still holds what an earlier run of the service made (a restart, not a reboot).
    fn survived(&self) -> Result<bool, KernelError>;

    /// Makes exactly `facts` hold among what is the service's, without breaking traffic through what is right already.
    fn reconcile(&mut self, facts: &BTreeSet<Fact>) -> Result<(), KernelError>;

    /// Applies a plan. On an error, the steps that were applied are undone.
    fn apply(&mut self, plan: &Plan) -> Result<(), KernelError>;

    /// Takes the uplink's addresses and routes away; they are remembered until [`Kernel::restore_uplink`] has given all of them back.
    fn blank_uplink(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Gives the uplink back what was taken from it: the addresses, and the default routes or all of them.
    fn restore_uplink(&mut self, _all_routes: bool) -> Result<(), KernelError> {
        Ok(())
    }

    /// The counters of an endpoint's port, where it has one.
    fn stats(&self, _endpoint: &Guid) -> Option<EndpointStats> {
        None
    }
}

/// No kernel: the model alone, on any system. It models documents, rules and errors; no packet flows.
#[derive(Debug, Default)]
pub struct NoKernel {
    /// The address of the uplink that it pretends to have.
    pub management: Option<Ipv4Addr>,
    /// Whether it pretends to have survived.
    pub survived: bool,
}

impl Kernel for NoKernel {
    fn management(&self) -> Option<Ipv4Addr> {
        self.management
    }

    fn survived(&self) -> Result<bool, KernelError> {
        Ok(self.survived)
    }

    fn reconcile(&mut self, _facts: &BTreeSet<Fact>) -> Result<(), KernelError> {
        Ok(())
    }

    fn apply(&mut self, _plan: &Plan) -> Result<(), KernelError> {
        Ok(())
    }
}
