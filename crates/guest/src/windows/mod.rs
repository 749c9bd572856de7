//! Programs of Windows in containers: what their first process (`mullion-init.exe`, under Wine) is told, what it tells,
//! and what it does.

#[cfg(windows)]
pub(crate) mod api;
#[cfg(windows)]
mod init;
pub mod wire;

#[cfg(windows)]
pub use init::main;
