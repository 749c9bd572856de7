//! Simulated service: the model decides each call, the kernel and the journal follow, listeners get events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hcn::port::EventSink;
use hcn::{Event, Guid, HResult, HostNetwork, Kind, RawError};
use thiserror_ext::AsReport as _;

use crate::admin::Status;
use crate::calls::Calls;
use crate::compile::facts;
use crate::fact::{Fact, Shared};
use crate::faults::{Fault, Faults};
use crate::kernel::Kernel;
use crate::latency::Latency;
use crate::model::{Context, Host};
use crate::restart::{Ending, RestartMode, survivors};
use crate::state::{Change, State};
use crate::store::Store;
use crate::switches::Switches;

mod client;
mod operations;
mod session;
#[cfg(test)]
mod tests;
mod transaction;

pub use transaction::Transaction;

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
    /// Sets a fault, after a check. Answers its number.
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
    /// Notified when calls that hang may end.
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
    /// How often the uplink lost its addresses: only the last loss gives them back.
    blanks: u64,
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

/// Every fact of a state, and the use counts of the shared ones.
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
    /// networks after a reboot of the host; then the kernel is brought to the state, without breaking what is right already.
    pub fn with_options(kernel: Box<dyn Kernel>, switches: Switches, store: Option<(Store, State)>, options: Options) -> anyhow::Result<Self> {
        let mut controls = Controls { faults: Faults::new(options.seed), latency: options.latency, seed: options.seed, ..Controls::default() };
        for fault in options.faults {
            controls.faults.add(fault).map_err(anyhow::Error::msg)?;
        }
        let mode = if kernel.survived()? { RestartMode::Clean } else { RestartMode::Reboot };
        let ending = Ending { mode, losses: controls.faults.losses(), seed: options.seed };
        let host = host_of(&*kernel);
        let (store, state) = store.map_or((None, State::default()), |(store, state)| (Some(store), state));
        let mut core = Core { state: State::default(), shared: Shared::default(), switches, host, kernel, store, away: None, blanks: 0 };
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
        Arc::new(client::Client::new(self.clone()))
    }

    /// Faults, latencies, counters and the call log.
    pub fn controls(&self) -> MutexGuard<'_, Controls> {
        lock(&self.inner.controls)
    }

    /// A copy of the state.
    pub fn state(&self) -> State {
        self.with_state(State::clone)
    }

    /// Reads the state without a copy. Calls wait meanwhile.
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
            format!("the host cannot follow {text}: {}", error.as_report())
        })
    }

    /// Every kernel fact of the state.
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

    /// Has `hang_up` called whenever the service restarts: it ends connections.
    pub(crate) fn on_restart(&self, hang_up: impl Fn() + Send + 'static) {
        lock(&self.inner.hang_up).push(Box::new(hang_up));
    }

    /// Sends events to every listener.
    fn notify(&self, events: Vec<Event>) {
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
    /// Runs a rule over the state.
    fn with_context<T>(&self, rule: impl FnOnce(Context<'_>) -> T) -> T {
        let stats = |endpoint: &Guid| self.kernel.stats(endpoint);
        rule(Context { state: &self.state, switches: &self.switches, host: &self.host, stats: &stats })
    }

    /// Gives the uplink back what was taken from it, now instead of later.
    fn restore_uplink(&mut self, all_routes: bool) {
        self.blanks += 1;
        if let Err(error) = self.kernel.restore_uplink(all_routes) {
            tracing::error!(error = %error.as_report(), "the adapter stays without what it had");
        }
    }

    /// Gives namespaces the compartments that they wait for.
    fn create_pending_compartments(&mut self, namespaces: &[Guid]) {
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
            tracing::error!(error = %error.as_report(), "the service cannot start again");
            self.away = Some(away);
            RawError::with_record(HResult::SERVICE_NOT_ACTIVE, &error.to_report_string())
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
                tracing::warn!(error = %error.as_report(), "the kernel refused a change");
                let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
                return Err(RawError::with_record(error.hresult, &format!("{error}{cause}")));
            }
        }
        if let Some(store) = &mut self.store
            && let Err(error) = store.append(changes, &self.state)
        {
            // The change holds; only a restart would not know of it.
            tracing::error!(error = %error.as_report(), "a change could not be written down");
        }
        Ok(())
    }
}
