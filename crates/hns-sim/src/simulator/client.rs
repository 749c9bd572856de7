//! Client of the service: its session with faults, with the counters and the log of calls.

use std::sync::atomic::Ordering;
use std::time::Instant;

use hcn::port::EventSink;
use hcn::{Args, Function, HResult, HostNetwork, RawError, Reply, Subscription};

use super::Simulator;
use super::session::Session;
use crate::calls::Noted;
use crate::faults::{Call, ClientSession as _, FaultySession};

/// One client of the service.
pub(super) struct Client {
    service: Simulator,
    number: u64,
    faulty: FaultySession<Session, Simulator>,
}

impl Client {
    pub(super) fn new(service: Simulator) -> Self {
        let number = service.inner.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        Self { faulty: FaultySession::new(Session::new(service.clone()), service.clone()), service, number }
    }
}

impl HostNetwork for Client {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let started = Instant::now();
        let subject = self.faulty.session().subject(&args);
        let call = Call { number: self.service.controls().calls.begin(), function, args, subject };
        let (outcome, faults) = self.faulty.call(&call);
        let path = (function == Function::HnsCall).then(|| format!("{} {}", args.method.unwrap_or_default(), args.path.unwrap_or_default()));
        let hresult = outcome.as_ref().map_or_else(|error| error.hresult, |_| HResult::OK);
        let noted = Noted { session: self.number, function, id: subject, path, took: started.elapsed(), hresult, faults: &faults };
        self.service.controls().calls.note(call.number, noted);
        outcome
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.faulty.subscribe(sink)
    }
}
