//! flannel's subnet.env, as the plug-in flannel reads it.

#![no_main]

use cni::flannel::check_subnet_env;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = check_subnet_env(&String::from_utf8_lossy(data));
});
