//! When a signing request is done and goes (upstream: `certificates/cleaner`). Pure.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::plan::is_issued;

const HOUR: Duration = Duration::from_secs(3600);
/// Issued, denied and failed requests stay this long.
const DONE: Duration = HOUR;
/// Requests that nobody answers, or that nobody signs.
const PENDING: Duration = Duration::from_secs(24 * 3600);
/// How often a request is looked at for its age.
pub(super) const LOOK_AGAIN: Duration = HOUR;

/// How long a request still stays; zero: it goes now.
pub(super) fn left(request: &CertificateSigningRequest, now: Timestamp) -> Duration {
    let conditions: Vec<_> = request.status.iter().flat_map(|status| status.conditions.iter().flatten()).collect();
    let until = |since: Option<Timestamp>, stay: Duration| since.map(|since| remaining(since, stay, now));
    let mut ends: Vec<Duration> = Vec::new();
    if conditions.is_empty() {
        ends.extend(until(request.metadata.creation_timestamp.as_ref().map(|time| time.0), PENDING));
    }
    for condition in conditions {
        let updated = condition.last_update_time.as_ref().map(|time| time.0);
        match condition.type_.as_str() {
            "Denied" | "Failed" => ends.extend(until(updated, DONE)),
            "Approved" if is_issued(request) => {
                ends.extend(until(updated, DONE));
                ends.extend(expiry(request, now));
            }
            "Approved" => ends.extend(until(updated, PENDING)),
            _ => {}
        }
    }
    ends.into_iter().min().unwrap_or(LOOK_AGAIN)
}

fn remaining(since: Timestamp, stay: Duration, now: Timestamp) -> Duration {
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    stay.saturating_sub(age)
}

/// How long the certificate is still good.
fn expiry(request: &CertificateSigningRequest, now: Timestamp) -> Option<Duration> {
    let pem = &request.status.as_ref()?.certificate.as_ref()?.0;
    let end = pki::not_after(std::str::from_utf8(pem).ok()?).ok()?;
    Some(end.duration_since(SystemTime::from(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_stay_until_they_are_done() {
        let now = Timestamp::now();
        let ago = |minutes: i64| now - jiff::SignedDuration::from_mins(minutes);
        let ca = |life: u64| pki::Ca::generate("ca", Duration::from_secs(life)).unwrap().cert_pem().to_owned();
        let (good, over) = (ca(30 * 24 * 3600), ca(0));
        for (name, created, condition, certificate, gone) in [
            ("new", 1, None, None, false),
            ("nobody answers", 24 * 60 + 1, None, None, true),
            ("denied just now", 2000, Some(("Denied", 59)), None, false),
            ("denied", 61, Some(("Denied", 61)), None, true),
            ("failed", 61, Some(("Failed", 61)), None, true),
            ("approved, not signed", 61, Some(("Approved", 61)), None, false),
            ("approved, never signed", 2000, Some(("Approved", 24 * 60 + 1)), None, true),
            ("issued just now", 59, Some(("Approved", 59)), Some(&good), false),
            ("issued", 61, Some(("Approved", 61)), Some(&good), true),
            ("issued and over", 10, Some(("Approved", 10)), Some(&over), true),
        ] {
            let conditions: Vec<_> =
                condition.iter().map(|(type_, age)| json!({"type": type_, "status": "True", "lastUpdateTime": ago(*age)})).collect();
            let mut request: CertificateSigningRequest = serde_json::from_value(json!({
                "metadata": {"name": "a", "creationTimestamp": ago(created)},
                "spec": {"request": "", "signerName": "a/b"},
                "status": {"conditions": conditions},
            }))
            .unwrap();
            request.status.get_or_insert_default().certificate = certificate.map(|pem: &String| ByteString(pem.clone().into_bytes()));
            assert_eq!(left(&request, now + jiff::SignedDuration::from_secs(1)).is_zero(), gone, "{name}");
        }
    }
}
