//! The node's programs as services: units of systemd on Linux, services of the service control manager on Windows.
//!
//! Flow: [`Desired`] says what is to run; [`systemd`] and [`scm`] hold what that means on each system (pure: the text of units, a
//! registration); [`systemd::observe`] and [`windows::observe`] look at the machine; `plan` and `removal` list the steps (pure); `apply` carries
//! them out. [`control`] starts and stops a service, and is what a join uses.
//! Inputs: the path of the program, the part of it, further flags. Outputs: files below `/etc/systemd/system`, a link in `/usr/local/bin`; a
//! service, its source of the event log, a directory for its log on Windows.
//! Guarantees: what others wrote is kept, unless it is to be replaced, and then it comes back with the removal; a second run changes nothing; a
//! removal leaves nothing; no unit makes a mount namespace, in which mounts of pods would stay.
//! What it does not do: copy the program, write configurations, install a container runtime.

pub mod control;
mod desired;
#[cfg(unix)]
pub mod program;
pub mod scm;
pub mod systemd;
#[cfg(windows)]
pub mod windows;

pub use desired::{Desired, InputError, Part, Plan};

/// What files and services of ours say about themselves: others are foreign.
pub const MARK: &str = "Written by mullion install; mullion uninstall removes it.";
