//! Small programs for pods: stand-ins for images which need a real Windows, and what Windows containers run beside their own programs.

mod dns;
#[cfg(unix)]
mod stand_in;
pub mod tools;
pub mod windows;

pub use dns::{Dns, Resolver};
#[cfg(unix)]
pub use stand_in::{DriveError, Drives, Options, StandIn, main, run};
