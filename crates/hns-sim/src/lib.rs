//! The Host Networking Service on Linux: a pure model, and one adapter that makes it real.
//!
//! A call goes through [`model`] (documents, rules, errors: pure), which stages changes of the [`state`]; [`compile`] turns each object into
//! the [`fact`]s that the kernel must hold; the difference is a plan that prints; a [`kernel`] makes it true. The kernel of a simulated host
//! is [`linux`]; [`kernel::NoKernel`] is the model alone. [`faults`] decorate the sessions of clients, [`latency`] makes calls take time,
//! [`calls`] counts and logs them, and the [`admin`] socket is where tests and people reach all that. docs/fidelity.md lists the evidence
//! for each behaviour.

pub mod admin;
pub mod calls;
pub mod compile;
pub mod fact;
pub mod faults;
pub mod kernel;
pub mod latency;
#[cfg(target_os = "linux")]
pub mod linux;
mod mac;
pub mod model;
pub mod one_lock;
mod restart;
pub mod server;
mod simulator;
pub mod state;
pub mod store;
pub mod switches;
mod text;
mod versions;
pub mod vfp;

pub use mac::Mac;
pub use server::Config;
#[cfg(target_os = "linux")]
pub use server::run;
pub use simulator::{Controls, Options, Simulator};
