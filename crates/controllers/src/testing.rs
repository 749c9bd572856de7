//! Rows for the tables of this crate's tests.

use std::sync::Arc;

use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};

use crate::{deployment::RsRow, view::PodRow};

/// A running pod whose uid is its name.
pub(crate) fn pod(name: &str, change: impl FnOnce(&mut PodRow)) -> (String, Arc<PodRow>) {
    let mut row = PodRow::new(&Pod::default());
    row.phase = "Running".to_owned();
    row.restart_policy = "Always".to_owned();
    change(&mut row);
    row.uid = name.to_owned();
    (name.to_owned(), Arc::new(row))
}

/// A ReplicaSet whose uid is its name.
pub(crate) fn replica_set(name: &str, change: impl FnOnce(&mut RsRow)) -> RsRow {
    let mut row = RsRow::new(&ReplicaSet::default());
    row.name = name.to_owned();
    row.uid = name.to_owned();
    change(&mut row);
    row
}
