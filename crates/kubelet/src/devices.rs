//! Devices of plug-ins (upstream pkg/kubelet/cm/devicemanager).
//!
//! A plug-in makes itself known (`registration`) and sends the list of its devices whenever it changes. A pod gets its devices when it is
//! admitted, container by container (`book`, pure), the plug-in says what a container needs to use them, and the requests to the runtime
//! carry that (`options`). Who has what is kept in a file (`checkpoint`), so that it holds over a restart, and over a change to upstream's
//! kubelet and back.

mod book;
mod checkpoint;
mod options;
pub(crate) mod pod_resources;
mod registration;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use device_plugin::{Plugin, v1beta1};
use host::{HostError, HostRoot, PathError, PodPath};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use kube_rules::{Amounts, Quantity, Refusal};
use thiserror_ext::AsReport as _;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

pub(crate) use book::{AllocateError, Count};
use book::{Allocation, Book, Step, Want};
pub(crate) use checkpoint::check;
pub(crate) use options::Options;
pub(crate) use registration::{RegisterError, serve};

/// Why a pod or a container gets no devices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    #[error("unknown Device Plugin {0}")]
    NoPlugin(String),
    #[error("device plugin GetPreferredAllocation rpc failed with err")]
    Preferred(#[source] csi::Error),
    #[error(transparent)]
    Call(csi::Error),
    #[error("no containers return in allocation response of {0}")]
    NoAnswer(String),
    #[error("device plugin PreStartContainer rpc failed with err")]
    PreStart(#[source] csi::Error),
    #[error("the amount {amount} of resource {resource} is no number of devices")]
    Amount { resource: String, amount: String },
}

/// A plug-in that is connected.
struct Connected {
    plugin: Plugin,
    options: v1beta1::DevicePluginOptions,
    /// Another one of the same resource has another number.
    number: u64,
    watch: AbortHandle,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// The devices of a node.
pub(crate) struct Devices {
    root: Arc<HostRoot>,
    /// Where plug-ins have their sockets, and the checkpoint is.
    dir: PodPath,
    book: Mutex<Book>,
    plugins: Mutex<BTreeMap<String, Connected>>,
    /// One pod after the other gets its devices.
    turn: tokio::sync::Mutex<()>,
    /// What the Node shows has changed.
    changed: watch::Sender<()>,
    /// Pods with a device whose health is another than before.
    affected: mpsc::UnboundedSender<BTreeSet<String>>,
    /// No agent has kept devices here before.
    is_first: bool,
}

impl Devices {
    /// As an earlier agent left them. Pods whose status has to be told anew come from the receiver.
    pub(crate) fn load(root: Arc<HostRoot>, agent: &PodPath) -> Result<(Self, mpsc::UnboundedReceiver<BTreeSet<String>>), PathError> {
        let dir = agent.join("device-plugins")?;
        let file = dir.join(checkpoint::FILE)?;
        let (mut book, mut is_first) = (Book::default(), false);
        match root.read(&file, checkpoint::MAX_FILE) {
            Ok(None) => is_first = true,
            Ok(Some(bytes)) => match checkpoint::read(&bytes) {
                Ok(kept) => book = Book::restored(kept.entries, kept.registered, Instant::now()),
                Err(error) => {
                    tracing::error!(%file, error = %error.as_report(), "reading which pods have which devices failed; pods get devices anew");
                }
            },
            Err(error) => tracing::error!(%file, error = %error.as_report(), "reading which pods have which devices failed; pods get devices anew"),
        }
        let (affected, receiver) = mpsc::unbounded_channel();
        let devices = Devices {
            root,
            dir,
            book: Mutex::new(book),
            plugins: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            changed: watch::Sender::default(),
            affected,
            is_first,
        };
        Ok((devices, receiver))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plugins(&self) -> MutexGuard<'_, BTreeMap<String, Connected>> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes who has what. What cannot be written is logged: the pods run all the same.
    fn save(&self) {
        // The lock is held: an older state must not replace a newer one.
        let book = self.book();
        let written = self.dir.join(checkpoint::FILE).map_err(HostError::from).and_then(|file| {
            self.root.create_dir_all(&self.dir, 0o750)?;
            self.root.write_file(&file, &checkpoint::write(&book), 0o600)
        });
        if let Err(error) = written {
            tracing::error!(dir = %self.dir, error = %error.as_report(), "writing which pods have which devices failed; after a restart they may be given twice");
        }
    }

    /// Whether no agent has kept devices here before: what the Node shows of any is of another machine.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Tells when what the Node shows changes.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What the Node shows.
    pub(crate) fn counts(&self) -> BTreeMap<String, Count> {
        let mut book = self.book();
        let expired = book.expire(Instant::now());
        let counts = book.counts();
        drop(book);
        if expired {
            self.save();
        }
        counts
    }

    /// Adds what pods may request, at least what they have already: a plug-in that failed does not take it from them.
    pub(crate) fn add_allocatable(&self, amounts: &mut Amounts) {
        let book = self.book();
        for (name, count) in book.counts() {
            let held = book.in_use(&name).len();
            amounts.insert(name, Quantity::from_units(i64::try_from(count.allocatable.max(held)).unwrap_or(i64::MAX)));
        }
        let held: BTreeSet<String> = book.allocations().map(|(_, _, resource, _)| resource.clone()).collect();
        for name in held {
            let count = i64::try_from(book.in_use(&name).len()).unwrap_or(i64::MAX);
            amounts.entry(name).or_insert(Quantity::from_units(count));
        }
    }

    /// Gives a pod's containers their devices, in upstream's order: init containers first, whose devices later containers of the pod use
    /// again.
    pub(crate) async fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        let refused = |error: DeviceError| Refusal {
            reason: "UnexpectedAdmissionError".into(),
            message: format!("Allocate failed due to {}, which is unexpected", error.to_report_string()),
        };
        let Some(spec) = pod.spec.as_ref() else { return Ok(()) };
        let _turn = self.turn.lock().await;
        let mut reusable = BTreeMap::new();
        for container in spec.init_containers.iter().flatten() {
            let keeps = container.restart_policy.as_deref() == Some("Always");
            self.allocate(pod, container, &mut reusable, keeps).await.map_err(refused)?;
        }
        for container in &spec.containers {
            self.allocate(pod, container, &mut reusable, true).await.map_err(refused)?;
        }
        Ok(())
    }

    /// Gives one container its devices. One that `keeps` them takes them from those that later containers may use.
    async fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        reusable: &mut BTreeMap<String, BTreeSet<String>>,
        keeps: bool,
    ) -> Result<(), DeviceError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut gave = false;
        for (resource, count) in self.wanted(container)? {
            let want = Want { pod: uid, container: &container.name, resource: &resource, count };
            let of_resource = reusable.entry(resource.clone()).or_default();
            let step = self.book().choose(&want, of_resource)?;
            let ids = match step {
                Step::Nothing => continue,
                Step::Take(ids) => ids,
                Step::Prefer { taken, available, needed } => {
                    let preferred = self.preferred(&resource, &taken, &available, count).await?;
                    book::settle(taken, &available, needed, &preferred)
                }
            };
            let plugin = self.plugin(&resource).ok_or_else(|| DeviceError::NoPlugin(resource.clone()))?.0;
            let answer = plugin.allocate(ids.iter().cloned().collect()).await.map_err(DeviceError::Call)?;
            let response = answer.ok_or_else(|| DeviceError::NoAnswer(resource.clone()))?;
            let mut book = self.book();
            let devices = book.by_node(&resource, &ids);
            book.insert(uid, &container.name, &resource, Allocation { devices, response });
            gave = true;
        }
        let book = self.book();
        for (resource, allocation) in book.of_container(uid, &container.name).into_iter().flatten() {
            let of_resource = reusable.entry(resource.clone()).or_default();
            match keeps {
                true => of_resource.retain(|id| !allocation.ids().contains(id)),
                false => of_resource.extend(allocation.ids()),
            }
        }
        drop(book);
        if gave {
            self.save();
        }
        Ok(())
    }

    /// The resources of plug-ins that a container asks for. Such resources have limits that are their requests.
    fn wanted(&self, container: &Container) -> Result<Vec<(String, usize)>, DeviceError> {
        let book = self.book();
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let ours = limits.into_iter().flatten().filter(|(name, _)| book.manages(name));
        let count = |(name, amount): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
            let value = Quantity::parse(&amount.0).ok().and_then(|quantity| usize::try_from(quantity.value()).ok());
            value.map(|count| (name.clone(), count)).ok_or_else(|| DeviceError::Amount { resource: name.clone(), amount: amount.0.clone() })
        };
        ours.map(count).collect()
    }

    fn plugin(&self, resource: &str) -> Option<(Plugin, v1beta1::DevicePluginOptions)> {
        self.plugins().get(resource).map(|connected| (connected.plugin.clone(), connected.options))
    }

    /// The devices that the plug-in would rather give, where it has an opinion.
    async fn preferred(
        &self,
        resource: &str,
        taken: &BTreeSet<String>,
        available: &BTreeSet<String>,
        count: usize,
    ) -> Result<Vec<String>, DeviceError> {
        match self.plugin(resource) {
            Some((plugin, options)) if options.get_preferred_allocation_available => {
                let all = available.union(taken).cloned().collect();
                let size = i32::try_from(count).unwrap_or(i32::MAX);
                plugin.preferred(all, taken.iter().cloned().collect(), size).await.map_err(DeviceError::Preferred)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What the request for a container carries of its devices; the plug-ins that want to know that it starts are told.
    pub(crate) async fn prepare(&self, pod: &Pod, container: &Container) -> Result<Options, DeviceError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let wanted: Vec<(String, usize)> = self.wanted(container)?.into_iter().filter(|(_, count)| *count > 0).collect();
        let ids = |resource: &str| Some(self.book().of_container(uid, &container.name)?.get(resource)?.ids());
        // The plug-in was not there when the pod was admitted, or the checkpoint is lost.
        if wanted.iter().any(|(resource, _)| ids(resource).is_none()) {
            let _turn = self.turn.lock().await;
            self.allocate(pod, container, &mut BTreeMap::new(), true).await?;
        }
        for (resource, _) in &wanted {
            let Some((plugin, _)) = self.plugin(resource).filter(|(_, options)| options.pre_start_required) else { continue };
            let ids = ids(resource).unwrap_or_default().into_iter().collect();
            plugin.pre_start(ids).await.map_err(DeviceError::PreStart)?;
        }
        let book = self.book();
        Ok(book.of_container(uid, &container.name).map(options::of).unwrap_or_default())
    }

    /// Frees what a pod has.
    pub(crate) fn release(&self, uid: &str) {
        let released = self.book().release(uid);
        if released {
            self.save();
        }
    }

    /// The pods that have devices.
    pub(crate) fn pods(&self) -> BTreeSet<String> {
        self.book().allocations().map(|(pod, ..)| pod.clone()).collect()
    }

    /// Writes the health of each container's devices into its status.
    pub(crate) fn add_health(&self, uid: &str, status: &mut PodStatus) {
        let book = self.book();
        for container in status.container_statuses.iter_mut().flatten() {
            let Some(all) = book.of_container(uid, &container.name) else { continue };
            let of = |(resource, allocation): (&String, &Allocation)| {
                let health = |id: String| {
                    let health = if book.is_healthy(resource, &id) { "Healthy" } else { "Unhealthy" };
                    ResourceHealth { health: Some(health.to_owned()), resource_id: id, ..Default::default() }
                };
                let resources = allocation.ids().into_iter().map(health).collect();
                ResourceStatus { name: resource.clone(), resources: Some(resources) }
            };
            container.allocated_resources_status = Some(all.iter().map(of).collect());
        }
    }
}
