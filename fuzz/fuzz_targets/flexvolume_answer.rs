//! What a flexvolume driver answers, as the node agent reads it.

#![no_main]

use kubelet::check_flexvolume_answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = check_flexvolume_answer(data);
});
