//! Rows of Jobs and their pods.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobSpec, JobStatus},
        core::v1::{ContainerStatus, Pod, PodSpec, PodStatus},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::view::{Controller, controller_of};
use kube_rules::{Labels, Selector, readiness};

/// Holds a pod back until its end is counted.
pub(crate) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// The index of a pod, as annotation and as label.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often the index failed before this pod.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// How often it failed without that counting.
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// The value of `managedBy` that means this controller.
const OURS: &str = "kubernetes.io/job-controller";

/// The end of a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub complete: bool,
    pub at: Option<Timestamp>,
}

/// Row of a Job; the work itself reads the newest object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobRow {
    pub uid: String,
    pub version: String,
    pub controller: Option<Controller>,
    pub selector: Selector,
    pub deleting: bool,
    pub ended: Option<Ended>,
    pub started: Option<Timestamp>,
    pub completed: Option<Timestamp>,
    /// How many seconds it is kept after its end.
    pub ttl: Option<i32>,
    /// Another controller works on it.
    pub foreign: bool,
}

impl JobRow {
    pub fn new(job: &Job) -> Self {
        let meta = &job.metadata;
        let (spec, status) = (job.spec.as_ref(), job.status.as_ref());
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            controller: controller_of(meta),
            selector: spec.and_then(|spec| spec.selector.as_ref()).map(Selector::new).unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            ended: status.and_then(ended),
            started: status.and_then(|status| status.start_time.as_ref()).map(|time| time.0),
            completed: status.and_then(|status| status.completion_time.as_ref()).map(|time| time.0),
            ttl: spec.and_then(|spec| spec.ttl_seconds_after_finished),
            foreign: spec.and_then(|spec| spec.managed_by.as_deref()).is_some_and(|manager| manager != OURS),
        }
    }

    /// When it is to be deleted by itself.
    pub fn expires(&self) -> Option<Timestamp> {
        let (ended, ttl) = (self.ended.as_ref()?, self.ttl?);
        ended.at?.checked_add(SignedDuration::from_secs(ttl.into())).ok()
    }
}

/// How and when a Job ended, if it did.
pub(super) fn ended(status: &JobStatus) -> Option<Ended> {
    let conditions = status.conditions.iter().flatten();
    let end = conditions.into_iter().find(|one| matches!(one.type_.as_str(), "Complete" | "Failed") && one.status == "True")?;
    Some(Ended { complete: end.type_ == "Complete", at: end.last_transition_time.as_ref().map(|time| time.0) })
}

/// A condition by its type.
pub(super) fn condition<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|one| one.type_ == type_)
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exit {
    pub container: String,
    pub code: i32,
}

/// Row of a pod that is or could be a Job's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JobPod {
    pub name: String,
    pub uid: String,
    pub labels: Labels,
    pub controller: Option<Controller>,
    pub deleting: bool,
    /// It has the finalizer, so its end is not counted yet.
    pub tracked: bool,
    pub phase: String,
    /// Since when it is ready, if it is.
    pub ready: Option<Timestamp>,
    pub node: String,
    pub created: Option<Timestamp>,
    /// Restarts of all its containers together.
    pub restarts: i32,
    pub index: Option<i32>,
    pub failures: i32,
    pub ignored_failures: i32,
    /// When it ended, as far as it can be told.
    pub ended: Timestamp,
    /// Containers that ended, those of `initContainers` last.
    pub exits: Vec<Exit>,
    /// Types and states of its conditions.
    pub conditions: Vec<(String, String)>,
}

impl JobPod {
    /// None: a pod that another kind of controller keeps.
    pub fn new(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let controller = controller_of(meta);
        if controller.as_ref().is_some_and(|owner| owner.kind != "Job") {
            return None;
        }
        let status = pod.status.clone().unwrap_or_default();
        let statuses = || status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        let ready = readiness::ready(status.conditions.iter().flatten());
        Some(Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            controller,
            deleting: meta.deletion_timestamp.is_some(),
            tracked: meta.finalizers.iter().flatten().any(|one| one == FINALIZER),
            ready: ready.map(|one| one.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            restarts: statuses().map(|one| one.restart_count).sum(),
            index: number(meta, INDEX),
            failures: number(meta, FAILURES).unwrap_or_default(),
            ignored_failures: number(meta, IGNORED_FAILURES).unwrap_or_default(),
            ended: end_time(meta, pod.spec.as_ref(), &status),
            exits: statuses().filter_map(exit).collect(),
            conditions: status.conditions.iter().flatten().map(|one| (one.type_.clone(), one.status.clone())).collect(),
            phase: status.phase.unwrap_or_default(),
        })
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Neither ended nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.deleting
    }

    /// Being deleted, and not ended yet.
    pub fn is_terminating(&self) -> bool {
        !self.is_finished() && self.deleting
    }
}

/// A number in an annotation; one that is negative or no number counts as missing.
fn number(meta: &ObjectMeta, annotation: &str) -> Option<i32> {
    meta.annotations.as_ref()?.get(annotation)?.parse().ok().filter(|number| *number >= 0)
}

fn exit(status: &ContainerStatus) -> Option<Exit> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    Some(Exit { container: status.name.clone(), code: ended.exit_code })
}

/// When a pod ended (upstream: `getFinishedTime`): the end of its last container, else when it stopped being ready, else when its deletion
/// began, else its creation.
fn end_time(meta: &ObjectMeta, spec: Option<&PodSpec>, status: &PodStatus) -> Timestamp {
    let not_ready = || {
        let condition = status.conditions.iter().flatten().find(|one| one.type_ == "Ready" && one.status == "False")?;
        condition.last_transition_time.as_ref().map(|time| time.0)
    };
    let deleted = || {
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or_default());
        meta.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
    };
    let created = || meta.creation_timestamp.as_ref().map(|time| time.0);
    last_exit(spec, status).or_else(not_ready).or_else(deleted).or_else(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// When the last container ended; none while one runs.
fn last_exit(spec: Option<&PodSpec>, status: &PodStatus) -> Option<Timestamp> {
    let sidecars = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let sidecars: Vec<&str> = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always")).map(|one| one.name.as_str()).collect();
    let beside = status.init_container_statuses.iter().flatten().filter(|one| sidecars.contains(&one.name.as_str()));
    let ends = status.container_statuses.iter().flatten().chain(beside);
    let ends: Option<Vec<Timestamp>> = ends.map(|one| Some(one.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)).collect();
    ends?.into_iter().max()
}

/// A Job as the plan sees it.
#[derive(Debug, Clone)]
pub(super) struct JobView {
    pub ns: String,
    pub deleting: bool,
    pub spec: JobSpec,
    pub status: JobStatus,
}

impl JobView {
    pub fn new(job: &Job) -> Option<Self> {
        Some(Self {
            ns: job.metadata.namespace.clone().unwrap_or_default(),
            deleting: job.metadata.deletion_timestamp.is_some(),
            spec: job.spec.clone()?,
            status: job.status.clone().unwrap_or_default(),
        })
    }

    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    /// How many indexes there are; a Job that is not indexed has none.
    pub fn indexes(&self) -> i32 {
        if self.is_indexed() { self.spec.completions.unwrap_or_default() } else { 0 }
    }

    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    pub fn parallelism(&self) -> i32 {
        self.spec.parallelism.unwrap_or(1)
    }

    pub fn backoff_limit(&self) -> i32 {
        let default = if self.spec.backoff_limit_per_index.is_some() { i32::MAX } else { 6 };
        self.spec.backoff_limit.unwrap_or(default)
    }

    /// A pod is replaced only once it has ended, not as soon as it is being deleted.
    pub fn replaces_only_failed(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some()
    }

    /// Whether a pod counts as failed (upstream: `isPodFailed`).
    pub fn has_failed(&self, pod: &JobPod) -> bool {
        pod.phase == "Failed" || (!self.replaces_only_failed() && pod.deleting && pod.phase != "Succeeded")
    }

    /// The pod's index, if the Job has it.
    pub fn index_of(&self, pod: &JobPod) -> Option<i32> {
        pod.index.filter(|index| *index < self.indexes())
    }
}
