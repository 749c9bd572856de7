//! Docker's configuration files, and which credentials in them are for an image.

#![no_main]

use kubelet::check_docker_config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_docker_config(data);
});
