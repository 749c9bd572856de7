//! The node agent: keeps the pods that the API binds to one node running there, and tells the
//! API how they and the node are.
//!
//! Tasks: [`run`] registers the Node and then keeps these going until shutdown: node status,
//! lease, runtime health, pod statuses, one worker per pod UID, container events, the HTTPS
//! server. Channels: the pod watch → dispatcher → one queue per worker; everything else tells a
//! worker only to look again. Pods are left as they are at shutdown and adopted by their CRI
//! labels at the next start. The agent starts no process but flexvolume drivers
//! and credential providers of the operator's, and never touches the network.

mod agent;
mod bundles;
pub mod certificates;
mod cgroups;
mod claims;
mod clock_skew;
mod config;
mod counts;
mod cri_config;
mod devices;
mod env;
mod error;
mod eviction;
mod garbage;
mod go_time;
mod health;
mod image_gc;
mod images;
mod log_links;
mod logs;
mod node;
mod node_logs;
mod pod;
mod preemption;
mod probes;
mod rotation;
mod run;
mod runtime;
mod server;
mod services;
mod shutdown;
mod sockets;
mod sources;
mod statics;
mod stats;
mod statuses;
mod tls;
mod tokens;
mod users;
mod volumes;
mod worker;

pub use config::{
    Access, AddressSource, Capacity, Cgroups, Config, ContainerSettings, DeadContainers, FindAddress, GroupSettings, ImageCollection,
    ImageCredentials, ImagePulls, LogRotation, NetworkGate, Polls, Registration, ReservedGroup, ReservedKind, Resolver, ServerConfig, StaticPods,
};
pub use eviction::{Amount, Eviction, EvictionError, Signal, Threshold, amounts as eviction_amounts};
pub use images::providers::{ProvidersError, config::ConfigError as ProviderConfigError};
pub use images::records::decide::{Allowlist, PatternError, Verification};
pub use node_logs::SystemLogs;
pub use run::{RunError, run};
#[cfg(target_os = "linux")]
pub use shutdown::logind;
pub use shutdown::{Announcement, Shutdown, ShutdownPeriod};
pub use tls::TlsError;
/// Reads a file of systemd's journal, for fuzzing.
#[doc(hidden)]
#[cfg(unix)]
pub fn check_journal(bytes: &[u8]) {
    node_logs::journal::check(bytes);
}
/// Reads a table of mounts for control groups, for fuzzing.
#[doc(hidden)]
pub fn check_control_groups(bytes: &[u8]) {
    cgroups::tree::check(bytes);
}
/// Reads a docker configuration, for fuzzing.
#[doc(hidden)]
pub fn check_docker_config(bytes: &[u8]) {
    images::keyring::check(bytes);
}
/// Reads a configuration of credential providers, for fuzzing.
#[doc(hidden)]
pub fn check_provider_config(bytes: &[u8]) {
    images::providers::config::check(bytes);
}
/// Reads what a credential provider answered, for fuzzing.
#[doc(hidden)]
pub fn check_provider_answer(bytes: &[u8]) {
    images::providers::protocol::check(bytes);
}
/// Reads a record of an image pull, for fuzzing.
#[doc(hidden)]
pub fn check_pull_record(bytes: &[u8]) {
    images::records::document::check(bytes);
}
/// Reads the file of a pod's user namespace, for fuzzing.
#[doc(hidden)]
pub fn check_user_namespace(bytes: &[u8]) {
    users::check(bytes);
}
/// Reads a file of variables, for fuzzing.
#[doc(hidden)]
pub fn check_env_file(bytes: &[u8]) {
    env::file::check(bytes);
}
/// Reads a checkpoint of devices, for fuzzing.
#[doc(hidden)]
pub fn check_device_checkpoint(bytes: &[u8]) {
    devices::check(bytes);
}
#[doc(hidden)]
pub use volumes::flexvolume::check_answer as check_flexvolume_answer;

/// Taken by tests that write programs: one cannot be started while a process that another test has just forked holds it open for writing.
#[cfg(test)]
static PROGRAMS: std::sync::Mutex<()> = std::sync::Mutex::new(());
