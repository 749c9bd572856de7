//! Session of one client: its handles, and its calls on the model.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use hcn::port::EventSink;
use hcn::{Args, Function, Guid, HResult, Handle, Kind, RawError, Reply, Subscription};

use super::{Inner, Simulator, lock};
use crate::faults::{Call, ClientSession};
use crate::model::{Context, Staged};

/// Session of one client, without faults.
pub(super) struct Session {
    service: Simulator,
    handles: Mutex<Handles>,
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
        Self { service, handles: Mutex::default() }
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

    fn open(&self, object: (Kind, Guid)) -> Handle {
        self.with_handles(|handles| {
            handles.last += 1;
            let number = handles.last;
            handles.open.insert(number, object);
            Handle(number)
        })
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

impl ClientSession for Session {
    fn subject(&self, args: &Args<'_>) -> Option<Guid> {
        let handle = args.handle.or(args.network);
        args.id.filter(|id| !id.is_nil()).or_else(|| self.with_handles(|handles| handles.open.get(&handle?.0).map(|(_, id)| *id)))
    }

    fn take_time(&self, call: &Call<'_>) {
        let Call { number, function, args, .. } = call;
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
            let counts = latency.balancer_us != 0 && *function == Function::Create(Kind::LoadBalancer);
            (if counts { core.state.balancers.len() } else { 0 }, core.switches.calls_serialise)
        };
        let time = latency.of(write, balancers, seed, *number);
        let turn = serialise.then(|| lock(&self.service.inner.turn));
        std::thread::sleep(time);
        drop(turn);
    }

    fn execute(&self, call: &Call<'_>, alter: impl FnOnce(&mut Staged)) -> Result<Reply, RawError> {
        let Call { function, args, .. } = call;
        let mut core = lock(&self.service.inner.core);
        core.wake()?;
        if let Function::Close(kind) = function {
            self.object(*kind, args.handle)?;
            self.close(args.handle);
            return Ok(Reply::default());
        }
        if !core.switches.features().api_v2 && *function != Function::HnsCall {
            return Err(HResult::PROC_NOT_FOUND.into());
        }
        let mut staged = core.with_context(|context| self.stage(context, *function, args))?;
        alter(&mut staged);
        // Clients hear of a plan before it is known to succeed.
        let announced = std::mem::take(&mut staged.announced);
        let committed = core.commit(&staged.changes);
        drop(core);
        self.service.notify(announced);
        committed?;
        self.service.notify(staged.events);
        Ok(Reply { handle: staged.opened.map(|object| self.open(object)), result: staged.text })
    }

    fn close(&self, handle: Option<Handle>) {
        if let Some(handle) = handle {
            self.with_handles(|handles| handles.open.remove(&handle.0));
        }
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
