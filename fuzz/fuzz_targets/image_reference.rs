//! Image references: the full form reads as the same reference.

#![no_main]

use libfuzzer_sys::fuzz_target;
use kube_rules::Reference;

fuzz_target!(|text: &str| {
    let Ok(reference) = text.parse::<Reference>() else { return };
    let shown = reference.to_string();
    let again: Reference = shown.parse().expect("a reference that was printed can be read");
    assert_eq!(again.to_string(), shown);
    let _ = (reference.familiar(), reference.is_latest());
});
