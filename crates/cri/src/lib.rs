//! Container Runtime Interface: a typed client over a unix socket, a named pipe or TCP.
//!
//! One [`Client`] serves one runtime. Connections are made when first needed and again after a loss, so a runtime that restarts
//! costs failed calls, never a new client. Every call has a deadline; [`Error`] says what a caller can act on.
//! [`Client::events`] follows `GetContainerEvents`, or containerd's own events, and notifies the caller whenever it has to list again.

mod calls;
mod client;
mod containerd;
mod create;
mod endpoint;
mod error;
mod events;
pub mod operations;
mod sandbox;
mod serve;
mod signal;
mod status;
#[cfg(all(test, unix))]
mod tests;

pub use calls::Waiting;
pub use client::{Client, Deadlines};
pub use create::{Extras, RuntimeServer};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{Error, Kind};
pub use events::{Events, Notice, TaskChange};
/// The messages of CRI v1, as generated from upstream's `api.proto`.
pub use k8s_cri::v1;
pub use sandbox::UpdateSandboxRequest;
pub use signal::Signal;
/// Of [`serve!`].
#[doc(hidden)]
pub use tonic;

/// What other programs key on in CRI labels and annotations (`pkg/kubelet/types/labels.go`): a node can change agents in place.
pub mod labels {
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Name of the container in the pod.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// What a container without privileges does not see or cannot write, unless its pod asks for more: the lists of upstream's kubelet
/// (`pkg/securitycontext/util.go`) and containerd.
pub mod defaults {
    /// Paths of /proc and /sys that containers do not see.
    pub const MASKED_PATHS: &[&str] = &[
        "/proc/asound",
        "/proc/acpi",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
    ];
    /// Paths of /proc that containers cannot write.
    pub const READONLY_PATHS: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
}

/// Annotations of our own in a runtime's answers. A runtime need not have them, and an agent need not read them.
pub mod annotations {
    /// On a sandbox's status: why its network does not work, while it is being repaired or after it was lost.
    pub const NETWORK_PROBLEM: &str = "mullion.io/network-problem";
}

/// Members of the additional information that a runtime may give when it is asked for it (`verbose`).
pub mod info {
    /// Of an image that is being pulled: `DONE/TOTAL`, in bytes.
    pub const PULL_PROGRESS: &str = "mullion.io/pull-progress";
}
