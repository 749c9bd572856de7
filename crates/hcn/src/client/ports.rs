//! The ports that users of the client call: on a thread of the pool, and from any other thread.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Core;
use super::counts::Counts;
use crate::error::HResult;
use crate::pool::{Called, Delivery, GivenUp, Refusal, Ticket};
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
        let until = Instant::now() + self.deadline;
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = move |port: &Arc<dyn HostNetwork>| job(&**port);
        let deliver = move |outcome, delivery, port: &Arc<dyn HostNetwork>| match (outcome, delivery) {
            (Ok(late), Delivery::Abandoned) => dispose(late, &**port),
            // The caller waits for it.
            (outcome, _) => drop(sender.send(outcome)),
        };
        let mut place = self.core.submit(work, deliver).map_err(|refusal| self.core.refuse(call, &refusal))?;
        let mut answer = receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
        if let Err(RecvTimeoutError::Timeout) = answer {
            match self.core.time_out(&mut place, self.deadline) {
                GivenUp::Ended => answer = receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                GivenUp::NotBegun => return Err(RawError::with_record(HResult::TIMEOUT, &self.core.busy())),
                GivenUp::UnderWay => {
                    let seconds = self.deadline.as_secs_f64();
                    let text = format!("{call} was given up after {seconds} s: what it does is unknown, read the object back");
                    return Err(RawError::with_record(HResult::TIMEOUT, &text));
                }
            }
        }
        place.ended();
        match answer {
            Ok(outcome) => outcome,
            Err(_) if place.is_refused() => Err(self.core.refuse(call, &Refusal::Hung)),
            Err(_) => Err(HResult::FAIL.into()),
        }
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
