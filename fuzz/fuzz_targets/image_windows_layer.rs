//! Layers of Windows images: whatever the tar stream says, only the target directory changes.

#![no_main]

use std::fs;

use container_sim::images::{tarball::Limits, windows};
use libfuzzer_sys::fuzz_target;

#[path = "../mend.rs"]
mod mend;

const LIMITS: Limits = Limits { bytes: 1 << 20, file_bytes: 1 << 20, members: 100 };

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (target, template) = (dir.path().join("layer"), dir.path().join("template"));
    fs::create_dir(&target).expect("a directory in it");
    fs::create_dir_all(template.join("drive_c/windows/system32")).expect("a template");
    fs::write(template.join("drive_c/windows/system32/ntdll.dll"), "untouched").expect("a file in it");
    let _ = windows::unpack(mend::checksums(data).as_slice(), &target, std::slice::from_ref(&template), LIMITS);
    assert_eq!(fs::read_dir(dir.path()).expect("the directory is still there").count(), 2);
    assert_eq!(fs::read(template.join("drive_c/windows/system32/ntdll.dll")).expect("still there"), b"untouched");
});
