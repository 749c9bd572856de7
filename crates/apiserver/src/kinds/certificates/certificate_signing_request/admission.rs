//! Who asks, and who may approve and sign for a signer.

use super::validation::parsed;
use crate::kind::{Attributes, Part};
use crate::object;
use crate::status::ApiError;
use serde_json::{Value, json};

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

/// A request says whose it is, and nobody becomes a master by one.
pub(super) fn create(attributes: &Attributes<'_>, request: &mut Value) -> Result<(), ApiError> {
    let user = &attributes.context.user;
    let spec = object::map_mut(request, "spec");
    for member in ["username", "uid", "groups", "extra"] {
        spec.shift_remove(member);
    }
    for (member, value) in [("username", &user.name), ("uid", &user.uid)] {
        if !value.is_empty() {
            spec.insert(member.into(), value.as_str().into());
        }
    }
    if !user.groups.is_empty() {
        spec.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".into(), Value::Object(user.extra.clone()));
    }
    if object::text(request, &["spec", "signerName"]) != CLIENT_SIGNER {
        return Ok(());
    }
    let refused = |why: &str| ApiError::forbidden(attributes.kind, attributes.name, why);
    let organizations = parsed(object::text(request, &["spec", "request"])).map_err(|error| refused(&format!("failed to parse CSR: {error}")))?;
    if organizations.iter().any(|organization| organization == MASTERS) {
        return Err(refused(&format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed")));
    }
    Ok(())
}

pub(super) fn update(attributes: &Attributes<'_>, new: &mut Value) -> Result<(), ApiError> {
    let Some(old) = attributes.old else { return Ok(()) };
    // The old object counts: nobody chooses the signer while approving.
    let signer = object::text(old, &["spec", "signerName"]);
    let verb = match attributes.part {
        Part::Other("approval") => "approve",
        Part::Status
            if ["certificate", "conditions"]
                .iter()
                .any(|member| object::lookup(old, &["status", member]) != object::lookup(new, &["status", member])) =>
        {
            "sign"
        }
        _ => return Ok(()),
    };
    if super::super::is_authorized(attributes, verb, signer) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(ApiError::forbidden(attributes.kind, attributes.name, &why))
}
