//! The kinds of `networking.k8s.io`.

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

use crate::kind::Kind;
use crate::validation::field::{Errors, Field};
use crate::validation::names;

pub fn kinds() -> Vec<Kind> {
    vec![ingress::kind(), ingress_class::kind(), ip_address::kind(), network_policy::kind(), service_cidr::kind()]
}

/// A text that is there and may stand in a path.
fn path_segment(field: &Field, errors: &mut Errors) {
    if field.is_empty() {
        errors.required(field, "");
    } else {
        errors.invalid_each(field, names::path_segment(field.text()));
    }
}

/// What refers to an object of any kind by group, kind and name.
fn typed_reference(reference: &Field, errors: &mut Errors) {
    let group = reference.get("apiGroup");
    if group.is_set() {
        errors.invalid_each(&group, names::dns_subdomain(group.text()));
    }
    path_segment(&reference.get("kind"), errors);
    path_segment(&reference.get("name"), errors);
}
