//! Layers: whatever the tar stream says, behind links that lead to a canary, only the target directory changes.

#![no_main]

use std::fs;

use images::{layer, tarball::Limits};
use libfuzzer_sys::fuzz_target;

#[path = "../repair.rs"]
mod repair;

const LIMITS: Limits = Limits { bytes: 1 << 20, file_bytes: 1 << 20, members: 100 };

/// Members that every stream begins with.
const PLANTED: [(&str, &str); 4] = [("up", ".."), ("a/b/up", "../../.."), ("a/canary", "../../canary/file"), ("root", "/")];

fn planted(data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, link) in PLANTED {
        let mut header = [0; 512];
        for (at, text) in [(0, name), (100, "0000777"), (124, "00000000000"), (136, "00000000000"), (156, "2"), (157, link), (257, "ustar\x0000")] {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        bytes.extend(header);
    }
    bytes.extend(data);
    repair::checksums(&bytes)
}

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let target = dir.path().join("layer");
    fs::create_dir(&target).expect("a directory in it");
    let canary = dir.path().join("canary");
    fs::create_dir(&canary).and_then(|()| fs::write(canary.join("file"), "untouched")).expect("a canary beside it");
    let _ = layer::unpack(planted(data).as_slice(), &target, LIMITS);
    assert_eq!(fs::read_dir(dir.path()).expect("the directory is still there").count(), 2);
    assert_eq!(fs::read_dir(&canary).expect("still there").count(), 1);
    assert_eq!(fs::read(canary.join("file")).expect("the file is still there"), b"untouched");
});
