//! The service: calls come in, the model decides, the kernel follows, the journal remembers, listeners hear of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hcn::port::EventSink;
use hcn::{Event, Guid, HResult, HostNetwork, Kind, RawError};

use crate::admin::{Restart, Status};
use crate::calls::Calls;
use crate::compile::{dependents, facts};
use crate::fact::{Fact, Plan, Shared};
use crate::faults::{Fault, Faults, Incident, Outage, RestartMode};
use crate::kernel::Kernel;
use crate::latency::Latency;
use crate::model::{Context, Host};
use crate::restart::{Ending, survivors};
use crate::state::{Change, Object, State};
use crate::store::Store;
use crate::switches::Switches;

mod session;

use session::Session;

/// What a simulated service starts with beside its kernel and its switches.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Faults that are set from the start.
    pub faults: Vec<Fault>,
    /// How long calls take.
    pub latency: Latency,
    /// What every draw of faults and latencies follows from.
    pub seed: u64,
}

/// Faults, latencies, counters and the call log.
#[derive(Debug, Default)]
pub struct Controls {
    /// The faults that are set.
    pub faults: Faults,
    /// Counters and log.
    pub calls: Calls,
    /// How long calls take.
    pub latency: Latency,
    seed: u64,
    releases: u64,
}

impl Controls {
    /// Sets a fault, after a look whether it can mean anything. Answers its number.
    pub fn add_fault(&mut self, fault: Fault) -> Result<u32, String> {
        self.faults.add(fault)
    }
}

/// The simulated service. Clones are the same service; each [`Simulator::session`] has its own handles.
#[derive(Clone)]
pub struct Simulator {
    inner: Arc<Inner>,
}

struct Inner {
    core: Mutex<Core>,
    controls: Mutex<Controls>,
    /// Told when calls that hang may end.
    released: Condvar,
    /// Held by a call while it takes its time, where calls serialise.
    turn: Mutex<()>,
    sinks: Mutex<HashMap<u64, EventSink>>,
    hang_up: Mutex<Vec<Box<dyn Fn() + Send>>>,
    last_number: AtomicU64,
    restarts: AtomicU64,
}

struct Core {
    state: State,
    shared: Shared,
    switches: Switches,
    host: Host,
    kernel: Box<dyn Kernel>,
    store: Option<Store>,
    away: Option<Away>,
    /// How often the host's adapter lost its addresses: only the last time gives them back.
    outages: u64,
}

/// The service is not there.
struct Away {
    until: Option<Instant>,
    ending: Ending,
    wipe: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn host_of(kernel: &dyn Kernel) -> Host {
    Host { management: kernel.management(), management_ipv6: kernel.management_ipv6() }
}

/// Every fact of a state, and how often the shared ones are meant.
fn all_facts(state: &State, switches: &Switches) -> (BTreeSet<Fact>, Shared) {
    let (mut all, mut shared) = (BTreeSet::new(), Shared::default());
    for (kind, id) in state.ids() {
        if let Some(object) = state.get(kind, &id) {
            let facts = facts(&object, &id, state, switches);
            shared.commit(&BTreeSet::new(), &facts);
            all.extend(facts);
        }
    }
    (all, shared)
}

impl Simulator {
    /// Starts the service over `kernel` without faults or latencies: see [`Simulator::with_options`].
    pub fn new(kernel: Box<dyn Kernel>, switches: Switches, store: Option<(Store, State)>) -> anyhow::Result<Self> {
        Self::with_options(kernel, switches, store, Options::default())
    }

    /// Starts the service over `kernel`. With a store, what an earlier run kept comes back: everything after a restart of the service, the
    /// networks after a reboot of the host; then the kernel is brought to what the state says, without breaking what is right already.
    pub fn with_options(kernel: Box<dyn Kernel>, switches: Switches, store: Option<(Store, State)>, options: Options) -> anyhow::Result<Self> {
        let mut controls = Controls { faults: Faults::new(options.seed), latency: options.latency, seed: options.seed, ..Controls::default() };
        for fault in options.faults {
            controls.faults.add(fault).map_err(anyhow::Error::msg)?;
        }
        let mode = if kernel.survived()? { RestartMode::Clean } else { RestartMode::Reboot };
        let ending = Ending { mode, losses: controls.faults.losses(), seed: options.seed };
        let host = host_of(&*kernel);
        let (store, state) = store.map_or((None, State::default()), |(store, state)| (Some(store), state));
        let mut core = Core { state: State::default(), shared: Shared::default(), switches, host, kernel, store, away: None, outages: 0 };
        core.rise(survivors(&state, &ending, &core.switches, &core.host))?;
        let inner = Inner {
            core: Mutex::new(core),
            controls: Mutex::new(controls),
            released: Condvar::new(),
            turn: Mutex::default(),
            sinks: Mutex::default(),
            hang_up: Mutex::default(),
            last_number: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A client's session; its handles die with it, and with the service.
    pub fn session(&self) -> Arc<dyn HostNetwork> {
        Arc::new(Session::new(self.clone()))
    }

    /// Faults, latencies, counters and the call log.
    pub fn controls(&self) -> MutexGuard<'_, Controls> {
        lock(&self.inner.controls)
    }

    /// A copy of what the service keeps.
    pub fn state(&self) -> State {
        self.with_state(State::clone)
    }

    /// Reads what the service keeps, without a copy. No call is answered meanwhile.
    pub fn with_state<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&lock(&self.inner.core).state)
    }

    /// How the service behaves where that is not sure.
    pub fn switches(&self) -> Switches {
        lock(&self.inner.core).switches.clone()
    }

    /// Sets a switch by its text. What is there follows it; what was refused or left out by the old value is not made up for.
    pub fn set_switch(&self, text: &str) -> Result<(), String> {
        let mut core = lock(&self.inner.core);
        let old = core.switches.clone();
        core.switches.set(text)?;
        let state = core.state.clone();
        core.rise(state).map_err(|error| {
            core.switches = old;
            format!("the host cannot follow {text}: {error:#}")
        })
    }

    /// Every kernel fact that the state means.
    pub fn facts(&self) -> BTreeSet<Fact> {
        let core = lock(&self.inner.core);
        all_facts(&core.state, &core.switches).0
    }

    /// What the service is and holds.
    pub fn status(&self) -> Status {
        let (version, objects, running) = {
            let core = lock(&self.inner.core);
            let state = &core.state;
            let counts = [
                (Kind::Network, state.networks.len()),
                (Kind::Endpoint, state.endpoints.len()),
                (Kind::Namespace, state.namespaces.len()),
                (Kind::LoadBalancer, state.balancers.len()),
                (Kind::SdnRoute, state.routes.len()),
            ];
            let objects: BTreeMap<_, _> = counts.into_iter().map(|(kind, count)| (kind.as_str().to_owned(), count)).collect();
            let running = core.away.as_ref().is_none_or(|away| away.until.is_some_and(|until| until <= Instant::now()));
            (core.switches.version, objects, running)
        };
        let restarts = self.inner.restarts.load(Ordering::Relaxed);
        let controls = self.controls();
        Status { version, objects, restarts, running, seed: controls.seed, latency: controls.latency, faults: controls.faults.list().len() }
    }

    /// Sets a fault. Answers its number. What happens to one object whatever is called happens now.
    pub fn add_fault(&self, fault: Fault) -> Result<u32, String> {
        let (number, at_once) = {
            let mut controls = self.controls();
            (controls.add_fault(fault)?, controls.faults.at_once())
        };
        if let Some((incident, fault)) = at_once
            && let Err(error) = self.incident(incident, &fault, None)
        {
            tracing::warn!(%fault, record = error.record, "the fault's object stays as it is");
        }
        Ok(number)
    }

    /// Takes a fault back. Calls that hang look again whether they still must.
    pub fn remove_fault(&self, number: u32) -> bool {
        let removed = {
            let mut controls = self.controls();
            let hung = controls.faults.hangs();
            let removed = controls.faults.remove(number);
            if hung && !controls.faults.hangs() {
                controls.releases += 1;
            }
            removed
        };
        self.inner.released.notify_all();
        removed
    }

    /// Takes every fault back: calls that hang fail, and what would come later comes now.
    pub fn clear_faults(&self) {
        let mut controls = self.controls();
        controls.faults.clear();
        controls.releases += 1;
        drop(controls);
        self.inner.released.notify_all();
        self.heal();
    }

    /// Waits until a fault lets go of the call, which it took hold of when there had been `releases` releases.
    fn hang(&self, releases: u64) -> RawError {
        let mut controls = self.controls();
        while controls.releases == releases {
            controls = self.inner.released.wait(controls).unwrap_or_else(PoisonError::into_inner);
        }
        HResult::RPC_CALL_FAILED.into()
    }

    /// Restarts the service, or reboots its host: handles and registrations die, connections end, and what does not survive is gone. While
    /// it is away every call answers 0x800706d9.
    pub fn restart(&self, restart: Restart) -> Result<(), String> {
        let ending = {
            let mut controls = self.controls();
            if !controls.faults.stops() {
                return Err("the service does not stop (fault svc-stop-fails): take the fault back, or end the process".into());
            }
            controls.releases += 1;
            Ending { mode: restart.mode, losses: controls.faults.losses(), seed: controls.seed ^ self.inner.restarts.load(Ordering::Relaxed) }
        };
        self.inner.released.notify_all();
        let away = Duration::from_millis(restart.away_ms);
        {
            let mut core = lock(&self.inner.core);
            core.away = Some(Away { until: Some(Instant::now() + away), ending, wipe: restart.wipe });
            if away.is_zero() {
                core.wake().map_err(|error| format!("the service cannot start again: {}", error.record.unwrap_or_default()))?;
            }
        }
        self.disconnect();
        Ok(())
    }

    /// Ends every registration and connection.
    fn disconnect(&self) {
        self.inner.restarts.fetch_add(1, Ordering::Relaxed);
        // Connections first: to who is at their other end, their end is the disconnect.
        lock(&self.inner.hang_up).iter().for_each(|hang_up| hang_up());
        let sinks = std::mem::take(&mut *lock(&self.inner.sinks));
        for sink in sinks.into_values() {
            sink(Event { event_type: Event::SERVICE_DISCONNECT, status: HResult::OK, data: None });
        }
    }

    /// Has `hang_up` called whenever the service restarts: it ends connections.
    pub(crate) fn on_restart(&self, hang_up: impl Fn() + Send + 'static) {
        lock(&self.inner.hang_up).push(Box::new(hang_up));
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

    /// Does something after a while, unless the service has ended by then.
    fn later(&self, delay: Duration, job: impl FnOnce(&Self) + Send + 'static) {
        let inner: Weak<Inner> = Arc::downgrade(&self.inner);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            if let Some(inner) = inner.upgrade() {
                job(&Self { inner });
            }
        });
    }

    /// The host's adapter loses its addresses and routes, and gets back what it does after a while.
    fn outage(&self, outage: Outage, away: Duration) {
        let number = {
            let mut core = lock(&self.inner.core);
            core.outages += 1;
            if let Err(error) = core.kernel.blank_uplink() {
                tracing::error!(error = &error as &dyn std::error::Error, "the adapter keeps its addresses");
            }
            core.outages
        };
        if outage != Outage::LosesAddresses {
            self.later(away, move |service| {
                let mut core = lock(&service.inner.core);
                if core.outages == number {
                    core.restore_uplink(outage == Outage::Passing);
                }
            });
        }
    }

    /// The compartments of namespaces are there after a while.
    fn compartments_arrive(&self, namespaces: Vec<Guid>, delay: Duration) {
        if !namespaces.is_empty() {
            self.later(delay, move |service| lock(&service.inner.core).compartments_arrive(&namespaces));
        }
    }

    /// What would come later comes now.
    fn heal(&self) {
        let mut core = lock(&self.inner.core);
        core.restore_uplink(true);
        if core.switches.enable_compartment_namespace {
            let all: Vec<Guid> = core.state.namespaces.keys().copied().collect();
            core.compartments_arrive(&all);
        }
    }

    /// Does what a fault does to the service; an error is the call's.
    fn incident(&self, incident: Incident, fault: &Fault, subject: Option<Guid>) -> Result<(), RawError> {
        let subject = fault.id.or(subject);
        let mode = fault.mode.unwrap_or_default();
        let wipe = incident == Incident::Wipe;
        match incident {
            Incident::Restart | Incident::Wipe => {
                self.restart(Restart { mode, away_ms: fault.delay_ms, wipe }).map_err(|error| RawError::with_record(HResult::FAIL, &error))?;
                Err(HResult::RPC_CALL_FAILED.into())
            }
            Incident::Corrupt => {
                lock(&self.inner.core).away = Some(Away { until: None, ending: Ending::default(), wipe: true });
                self.disconnect();
                Err(HResult::RPC_CALL_FAILED.into())
            }
            Incident::LoseObject | Incident::LosePolicies | Incident::NewNetwork | Incident::Defect(_) => {
                let (staged, committed) = {
                    let mut core = lock(&self.inner.core);
                    let staged = core.with_context(|context| context.incident(incident, subject));
                    let committed = core.commit(&staged.changes);
                    (staged, committed)
                };
                committed?;
                // Listeners hear of it as of another program's call.
                self.tell(staged.announced);
                self.tell(staged.events);
                Ok(())
            }
        }
    }
}

impl Core {
    /// Runs a rule over the state.
    fn with_context<T>(&self, rule: impl FnOnce(Context<'_>) -> T) -> T {
        let stats = |endpoint: &Guid| self.kernel.stats(endpoint);
        rule(Context { state: &self.state, switches: &self.switches, host: &self.host, stats: &stats })
    }

    /// Gives the adapter back what outages took from it; what they would give back later they no longer do.
    fn restore_uplink(&mut self, all_routes: bool) {
        self.outages += 1;
        if let Err(error) = self.kernel.restore_uplink(all_routes) {
            tracing::error!(error = &error as &dyn std::error::Error, "the adapter stays without what it had");
        }
    }

    /// Gives namespaces the compartments that they wait for.
    fn compartments_arrive(&mut self, namespaces: &[Guid]) {
        for id in namespaces {
            let staged = self.with_context(|context| context.compartment_arrives(*id));
            if let Err(error) = self.commit(&staged.changes) {
                tracing::error!(%id, record = error.record, "a namespace stays without its compartment");
            }
        }
    }

    /// Takes over a state: the kernel is brought to it, and the journal written anew.
    fn rise(&mut self, mut state: State) -> anyhow::Result<()> {
        state.host_ipv6 = self.host.management_ipv6;
        let (all, shared) = all_facts(&state, &self.switches);
        self.kernel.reconcile(&all)?;
        if let Some(store) = &mut self.store {
            store.replace(&state)?;
        }
        (self.state, self.shared) = (state, shared);
        Ok(())
    }

    /// Comes back where it is time to.
    fn wake(&mut self) -> Result<(), RawError> {
        let Some(away) = self.away.take() else { return Ok(()) };
        if away.until.is_none_or(|until| until > Instant::now()) {
            self.away = Some(away);
            return Err(HResult::RPC_NOT_REGISTERED.into());
        }
        if away.ending.mode == RestartMode::Reboot {
            self.restore_uplink(true);
        }
        self.host = host_of(&*self.kernel);
        let state = if away.wipe { State::default() } else { survivors(&self.state, &away.ending, &self.switches, &self.host) };
        self.rise(state).map_err(|error| {
            tracing::error!(error = &*error as &dyn std::error::Error, "the service cannot start again");
            self.away = Some(away);
            RawError::with_record(HResult::SERVICE_NOT_ACTIVE, &format!("{error:#}"))
        })
    }

    /// Brings changes into the state, the kernel and the journal; on an error nothing has changed.
    fn commit(&mut self, changes: &[Change]) -> Result<(), RawError> {
        if changes.is_empty() {
            return Ok(());
        }
        let transaction = Transaction::begin(&mut self.state, &mut self.shared, changes, &self.switches);
        if !transaction.plan.is_empty() {
            tracing::debug!(plan = %transaction.plan, "the kernel changes");
            if let Err(error) = self.kernel.apply(&transaction.plan) {
                transaction.roll_back(&mut self.state, &mut self.shared);
                tracing::warn!(error = &error as &dyn std::error::Error, "the kernel refused a change");
                let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
                return Err(RawError::with_record(error.hresult, &format!("{error}{cause}")));
            }
        }
        if let Some(store) = &mut self.store
            && let Err(error) = store.append(changes, &self.state)
        {
            // The change holds; only a restart would not know of it.
            tracing::error!(error = &error as &dyn std::error::Error, "a change could not be written down");
        }
        Ok(())
    }
}

/// Changes that are in the state and not yet in the kernel.
pub struct Transaction {
    /// What they mean for the kernel.
    pub plan: Plan,
    undo: Vec<Change>,
    meant: Vec<(BTreeSet<Fact>, BTreeSet<Fact>)>,
}

impl Transaction {
    /// Makes changes in a state. Its cost follows what they touch.
    pub fn begin(state: &mut State, shared: &mut Shared, changes: &[Change], switches: &Switches) -> Self {
        let mut touched: Vec<(Kind, Guid)> = Vec::new();
        let mut undo: Vec<Change> = Vec::with_capacity(changes.len());
        let mut seen = BTreeSet::new();
        for change in changes {
            if seen.insert((change.kind, change.id)) {
                touched.push((change.kind, change.id));
                undo.push(Change { kind: change.kind, id: change.id, after: state.get(change.kind, &change.id) });
            }
        }
        for change in changes {
            touched.extend(dependents(change, state).into_iter().filter(|object| seen.insert(*object)));
        }
        let known =
            |object: Option<&Object>, id: &Guid, state: &State| object.map_or_else(BTreeSet::new, |object| facts(object, id, state, switches));
        let read = |kind, id: &Guid, state: &State| known(state.get(kind, id).as_ref(), id, state);
        // The objects of the changes themselves are at hand; only dependents must be read.
        let changed = undo.len();
        let before: Vec<_> = (undo.iter().map(|change| known(change.after.as_ref(), &change.id, state)))
            .chain(touched[changed..].iter().map(|(kind, id)| read(*kind, id, state)))
            .collect();
        changes.iter().for_each(|change| state.apply(change.clone()));
        let last: BTreeMap<(Kind, Guid), Option<&Object>> = changes.iter().map(|change| ((change.kind, change.id), change.after.as_ref())).collect();
        let after: Vec<_> = (touched[..changed].iter().map(|object| known(last.get(object).copied().flatten(), &object.1, state)))
            .chain(touched[changed..].iter().map(|(kind, id)| read(*kind, id, state)))
            .collect();
        let meant: Vec<_> = before.into_iter().zip(after).collect();
        Self { plan: plan(shared, &meant), undo, meant }
    }

    /// Takes the changes back.
    pub fn roll_back(self, state: &mut State, shared: &mut Shared) {
        for (before, after) in self.meant.iter().rev() {
            shared.commit(after, before);
        }
        self.undo.into_iter().rev().for_each(|change| state.apply(change));
    }
}

/// What the difference of facts means for the kernel; notes the shared ones.
fn plan(shared: &mut Shared, meant: &[(BTreeSet<Fact>, BTreeSet<Fact>)]) -> Plan {
    let (mut remove, mut add) = (BTreeSet::new(), BTreeSet::new());
    for (before, after) in meant {
        let plan = shared.plan(before, after);
        shared.commit(before, after);
        remove.extend(plan.remove);
        add.extend(plan.add);
    }
    // What one object gives up and another takes over stays.
    let kept: BTreeSet<Fact> = remove.intersection(&add).cloned().collect();
    Plan {
        remove: remove.into_iter().rev().filter(|fact| !kept.contains(fact)).collect(),
        add: add.into_iter().filter(|fact| !kept.contains(fact)).collect(),
    }
}
