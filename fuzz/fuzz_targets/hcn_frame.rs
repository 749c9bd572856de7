//! Frames of the remote HCN port: a stream of them ends, and each is written as it was read.

#![no_main]

use hcn::remote::{read_frame, write_frame};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let mut stream = data;
    while let Ok(Some(message)) = read_frame::<Value>(&mut stream) {
        let mut written = Vec::new();
        write_frame(&mut written, &message).expect("a frame that was read can be written");
        let again: Option<Value> = read_frame(&mut written.as_slice()).expect("a frame that was written can be read");
        assert_eq!(again, Some(message));
    }
});
