//! What becomes of a signing request, by the rules of its signer. Pure.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use pki::SigningRequest;

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// The longest life of a certificate (upstream: `--cluster-signing-duration`).
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
const SHORTEST: Duration = Duration::from_secs(600);

/// A kind of request that is approved without a person, when its requester may create this subresource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recognizer {
    pub subresource: &'static str,
    pub message: &'static str,
}

static SELF_NODE_CLIENT: Recognizer =
    Recognizer { subresource: "selfnodeclient", message: "Auto approving self kubelet client certificate after SubjectAccessReview." };
static NODE_CLIENT: Recognizer =
    Recognizer { subresource: "nodeclient", message: "Auto approving kubelet client certificate after SubjectAccessReview." };

/// What to do.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Nothing,
    /// Approve it, if its requester has one of these rights.
    Ask(Vec<&'static Recognizer>),
    /// Sign it for this long.
    Sign(SigningRequest, Duration),
    Fail(CertificateSigningRequestCondition),
}

fn conditions(request: &CertificateSigningRequest) -> impl Iterator<Item = &CertificateSigningRequestCondition> {
    request.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// Whether a certificate is in the status.
pub(super) fn is_issued(request: &CertificateSigningRequest) -> bool {
    request.status.as_ref().and_then(|status| status.certificate.as_ref()).is_some_and(|certificate| !certificate.0.is_empty())
}

pub(super) fn plan(request: &CertificateSigningRequest, now: Timestamp) -> Verdict {
    let has = |type_: &str| conditions(request).any(|condition| condition.type_ == type_);
    let (approved, denied, failed) = (has("Approved"), has("Denied"), conditions(request).any(|one| one.type_ == "Failed" && one.status == "True"));
    if is_issued(request) || denied || failed {
        return Verdict::Nothing;
    }
    let spec = &request.spec;
    if !matches!(spec.signer_name.as_str(), CLIENT | KUBELET_CLIENT | KUBELET_SERVING | LEGACY) {
        return Verdict::Nothing;
    }
    let parsed = match SigningRequest::parse(&spec.request.0) {
        Ok(parsed) => parsed,
        // The API server has checked it; what this program cannot read it can never sign.
        Err(error) if approved => return Verdict::Fail(super::failure(error.to_string(), now)),
        Err(_) => return Verdict::Nothing,
    };
    let usages: BTreeSet<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    if !approved {
        return recognize(request, &parsed, &usages);
    }
    let valid = match spec.signer_name.as_str() {
        KUBELET_SERVING => kubelet_serving(&parsed, &usages),
        KUBELET_CLIENT => kubelet_client(&parsed, &usages),
        CLIENT => client(spec.usages.as_deref().unwrap_or_default()),
        // It has no rules: for requests of before there were signers.
        _ => Ok(()),
    };
    match valid {
        Ok(()) => Verdict::Sign(parsed, life(spec.expiration_seconds)),
        Err(message) => Verdict::Fail(super::failure(message, now)),
    }
}

fn recognize(request: &CertificateSigningRequest, parsed: &SigningRequest, usages: &BTreeSet<&str>) -> Verdict {
    let spec = &request.spec;
    if spec.signer_name != KUBELET_CLIENT || kubelet_client(parsed, usages).is_err() {
        return Verdict::Nothing;
    }
    let own = (spec.username.as_deref() == Some(parsed.common_name.as_str())).then_some(&SELF_NODE_CLIENT);
    Verdict::Ask(own.into_iter().chain([&NODE_CLIENT]).collect())
}

fn life(asked: Option<i32>) -> Duration {
    let Some(asked) = asked else { return LONGEST };
    Duration::from_secs(u64::try_from(asked).unwrap_or_default()).clamp(SHORTEST, LONGEST)
}

fn kubelet_names(parsed: &SigningRequest) -> Result<(), String> {
    if parsed.organisations == ["system:nodes"] { Ok(()) } else { Err("subject organization is not system:nodes".to_owned()) }
}

fn none_of<T>(names: &[T], what: &str) -> Result<(), String> {
    if names.is_empty() { Ok(()) } else { Err(format!("{what} subjectAltNames are not allowed")) }
}

fn node_name(parsed: &SigningRequest) -> Result<(), String> {
    if parsed.common_name.starts_with("system:node:") { Ok(()) } else { Err("subject common name does not begin with system:node:".to_owned()) }
}

fn exactly(usages: &BTreeSet<&str>, purpose: &str) -> Result<(), String> {
    let full = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    let without_rsa = BTreeSet::from(["digital signature", purpose]);
    if *usages == full || *usages == without_rsa {
        return Ok(());
    }
    let required: Vec<&str> = full.into_iter().collect();
    Err(format!("usages did not match [{}]", required.join(" ")))
}

fn kubelet_serving(parsed: &SigningRequest, usages: &BTreeSet<&str>) -> Result<(), String> {
    kubelet_names(parsed)?;
    if parsed.dns.is_empty() && parsed.ips.is_empty() {
        return Err("DNS or IP subjectAltName is required".to_owned());
    }
    none_of(&parsed.emails, "Email")?;
    none_of(&parsed.uris, "URI")?;
    exactly(usages, "server auth")?;
    node_name(parsed)
}

fn kubelet_client(parsed: &SigningRequest, usages: &BTreeSet<&str>) -> Result<(), String> {
    kubelet_names(parsed)?;
    none_of(&parsed.dns, "DNS")?;
    none_of(&parsed.emails, "Email")?;
    none_of(&parsed.ips, "IP")?;
    none_of(&parsed.uris, "URI")?;
    node_name(parsed)?;
    exactly(usages, "client auth")
}

fn client(usages: &[String]) -> Result<(), String> {
    let optional = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !optional.contains(&usage.as_str())) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    if usages.iter().any(|usage| usage == "client auth") {
        Ok(())
    } else {
        Err("missing required usage for client certificate: client auth".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NODE: &str = "system:node:win01";
    const CLIENT_USAGES: &[&str] = &["digital signature", "key encipherment", "client auth"];
    const SERVER_USAGES: &[&str] = &["digital signature", "server auth"];

    struct Case {
        signer: &'static str,
        cn: &'static str,
        orgs: &'static [&'static str],
        dns: &'static [&'static str],
        usages: &'static [&'static str],
        user: &'static str,
    }

    fn kubelet() -> Case {
        Case { signer: KUBELET_CLIENT, cn: NODE, orgs: &["system:nodes"], dns: &[], usages: CLIENT_USAGES, user: "system:bootstrap:abcdef" }
    }

    fn serving() -> Case {
        Case { signer: KUBELET_SERVING, dns: &["win01"], usages: SERVER_USAGES, user: NODE, ..kubelet() }
    }

    fn request(case: &Case, conditions: &[&str]) -> CertificateSigningRequest {
        let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (pem, _) = pki::new_csr(case.cn, &owned(case.orgs), &owned(case.dns), &[]).unwrap();
        let conditions: Vec<_> = conditions.iter().map(|type_| json!({"type": type_, "status": "True"})).collect();
        let mut request: CertificateSigningRequest = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"request": "", "signerName": case.signer, "usages": case.usages, "username": case.user},
            "status": {"conditions": conditions},
        }))
        .unwrap();
        request.spec.request.0 = pem.into_bytes();
        request
    }

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn requests_of_nodes_are_recognized() {
        let asks = |case: Case| match plan(&request(&case, &[]), now()) {
            Verdict::Ask(all) => all.iter().map(|one| one.subresource).collect(),
            Verdict::Nothing => Vec::new(),
            other => panic!("{other:?}"),
        };
        assert_eq!(asks(kubelet()), ["nodeclient"]);
        assert_eq!(asks(Case { user: NODE, ..kubelet() }), ["selfnodeclient", "nodeclient"]);
        assert_eq!(asks(Case { usages: &["digital signature", "client auth"], ..kubelet() }), ["nodeclient"]);
        for case in [
            Case { signer: CLIENT, ..kubelet() },
            Case { signer: "example.com/other", ..kubelet() },
            Case { orgs: &["system:masters"], ..kubelet() },
            Case { cn: "win01", ..kubelet() },
            Case { dns: &["win01"], ..kubelet() },
            Case { usages: SERVER_USAGES, ..kubelet() },
            serving(),
        ] {
            assert!(asks(case).is_empty());
        }
    }

    #[test]
    fn approved_requests_are_signed_or_failed() {
        for (case, expected) in [
            (kubelet(), Ok(())),
            (serving(), Ok(())),
            (Case { signer: CLIENT, cn: "jane", orgs: &["dev"], ..kubelet() }, Ok(())),
            (Case { signer: LEGACY, usages: &["cert sign"], ..kubelet() }, Ok(())),
            (Case { orgs: &["dev"], ..kubelet() }, Err("subject organization is not system:nodes")),
            (Case { dns: &["a"], ..kubelet() }, Err("DNS subjectAltNames are not allowed")),
            (Case { cn: "jane", ..kubelet() }, Err("subject common name does not begin with system:node:")),
            (Case { usages: SERVER_USAGES, ..kubelet() }, Err("usages did not match [client auth digital signature key encipherment]")),
            (Case { dns: &[], ..serving() }, Err("DNS or IP subjectAltName is required")),
            (Case { usages: CLIENT_USAGES, ..serving() }, Err("usages did not match [digital signature key encipherment server auth]")),
            (Case { signer: CLIENT, usages: SERVER_USAGES, ..kubelet() }, Err("invalid usage for client certificate: server auth")),
            (Case { signer: CLIENT, usages: &["digital signature"], ..kubelet() }, Err("missing required usage for client certificate: client auth")),
        ] {
            let verdict = plan(&request(&case, &["Approved"]), now());
            match (expected, verdict) {
                (Ok(()), Verdict::Sign(_, LONGEST)) => {}
                (Err(message), Verdict::Fail(condition)) => {
                    assert_eq!((condition.message.as_deref(), condition.reason.as_deref()), (Some(message), Some("SignerValidationFailure")));
                }
                (expected, found) => panic!("{expected:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_is_done_stays() {
        for conditions in [&["Denied"][..], &["Approved", "Denied"], &["Approved", "Failed"]] {
            assert_eq!(plan(&request(&kubelet(), conditions), now()), Verdict::Nothing, "{conditions:?}");
        }
        let mut issued = request(&kubelet(), &["Approved"]);
        issued.status.get_or_insert_default().certificate = Some(k8s_openapi::ByteString(b"x".to_vec()));
        assert_eq!(plan(&issued, now()), Verdict::Nothing);
        assert_eq!(plan(&request(&Case { signer: "example.com/other", ..kubelet() }, &["Approved"]), now()), Verdict::Nothing);
    }

    #[test]
    fn lives_have_bounds() {
        let seconds = |asked: Option<i32>| life(asked).as_secs();
        assert_eq!([seconds(None), seconds(Some(1)), seconds(Some(3600)), seconds(Some(i32::MAX))], [31_536_000, 600, 3600, 31_536_000]);
    }
}
