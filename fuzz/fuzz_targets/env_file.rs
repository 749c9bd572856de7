//! A file of variables that a container left in a volume for another one.

#![no_main]

use kubelet::check_env_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_env_file(data);
});
