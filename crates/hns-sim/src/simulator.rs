//! The service: calls come in, the model decides, the kernel follows, the journal remembers, listeners hear of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use hcn::document::{NetworkFlags, NetworkPolicyType};
use hcn::port::EventSink;
use hcn::{Args, Event, Function, Guid, HResult, Handle, HostNetwork, Kind, NetworkPolicy, NetworkType, RawError, Reply, Subscription};

use crate::admin::Desk;
use crate::fact::{Fact, Plan, Shared};
use crate::kernel::Kernel;
use crate::model::{Context, Host, Staged};
use crate::realise::facts;
use crate::state::{Change, Object, State};
use crate::store::Store;
use crate::switches::Switches;

/// The simulated service. Clones are the same service; each [`Simulator::session`] has its own handles.
#[derive(Clone)]
pub struct Simulator {
    inner: Arc<Inner>,
}

struct Inner {
    core: Mutex<Core>,
    desk: Mutex<Desk>,
    sinks: Mutex<HashMap<u64, EventSink>>,
    last_sink: AtomicU64,
}

struct Core {
    state: State,
    shared: Shared,
    switches: Switches,
    host: Host,
    kernel: Box<dyn Kernel>,
    store: Option<Store>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What of a state survives a reboot of the host: networks, but those that say otherwise and NAT networks.
fn after_reboot(state: State) -> State {
    let kept = state
        .networks
        .into_iter()
        .filter(|(_, network)| network.network_type != NetworkType::Nat && !network.flags.contains(NetworkFlags::ENABLE_NON_PERSISTENT));
    let mut rebooted = State::default();
    kept.for_each(|(id, network)| rebooted.apply(Change::put(id, Object::Network(network))));
    rebooted
}

/// External networks follow the uplink's address.
fn refresh_management(state: &mut State, host: &Host) {
    for network in state.networks.values_mut().filter(|network| network.network_type == NetworkType::L2Bridge) {
        network.policies.retain(|policy| policy.policy_type != NetworkPolicyType::ProviderAddress);
        network.policies.extend(host.management.map(|address| NetworkPolicy::provider_address(address.into())));
    }
}

/// Every fact of a state, and how often the shared ones are meant.
fn all_facts(state: &State, switches: &Switches) -> (BTreeSet<Fact>, Shared) {
    let (mut all, mut shared) = (BTreeSet::new(), Shared::default());
    let ids = (state.networks.keys().map(|id| (Kind::Network, *id)))
        .chain(state.namespaces.keys().map(|id| (Kind::Namespace, *id)))
        .chain(state.endpoints.keys().map(|id| (Kind::Endpoint, *id)))
        .chain(state.balancers.keys().map(|id| (Kind::LoadBalancer, *id)));
    for (kind, id) in ids {
        if let Some(object) = state.get(kind, &id) {
            let facts = facts(&object, &id, state, switches);
            shared.commit(&BTreeSet::new(), &facts);
            all.extend(facts);
        }
    }
    (all, shared)
}

impl Simulator {
    /// Starts the service over `kernel`. With a store, what an earlier run kept comes back: everything after a restart of the service, the
    /// networks after a reboot of the host; then the kernel is brought to what the state says, without breaking what is right already.
    pub fn new(mut kernel: Box<dyn Kernel>, switches: Switches, store: Option<(Store, State)>) -> anyhow::Result<Self> {
        let host = Host { management: kernel.management() };
        let (mut store, mut state) = store.map_or((None, State::default()), |(store, state)| (Some(store), state));
        if !kernel.survived()? {
            state = after_reboot(state);
        }
        refresh_management(&mut state, &host);
        let (all, shared) = all_facts(&state, &switches);
        kernel.reconcile(&all)?;
        if let Some(store) = &mut store {
            store.replace(&state)?;
        }
        let core = Core { state, shared, switches, host, kernel, store };
        let inner = Inner { core: Mutex::new(core), desk: Mutex::default(), sinks: Mutex::default(), last_sink: AtomicU64::new(0) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A client's session; its handles die with it.
    pub fn session(&self) -> Arc<dyn HostNetwork> {
        Arc::new(Session { service: self.clone(), handles: Mutex::default() })
    }

    /// Faults, counters and the call log.
    pub fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.inner.desk)
    }

    /// A copy of what the service keeps.
    pub fn state(&self) -> State {
        lock(&self.inner.core).state.clone()
    }

    /// Every kernel fact that the state means.
    pub fn facts(&self) -> BTreeSet<Fact> {
        let core = lock(&self.inner.core);
        all_facts(&core.state, &core.switches).0
    }

    fn tell(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let sinks: Vec<EventSink> = lock(&self.inner.sinks).values().cloned().collect();
        for event in events {
            sinks.iter().for_each(|sink| sink(event.clone()));
        }
    }
}

impl Core {
    fn context(&self) -> Context<'_> {
        Context { state: &self.state, switches: &self.switches, host: &self.host }
    }

    /// Brings changes into the state, the kernel and the journal; on an error nothing has changed.
    fn commit(&mut self, changes: &[Change]) -> Result<(), RawError> {
        if changes.is_empty() {
            return Ok(());
        }
        let (plan, shared) = plan_changes(&self.state, &self.shared, changes, &self.switches);
        if !plan.is_empty() {
            tracing::debug!(plan = %plan, "the kernel changes");
            self.kernel.apply(&plan).map_err(|error| {
                tracing::warn!(error = &error as &dyn std::error::Error, "the kernel refused a change");
                let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
                RawError::with_record(error.hresult, &format!("{error}{cause}"))
            })?;
        }
        changes.iter().for_each(|change| self.state.apply(change.clone()));
        self.shared = shared;
        if let Some(store) = &mut self.store
            && let Err(error) = store.append(changes, &self.state)
        {
            // The change holds; only a restart would not know of it.
            tracing::error!(error = &error as &dyn std::error::Error, "a change could not be written down");
        }
        Ok(())
    }
}

/// What changes mean for the kernel, and the shared facts after them. Pure.
pub fn plan_changes(state: &State, shared: &Shared, changes: &[Change], switches: &Switches) -> (Plan, Shared) {
    let mut shared = shared.clone();
    let (mut remove, mut add) = (BTreeSet::new(), BTreeSet::new());
    for change in changes {
        let meant = |object: Option<&Object>| object.map_or_else(BTreeSet::new, |object| facts(object, &change.id, state, switches));
        let (before, after) = (meant(state.get(change.kind, &change.id).as_ref()), meant(change.after.as_ref()));
        let plan = shared.plan(&before, &after);
        shared.commit(&before, &after);
        remove.extend(plan.remove);
        add.extend(plan.add);
    }
    // What one object gives up and another takes over stays.
    let kept: BTreeSet<Fact> = remove.intersection(&add).cloned().collect();
    let plan = Plan {
        remove: remove.into_iter().rev().filter(|fact| !kept.contains(fact)).collect(),
        add: add.into_iter().filter(|fact| !kept.contains(fact)).collect(),
    };
    (plan, shared)
}

/// One client's view of the service.
struct Session {
    service: Simulator,
    handles: Mutex<Handles>,
}

#[derive(Default)]
struct Handles {
    last: u64,
    open: HashMap<u64, (Kind, Guid)>,
}

impl Session {
    fn object(&self, kind: Kind, handle: Option<Handle>) -> Result<Guid, RawError> {
        match handle.and_then(|handle| lock(&self.handles).open.get(&handle.0).copied()) {
            Some((of, id)) if of == kind => Ok(id),
            _ => Err(HResult::INVALID_HANDLE.into()),
        }
    }

    /// The object that a call is about, where it names one.
    fn subject(&self, args: &Args<'_>) -> Option<Guid> {
        let handle = || lock(&self.handles).open.get(&args.handle?.0).map(|(_, id)| *id);
        args.id.or_else(handle)
    }

    fn execute(&self, function: Function, args: &Args<'_>) -> Result<Reply, RawError> {
        if let Function::Close(kind) = function {
            self.object(kind, args.handle)?;
            lock(&self.handles).open.remove(&args.handle.unwrap_or(Handle(0)).0);
            return Ok(Reply::default());
        }
        let mut core = lock(&self.service.inner.core);
        if !core.switches.features().api_v2 && function != Function::HnsCall {
            return Err(HResult::PROC_NOT_FOUND.into());
        }
        let staged = self.stage(core.context(), function, args)?;
        core.commit(&staged.changes)?;
        drop(core);
        self.service.tell(staged.events);
        let handle = staged.opened.map(|object| {
            let mut handles = lock(&self.handles);
            handles.last += 1;
            let number = handles.last;
            handles.open.insert(number, object);
            Handle(number)
        });
        Ok(Reply { handle, result: staged.text })
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
            Function::Close(_) | Function::QueryEndpointStats | Function::QueryEndpointAddresses => Err(HResult::NOT_IMPLEMENTED.into()),
        }
    }
}

impl HostNetwork for Session {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let subject = self.subject(&args);
        let verdict = self.service.desk().judge(function, subject);
        let started = Instant::now();
        if !verdict.delay.is_zero() {
            std::thread::sleep(verdict.delay);
        }
        let outcome = match verdict.error {
            Some(hresult) => Err(RawError::with_record(hresult, hresult.message().unwrap_or("Injected fault."))),
            None => self.execute(function, &args),
        };
        self.service.desk().note(function, subject, started.elapsed(), &outcome);
        outcome
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        let inner = &self.service.inner;
        let id = inner.last_sink.fetch_add(1, Ordering::Relaxed);
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
