//! ClusterTrustBundles: certificates of authorities for all pods (pkg/apis/certificates, pkg/registry/certificates/clustertrustbundle,
//! plugin/pkg/admission/certificates/ctbattest).

#[cfg(test)]
mod tests;

use crate::kind::{Attributes, Kind, SelectableField};
use crate::object;
use crate::status::ApiError;
use crate::table::text::get_or;
use crate::table::{NAME, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::signers;
use k8s_openapi::api::certificates;
use kube_rules::pem;
use serde_json::Value;
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Bytes of a bundle at most.
const LONGEST: usize = 1 << 20;
/// What errors show in place of a bundle.
const OMITTED: &str = "<value omitted>";

pub fn kind() -> Kind {
    let schema_type = "io.k8s.api.certificates.v1beta1.ClusterTrustBundle";
    Kind::new("certificates.k8s.io", "v1beta1", "ClusterTrustBundle", "clustertrustbundles", schema_type)
        .described_by::<certificates::v1beta1::ClusterTrustBundle>()
        .cluster()
        // It depends on the signer: `validate` checks it.
        .name_rule(|_| Vec::new())
        .selectable(SelectableField::new("spec.signerName"))
        .validate(validate)
        .admit_create(attest)
        .admit_update(attest)
        .table([NAME, text("SignerName")], |object, _| vec![name(object), get_or(object, "/spec/signerName", "<none>").into()])
}

/// Who writes a signer's bundle says what everybody trusts that signer for. A change of owners and finalizers alone says nothing new.
fn attest(attributes: &Attributes<'_>, bundle: &mut Value) -> Result<(), ApiError> {
    let signer = object::text(bundle, &["spec", "signerName"]);
    if signer.is_empty() || attributes.old.is_some_and(|old| content(old) == content(bundle)) || super::is_authorized(attributes, "attest", signer) {
        return Ok(());
    }
    Err(ApiError::forbidden(attributes.kind, attributes.name, &format!("user not permitted to attest for signerName {signer:?}")))
}

/// A bundle without what garbage collection writes.
fn content(bundle: &Value) -> Value {
    let mut bundle = bundle.clone();
    for member in ["ownerReferences", "finalizers", "selfLink", "managedFields"] {
        object::map_mut(&mut bundle, "metadata").shift_remove(member);
    }
    bundle
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let (signer, bundle) = (spec.get("signerName"), spec.get("trustBundle"));
    let name = new.get("metadata").get("name");
    errors.invalid_each(&name, signers::bundle_name(name.text(), signer.text()));
    if !signer.is_empty() {
        signers::name(&signer, errors);
    }
    // What was stored stays allowed, whatever its parser says today.
    if old.is_none_or(|old| old.get("spec").get("trustBundle").value != bundle.value) {
        trust_bundle(&bundle, errors);
    }
    if let Some(before) = old.map(|old| old.get("spec").get("signerName"))
        && before.text() != signer.text()
    {
        errors.invalid(&signer, "field is immutable");
    }
}

/// Certificates of authorities in PEM, at least one and each once.
fn trust_bundle(bundle: &Field, errors: &mut Errors) {
    if bundle.text().len() > LONGEST {
        return errors.too_long(bundle, LONGEST);
    }
    let mut anchors: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (index, block) in pem::blocks(bundle.text()).into_iter().enumerate() {
        match problem(&block) {
            Some(problem) => wrong.push(format!("entry {index} {problem}")),
            None => anchors.entry(block.bytes).or_default().push(index),
        }
    }
    if wrong.is_empty() && anchors.is_empty() {
        wrong.push("at least one trust anchor must be provided".into());
    } else if wrong.is_empty() {
        let shown = |indices: &Vec<usize>| indices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        wrong.extend(
            anchors.values().filter(|indices| indices.len() > 1).map(|indices| format!("duplicate trust anchor (indices [{}])", shown(indices))),
        );
    }
    wrong.into_iter().for_each(|problem| errors.invalid_value(bundle, OMITTED, problem));
}

/// Why a block is no authority's certificate.
fn problem(block: &pem::Block) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some("has PEM block headers".into());
    }
    let Ok((rest, certificate)) = X509Certificate::from_der(&block.bytes) else { return Some("does not parse as X.509".into()) };
    if !rest.is_empty() {
        return Some("does not parse as X.509".into());
    }
    match certificate.basic_constraints() {
        Ok(Some(constraints)) if constraints.value.ca => None,
        Ok(_) => Some("does not have the CA bit set".into()),
        Err(_) => Some("has invalid basic constraints".into()),
    }
}
