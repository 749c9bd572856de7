//! Layers: whatever the tar stream says, only the target directory changes.

#![no_main]

use std::fs;

use container_sim::images::{layer, tarball::Limits};
use libfuzzer_sys::fuzz_target;

#[path = "../mend.rs"]
mod mend;

const LIMITS: Limits = Limits { bytes: 1 << 20, file_bytes: 1 << 20, members: 100 };

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let target = dir.path().join("layer");
    fs::create_dir(&target).expect("a directory in it");
    fs::write(dir.path().join("beside"), "untouched").expect("a file in it");
    let _ = layer::unpack(mend::checksums(data).as_slice(), &target, LIMITS);
    assert_eq!(fs::read_dir(dir.path()).expect("the directory is still there").count(), 2);
    assert_eq!(fs::read(dir.path().join("beside")).expect("the file is still there"), b"untouched");
});
