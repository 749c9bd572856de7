//! Configurations of credential providers, as the node agent reads them.

#![no_main]

use kubelet::check_provider_config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_provider_config(data);
});
