//! The file in which node agents keep which pods have which devices, as another agent may have left it.

#![no_main]

use kubelet::check_device_checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_device_checkpoint(data);
});
