//! computenetwork.dll and vmcompute.dll for Wine: unmodified Windows programs talk to a simulated Host Networking Service.
//!
//! One library under both names: the functions of the newer interface are in [`exports`], `HNSCall` of the older beside them. Each call
//! travels over the socket that `MULLION_HCN` (and `MULLION_HCN_TOKEN`) names; handles and registrations die with the process, as on
//! Windows. Strings that callers get are allocated with `CoTaskMemAlloc`, which they free.
//!
//! It builds on every system, so that its rules are tested where no Windows is; only there it is of use.
#![allow(unsafe_code)]

pub mod callbacks;
pub mod exports;
pub mod guest;
mod memory;
#[cfg(feature = "one-lock")]
mod one_lock;
mod service;

#[cfg(test)]
mod tests;
