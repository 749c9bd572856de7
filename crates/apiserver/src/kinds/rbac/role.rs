//! Roles.

use super::roles;
use crate::kind::Kind;
use k8s_openapi::api::rbac;

pub fn kind() -> Kind {
    super::common(
        Kind::new("rbac.authorization.k8s.io", "v1", "Role", "roles", "io.k8s.api.rbac.v1.Role")
            .described_by::<rbac::v1::Role>()
            .validate(|new, _, errors| roles::validate(new, true, errors)),
    )
}
