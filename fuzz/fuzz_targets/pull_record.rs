//! The files in which node agents keep with what images were pulled, as another agent may have left them.

#![no_main]

use kubelet::check_pull_record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_pull_record(data);
});
