//! The machine's table of mounts, whose paths whoever mounts may choose.

#![no_main]

use kubelet::check_control_groups;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_control_groups(data);
});
