//! HCN documents: what is read is printed so that it reads the same.

#![no_main]

use hcn::{HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork};
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
});
