//! What CertificateSigningRequests may say (pkg/apis/certificates/validation).

use super::APPROVALS;
use crate::validation::field::{Errors, Field};
use crate::validation::pod_update::difference_of;
use crate::validation::signers;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use x509_parser::prelude::{FromDer, Pem, X509Certificate, X509CertificationRequest};

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const SHORTEST: i64 = 600;
/// Sorted.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// What an update may write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Nothing,
    Certificate,
    Approval,
}

pub(super) fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    match old {
        Some(old) => update(new, old, Writes::Nothing, errors),
        None => check(new, None, errors),
    }
}

pub(super) fn validate_status(new: &Field, old: &Field, errors: &mut Errors) {
    update(new, old, Writes::Certificate, errors);
}

pub(super) fn validate_approval(new: &Field, old: &Field, errors: &mut Errors) {
    update(new, old, Writes::Approval, errors);
}

/// The organizations of the subject of a request in base64 and PEM, whose signature has been verified.
pub(super) fn parsed(base64: &str) -> Result<Vec<String>, String> {
    let block = STANDARD.decode(base64).ok().and_then(|text| Pem::iter_from_buffer(&text).next()?.ok());
    let block = block.filter(|block| block.label == "CERTIFICATE REQUEST").ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let (_, request) =
        X509CertificationRequest::from_der(&block.contents).map_err(|error| format!("x509: malformed certificate request: {error}"))?;
    request.verify_signature().map_err(|_| "x509: signature verification failure".to_string())?;
    let organizations = request.certification_request_info.subject.iter_organization();
    Ok(organizations.filter_map(|name| name.as_str().ok()).map(str::to_string).collect())
}

/// What is checked of every request. What was wrong before an update stays allowed.
fn check(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let before = old.map(|old| old.get("spec"));
    let request = spec.get("request");
    if let Err(problem) = parsed(request.text()) {
        errors.invalid(&request, problem);
    }
    usages(&spec.get("usages"), before.as_ref().map(|before| before.get("usages")).as_ref(), errors);
    let signer = spec.get("signerName");
    if signer.text() == LEGACY_SIGNER && before.is_none_or(|before| before.get("signerName").text() != LEGACY_SIGNER) {
        errors.invalid(&signer, "the legacy signerName is not allowed via this API version");
    } else {
        signers::name(&signer, errors);
    }
    let expiration = spec.get("expirationSeconds");
    if expiration.number().is_some_and(|seconds| seconds < SHORTEST) {
        errors.invalid(&expiration, "may not specify a duration less than 600 seconds (10 minutes)");
    }
    let decided = old.map(|old| old.get("status").get("conditions").items()).unwrap_or_default();
    check_conditions(new, &decided, errors);
    let certificate = new.get("status").get("certificate");
    let kept = old.map(|old| old.get("status").get("certificate"));
    let known = kept.is_some_and(|kept| kept.text() == certificate.text() || certificates(kept.text()).is_err());
    if !known && let Err(problem) = certificates(certificate.text()) {
        errors.invalid_value(&certificate, "<certificate data>", problem);
    }
}

fn usages(usages: &Field, before: Option<&Field>, errors: &mut Errors) {
    let before: Vec<Field> = before.map(Field::items).unwrap_or_default();
    let old: Vec<&str> = before.iter().map(Field::text).collect();
    let repeated = |texts: &[&str]| (0..texts.len()).any(|index| texts[..index].contains(&texts[index]));
    let found = usages.items();
    if found.is_empty() {
        errors.required(usages, "");
    }
    if old.iter().all(|usage| USAGES.contains(usage)) {
        found.iter().filter(|usage| !USAGES.contains(&usage.text())).for_each(|usage| errors.not_supported(usage, &USAGES));
    }
    if !repeated(&old) {
        for (index, usage) in found.iter().enumerate() {
            if found[..index].iter().any(|earlier| earlier.text() == usage.text()) {
                errors.duplicate(usage, usage.text());
            }
        }
    }
}

fn check_conditions(request: &Field, before: &[Field], errors: &mut Errors) {
    let list = request.get("status").get("conditions");
    let types = |conditions: &[Field<'_>]| conditions.iter().map(|condition| condition.get("type").text().to_string()).collect::<Vec<_>>();
    let old = types(before);
    let decided_twice = APPROVALS.iter().all(|kind| old.iter().any(|found| found == kind));
    let doubled = (0..old.len()).any(|index| old[..index].contains(&old[index]));
    let found = list.items();
    let kinds = types(&found);
    for (index, condition) in found.iter().enumerate() {
        let (kind, status) = (condition.get("type"), condition.get("status"));
        if kind.is_empty() && !old.iter().any(String::is_empty) {
            errors.required(&kind, "");
        }
        let known: &[&str] = if matches!(kind.text(), "Approved" | "Denied" | "Failed") { &["True"] } else { &["False", "True", "Unknown"] };
        errors.one_of(&status, known);
        let other = APPROVALS.iter().find(|other| APPROVALS.contains(&kind.text()) && **other != kind.text());
        if !decided_twice && other.is_some_and(|other| kinds[..index].iter().any(|earlier| earlier == other)) {
            errors.invalid_value(&list, kind.text(), "Approved and Denied conditions are mutually exclusive");
        }
        if !doubled && kinds[..index].contains(&kinds[index]) {
            errors.duplicate(&kind, kind.text());
        }
    }
}

/// Whether base64 holds nothing, or certificates in PEM alone.
fn certificates(base64: &str) -> Result<(), String> {
    if base64.is_empty() {
        return Ok(());
    }
    let text = STANDARD.decode(base64).map_err(|error| error.to_string())?;
    let mut count = 0;
    for block in Pem::iter_from_buffer(&text).map_while(Result::ok) {
        if block.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        X509Certificate::from_der(&block.contents).map_err(|error| format!("x509: malformed certificate: {error}"))?;
        count += 1;
    }
    if count == 0 { Err("must contain at least one CERTIFICATE PEM block".into()) } else { Ok(()) }
}

fn update(new: &Field, old: &Field, writes: Writes, errors: &mut Errors) {
    check(new, Some(old), errors);
    let list = new.get("status").get("conditions");
    let of = |object: &Field, kind: &str| -> Vec<Value> {
        let conditions = object.get("status").get("conditions");
        conditions.items().iter().filter(|condition| condition.get("type").text() == kind).map(|condition| condition.value.clone()).collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if of(new, kind).len() < of(old, kind).len() {
            errors.forbidden(&list, format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    for kind in APPROVALS.into_iter().filter(|_| writes != Writes::Approval) {
        let (after, before) = (of(new, kind), of(old, kind));
        if after.len() > before.len() {
            errors.forbidden(&list, format!("updates may not add a condition of type {kind:?}"));
        } else if after.len() == before.len() && after != before {
            let lines = difference_of("", &before.into(), &after.into());
            errors.forbidden(&list, format!("updates may not modify a condition of type {kind:?}\n{lines}"));
        }
    }
    let (certificate, kept) = (new.get("status").get("certificate"), old.get("status").get("certificate"));
    if certificate.text() != kept.text() {
        if writes != Writes::Certificate {
            errors.forbidden(&certificate, "updates may not set certificate content");
        } else if !kept.is_empty() {
            errors.forbidden(&certificate, "updates may not modify existing certificate content");
        }
    }
}
