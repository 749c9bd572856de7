//! The Windows build that an image name tells, against every known node.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pod_rules::{NodeOs, WINDOWS_RELEASES, match_image};

fuzz_target!(|text: &str| {
    assert!(match_image(NodeOs::Linux, text).is_ok());
    for release in WINDOWS_RELEASES {
        if let Err(mismatch) = match_image(NodeOs::Windows { build: release.build }, text) {
            assert_ne!(mismatch.image_build, mismatch.node_build);
        }
    }
});
