//! The file of interfaces that azure-vnet-ipam reads.

#![no_main]

use cni::ipam::azure::check_interfaces;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = check_interfaces(data);
});
