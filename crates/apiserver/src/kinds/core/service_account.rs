//! ServiceAccounts.

use crate::kind::Kind;
use crate::table::text::list;
use crate::table::{AGE, NAME, age, name, text};
use jiff::Timestamp;
use k8s_openapi::api::{authentication, core};
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("", "v1", "ServiceAccount", "serviceaccounts", "io.k8s.api.core.v1.ServiceAccount")
        .described_by::<core::v1::ServiceAccount>()
        .described_by::<authentication::v1::TokenRequest>()
        .short(&["sa"])
        .action("token", "authentication.k8s.io", "v1", "TokenRequest")
        .table([NAME, text("Secrets"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), list(object, "/secrets").len().into(), age(object, now)]
}
