//! The memory of the pod machine: work under way, failures, and when to try again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use kube_rules::Refusal;

use super::resize::Resize;
use super::{Backoffs, Container, Why};

/// What is known beside the pod and the runtime: work under way, failures and when to try again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// The node's refusal; final.
    pub refused: Option<Refusal>,
    /// The node needs what the pod has; final.
    pub evicted: Option<Evicted>,
    pub volumes: Volumes,
    /// The content of mounted volumes.
    pub content: Content,
    pub sandbox: SandboxWork,
    /// By container name.
    pub images: BTreeMap<String, ImageState>,
    /// Names of containers that are being created and started.
    pub starting: BTreeSet<String>,
    /// postStart hooks that run or failed, by container id.
    pub hooks: BTreeMap<String, Hook>,
    /// Failed creates and starts, by container name.
    pub failures: BTreeMap<String, Failure>,
    /// Restart back-off, by container name and hash.
    pub restarts: Backoffs,
    /// By how much the wall clock has moved since these ended containers were seen, by id: their ends are times of the runtime.
    pub moved: BTreeMap<String, SignedDuration>,
    /// Ids of ended containers whose back-off was announced.
    pub announced: BTreeSet<String>,
    /// Stops of containers, by id, until the runtime forgets the container.
    pub stops: BTreeMap<String, Stop>,
    /// The preStop hooks of containers that end after others, by id.
    pub prepared: BTreeMap<String, PreStop>,
    /// When the first container was stopped since the pod ends: the grace runs from there for all.
    pub ends_since: Option<Timestamp>,
    /// Stops of sandboxes, by id.
    pub sandbox_stops: BTreeMap<String, Attempt>,
    /// Removals of old containers, by id.
    pub removals: BTreeMap<String, Removal>,
    /// Containers that were removed so that all start again, by name: how often each has restarted with its next run.
    pub reset: BTreeMap<String, u32>,
    /// The current step of the pod's end: tearing down, cleaning up or deleting.
    pub ending: Option<Attempt>,
    pub resize: Resize,
    /// The writing of the record of resources.
    pub saving: Option<Attempt>,
    /// Probe verdicts, by container id. A container without probes has none.
    pub health: BTreeMap<String, Health>,
    /// Runtime objects, volumes and directories are gone.
    pub cleaned: bool,
    /// Volumes were torn down after the pod ended.
    pub volumes_down: bool,
}

/// Why and how the node ends a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub reason: Reason,
    /// What status and event say.
    pub message: String,
    /// Seconds that its containers get at most.
    pub grace: i64,
    /// What the condition DisruptionTarget says; none where the pod has itself to blame.
    pub disruption: Option<String>,
}

/// Why the node ends a pod. The status has it under the variant's name, as upstream's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The node is short of something, or the pod takes more than it may.
    Evicted,
    /// A critical pod needs its room.
    Preempting,
    /// The machine goes down.
    Terminated,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The pod's volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Volumes {
    #[default]
    NotReady,
    /// They are being mounted, after this failure.
    Mounting(Option<Retry>),
    Ready,
    Failed(Retry),
}

/// The content of mounted volumes, which follows Secrets, ConfigMaps, tokens and the pod's metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Content {
    #[default]
    Current,
    /// It may have changed, at the latest when `failed` asks for it.
    Stale { failed: Option<Retry> },
    /// It is being written.
    Refreshing { failed: Option<Retry>, changed_again: bool },
}

/// The making of the pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum SandboxWork {
    #[default]
    Idle,
    /// One is being made, after this failure.
    Creating(Option<Retry>),
    Failed(Retry),
}

/// When something that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    pub at: Timestamp,
    /// How often it failed in a row.
    pub count: u32,
}

/// Work that is repeated until it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    UnderWay,
    RetryAt(Timestamp),
    Done,
}

/// A removal of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Removal {
    pub attempt: Attempt,
    /// The runtime refused it.
    pub failed: Option<Retry>,
}

/// A stop of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Seconds; the shortest that was asked for.
    pub grace: i64,
    pub why: Why,
    pub attempt: Attempt,
}

/// The preStop hook of a container whose stop comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreStop {
    Running,
    /// It ended, or there is none.
    Over,
}

/// A postStart hook that did not succeed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Running,
    Failed,
}

/// Why a container waits, as its status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitingReason {
    ContainerCreating,
    PodInitializing,
    CrashLoopBackOff,
    ErrImagePull,
    ImagePullBackOff,
    /// The runtime cannot reach the image's registry.
    RegistryUnavailable,
    /// The runtime does not accept the image's signatures.
    SignatureValidationFailed,
    ErrImageNeverPull,
    InvalidImageName,
    ImageInspectError,
    CreateContainerConfigError,
    CreateContainerError,
    RunContainerError,
    RestartingAllContainers,
}

impl WaitingReason {
    /// Whether a pull has just failed.
    pub(crate) fn is_failed_pull(self) -> bool {
        matches!(self, Self::ErrImagePull | Self::RegistryUnavailable | Self::SignatureValidationFailed)
    }
}

impl fmt::Display for WaitingReason {
    /// Upstream's reasons are the names of the variants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The failure of a container's image or start, as the status shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub reason: WaitingReason,
    pub message: String,
    /// The image that is missing, where it is not the container's own but that of a volume.
    pub image: Option<String>,
    pub failed_at: Timestamp,
    pub retry: Retry,
}

/// Where a container's image is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ImageState {
    /// It is looked for and pulled, after this failure.
    Getting(Option<Failure>),
    /// Ready to be used once: the reference to create the container from.
    Present(String),
    Failed(Failure),
}

/// What probes say about a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub started: bool,
    pub ready: bool,
    pub alive: bool,
}

impl Memory {
    /// When a run of a container ended, by the wall clock as it is now.
    pub(crate) fn ended_at(&self, run: &Container) -> Option<Timestamp> {
        let by = self.moved.get(&run.id).copied().unwrap_or_default();
        run.finished_at.map(|at| moved(at, by))
    }

    /// Keeps what is left of each wait when the wall clock is set to another time: it says when, and has to last as long as it was meant to.
    pub(crate) fn clock_moved(&mut self, by: SignedDuration) {
        match &mut self.volumes {
            Volumes::Mounting(Some(retry)) | Volumes::Failed(retry) => retry.moved(by),
            Volumes::NotReady | Volumes::Mounting(None) | Volumes::Ready => {}
        }
        if let Content::Stale { failed: Some(retry) } | Content::Refreshing { failed: Some(retry), .. } = &mut self.content {
            retry.moved(by);
        }
        if let SandboxWork::Creating(Some(retry)) | SandboxWork::Failed(retry) = &mut self.sandbox {
            retry.moved(by);
        }
        let images = self.images.values_mut().filter_map(|image| match image {
            ImageState::Getting(failure) => failure.as_mut(),
            ImageState::Failed(failure) => Some(failure),
            ImageState::Present(_) => None,
        });
        for failure in images.chain(self.failures.values_mut()) {
            failure.failed_at = moved(failure.failed_at, by);
            failure.retry.moved(by);
        }
        self.restarts.clock_moved(by);
        self.ends_since = self.ends_since.map(|at| moved(at, by));
        let stops = self.stops.values_mut().map(|stop| &mut stop.attempt);
        let removals = self.removals.values_mut().map(|removal| &mut removal.attempt);
        let attempts = stops.chain(self.sandbox_stops.values_mut()).chain(removals);
        for attempt in attempts.chain(&mut self.ending).chain(&mut self.saving) {
            if let Attempt::RetryAt(at) = attempt {
                *at = moved(*at, by);
            }
        }
        if let Some(at) = &mut self.resize.retry_at {
            *at = moved(*at, by);
        }
    }
}

/// A time on a clock that was set to another time.
pub(crate) fn moved(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

impl Retry {
    fn moved(&mut self, by: SignedDuration) {
        self.at = moved(self.at, by);
    }

    /// The retry after `before` (if any): after `first` doubling to `max`.
    pub(crate) fn after(before: Option<Retry>, now: Timestamp, (first, max): (SignedDuration, SignedDuration)) -> Retry {
        let count = before.map_or(0, |r| r.count) + 1;
        let delay = ::backoff::exponential(first.unsigned_abs(), max.unsigned_abs(), count - 1);
        Retry { at: now + delay, count }
    }
}
