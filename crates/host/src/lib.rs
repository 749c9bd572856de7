//! What differs between operating systems, behind small ports: files of a node's root by typed
//! pod paths ([`HostRoot`]), facts about the machine ([`HostFacts`]), its size and load ([`Machine`], [`Load`], [`Counters`]), its routes ([`Routes`]) and
//! addresses of its interfaces ([`Addresses`]), its event log ([`EventLog`]), and text as its users write it ([`decode_text`]).

mod addresses;
mod event_log;
mod facts;
mod machine;
#[cfg(target_os = "linux")]
mod process;
mod root;
mod routes;
#[cfg(windows)]
mod windows_machine;

#[cfg(target_os = "linux")]
pub use addresses::LinuxAddresses;
#[cfg(windows)]
pub use addresses::WindowsAddresses;
pub use addresses::{Addresses, AddressesError, HostAddress};
pub use event_log::{EventLog, LoggedEvent};
#[cfg(windows)]
pub use event_log::{WindowsEventLog, report_event};
pub use facts::HostFacts;
pub use kube_rules::{NodeOs, PathError, PodPath, decode_text};
pub use machine::{Available, Counters, Load, Machine, Process, Traffic, meminfo};
#[cfg(target_os = "linux")]
pub use process::end_process;
pub use root::{
    Beneath, FileKind, GroupOwner, Hold, HostError, HostRoot, Reader, Resolved, Socket, SocketListener, Space, Usage, VolumeFile, last_changed,
    make_private_dir,
};
#[cfg(target_os = "linux")]
pub use routes::LinuxRoutes;
#[cfg(windows)]
pub use routes::WindowsRoutes;
pub use routes::{HostRoute, OUR_PROTOCOL, Routes, RoutesError};
#[cfg(windows)]
pub use windows_machine::{fixed_drives, is_elevated, resolver, set_priority_class};
