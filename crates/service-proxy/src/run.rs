//! The loop: rows in, table, backend, retries, full passes.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::{Informer, Selection};
use hcn::HcnClient;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{Backend, Passes, Progress};
use crate::fronts::{Terms, wanted};
use crate::hns::Hns;
use crate::rows::{Inputs, ServiceRow, SliceRow};
use crate::table::Table;

/// What keeps the host equal to the table.
pub enum BackendConfig {
    /// Load balancers of the Host Networking Service.
    Hcn {
        /// The service.
        client: HcnClient,
        /// What it is told.
        settings: crate::hns::Settings,
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
    /// How far the backend is with them.
    pub progress: Progress,
}

impl Status {
    /// Front ends that are not what they should be: desired − programmed.
    pub fn missing(&self) -> usize {
        self.progress.pending.max(self.progress.behind.len())
    }

    /// Whether everything is what it should be.
    pub fn is_converged(&self) -> bool {
        self.ready && self.missing() == 0 && self.progress.unavailable.is_none()
    }
}

/// A number that merely goes on is told this often.
const TELL: Duration = Duration::from_millis(200);

/// Proxies Services on this node until `shutdown` completes. What was programmed stays: connections outlive a restart.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) {
    let backend = match config.backend {
        BackendConfig::Hcn { client, settings } => Backend::Hns(Box::new(Hns::new(&client, config.cluster_uid.clone(), settings))),
        #[cfg(target_os = "linux")]
        BackendConfig::Nftables(settings) => Backend::Nftables(Passes::new(crate::nftables::Nftables::new(settings), config.full_pass)),
    };
    let inputs = Arc::new(Mutex::new(Inputs::default()));
    let (services, slices) = watch_rows(&config.client, &config.node_name, &inputs);
    let state = Loop {
        backend,
        inputs,
        table: Table::default(),
        progress: Progress::default(),
        told: Instant::now(),
        status: config.status.unwrap_or_else(|| watch::Sender::new(Status::default())),
    };
    tokio::pin!(shutdown);
    tokio::select! {
        () = state.drive(services, slices) => {}
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
    progress: Progress,
    told: Instant,
    status: watch::Sender<Status>,
}

impl Loop {
    async fn drive(mut self, services: Informer<ServiceRow>, slices: Informer<SliceRow>) {
        let mut services_changed = services.changed();
        let mut slices_changed = slices.changed();
        // Before both are known we would take down what a predecessor programmed.
        services.synced().await;
        slices.synced().await;
        self.take_changes();
        loop {
            self.backend.begin(&self.table);
            tokio::select! {
                _ = services_changed.changed() => self.take_changes(),
                _ = slices_changed.changed() => self.take_changes(),
                turn = self.backend.turn() => self.backend.take(turn, &self.table),
            }
            self.report();
        }
    }

    fn take_changes(&mut self) {
        let dirty = with(&self.inputs, Inputs::take_dirty);
        for service in dirty {
            let rows = with(&self.inputs, |inputs| inputs.rows(&service));
            let wanted = rows.map(|(row, slices)| wanted(&service, &row, &slices, &Terms::default())).unwrap_or_default();
            let changes = self.table.set_service(&service, wanted);
            changes.iter().for_each(|change| tracing::debug!("{change}"));
            self.backend.touch(changes.into_iter().map(|change| change.key), &self.table);
        }
    }

    fn report(&mut self) {
        let news = self.backend.news();
        let (pending, writes) = self.backend.pending();
        let moved = (pending == 0) != (self.progress.pending == 0) || self.told.elapsed() >= TELL && pending != self.progress.pending;
        if news.is_none() && !moved && self.status.borrow().fronts == self.table.len() {
            return;
        }
        self.told = Instant::now();
        if let Some(news) = news {
            self.progress = news;
        }
        (self.progress.pending, self.progress.writes) = (pending, writes);
        let (progress, fronts) = (&self.progress, self.table.len());
        self.status.send_if_modified(|status| {
            let next = Status { ready: status.ready || progress.ready, fronts, progress: progress.clone() };
            let differs = *status != next;
            *status = next;
            differs
        });
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
