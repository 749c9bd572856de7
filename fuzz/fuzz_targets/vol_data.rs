//! What a node agent, ours or upstream's, wrote of a CSI volume, and what ours would write again.

#![no_main]

use csi::VolumeData;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(read) = VolumeData::parse(data) {
        assert_eq!(VolumeData::parse(&read.to_bytes()).expect("what is written can be read"), read);
    }
});
