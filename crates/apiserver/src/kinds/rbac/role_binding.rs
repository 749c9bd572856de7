//! RoleBindings.

use super::bindings;
use crate::kind::Kind;
use k8s_openapi::api::rbac;

pub fn kind() -> Kind {
    bindings::common(
        Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "io.k8s.api.rbac.v1.RoleBinding")
            .described_by::<rbac::v1::RoleBinding>()
            .validate(|new, old, errors| bindings::validate(new, old, true, errors)),
    )
}
