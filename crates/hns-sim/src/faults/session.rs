//! Decorator of a client's session: delays, fails, alters or loses its calls, and changes the service and its host behind HNS's back.

use std::time::Duration;

use hcn::port::EventSink;
use hcn::{Args, Function, Guid, HResult, Handle, RawError, Reply, Subscription};

use super::reply::show;
use super::{Called, Defect, Effects, Fault, Incident, Outage};
use crate::admin::Restart;
use crate::model::{Staged, Tampering, failure};

/// One call of a client.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// Its number since the service began.
    pub number: u64,
    pub function: Function,
    pub args: Args<'a>,
    /// The object that it is about, where it names one.
    pub subject: Option<Guid>,
}

/// A client's session, as the decorator calls it.
pub(crate) trait ClientSession: Send + Sync {
    /// The object that a call is about, where it names one.
    fn subject(&self, args: &Args<'_>) -> Option<Guid>;

    /// Waits as long as the call takes.
    fn take_time(&self, call: &Call<'_>);

    /// Executes a call. `alter` changes its effects before they are committed.
    fn execute(&self, call: &Call<'_>, alter: impl FnOnce(&mut Staged)) -> Result<Reply, RawError>;

    /// Closes a handle of this session.
    fn close(&self, handle: Option<Handle>);

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError>;
}

/// The service and its host, as faults act on them beside the calls of clients.
pub(crate) trait FaultTarget: Send + Sync {
    /// The effects of the active faults on a call, and how often hanging calls have been released.
    fn effects_on(&self, called: &Called<'_>) -> (Effects, u64);

    /// Blocks until hanging calls are released more often than `releases`.
    fn hang(&self, releases: u64);

    fn restart(&self, restart: Restart) -> Result<(), String>;

    /// Damages the service's data: it is down until it is wiped.
    fn damage_data(&self);

    /// Changes an object behind its owner's back.
    fn tamper(&self, tampering: Tampering, subject: Option<Guid>) -> Result<(), RawError>;

    /// Takes the uplink's addresses and routes away. `restore` gives them back after that time, with all routes or the default route alone.
    fn blank_uplink(&self, restore: Option<(Duration, bool)>);

    /// Whether the adapter is in a switch: whether a network of it exists.
    fn has_switch(&self) -> bool;

    /// Gives namespaces their compartments after a while.
    fn deliver_compartments(&self, namespaces: Vec<Guid>, delay: Duration);
}

/// A session whose calls the active faults of its service hit.
pub(crate) struct FaultySession<C, S> {
    session: C,
    service: S,
}

/// The outcome of a call, and the names of the faults that hit it.
pub(crate) type Outcome = (Result<Reply, RawError>, Vec<&'static str>);

impl<C: ClientSession, S: FaultTarget> FaultySession<C, S> {
    /// `session` with the faults of `service`.
    pub(crate) fn new(session: C, service: S) -> Self {
        Self { session, service }
    }

    /// The session without faults.
    pub(crate) fn session(&self) -> &C {
        &self.session
    }

    pub(crate) fn call(&self, call: &Call<'_>) -> Outcome {
        let Call { function, args, subject, .. } = *call;
        let (effects, releases) = self.service.effects_on(&Called { function, id: subject, texts: [args.settings, args.query, args.path] });
        if !effects.delay.is_zero() {
            std::thread::sleep(effects.delay);
        }
        self.session.take_time(call);
        let outcome = if effects.names.is_empty() { self.session.execute(call, |_| {}) } else { self.hit(call, &effects, releases) };
        (outcome, effects.names)
    }

    /// Makes a call that faults hit.
    fn hit(&self, call: &Call<'_>, effects: &Effects, releases: u64) -> Result<Reply, RawError> {
        for (kind, fault) in &effects.incidents {
            incident(&self.service, *kind, fault, call.subject)?;
        }
        if effects.hang {
            self.service.hang(releases);
            return Err(HResult::RPC_CALL_FAILED.into());
        }
        if let Some(hresult) = effects.error {
            return Err(failure(hresult));
        }
        let had_switch = self.service.has_switch();
        let mut reply = self.execute(call, effects)?;
        if effects.twice && matches!(call.function, Function::Create(_)) {
            // The second one may be refused, as a double.
            let again = self.execute(&Call { args: Args { id: None, ..call.args }, ..*call }, effects);
            self.session.close(again.ok().and_then(|reply| reply.handle));
        }
        for (outage, away) in &effects.outages {
            if *outage == Outage::WithSwitch && had_switch == self.service.has_switch() {
                continue;
            }
            self.service.blank_uplink(match outage {
                Outage::Passing | Outage::WithSwitch => Some((*away, true)),
                Outage::LosesRoutes => Some((*away, false)),
                Outage::LosesAddresses => None,
            });
        }
        if let Some(hresult) = effects.error_after {
            self.session.close(reply.handle);
            return Err(failure(hresult));
        }
        if let Some(shown) = effects.shown {
            reply.result = reply.result.map(|text| show(shown, text));
        }
        Ok(reply)
    }

    /// Executes a call with the effects that faults alter.
    fn execute(&self, call: &Call<'_>, effects: &Effects) -> Result<Reply, RawError> {
        let mut late = Vec::new();
        let reply = self.session.execute(call, |staged| alter(staged, effects, &mut late))?;
        for (namespaces, delay) in late {
            self.service.deliver_compartments(namespaces, delay);
        }
        Ok(reply)
    }

    pub(crate) fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.session.subscribe(sink)
    }
}

/// Alters what a call does. `late` gets the namespaces that wait for their compartments, and how long.
fn alter(staged: &mut Staged, effects: &Effects, late: &mut Vec<(Vec<Guid>, Duration)>) {
    if effects.partial {
        staged.leave_out_adapters();
    }
    if effects.silent {
        staged.drop_events();
    }
    for (defect, only, delay) in &effects.defects {
        match defect {
            Defect::Rules => staged.disable_rules(*only),
            Defect::Port => staged.block_ports(*only),
            Defect::Compartment => late.push((staged.withhold_compartments(*only), *delay)),
        }
    }
    if effects.pretend {
        staged.drop_changes();
    }
}

/// Does what a fault does to the service beside a call about `subject`; an error is the call's.
pub(crate) fn incident(service: &impl FaultTarget, kind: Incident, fault: &Fault, subject: Option<Guid>) -> Result<(), RawError> {
    match kind {
        Incident::Restart | Incident::Wipe => {
            let restart = Restart { mode: fault.mode.unwrap_or_default(), away_ms: fault.delay_ms, wipe: kind == Incident::Wipe };
            service.restart(restart).map_err(|error| RawError::with_record(HResult::FAIL, &error))?;
            Err(HResult::RPC_CALL_FAILED.into())
        }
        Incident::Corrupt => {
            service.damage_data();
            Err(HResult::RPC_CALL_FAILED.into())
        }
        Incident::Tamper(tampering) => service.tamper(tampering, fault.id.or(subject)),
    }
}

#[cfg(test)]
mod tests;
