//! The loop: rows in, table, backend, retries, full passes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::{Backoff, Informer, Selection};
use hcn::HcnClient;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::Outcome;
use crate::fronts::{Terms, wanted};
use crate::hns::Hns;
use crate::rows::{Inputs, ServiceRow, SliceRow};
use crate::table::{FrontKey, Table};

/// What keeps the host equal to the table.
pub enum BackendConfig {
    /// Load balancers of the Host Networking Service.
    Hcn {
        /// The service.
        client: HcnClient,
        /// Name of the HNS network whose endpoints are backends.
        network: String,
        /// Direct server return for ClusterIPs where the service has it.
        dsr: bool,
    },
    /// nftables in this process's network namespace.
    #[cfg(target_os = "linux")]
    Nftables(crate::nftables::Settings),
}

/// What the proxy of one node needs.
pub struct Config {
    /// The API.
    pub client: Client,
    /// This node's name, which tells local endpoints.
    pub node_name: String,
    /// The cluster's identity (UID of namespace `kube-system`), which marks what is ours.
    pub cluster_uid: String,
    /// Where to program.
    pub backend: BackendConfig,
    /// How often the whole table is compared with the host.
    pub full_pass: Duration,
    /// Where to tell how far it is.
    pub status: Option<watch::Sender<Status>>,
}

/// How far the proxy is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Services and slices were read and every front end was tried once.
    pub ready: bool,
    /// Front ends that should exist.
    pub fronts: usize,
    /// Those that are not what they should be, with the reason.
    pub behind: BTreeMap<FrontKey, String>,
    /// Why the host cannot be read or written at all.
    pub unavailable: Option<String>,
}

enum Backend {
    Hns(Hns),
    #[cfg(target_os = "linux")]
    Nftables(crate::nftables::Nftables),
}

impl Backend {
    async fn sync(&mut self, table: &Table, dirty: &BTreeSet<FrontKey>, full: bool) -> Result<Outcome, String> {
        match self {
            Self::Hns(hns) => hns.sync(table, dirty, full).await,
            #[cfg(target_os = "linux")]
            Self::Nftables(nftables) => nftables.sync(table, dirty, full),
        }
    }
}

/// Retries begin after this and double up to [`SLOWEST`].
const QUICKEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(10);

/// Proxies Services on this node until `shutdown` completes. What was programmed stays: connections outlive a restart.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) {
    let backend = match config.backend {
        BackendConfig::Hcn { client, network, dsr } => Backend::Hns(Hns::new(client, config.cluster_uid.clone(), network, dsr)),
        #[cfg(target_os = "linux")]
        BackendConfig::Nftables(settings) => Backend::Nftables(crate::nftables::Nftables::new(settings)),
    };
    let inputs = Arc::new(Mutex::new(Inputs::default()));
    let (services, slices) = watch_rows(&config.client, &config.node_name, &inputs);
    let state = Loop {
        backend,
        inputs,
        table: Table::default(),
        pending: BTreeSet::new(),
        full_due: true,
        status: config.status.unwrap_or_else(|| watch::Sender::new(Status::default())),
    };
    tokio::pin!(shutdown);
    tokio::select! {
        () = state.drive(services, slices, config.full_pass) => {}
        () = &mut shutdown => {}
    }
}

type SharedInputs = Arc<Mutex<Inputs>>;

fn with<T>(inputs: &SharedInputs, f: impl FnOnce(&mut Inputs) -> T) -> T {
    f(&mut inputs.lock().unwrap_or_else(PoisonError::into_inner))
}

fn watch_rows(client: &Client, node: &str, inputs: &SharedInputs) -> (Informer<ServiceRow>, Informer<SliceRow>) {
    let for_services = inputs.clone();
    let services = Informer::start_with_handler(
        Api::<Service>::all(client.clone()),
        Selection::labels("!service.kubernetes.io/service-proxy-name"),
        ServiceRow::of,
        move |change| with(&for_services, |inputs| inputs.service(&change)),
    );
    let for_slices = inputs.clone();
    let node = node.to_owned();
    let slices = Informer::start_with_handler(
        Api::<EndpointSlice>::all(client.clone()),
        Selection::labels("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"),
        move |slice| SliceRow::of(slice, &node),
        move |change| with(&for_slices, |inputs| inputs.slice(&change)),
    );
    (services, slices)
}

struct Loop {
    backend: Backend,
    inputs: SharedInputs,
    table: Table,
    pending: BTreeSet<FrontKey>,
    full_due: bool,
    status: watch::Sender<Status>,
}

impl Loop {
    async fn drive(mut self, services: Informer<ServiceRow>, slices: Informer<SliceRow>, full_pass: Duration) {
        let mut services_changed = services.changed();
        let mut slices_changed = slices.changed();
        // Before both are known a full pass would take down what a predecessor programmed.
        services.synced().await;
        slices.synced().await;
        let mut backoff = Backoff::new(QUICKEST, SLOWEST);
        let mut next_full = Instant::now() + full_pass;
        loop {
            let was_full = self.full_due;
            let done = self.pass().await;
            if was_full && !self.full_due {
                next_full = Instant::now() + full_pass;
            }
            let wake = if done {
                backoff.reset();
                next_full
            } else {
                next_full.min(Instant::now() + backoff.next_delay()).max(Instant::now() + QUICKEST)
            };
            tokio::select! {
                _ = services_changed.changed() => {}
                _ = slices_changed.changed() => {}
                () = tokio::time::sleep_until(wake) => {
                    self.full_due |= Instant::now() >= next_full;
                }
            }
        }
    }

    /// One pass over what changed; true when nothing is left to do.
    async fn pass(&mut self) -> bool {
        self.take_changes();
        let outcome = self.backend.sync(&self.table, &self.pending, self.full_due).await;
        let (behind, unavailable) = match outcome {
            Ok(outcome) => {
                self.full_due = false;
                self.pending = outcome.failures.iter().map(|failure| failure.key).collect();
                if outcome.writes > 0 {
                    tracing::info!(writes = outcome.writes, fronts = self.table.len(), behind = self.pending.len(), "programmed services");
                }
                (outcome.failures.into_iter().map(|failure| (failure.key, failure.reason)).collect(), None)
            }
            Err(reason) => (BTreeMap::new(), Some(reason)),
        };
        self.report(behind, unavailable)
    }

    fn take_changes(&mut self) {
        let dirty = with(&self.inputs, Inputs::take_dirty);
        for service in dirty {
            let rows = with(&self.inputs, |inputs| inputs.rows(&service));
            let wanted = rows.map(|(row, slices)| wanted(&service, &row, &slices, &Terms::default())).unwrap_or_default();
            for change in self.table.set_service(&service, wanted) {
                tracing::debug!("{change}");
                self.pending.insert(change.key);
            }
        }
    }

    fn report(&self, behind: BTreeMap<FrontKey, String>, unavailable: Option<String>) -> bool {
        let done = behind.is_empty() && unavailable.is_none();
        self.status.send_if_modified(|status| {
            let next = Status { ready: status.ready || unavailable.is_none(), fronts: self.table.len(), behind, unavailable };
            for (key, reason) in next.behind.iter().filter(|(key, reason)| status.behind.get(key) != Some(reason)) {
                tracing::warn!(front = %key, "{reason}; trying again");
            }
            if let Some(reason) = next.unavailable.as_ref().filter(|reason| status.unavailable.as_ref() != Some(reason)) {
                tracing::warn!("services cannot be programmed: {reason}; trying again");
            }
            let differs = *status != next;
            *status = next;
            differs
        });
        done
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
