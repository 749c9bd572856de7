//! The kinds of `core/v1`.

pub mod config_map;
mod data;
pub mod endpoints;
pub mod event;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
pub mod replication_controller;
pub mod resource_quota;
mod resources;
pub mod secret;
pub mod service;
pub mod service_account;
mod volumes;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![
        config_map::kind(),
        endpoints::kind(),
        event::kind(),
        limit_range::kind(),
        namespace::kind(),
        node::kind(),
        persistent_volume::kind(),
        persistent_volume_claim::kind(),
        pod::kind(),
        pod_template::kind(),
        replication_controller::kind(),
        resource_quota::kind(),
        secret::kind(),
        service::kind(),
        service_account::kind(),
    ]
}
