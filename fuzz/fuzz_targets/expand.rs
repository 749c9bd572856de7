//! `$(NAME)` expansion: without a `$` nothing changes, and a value is not expanded again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use kube_rules::expand;

fuzz_target!(|text: &str| {
    let shown = expand(text, |name| name.starts_with('A').then(|| "$(A)".to_owned()));
    assert!(text.contains('$') || shown == text);
    assert!(expand(text, |_| None).len() <= text.len());
});
