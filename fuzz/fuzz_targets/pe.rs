//! Headers of Windows programs, as images bring them.
#![no_main]

libfuzzer_sys::fuzz_target!(|head: &[u8]| {
    let _ = wine::pe::check(head);
});
