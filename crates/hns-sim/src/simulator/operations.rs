//! Operations on the service and its host beside the calls of clients: faults, restarts, tampering, the loss of the uplink.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use hcn::{Event, Guid, HResult, RawError};
use thiserror_ext::AsReport as _;

use super::{Away, Inner, Simulator, lock};
use crate::admin::Restart;
use crate::faults::{Called, Effects, Fault, FaultTarget, incident};
use crate::model::{Tampering, is_external};
use crate::restart::Ending;

impl Simulator {
    /// Sets a fault. Returns its number. A fault with an id that changes its object acts at once.
    pub fn add_fault(&self, fault: Fault) -> Result<u32, String> {
        let (number, at_once) = {
            let mut controls = self.controls();
            (controls.add_fault(fault)?, controls.faults.at_once())
        };
        if let Some((kind, fault)) = at_once
            && let Err(error) = incident(self, kind, &fault, None)
        {
            tracing::warn!(%fault, record = error.record, "the fault's object stays as it is");
        }
        Ok(number)
    }

    /// Removes a fault. Calls that hang check whether they still have to.
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

    /// Removes every fault: calls that hang fail, and pending restorations of the uplink and of compartments run at once.
    pub fn clear_faults(&self) {
        let mut controls = self.controls();
        controls.faults.clear();
        controls.releases += 1;
        drop(controls);
        self.inner.released.notify_all();
        self.run_pending_restorations();
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
        // Before connections end: a client that connects again at once registers with the service after its restart.
        let sinks = std::mem::take(&mut *lock(&self.inner.sinks));
        // For a remote client the end of its connection is the disconnect.
        lock(&self.inner.hang_up).iter().for_each(|hang_up| hang_up());
        for sink in sinks.into_values() {
            sink(Event { event_type: Event::SERVICE_DISCONNECT, status: HResult::OK, data: None });
        }
    }

    /// Runs a job after a while, unless the service has ended by then.
    fn later(&self, delay: Duration, job: impl FnOnce(&Self) + Send + 'static) {
        let inner: Weak<Inner> = Arc::downgrade(&self.inner);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            if let Some(inner) = inner.upgrade() {
                job(&Self { inner });
            }
        });
    }

    /// Does now what would be done later.
    fn run_pending_restorations(&self) {
        let mut core = lock(&self.inner.core);
        core.restore_uplink(true);
        if core.switches.enable_compartment_namespace {
            let all: Vec<Guid> = core.state.namespaces.keys().copied().collect();
            core.create_pending_compartments(&all);
        }
    }
}

impl FaultTarget for Simulator {
    fn effects_on(&self, called: &Called<'_>) -> (Effects, u64) {
        let mut controls = self.controls();
        (controls.faults.effects_on(called), controls.releases)
    }

    fn hang(&self, releases: u64) {
        let mut controls = self.controls();
        while controls.releases == releases {
            controls = self.inner.released.wait(controls).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn restart(&self, restart: Restart) -> Result<(), String> {
        Self::restart(self, restart)
    }

    fn damage_data(&self) {
        lock(&self.inner.core).away = Some(Away { until: None, ending: Ending::default(), wipe: true });
        self.disconnect();
    }

    fn tamper(&self, tampering: Tampering, subject: Option<Guid>) -> Result<(), RawError> {
        let (staged, committed) = {
            let mut core = lock(&self.inner.core);
            let staged = core.with_context(|context| context.tamper(tampering, subject));
            let committed = core.commit(&staged.changes);
            (staged, committed)
        };
        committed?;
        // Listeners get the events as of another program's call.
        self.notify(staged.announced);
        self.notify(staged.events);
        Ok(())
    }

    fn blank_uplink(&self, restore: Option<(Duration, bool)>) {
        let number = {
            let mut core = lock(&self.inner.core);
            core.blanks += 1;
            if let Err(error) = core.kernel.blank_uplink() {
                tracing::error!(error = %error.as_report(), "the adapter keeps its addresses");
            }
            core.blanks
        };
        if let Some((away, all_routes)) = restore {
            self.later(away, move |service| {
                let mut core = lock(&service.inner.core);
                if core.blanks == number {
                    core.restore_uplink(all_routes);
                }
            });
        }
    }

    fn has_switch(&self) -> bool {
        lock(&self.inner.core).state.networks.values().any(|network| is_external(&network.network_type))
    }

    fn deliver_compartments(&self, namespaces: Vec<Guid>, delay: Duration) {
        if !namespaces.is_empty() {
            self.later(delay, move |service| lock(&service.inner.core).create_pending_compartments(&namespaces));
        }
    }
}
