//! A file of systemd's journal, as the node agent reads it for log queries.

#![no_main]

use kubelet::check_journal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_journal(data);
});
