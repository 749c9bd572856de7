//! Image archives of either form, plain or compressed: every image and every layer is looked at.

#![no_main]

use std::fs;

use images::{archive::Archive, tarball::Limits};
use libfuzzer_sys::fuzz_target;

#[path = "../repair.rs"]
mod repair;

const LIMITS: Limits = Limits { bytes: 1 << 20, file_bytes: 1 << 20, members: 100 };

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("archive");
    fs::write(&path, repair::checksums(data)).expect("a file in it");
    let Ok(archive) = Archive::open(&path, dir.path(), LIMITS) else { return };
    for image in archive.images().into_iter().flatten() {
        for layer in image.layers.iter().take(8) {
            let _ = archive.verify(layer);
            let _ = archive.layer(layer).map(|content| content.finish(LIMITS.bytes));
        }
    }
});
