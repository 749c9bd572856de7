//! Effects of faults on calls, and on the service and its host.

use std::time::Duration;

use hcn::{Guid, HResult};

use super::{Fault, FaultKind};
use crate::model::Tampering;
use crate::restart::Loss;

/// Action of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call waits.
    Delay,
    /// The call does not return until the fault is cleared.
    Hang,
    /// The call fails before it has an effect.
    Fail,
    /// The call has its effect and fails.
    FailAfter,
    /// The call succeeds without an effect.
    Pretend,
    /// A create makes two objects.
    Twice,
    /// An endpoint is attached without a virtual adapter.
    Partial,
    /// What the call makes, or the fault's object, differs from its document.
    Defect(Defect),
    /// The host's adapter is without its addresses and routes once the call has succeeded.
    Outage(Outage),
    /// No client gets the events of the call.
    DropEvents,
    /// Queries of networks show it so.
    Show(Shown),
    /// It happens to the service as the call comes in.
    Incident(Incident),
    /// It hits when the service starts again.
    Start(Loss),
    /// The service does not stop when asked to.
    StaysUp,
}

/// How queries show a network's ManagementIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Not yet there.
    NoManagementAddress,
    LinkLocalAddress,
}

/// Defect of an object that its document does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// An endpoint's access rules have no effect.
    Rules,
    /// An endpoint's port passes nothing.
    Port,
    /// A namespace gets its compartment late.
    Compartment,
}

impl Defect {
    /// The same defect for an object that exists already.
    pub(super) fn tampering(self) -> Option<Tampering> {
        match self {
            Self::Rules => Some(Tampering::DisableRules),
            Self::Port => Some(Tampering::BlockPort),
            Self::Compartment => None,
        }
    }
}

/// Loss of the uplink's addresses and routes, by what comes back after a while. Everything comes back when the host reboots, and when the
/// faults are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Its addresses and its routes.
    Passing,
    /// Its addresses and the default route, as its lease has them.
    LosesRoutes,
    /// Nothing.
    LosesAddresses,
    /// Its addresses and its routes; it hits only calls that make the adapter's switch or remove it.
    WithSwitch,
}

/// Event of the service beside the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// It restarts; the call fails.
    Restart,
    /// It restarts and has forgotten everything; the call fails.
    Wipe,
    /// Its data are damaged: it is down until they are wiped.
    Corrupt,
    /// An object is changed behind its owner's back.
    Tamper(Tampering),
}

/// Effects of all faults that hit one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// How long the call waits.
    pub delay: Duration,
    /// Whether it never returns.
    pub hang: bool,
    /// How it fails, without an effect.
    pub error: Option<HResult>,
    /// How it fails after its effect.
    pub error_after: Option<HResult>,
    /// Whether it succeeds without an effect.
    pub pretend: bool,
    /// Whether it has its effect twice.
    pub twice: bool,
    /// Whether an attached endpoint gets no adapter.
    pub partial: bool,
    /// Defects, of which object (none: what the call makes), and how long.
    pub defects: Vec<(Defect, Option<Guid>, Duration)>,
    /// What happens to the host's adapter once the call has succeeded, and how long.
    pub outages: Vec<(Outage, Duration)>,
    /// Whether no client gets its events.
    pub silent: bool,
    /// How networks are shown.
    pub shown: Option<Shown>,
    /// What happens to the service, to which object (none: the call's), and how.
    pub incidents: Vec<(Incident, Fault)>,
    /// The names of the faults that hit.
    pub names: Vec<&'static str>,
}

impl Effects {
    pub(super) fn add(&mut self, kind: &'static FaultKind, fault: &Fault) {
        self.names.push(kind.name);
        let hresult = fault.hresult.or(kind.hresult);
        if !matches!(kind.action, Action::Incident(_) | Action::Defect(_) | Action::Outage(_)) {
            self.delay += fault.delay(kind);
        }
        match kind.action {
            Action::Delay => {}
            Action::Hang => self.hang = true,
            Action::Fail => self.error = self.error.or(hresult),
            Action::FailAfter => self.error_after = self.error_after.or(hresult),
            Action::Pretend => self.pretend = true,
            Action::Twice => self.twice = true,
            Action::Partial => self.partial = true,
            Action::Defect(defect) => {
                if let (Some(_), Some(tampering)) = (fault.id, defect.tampering()) {
                    self.incidents.push((Incident::Tamper(tampering), fault.clone()));
                }
                self.defects.push((defect, fault.id, fault.delay(kind)));
            }
            Action::Outage(outage) => self.outages.push((outage, fault.delay(kind))),
            Action::DropEvents => self.silent = true,
            Action::Show(shown) => self.shown = self.shown.or(Some(shown)),
            Action::Incident(incident) => self.incidents.push((incident, fault.clone())),
            Action::Start(_) | Action::StaysUp => {}
        }
    }
}
