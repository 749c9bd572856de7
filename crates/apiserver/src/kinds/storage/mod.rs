//! The kinds of `storage.k8s.io`.

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;

use crate::kind::Kind;
use crate::validation::field::{Errors, Field};
use crate::validation::names;

const LONGEST_DRIVER: usize = 63;

pub fn kinds() -> Vec<Kind> {
    vec![
        csi_driver::kind(),
        csi_node::kind(),
        csi_storage_capacity::kind(),
        storage_class::kind(),
        volume_attachment::kind(),
        volume_attributes_class::kind(),
    ]
}

/// The name of a CSI driver where an object refers to it (pkg/apis/core/validation: ValidateCSIDriverName).
fn driver_name(name: &Field, errors: &mut Errors) {
    if name.is_empty() {
        return errors.required(name, "");
    }
    if name.text().len() > LONGEST_DRIVER {
        errors.too_long(name, LONGEST_DRIVER);
    }
    errors.invalid_each(name, names::dns_subdomain(&name.text().to_lowercase()));
}
