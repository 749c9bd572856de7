//! What a credential provider answers, as the node agent reads it.

#![no_main]

use kubelet::check_provider_answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_provider_answer(data);
});
