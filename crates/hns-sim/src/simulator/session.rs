//! One client's view of the service: its handles, and its calls with what befalls them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use hcn::port::EventSink;
use hcn::{Args, Function, Guid, HResult, Handle, HostNetwork, Kind, RawError, Reply, Subscription};

use super::{Inner, Simulator, lock};
use crate::calls::Noted;
use crate::faults::{Called, Verdict};
use crate::model::{Context, Staged, failure, show};

/// One client's view of the service.
pub(super) struct Session {
    service: Simulator,
    number: u64,
    handles: Mutex<Handles>,
}

/// What is known of a call before it is made.
struct Call {
    number: u64,
    /// The object it is about.
    subject: Option<Guid>,
    verdict: Verdict,
    /// How often hanging calls had been released.
    releases: u64,
}

#[derive(Default)]
struct Handles {
    /// How often the service had restarted when they were opened: older ones are dead.
    restarts: u64,
    last: u64,
    open: HashMap<u64, (Kind, Guid)>,
}

impl Session {
    pub(super) fn new(service: Simulator) -> Self {
        let number = service.inner.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        Self { service, number, handles: Mutex::default() }
    }

    /// Reads or changes the handles; a restart of the service killed those from before it.
    fn with_handles<T>(&self, use_them: impl FnOnce(&mut Handles) -> T) -> T {
        let restarts = self.service.inner.restarts.load(Ordering::Relaxed);
        let mut handles = lock(&self.handles);
        if handles.restarts != restarts {
            handles.restarts = restarts;
            handles.open.clear();
        }
        use_them(&mut handles)
    }

    fn object(&self, kind: Kind, handle: Option<Handle>) -> Result<Guid, RawError> {
        match handle.and_then(|handle| self.with_handles(|handles| handles.open.get(&handle.0).copied())) {
            Some((of, id)) if of == kind => Ok(id),
            _ => Err(HResult::INVALID_HANDLE.into()),
        }
    }

    /// The object that a call is about, where it names one.
    fn subject(&self, args: &Args<'_>) -> Option<Guid> {
        let handle = args.handle.or(args.network);
        args.id.filter(|id| !id.is_nil()).or_else(|| self.with_handles(|handles| handles.open.get(&handle?.0).map(|(_, id)| *id)))
    }

    fn open(&self, object: (Kind, Guid)) -> Handle {
        self.with_handles(|handles| {
            handles.last += 1;
            let number = handles.last;
            handles.open.insert(number, object);
            Handle(number)
        })
    }

    fn close(&self, handle: Option<Handle>) {
        if let Some(handle) = handle {
            self.with_handles(|handles| handles.open.remove(&handle.0));
        }
    }

    /// A call takes its time.
    fn take_time(&self, number: u64, function: Function, args: &Args<'_>, verdict: &Verdict) {
        if !verdict.delay.is_zero() {
            std::thread::sleep(verdict.delay);
        }
        let (latency, seed) = {
            let controls = self.service.controls();
            (controls.latency, controls.seed)
        };
        if latency.is_none() {
            return;
        }
        let write = function.changes() && args.method.is_none_or(|method| !method.eq_ignore_ascii_case("GET"));
        let (balancers, serialise) = {
            let core = lock(&self.service.inner.core);
            let counts = latency.balancer_us != 0 && function == Function::Create(Kind::LoadBalancer);
            (if counts { core.state.balancers.len() } else { 0 }, core.switches.calls_serialise)
        };
        let time = latency.of(write, balancers, seed, number);
        let turn = serialise.then(|| lock(&self.service.inner.turn));
        std::thread::sleep(time);
        drop(turn);
    }

    /// A call with what befalls it.
    fn suffer(&self, call: &Call, function: Function, args: &Args<'_>) -> Result<Reply, RawError> {
        let verdict = &call.verdict;
        self.take_time(call.number, function, args, verdict);
        for (incident, fault) in &verdict.incidents {
            self.service.incident(*incident, fault, call.subject)?;
        }
        if verdict.hang {
            return Err(self.service.hang(call.releases));
        }
        if let Some(hresult) = verdict.error {
            return Err(failure(hresult));
        }
        let mut reply = self.execute(function, args, verdict)?;
        if verdict.twice && matches!(function, Function::Create(_)) {
            // The second one may be refused, as a double.
            let again = self.execute(function, &Args { id: None, ..*args }, verdict);
            self.close(again.ok().and_then(|reply| reply.handle));
        }
        for (outage, away) in &verdict.outages {
            self.service.outage(*outage, *away);
        }
        if let Some(hresult) = verdict.error_after {
            self.close(reply.handle);
            return Err(failure(hresult));
        }
        if let Some(shown) = verdict.shown {
            reply.result = reply.result.map(|text| show(shown, text));
        }
        Ok(reply)
    }

    fn execute(&self, function: Function, args: &Args<'_>, verdict: &Verdict) -> Result<Reply, RawError> {
        let mut core = lock(&self.service.inner.core);
        core.wake()?;
        if let Function::Close(kind) = function {
            self.object(kind, args.handle)?;
            self.close(args.handle);
            return Ok(Reply::default());
        }
        if !core.switches.features().api_v2 && function != Function::HnsCall {
            return Err(HResult::PROC_NOT_FOUND.into());
        }
        let mut staged = core.with_context(|context| self.stage(context, function, args))?;
        if verdict.partial {
            staged.leave_out_adapters();
        }
        if verdict.silent {
            staged.announced.clear();
            staged.events.clear();
        }
        let mut waiting = Vec::new();
        for (defect, only, delay) in &verdict.defects {
            waiting.push((staged.add_defect(*defect, *only), *delay));
        }
        // Who listens hears of a plan before it is known to succeed.
        let announced = std::mem::take(&mut staged.announced);
        let committed = if verdict.pretend { Ok(()) } else { core.commit(&staged.changes) };
        drop(core);
        self.service.tell(announced);
        committed?;
        for (namespaces, delay) in waiting {
            self.service.compartments_arrive(namespaces, delay);
        }
        self.service.tell(staged.events);
        Ok(Reply { handle: staged.opened.map(|object| self.open(object)), result: staged.text })
    }

    fn stage(&self, context: Context<'_>, function: Function, args: &Args<'_>) -> Result<Staged, RawError> {
        match function {
            Function::Enumerate(kind) => context.enumerate(kind, args.query),
            Function::Create(Kind::Endpoint) => {
                let network = self.object(Kind::Network, args.network)?;
                context.create(Kind::Endpoint, args, Some(network))
            }
            Function::Create(kind) => context.create(kind, args, None),
            Function::Open(kind) => context.open(kind, args),
            Function::Modify(kind) => context.modify(kind, self.object(kind, args.handle)?, args.settings),
            Function::Query(kind) => context.query(kind, self.object(kind, args.handle)?, args.query),
            Function::Delete(kind) => context.delete(kind, args),
            Function::HnsCall => Ok(context.hns_call(args)),
            Function::QueryEndpointStats => context.endpoint_stats(self.object(Kind::Endpoint, args.handle)?),
            Function::QueryEndpointAddresses => context.endpoint_addresses(self.object(Kind::Endpoint, args.handle)?),
            Function::Close(_) => Err(HResult::INVALID_HANDLE.into()),
        }
    }
}

impl HostNetwork for Session {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let id = self.subject(&args);
        let started = Instant::now();
        let call = {
            let mut controls = self.service.controls();
            let called = Called { function, id, texts: [args.settings, args.query, args.path] };
            Call { number: controls.calls.begin(), subject: id, verdict: controls.faults.judge(&called), releases: controls.releases }
        };
        let outcome = self.suffer(&call, function, &args);
        let path = (function == Function::HnsCall).then(|| format!("{} {}", args.method.unwrap_or_default(), args.path.unwrap_or_default()));
        let hresult = outcome.as_ref().map_or_else(|error| error.hresult, |_| HResult::OK);
        let took: Duration = started.elapsed();
        let noted = Noted { session: self.number, function, id, path, took, hresult, faults: &call.verdict.names };
        self.service.controls().calls.note(call.number, noted);
        outcome
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        let inner = &self.service.inner;
        let id = inner.last_number.fetch_add(1, Ordering::Relaxed);
        lock(&inner.sinks).insert(id, sink);
        Ok(Subscription::new(Registration { inner: Arc::downgrade(inner), id }))
    }
}

/// Ends one registration.
struct Registration {
    inner: Weak<Inner>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            lock(&inner.sinks).remove(&self.id);
        }
    }
}
