//! The file in which node agents keep which ids a pod has, as another agent may have left it.

#![no_main]

use kubelet::check_user_namespace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_user_namespace(data);
});
