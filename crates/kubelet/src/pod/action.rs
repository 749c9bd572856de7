//! The actions of the pod machine, printable one by one.

use std::fmt;

use super::resize::Resources;
use super::{Health, Pending, PendingReason, Reason, Record, Update};

/// What to do next, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Decide whether the node takes the pod.
    Admit,
    /// Keep what is allocated to the pod on disk.
    SaveResources(Record),
    /// Decide whether the node grants other resources to the pod.
    DecideResize { wanted: Resources },
    /// Say what became of a resize.
    ReportResize(ResizeNews),
    /// Change the resources of a running container.
    Update(Update),
    /// Look at what the runtime holds of the pod.
    Observe,
    /// Say that the node ends the pod, and why.
    ReportEviction { reason: Reason, message: String },
    /// Make the volumes ready.
    MountVolumes,
    /// Bring the content of mounted volumes up to date.
    RefreshVolumes,
    /// Make a sandbox; `attempt` counts from 0.
    CreateSandbox { attempt: u32 },
    /// Stop a sandbox and what is left in it.
    StopSandbox { id: String },
    /// Say why the network of the pod's sandbox does not work.
    ReportNetwork { sandbox: String, problem: String },
    /// Find or pull the image of a container.
    EnsureImage { container: String },
    /// Say that the next pull of a container's image, or of `image` for one of its volumes, waits.
    BackOffPull { container: String, image: Option<String> },
    /// Say that the next run of a container, which ended as `id`, waits.
    BackOffRestart { container: String, id: String },
    /// Create and start a container.
    Start(Start),
    /// Run the postStart hook of a container.
    PostStart { id: String, container: String },
    /// Begin to probe a container whose state is `health`.
    Probe { id: String, container: String, health: Health },
    /// Announce the stop of a container whose turn comes later, and run its preStop hook.
    PrepareStop(Prepare),
    /// Stop a container.
    Kill(Kill),
    /// Remove an old attempt.
    Remove { id: String },
    /// Unmount volumes of an ended pod, keeping its containers for their logs.
    TearDownVolumes,
    /// Remove containers, sandboxes, volumes and directories.
    CleanUp,
    /// Let the API forget the pod, after the status has arrived there.
    DeleteFromApi,
}

/// What became of a resize of the pod's `generation`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ResizeNews {
    Pending { pending: Pending, generation: i64 },
    Started { generation: i64 },
    Failed { generation: i64, error: String },
    Completed { generation: i64 },
}

impl ResizeNews {
    /// Reason and first words of the event, as upstream.
    pub(crate) fn words(&self) -> (&'static str, String) {
        match self {
            ResizeNews::Pending { pending, .. } => {
                let reason = match pending.reason {
                    PendingReason::Deferred => "ResizeDeferred",
                    PendingReason::Infeasible => "ResizeInfeasible",
                };
                (reason, format!("Pod resize {}", pending.reason))
            }
            ResizeNews::Started { .. } => ("ResizeStarted", "Pod resize started".into()),
            ResizeNews::Failed { .. } => ("ResizeError", "Pod resize error".into()),
            ResizeNews::Completed { .. } => ("ResizeCompleted", "Pod resize completed".into()),
        }
    }
}

/// A run of a container that is to begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    pub container: String,
    /// 0 is the first time.
    pub restarts: u32,
    /// The reference of its image.
    pub image: String,
    /// Id of the sandbox it runs in.
    pub sandbox: String,
    /// Which of the pod's sandboxes that is.
    pub attempt: u32,
}

/// A container that is to end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kill {
    pub id: String,
    pub container: String,
    /// Seconds.
    pub grace: i64,
    pub why: Why,
    /// A stop with a longer grace is under way, and runs the preStop hook.
    pub again: bool,
    /// It was announced, and its preStop hook has had its time.
    pub prepared: bool,
}

/// A container that is to end after others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prepare {
    pub id: String,
    pub container: String,
    /// Seconds, from now on, for its preStop hook and its end.
    pub grace: i64,
}

/// Why a container is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    PodEnds,
    SandboxGone,
    Changed,
    Unhealthy,
    StartupFailed,
    PostStartFailed,
    /// Its resize policy asks for a restart.
    Resized,
    /// Another container ended, and its rule asks for a restart of all.
    AllRestart,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Admit => f.write_str("admit"),
            Action::SaveResources(_) => f.write_str("save resources"),
            Action::DecideResize { .. } => f.write_str("decide about the resize"),
            Action::ReportResize(news) => write!(f, "report: {}", news.words().1),
            Action::Update(update) => write!(f, "change {update}"),
            Action::Observe => f.write_str("observe"),
            Action::ReportEviction { reason, message } => write!(f, "report {reason}: {message}"),
            Action::MountVolumes => f.write_str("mount volumes"),
            Action::RefreshVolumes => f.write_str("refresh volumes"),
            Action::CreateSandbox { attempt } => write!(f, "create sandbox, attempt {attempt}"),
            Action::StopSandbox { id } => write!(f, "stop sandbox {id}"),
            Action::ReportNetwork { sandbox, problem } => write!(f, "report the network of sandbox {sandbox}: {problem}"),
            Action::EnsureImage { container } => write!(f, "get image of {container}"),
            Action::BackOffPull { container, .. } => write!(f, "wait before pulling the image of {container} again"),
            Action::BackOffRestart { container, id } => write!(f, "wait before restarting {container} ({id})"),
            Action::Start(start) => write!(f, "start {}, restart {}", start.container, start.restarts),
            Action::PostStart { id, container } => write!(f, "run postStart of {container} ({id})"),
            Action::Probe { id, container, .. } => write!(f, "probe {container} ({id})"),
            Action::PrepareStop(Prepare { id, container, grace }) => write!(f, "prepare the stop of {container} ({id}) within {grace} s"),
            Action::Kill(Kill { id, container, grace, why, .. }) => {
                write!(f, "stop {container} ({id}) within {grace} s: {why:?}")
            }
            Action::Remove { id } => write!(f, "remove container {id}"),
            Action::TearDownVolumes => f.write_str("tear down volumes"),
            Action::CleanUp => f.write_str("remove everything of the pod"),
            Action::DeleteFromApi => f.write_str("delete from the API"),
        }
    }
}
