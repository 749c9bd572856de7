//! The audit log of the API server as upstream keeps it (apiserver/pkg/audit): a [`policy`] says which requests are logged and how much of
//! them, an [`event`] is one line of JSON, the [`log`] writes lines to a file that it rotates, and the [`webhook`] sends them as lists.
//!
//! Nothing here knows of HTTP: the API server fills in events, and asks the policy once per request.

pub mod event;
pub mod log;
pub mod policy;
mod tally;
pub mod webhook;

pub use event::{Event, ObjectReference, Truncate};
pub use log::{Log, LogConfig, LogError, Mode};
pub use policy::{Attributes, Level, Policy, PolicyError, Stage};
pub use webhook::{Batch, Post, Throttle, Webhook, WebhookConfig};
