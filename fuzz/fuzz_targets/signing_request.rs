//! Certificate signing requests: what can be read is signed or refused, and a certificate has the request's name.

#![no_main]

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use pki::{Ca, SigningRequest, Usages};

static AUTHORITY: OnceLock<Ca> = OnceLock::new();

fuzz_target!(|pem: &[u8]| {
    let Ok(request) = SigningRequest::parse(pem) else { return };
    let ca = AUTHORITY.get_or_init(|| Ca::generate("fuzz", Duration::from_secs(86_400)).expect("an authority"));
    if let Ok(certificate) = ca.sign(&request, &Usages::default(), Duration::from_secs(600), SystemTime::now()) {
        assert!(pki::not_after(&certificate).is_ok(), "{certificate}");
    }
});
