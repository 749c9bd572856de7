//! Command lines of Windows containers that name `cmd`, as pods bring them.
#![no_main]

libfuzzer_sys::fuzz_target!(|line: &str| {
    let _ = wine::command::for_cmd(line);
});
