//! First process of Windows programs in containers (`mullion-init.exe`, under Wine): its orders, its reports, its work.

#[cfg(windows)]
pub(crate) mod api;
#[cfg(windows)]
mod init;
pub mod wire;

#[cfg(windows)]
pub use init::main;
