//! Rows of what CSI drivers publish: nodes, drivers, attachments, capacities.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment};
use kube_rules::{Labels, Quantity, Selector};

/// Row of a CSINode.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct CsiNodeRow {
    /// How many volumes of a driver the node takes, where the driver says so.
    pub limits: BTreeMap<String, i64>,
}

impl CsiNodeRow {
    pub fn new(node: &CSINode) -> Self {
        let limit = |count: &i32| i64::from(*count);
        let drivers = node.spec.drivers.iter();
        let limits = drivers.filter_map(|one| Some((one.name.clone(), one.allocatable.as_ref()?.count.as_ref().map(limit)?)));
        Self { limits: limits.collect() }
    }
}

/// Row of a CSIDriver.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DriverRow {
    /// Whether volumes are attached to nodes before they are mounted.
    pub attaches: bool,
    /// Whether it publishes how much storage is left.
    pub publishes_capacity: bool,
}

impl DriverRow {
    pub fn new(driver: &CSIDriver) -> Self {
        Self { attaches: driver.spec.attach_required.unwrap_or(true), publishes_capacity: driver.spec.storage_capacity.unwrap_or_default() }
    }
}

/// Row of a VolumeAttachment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttachmentRow {
    pub attacher: String,
    pub node: String,
    pub volume: Option<String>,
    pub attached: bool,
    pub deleting: bool,
    /// Why attaching or detaching failed last.
    pub attach_error: Option<String>,
    pub detach_error: Option<String>,
}

impl AttachmentRow {
    pub fn new(attachment: &VolumeAttachment) -> Self {
        let spec = &attachment.spec;
        let status = attachment.status.as_ref();
        let error = |error: &k8s_openapi::api::storage::v1::VolumeError| error.message.clone().unwrap_or_default();
        Self {
            attacher: spec.attacher.clone(),
            node: spec.node_name.clone(),
            volume: spec.source.persistent_volume_name.clone(),
            attached: status.is_some_and(|status| status.attached),
            deleting: attachment.metadata.deletion_timestamp.is_some(),
            attach_error: status.and_then(|status| status.attach_error.as_ref()).map(error),
            detach_error: status.and_then(|status| status.detach_error.as_ref()).map(error),
        }
    }
}

/// Row of a CSIStorageCapacity.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CapacityRow {
    pub class: String,
    /// None: no node reaches it.
    topology: Option<Selector>,
    /// The largest volume that can be made; none means nothing is known to be left.
    largest: Option<i64>,
}

impl CapacityRow {
    pub fn new(capacity: &CSIStorageCapacity) -> Self {
        let largest = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        Self {
            class: capacity.storage_class_name.clone(),
            topology: capacity.node_topology.as_ref().map(Selector::new),
            largest: largest.and_then(|size| Quantity::parse(&size.0).ok()).map(Quantity::value),
        }
    }

    /// Whether a volume of this size can be made where a node with these labels reaches it.
    pub fn suffices(&self, class: &str, size: i64, labels: &Labels) -> bool {
        self.class == class && self.largest.is_some_and(|largest| largest >= size) && self.topology.as_ref().is_some_and(|one| one.matches(labels))
    }
}
