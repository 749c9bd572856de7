//! HCN documents of both shapes, settings and requests: what is read is printed so that it reads the same.

#![no_main]

use hcn::document::*;
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(data: &[u8]) {
    let Ok(document) = serde_json::from_slice::<T>(data) else { return };
    let text = serde_json::to_string(&document).expect("a document that was read can be printed");
    let again: T = serde_json::from_str(&text).expect("a document that was printed can be read");
    assert_eq!(again, document, "{text}");
}

fuzz_target!(|data: &[u8]| {
    check::<HostComputeNetwork>(data);
    check::<HostComputeEndpoint>(data);
    check::<HostComputeNamespace>(data);
    check::<HostComputeLoadBalancer>(data);
    check::<HostComputeRoute>(data);
    check::<GuestNetworkService>(data);
    check::<ModifyRequest>(data);
    check::<Query>(data);
    check::<Acl>(data);
    check::<TierAcl>(data);
    check::<SetPolicy>(data);
    check::<L4WfpProxy>(data);
    check::<Encryption>(data);
    check::<v1::PolicyList>(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(network) = v1::network(text) {
        let older = v1::Network::of(&network);
        assert_eq!(v1::Network::of(&older.to_v2()), older, "the older shape of the newer of the older");
    }
    if let Ok(endpoint) = v1::endpoint(text) {
        check::<v1::Endpoint>(to_text(&v1::Endpoint::of(&endpoint, None)).as_bytes());
    }
});
