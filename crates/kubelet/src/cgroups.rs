//! Control groups of pods (upstream pkg/kubelet/cm): the agent makes them before a pod's sandbox, and removes them after its end.
//!
//! Keeps true: below the configured root there is `kubepods` with what the node has for pods, in it `burstable` and `besteffort` with the shares
//! of their pods together, and in these one group for each pod with its limits, named as upstream names them. Inputs: pods that the node has
//! taken, the table of mounts. Flow: [`tree`] (what the machine has) → [`limits`] (what a group gets) → [`plan`] (steps, as data) → [`apply`].
//! Guarantees: a group goes only when it is named for a pod below `kubepods`, with the processes that are left in it; no link is followed. Where
//! the agent may make no groups, it says so once, and the container runtime's own are all there are. Does not do: MemoryQoS.

mod apply;
#[cfg(target_os = "linux")]
mod bus;
mod keep;
mod limits;
mod names;
mod plan;
mod systemd;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube_rules::{Amounts, Quantity};
use thiserror_ext::AsReport as _;
use tokio::sync::{Mutex, Notify, OnceCell};

use crate::config::{Cgroups, Config, GroupSettings};
use crate::cri_config::NodeSide;
use crate::pod::resources::Kernel;
use host::{HostRoot, PodPath};
use limits::Limits;
use plan::{Site, Step};
use tree::{Tree, UNIFIED};

pub(crate) use apply::GroupError;
pub(crate) use names::Name;

/// The group of all pods, below the configured root.
const PODS: &str = "kubepods";
/// Bytes of a table of mounts: a pod has a dozen.
const MOUNTS: u64 = 16 << 20;
/// How often groups of classes are written, though nothing changed (upstream `periodicQOSCgroupUpdateInterval`).
const PERIOD: Duration = Duration::from_secs(60);
/// How long changes of pods gather before the next look at their sums.
const PAUSE: Duration = Duration::from_millis(100);

/// The groups of pods below the configured root; None where pods have none of their own (`cgroupsPerQOS: false`).
pub(crate) fn root_of_pods(settings: &GroupSettings) -> Option<Name> {
    settings.per_qos.then(|| Name::parse(&settings.root).child(PODS))
}

/// The group of a class below that of all pods: that of Guaranteed pods is the same.
fn class(pods: &Name, qos: &str) -> Name {
    if qos == "Guaranteed" { pods.clone() } else { pods.child(&qos.to_lowercase()) }
}

/// The group of a pod; None for UIDs that make no name.
pub(crate) fn of_pod(pods: &Name, pod: &Pod) -> Option<Name> {
    let none = PodSpec::default();
    let qos = kube_rules::qos_class(pod.spec.as_ref().unwrap_or(&none));
    class(pods, qos).pod(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The machine's control groups as far as they are those of pods.
pub(crate) struct Groups {
    root: Arc<HostRoot>,
    settings: GroupSettings,
    kernel: Kernel,
    driver: Cgroups,
    told: Arc<OnceLock<Cgroups>>,
    pods: Name,
    /// What pods may use together.
    amounts: Amounts,
    /// Made at the first use: only then the runtime has said how it makes groups. None where the agent may make none.
    site: OnceCell<Option<Site>>,
    changed: Notify,
    /// Groups that could not shrink yet, with the limits that they have to get. An entry is taken out before newer limits are written, and held
    /// while it is written itself: it never comes after newer ones.
    late: Mutex<BTreeMap<Name, Limits>>,
}

impl Groups {
    /// None where pods have no groups of their own: on Windows and on simulated nodes.
    pub(crate) fn new(config: &Config, side: &NodeSide) -> Option<Arc<Self>> {
        let pods = side.pod_groups.clone().filter(|_| config.is_machine && !config.os.is_windows())?;
        Some(Arc::new(Groups {
            root: config.root.clone(),
            settings: config.groups.clone(),
            kernel: side.kernel.clone(),
            driver: side.cgroups,
            told: side.runtime_cgroups.clone(),
            pods,
            amounts: amounts(config),
            site: OnceCell::new(),
            changed: Notify::new(),
            late: Mutex::default(),
        }))
    }

    /// What the groups are made of; None where the agent can make none.
    async fn site(&self) -> Result<Option<&Site>, GroupError> {
        let site = self.site.get_or_try_init(|| async {
            let driver = self.told.get().copied().unwrap_or(self.driver);
            let Some(tree) = read_tree(&self.root) else {
                tracing::warn!("this machine has no control groups mounted: limits of pods as a whole do not hold");
                return Ok(None);
            };
            let site = Site { tree, driver, page_sizes: self.kernel.huge_pages.clone() };
            match self.prepare(&site).await {
                Ok(()) => Ok(Some(site)),
                Err(error) if error.is_denied() => {
                    tracing::warn!(
                        error = %error.as_report(),
                        "the agent may make no control groups, and limits of pods as a whole do not hold; run it as root, or set cgroupsPerQOS: \
                         false and enforceNodeAllocatable: [none]"
                    );
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        });
        Ok(site.await?.as_ref())
    }

    /// Makes the groups of all pods and of their classes.
    async fn prepare(&self, site: &Site) -> Result<(), GroupError> {
        let above = Name::parse(&self.settings.root);
        // As configured, whatever the driver.
        let files = Site { driver: Cgroups::Files, ..site.clone() };
        self.check_there(&files, &above)?;
        let mut steps = site.make_whole(&self.pods);
        for qos in ["Burstable", "BestEffort"] {
            steps.extend(site.make_whole(&class(&self.pods, qos)));
        }
        self.run(&steps).await
    }

    fn check_there(&self, site: &Site, name: &Name) -> Result<(), GroupError> {
        let is_there = |group: &String| self.root.parse(group).is_ok_and(|path| self.root.kind(&path).is_ok_and(|kind| kind.is_some()));
        let missing: Vec<String> = site.groups(name).into_iter().filter(|group| !is_there(group)).collect();
        if missing.is_empty() { Ok(()) } else { Err(GroupError::Missing { name: name.clone(), paths: missing.join(", ") }) }
    }

    async fn run(&self, steps: &[Step]) -> Result<(), GroupError> {
        apply::run(&self.root, steps).await
    }

    fn limits(&self, pod: &Pod) -> Limits {
        let none = PodSpec::default();
        Limits::of_pod(pod.spec.as_ref().unwrap_or(&none), &self.kernel, self.settings.pids)
    }

    /// Makes the group of a pod with its limits, or gives one that is there its limits.
    pub(crate) async fn ensure(&self, pod: &Pod) -> Result<(), GroupError> {
        let Some(site) = self.site().await? else { return Ok(()) };
        let name = self.name(pod)?;
        let make = async {
            match self.run(&site.make(&name)).await {
                // Somebody removed the groups above it.
                Err(error) if error.is_missing() => self.run(&site.make_whole(&name)).await?,
                made => made?,
            }
            let limits = self.limits(pod);
            self.late.lock().await.remove(&name);
            match self.set(site, &name, &limits).await {
                // Of an earlier sandbox, with files in memory.
                Err(error @ GroupError::InUse { .. }) => {
                    tracing::warn!(group = %name, error = %error.as_report(), "a pod's control group keeps its old memory limit; trying again");
                    self.late.lock().await.insert(name.clone(), Limits { memory: limits.memory, ..Limits::default() });
                    Ok(())
                }
                other => other,
            }
        };
        let result = make.await.map_err(|error| GroupError::Create { name: name.clone(), source: Box::new(error) });
        self.changed.notify_one();
        result
    }

    /// Gives the group of a pod limits, memory last: where the group uses more, the others hold all the same.
    async fn set(&self, site: &Site, name: &Name, limits: &Limits) -> Result<(), GroupError> {
        self.run(&site.set(name, &Limits { memory: None, ..limits.clone() })).await?;
        apply::check_usage(&self.root, site, name, limits)?;
        self.run(&site.set(name, &Limits { memory: limits.memory, ..Limits::default() })).await
    }

    fn name(&self, pod: &Pod) -> Result<Name, GroupError> {
        of_pod(&self.pods, pod).ok_or_else(|| GroupError::Uid(pod.metadata.uid.clone().unwrap_or_default()))
    }

    /// Says that pods came, went or have other resources.
    pub(crate) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Gives a pod's group what it lacks of the pod's limits, before a container gets more.
    pub(crate) async fn grow(&self, pod: &Pod) -> Result<(), GroupError> {
        let Some(site) = self.site().await? else { return Ok(()) };
        let name = self.name(pod)?;
        // It is of an earlier resize; `settle` writes what shrinks in this one.
        self.late.lock().await.remove(&name);
        let more = apply::growth(&apply::current(&self.root, site, &name)?, &self.limits(pod));
        self.run(&site.set(&name, &more)).await
    }

    /// Why the memory limit of a pod's group cannot shrink to that of the pod now (upstream `validateMemoryResizeAction`).
    pub(crate) async fn refuses(&self, pod: &Pod) -> Option<String> {
        let shrinking = async {
            let Some(site) = self.site().await? else { return Ok(None) };
            apply::shrinking(&self.root, site, &self.name(pod)?, &self.limits(pod))
        };
        match shrinking.await {
            Ok(Some((wanted, Some(used)))) if used >= wanted => {
                Some(format!("attempting to set pod memory limit ({wanted}) below current usage ({used})"))
            }
            Ok(Some((_, None))) => Some("missing pod memory usage".to_owned()),
            Ok(_) => None,
            Err(error) => Some(error.to_report_string()),
        }
    }

    /// Gives a pod's group its limits, once its containers have theirs. What cannot shrink now does later.
    pub(crate) async fn settle(&self, pod: &Pod) {
        let settle = async {
            let Some(site) = self.site().await? else { return Ok(()) };
            let name = self.name(pod)?;
            let limits = Limits { pids: None, huge_pages: None, ..self.limits(pod) };
            self.late.lock().await.remove(&name);
            let result = self.set(site, &name, &limits).await;
            if result.is_err() {
                self.late.lock().await.insert(name, limits);
            }
            result
        };
        if let Err(error) = settle.await {
            let pod = crate::agent::key(pod);
            tracing::warn!(%pod, error = %error.as_report(), "the control group of a resized pod keeps more than the pod has; trying again");
        }
        self.changed.notify_one();
    }

    /// Removes the group of a pod that has ended, with what is left in it.
    pub(crate) async fn remove(&self, pod: &Pod) -> Result<(), GroupError> {
        match of_pod(&self.pods, pod) {
            Some(name) => self.remove_named(&name).await,
            None => Ok(()),
        }
    }

    async fn remove_named(&self, name: &Name) -> Result<(), GroupError> {
        // Who has made none has none to remove.
        let Some(site) = self.site.get().and_then(Option::as_ref) else { return Ok(()) };
        self.late.lock().await.remove(name);
        let removed = apply::remove(&self.root, site, name).await;
        self.changed.notify_one();
        removed
    }

    /// The groups of pods, with their UIDs.
    pub(crate) async fn all(&self) -> Vec<(String, Name)> {
        let Ok(Some(site)) = self.site().await else { return Vec::new() };
        let mut all = BTreeMap::new();
        for qos in ["Guaranteed", "Burstable", "BestEffort"] {
            let class = class(&self.pods, qos);
            for group in site.groups(&class) {
                for entry in apply::directories(&self.root, &group) {
                    if let Some(uid) = class.pod_of(site.driver, &entry)
                        && let Some(name) = class.pod(&uid)
                    {
                        all.insert(name, uid);
                    }
                }
            }
        }
        all.into_iter().map(|(name, uid)| (uid, name)).collect()
    }

    /// Removes groups that belong to no pod. Those of pods whose volumes are still there stay, with the least share of processors: the memory
    /// of the volumes counts there.
    pub(crate) async fn remove_orphans(&self, orphans: Vec<(String, Name)>, has_volumes: impl Fn(&str) -> bool) {
        for (uid, name) in orphans {
            let result = match (has_volumes(&uid), self.site.get()) {
                (true, Some(Some(site))) => self.run(&site.set(&name, &Limits::least())).await,
                _ => self.remove_named(&name).await,
            };
            if let Err(error) = result {
                tracing::warn!(pod = uid, error = %error.as_report(), "the control group of a pod that is gone stays for now");
            }
        }
    }
}

/// What a node has for pods together, processes among it.
fn amounts(config: &Config) -> Amounts {
    let capacity = &config.capacity;
    let mut all = Amounts::from([
        ("cpu".to_owned(), Quantity::from_millis(capacity.cpu_millis)),
        ("memory".to_owned(), Quantity::from_bytes(i64::try_from(capacity.memory_bytes).unwrap_or(i64::MAX))),
    ]);
    all.extend(most_processes(&config.root).map(|most| ("pid".to_owned(), Quantity::from_units(most))));
    for (size, count) in &config.huge_pages {
        let bytes = i64::try_from(size.saturating_mul(*count)).unwrap_or(i64::MAX);
        all.insert(format!("hugepages-{size}"), Quantity::from_bytes(bytes));
    }
    if config.groups.keeps_reserved {
        for (name, amount) in &mut all {
            if let Some(reserved) = config.reserved.get(name) {
                *amount = Quantity::from_millis(amount.milli_value().saturating_sub(reserved.milli_value()).max(0));
            }
        }
    }
    all
}

/// How many processes the kernel runs at most (upstream stats/pidlimit).
fn most_processes(root: &HostRoot) -> Option<i64> {
    let read = |path: &str| {
        let bytes = root.read(&root.parse(path).ok()?, 64).ok()??;
        String::from_utf8(bytes).ok()?.trim().parse::<i64>().ok()
    };
    [read("/proc/sys/kernel/pid_max"), read("/proc/sys/kernel/threads-max")].into_iter().flatten().min()
}

fn text(root: &HostRoot, path: &str) -> Option<String> {
    let bytes = root.read(&root.parse(path).ok()?, MOUNTS).ok()??;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn mountinfo(root: &HostRoot) -> Option<String> {
    text(root, &format!("/proc/{}/mountinfo", std::process::id()))
}

fn read_tree(root: &HostRoot) -> Option<Tree> {
    let controllers = text(root, &format!("{UNIFIED}/cgroup.controllers")).unwrap_or_default();
    tree::read(&mountinfo(root)?, &controllers)
}

/// Whether the machine has control groups of version 1.
pub(crate) fn is_version_1(root: &HostRoot) -> bool {
    mountinfo(root).is_some_and(|mounts| !tree::is_unified(&mounts) && tree::read(&mounts, "").is_some())
}

/// A path on the node.
fn path(root: &HostRoot, text: &str) -> Result<PodPath, host::HostError> {
    root.parse(text)
}
