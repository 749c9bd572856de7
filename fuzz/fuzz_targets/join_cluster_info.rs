//! What a server that has not proved anything yet says of a cluster: signatures, and kubeconfigs, which are written so that they read the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    join::cluster_info::check(data);
});
