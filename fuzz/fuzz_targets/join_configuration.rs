//! JoinConfigurations, as a join reads and checks them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    join::config::check(data);
});
