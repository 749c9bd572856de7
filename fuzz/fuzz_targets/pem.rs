//! Blocks of PEM in a trust bundle, as API server and node agent read them; what is written of them is read the same.

#![no_main]

use kube_rules::pem;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let found = pem::blocks(text);
    let written: String = found.iter().map(|block| pem::encode(&block.label, &block.bytes)).collect();
    let again = pem::blocks(&written);
    assert!(found.iter().zip(&again).all(|(one, two)| (&one.label, &one.bytes) == (&two.label, &two.bytes)), "{text:?}");
    assert_eq!(found.len(), again.len(), "{text:?}");
});
