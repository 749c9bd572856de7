//! ClusterRoles.

use super::roles;
use crate::kind::Kind;
use k8s_openapi::api::rbac;

pub fn kind() -> Kind {
    super::common(
        Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "io.k8s.api.rbac.v1.ClusterRole")
            .described_by::<rbac::v1::ClusterRole>()
            .cluster()
            .validate(|new, _, errors| roles::validate(new, false, errors)),
    )
}
