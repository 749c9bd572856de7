//! Layers of Windows images: whatever the tar stream says, behind links that lead to a canary and to the directory of the
//! hives, only the target directory changes, and no link in it leads out of it.

#![no_main]

use std::fs;
use std::path::{Component, Path};

use images::{tarball::Limits, windows};
use libfuzzer_sys::fuzz_target;

#[path = "../repair.rs"]
mod repair;

const LIMITS: Limits = Limits { bytes: 1 << 20, file_bytes: 1 << 20, members: 100 };

/// Members that every stream begins with: links from several depths to the drive, and to what lies beside the layer.
const PLANTED: [(&str, &str); 5] = [
    ("Files/root", "C:/"),
    ("Files/a/b/c/root", "C:/"),
    ("Files/a/b/c/up", "../../../x"),
    ("Files/a/hives", "C:/hives"),
    ("Files/a/b/canary", "C:/canary/file"),
];

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

/// Links lead no further up than their directory lies deep in the drive.
fn check(dir: &Path, depth: usize) {
    for entry in fs::read_dir(dir).expect("a directory of the layer") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its kind");
        if kind.is_dir() {
            check(&entry.path(), depth + 1);
        } else if kind.is_symlink() {
            let link = fs::read_link(entry.path()).expect("its target");
            let up = link.components().filter(|part| matches!(part, Component::ParentDir)).count();
            assert!(link.is_relative() && up <= depth, "{:?} leads to {link:?}", entry.path());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (target, template, canary) = (dir.path().join("layer"), dir.path().join("template"), dir.path().join("canary"));
    for made in [&target, &canary, &template.join("drive_c/windows/system32")] {
        fs::create_dir_all(made).expect("a directory");
    }
    fs::write(template.join("drive_c/windows/system32/ntdll.dll"), "untouched").expect("a file in it");
    fs::write(canary.join("file"), "untouched").expect("a canary");
    let _ = windows::unpack(planted(data).as_slice(), &target, std::slice::from_ref(&template), LIMITS);
    assert_eq!(fs::read_dir(dir.path()).expect("the directory is still there").count(), 3);
    assert_eq!(fs::read_dir(&canary).expect("still there").count(), 1);
    for file in [canary.join("file"), template.join("drive_c/windows/system32/ntdll.dll")] {
        assert_eq!(fs::read(file).expect("still there"), b"untouched");
    }
    let drive = target.join(windows::DRIVE);
    if let Ok(meta) = fs::symlink_metadata(&drive) {
        assert!(meta.is_dir(), "drive C is a directory");
        check(&drive, 0);
    }
    if let Ok(hives) = fs::read_dir(target.join(windows::HIVES)) {
        for hive in hives {
            assert!(hive.expect("an entry").file_type().expect("its kind").is_file(), "a hive is a file");
        }
    }
});
