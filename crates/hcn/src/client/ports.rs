//! The ports that users of the client call: on a thread of the pool, and from any other thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::counts::Counts;
use super::{Core, Silence};
use crate::error::HResult;
use crate::pool::{Called, Ticket};
use crate::port::{Args, EventSink, Function, HostNetwork, OwnedArgs, RawError, Reply, Subscription};

/// The port of one operation, on a thread of the pool: counts the calls, and refuses further ones when the operation's caller is gone.
pub(super) struct OperationPort {
    port: Arc<dyn HostNetwork>,
    counts: Arc<Counts>,
    ticket: Arc<Ticket>,
}

impl OperationPort {
    pub(super) fn new(port: Arc<dyn HostNetwork>, counts: Arc<Counts>, ticket: Arc<Ticket>) -> Self {
        Self { port, counts, ticket }
    }

    fn begin(&self, call: Called) -> Result<(), RawError> {
        if self.ticket.is_abandoned() && !matches!(call, Called::Function(Function::Close(_))) {
            return Err(RawError::with_record(HResult::TIMEOUT, &format!("{call} was not made: the caller of its operation is gone")));
        }
        self.ticket.calls(call);
        Ok(())
    }
}

impl HostNetwork for OperationPort {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        self.begin(Called::Function(function))?;
        let started = Instant::now();
        let outcome = self.port.call(function, args);
        self.counts.returned(function, outcome.is_err(), started.elapsed());
        outcome
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.begin(Called::Subscribe)?;
        self.port.subscribe(sink)
    }
}

/// The port for blocking callers: each call is an operation of its own, with the client's deadline.
pub(super) struct BlockingPort {
    core: Arc<Core>,
    deadline: Duration,
}

impl BlockingPort {
    pub(super) fn new(core: Arc<Core>, deadline: Duration) -> Self {
        Self { core, deadline }
    }

    /// Makes one call. `dispose` undoes what it does after its caller gave up.
    fn make<T: Send + 'static>(
        &self,
        call: Called,
        job: impl FnOnce(&dyn HostNetwork) -> Result<T, RawError> + Send + 'static,
        dispose: impl FnOnce(T, &dyn HostNetwork) + Send + 'static,
    ) -> Result<T, RawError> {
        let late = move |outcome: Result<T, RawError>, port: &Arc<dyn HostNetwork>| {
            if let Ok(late) = outcome {
                dispose(late, &**port);
            }
        };
        self.core.wait(self.deadline, move |port| job(&**port), late).unwrap_or_else(|silence| {
            Err(match silence {
                Silence::Refused(refusal) => self.core.refuse(call, &refusal),
                Silence::NotBegun => RawError::with_record(HResult::TIMEOUT, &self.core.busy()),
                Silence::UnderWay(_) => {
                    let seconds = self.deadline.as_secs_f64();
                    let text = format!("{call} was given up after {seconds} s: what it does is unknown, read the object back");
                    RawError::with_record(HResult::TIMEOUT, &text)
                }
                Silence::Lost => HResult::FAIL.into(),
            })
        })
    }
}

impl HostNetwork for BlockingPort {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let args = OwnedArgs::from(args);
        let close = move |late: Reply, port: &dyn HostNetwork| {
            if let (Some(handle), Function::Create(kind) | Function::Open(kind)) = (late.handle, function) {
                let closed = port.call(Function::Close(kind), Args { handle: Some(handle), ..Args::default() });
                tracing::debug!(?closed, "closed what a call opened that had been given up");
            }
        };
        self.make(Called::Function(function), move |port| port.call(function, args.borrow()), close)
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.make(Called::Subscribe, move |port| port.subscribe(sink), |late, _| drop(late))
    }
}
