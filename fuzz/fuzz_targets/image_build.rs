//! The Windows build of an image name, against every known node.

#![no_main]

use libfuzzer_sys::fuzz_target;
use kube_rules::{NodeOs, WINDOWS_RELEASES, match_image};

fuzz_target!(|text: &str| {
    assert!(match_image(NodeOs::Linux, false, text).is_ok());
    for release in WINDOWS_RELEASES {
        let judged = |isolated| match_image(NodeOs::Windows { build: release.build }, isolated, text);
        if let Err(mismatch) = judged(false) {
            assert_ne!(mismatch.image_build, mismatch.node_build);
        }
        if let Err(mismatch) = judged(true) {
            assert!(mismatch.image_build > mismatch.node_build, "isolation runs what is older");
        }
    }
});
