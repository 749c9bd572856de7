//! Rows for the tables of tests about storage.

use std::sync::Arc;

use cluster::Key;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use super::rows::{ClaimRow, ClassRow, VolumeRow};

/// A claim of one byte, pending, whose uid is `claim`.
pub(crate) fn claim(change: impl FnOnce(&mut ClaimRow)) -> ClaimRow {
    let mut row = ClaimRow::new(&PersistentVolumeClaim::default());
    row.uid = "claim".to_owned();
    row.size = 1;
    row.modes = vec!["ReadWriteOnce".to_owned()];
    row.phase = "Pending".to_owned();
    change(&mut row);
    row
}

/// A free volume of ten bytes, whose uid is its name.
pub(crate) fn volume(name: &str, change: impl FnOnce(&mut VolumeRow)) -> (Key, Arc<VolumeRow>) {
    let mut row = VolumeRow::new(&PersistentVolume::default());
    row.uid = name.to_owned();
    row.size = 10;
    row.modes = vec!["ReadWriteOnce".to_owned()];
    row.phase = "Available".to_owned();
    change(&mut row);
    (Key::cluster(name), Arc::new(row))
}

/// A class with this provisioner.
pub(crate) fn class(provisioner: &str, waits: bool) -> Arc<ClassRow> {
    let mut row = ClassRow::new(&StorageClass::default());
    row.provisioner = provisioner.to_owned();
    row.waits = waits;
    Arc::new(row)
}
