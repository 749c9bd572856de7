use super::*;
use crate::kinds::check::{table, updates, with};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::json;

fn pem(is_ca: bool) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

fn bundle(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[test]
fn bundles_hold_authorities_and_are_called_after_their_signer() {
    let authority = pem(true);
    let omitted = |problem: &str| format!("spec.trustBundle: Invalid value: \"<value omitted>\": {problem}");
    let of = |text: String, wanted: String| ("/spec/trustBundle", json!(text), wanted);
    let with_header = authority.replacen("CERTIFICATE-----\n", "CERTIFICATE-----\nKey: value\n\n", 1);
    let cases = [
        of(String::new(), omitted("at least one trust anchor must be provided")),
        of("no PEM".into(), omitted("at least one trust anchor must be provided")),
        of(pem(false), omitted("entry 0 does not have the CA bit set")),
        of(format!("{authority}# again\n{authority}"), omitted("duplicate trust anchor (indices [0 1])")),
        of(format!("{authority}{}", authority.replace("CERTIFICATE", "X")), omitted("entry 1 has bad block type: X")),
        of(with_header, omitted("entry 0 has PEM block headers")),
        of("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(), omitted("entry 0 does not parse as X.509")),
        of("x".repeat(LONGEST + 1), format!("spec.trustBundle: Too long: may not be more than {LONGEST} bytes")),
        (
            "/metadata/name",
            json!("a:b:c"),
            "metadata.name: Invalid value: \"a:b:c\": ClusterTrustBundle without signer name must not have \":\" in its name".into(),
        ),
        (
            "/spec/signerName",
            json!("example.com/signer"),
            "metadata.name: Invalid value: \"b\": ClusterTrustBundle for signerName example.com/signer must be named with prefix example.com:signer:"
                .into(),
        ),
    ];
    let cases: Vec<(&str, Value, &str)> = cases.iter().map(|(at, value, wanted)| (*at, value.clone(), wanted.as_str())).collect();
    table(validate, &bundle("b", json!({"trustBundle": authority})), &cases);
    let signed = bundle("example.com:signer:b", json!({"signerName": "example.com/signer", "trustBundle": authority}));
    let wrong_domain = "metadata.name: Invalid value: \"example.com:signer:b\": ClusterTrustBundle for signerName com/signer must be named with prefix \
                        com:signer:\nspec.signerName: Invalid value: \"com\": should be a domain with at least two segments separated by dots";
    table(validate, &signed, &[("/spec/signerName", json!("com/signer"), wrong_domain)]);
}

#[test]
fn a_signer_stays_and_what_was_stored_is_not_read_again() {
    let old = bundle("b", json!({"trustBundle": "what an older parser took"}));
    updates(validate, &old, &[("/metadata/labels", json!({"a": "b"}), "")]);
    let moved = with(&old, &[("/spec/signerName", json!("example.com/b")), ("/metadata/name", json!("example.com:b:b"))]);
    let found = crate::kinds::check::change(validate, &old, &moved);
    assert_eq!(found, "spec.signerName: Invalid value: \"example.com/b\": field is immutable");
}

#[test]
fn owners_and_finalizers_say_nothing_new() {
    let old = bundle("b", json!({"trustBundle": "x"}));
    let collected = with(&old, &[("/metadata/finalizers", json!(["a"])), ("/metadata/ownerReferences", json!([{"uid": "u"}]))]);
    assert_eq!(content(&old), content(&collected));
    assert_ne!(content(&old), content(&with(&old, &[("/metadata/labels", json!({"a": "b"}))])));
}
