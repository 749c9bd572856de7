//! The Host Networking Service on Linux: a pure model, and one adapter that makes it real.
//!
//! A call goes through [`model`] (documents, rules, errors: pure), which stages changes of the [`state`]; [`realise`] says which [`fact`]s of
//! the kernel each object means; the difference is a plan that prints; a [`kernel`] makes it true. The kernel of a simulated host is
//! [`linux`]; [`kernel::NoKernel`] is the model alone. [`faults`] and [`latency`] say what befalls calls beside their rules, [`calls`] counts and
//! logs them, and the admin socket ([`admin`]) is where tests and people reach all that. docs/fidelity.md says what each behaviour rests on.

pub mod admin;
pub mod calls;
pub mod fact;
pub mod faults;
pub mod kernel;
pub mod latency;
#[cfg(target_os = "linux")]
pub mod linux;
mod mac;
pub mod model;
pub mod one_lock;
pub mod realise;
mod restart;
pub mod server;
mod simulator;
pub mod state;
pub mod store;
pub mod switches;
mod versions;
pub mod vfp;

pub use mac::Mac;
pub use server::Config;
#[cfg(target_os = "linux")]
pub use server::run;
pub use simulator::{Desk, Options, Simulator};
