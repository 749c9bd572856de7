//! Checks, decisions, columns of CertificateSigningRequests.

use super::validation::{parsed, validate, validate_approval, validate_status};
use super::*;
use crate::kinds::check::{change, problems, row, status_change, table, with};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair};

/// A request of an organization, in PEM.
fn pem(organization: &str) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

fn certificate() -> String {
    let params = CertificateParams::new(Vec::new()).unwrap();
    STANDARD.encode(params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem())
}

fn request() -> Value {
    json!({"metadata": {"name": "r"}, "spec": {"request": STANDARD.encode(pem("org")), "usages": ["client auth"], "signerName": "example.com/signer",
        "username": "me"}})
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True"})
}

#[test]
fn requests_are_checked() {
    table(
        validate,
        &request(),
        &[
            ("/spec/usages", json!([]), "spec.usages: Required value"),
            ("/spec/usages", json!(["any", "any"]), "spec.usages[1]: Duplicate value: \"any\""),
            (
                "/spec/expirationSeconds",
                json!(599),
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ),
            ("/spec/signerName", json!(""), "spec.signerName: Required value"),
            (
                "/spec/signerName",
                json!("kubernetes.io/legacy-unknown"),
                "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
            ),
            (
                "/spec/signerName",
                json!("signer"),
                "spec.signerName: Invalid value: \"signer\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ),
            (
                "/spec/signerName",
                json!("example/signer"),
                "spec.signerName: Invalid value: \"example\": should be a domain with at least two segments separated by dots",
            ),
        ],
    );
    let of = |pointer: &str, value: Value| problems(validate, &with(&request(), &[(pointer, value)]));
    assert!(
        of("/spec/usages", json!(["magic"])).starts_with("spec.usages[0]: Unsupported value: \"magic\": supported values: \"any\", \"cert sign\"")
    );
    assert!(of("/spec/signerName", json!("example.com/Signer")).contains("validating label \"Signer\": a lowercase RFC 1123 subdomain"));
    for nonsense in [json!(""), json!(STANDARD.encode("no PEM")), json!(certificate())] {
        assert!(of("/spec/request", nonsense).ends_with(": PEM block type must be CERTIFICATE REQUEST"));
    }
}

#[test]
fn signatures_are_verified() {
    assert_eq!(parsed(&STANDARD.encode(pem("system:masters"))), Ok(vec!["system:masters".to_string()]));
    let text = pem("org");
    let mut der = STANDARD.decode(text.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap();
    let place = der.windows(3).position(|bytes| bytes == b"org").unwrap();
    der[place] = b'O';
    let forged = format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", STANDARD.encode(der));
    assert_eq!(parsed(&STANDARD.encode(forged)), Err("x509: signature verification failure".to_string()));
    let cut = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
    assert!(parsed(&STANDARD.encode(cut)).unwrap_err().starts_with("x509: malformed certificate request"));
}

#[test]
fn decisions_are_made_by_the_approval_alone() {
    let decided = |kind: &str| with(&request(), &[("/status", json!({"conditions": [condition(kind)]}))]);
    assert_eq!(status_change(validate_approval, &request(), &decided("Approved")), "");
    let forbidden = "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"";
    assert_eq!(status_change(validate_status, &request(), &decided("Approved")), forbidden);
    assert_eq!(change(validate, &request(), &decided("Approved")), forbidden);
    let both = with(&request(), &[("/status", json!({"conditions": [condition("Approved"), condition("Denied")]}))]);
    let exclusive = "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive";
    assert_eq!(status_change(validate_approval, &decided("Approved"), &both), exclusive);
    let removed = status_change(validate_approval, &decided("Approved"), &request());
    assert_eq!(removed, "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"");
    let doubtful = with(&request(), &[("/status", json!({"conditions": [{"type": "Approved", "status": "False"}, {"type": "", "status": ""}]}))]);
    assert_eq!(
        status_change(validate_approval, &request(), &doubtful),
        "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"\n\
         status.conditions[1].type: Required value\n\
         status.conditions[1].status: Required value"
    );
}

#[test]
fn certificates_are_written_once() {
    let signed = |text: &str| with(&request(), &[("/status", json!({"certificate": text}))]);
    let issued = signed(&certificate());
    assert_eq!(status_change(validate_status, &request(), &issued), "");
    assert_eq!(status_change(validate_approval, &request(), &issued), "status.certificate: Forbidden: updates may not set certificate content");
    let other = status_change(validate_status, &issued, &signed(&certificate()));
    assert_eq!(other, "status.certificate: Forbidden: updates may not modify existing certificate content");
    let noise = status_change(validate_status, &request(), &signed(&STANDARD.encode("noise")));
    assert_eq!(noise, "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block");
    let request_text = status_change(validate_status, &request(), &signed(&STANDARD.encode(pem("org"))));
    assert!(request_text.ends_with("only CERTIFICATE PEM blocks are allowed, found \"CERTIFICATE REQUEST\""), "{request_text}");
}

#[test]
fn each_part_keeps_to_itself() {
    let old = with(
        &request(),
        &[(
            "/status",
            json!({"conditions": [{"type": "Approved", "status": "True", "reason": "R", "lastUpdateTime": "t",
        "lastTransitionTime": "t"}]}),
        )],
    );
    let mut status = with(&old, &[("/status", json!({"certificate": "c", "conditions": [condition("Approved"), condition("Failed")]}))]);
    prepare_status(&old, &mut status);
    assert_eq!(status["status"]["conditions"][0], old["status"]["conditions"][0]);
    assert!(status["status"]["conditions"][1]["lastTransitionTime"].is_string());
    let mut approval =
        with(&old, &[("/status", json!({"certificate": "c", "conditions": [condition("Approved")]})), ("/spec/username", json!("other"))]);
    prepare_approval(&old, &mut approval);
    assert_eq!((&approval["spec"], approval["status"].get("certificate")), (&old["spec"], None));
    assert_eq!(approval["status"]["conditions"][0]["lastTransitionTime"], "t");
    assert_ne!(approval["status"]["conditions"][0]["lastUpdateTime"], "t");
}

#[test]
fn columns_tell_the_decision() {
    let object = |status: Value| with(&request(), &[("/status", status), ("/spec/expirationSeconds", json!(3600))]);
    assert_eq!(row(cells, &object(json!({}))), ["x", "2m30s", "example.com/signer", "me", "60m", "Pending"]);
    let issued = json!({"conditions": [condition("Approved"), condition("Failed")], "certificate": "c"});
    assert_eq!(row(cells, &object(issued))[5], "Approved,Failed,Issued");
}
