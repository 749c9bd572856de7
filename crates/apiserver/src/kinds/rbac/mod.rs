//! The kinds of `rbac.authorization.k8s.io`.

mod bindings;
pub mod cluster_role;
pub mod cluster_role_binding;
mod escalation;
pub mod role;
pub mod role_binding;
mod roles;

use crate::kind::Kind;
use crate::validation::names::path_segment;

pub fn kinds() -> Vec<Kind> {
    vec![cluster_role::kind(), cluster_role_binding::kind(), role::kind(), role_binding::kind()]
}

/// What all kinds of the group have: names like path segments, PUT that creates, nobody grants what they do not hold.
fn common(kind: Kind) -> Kind {
    kind.name_rule(path_segment).create_on_update().admit_create(escalation::check_create).admit_update(escalation::check_update)
}
