//! Registry hives out of layers, and what they make of Wine's registry.

#![no_main]

use images::windows::{hive, registry::{RegistryFile, Which}};
use libfuzzer_sys::fuzz_target;

#[path = "../repair.rs"]
mod repair;

const WINE: &str = "WINE REGISTRY Version 2\n\n[Software\\\\A] 1\n\"a\"=\"b\"\n\n[Software\\\\A\\\\B] 1\n@=\"c\"\n\n";

fuzz_target!(|data: &[u8]| {
    let Ok(root) = hive::parse(&repair::hive(data)) else { return };
    for which in Which::ALL {
        let mut file = RegistryFile::parse(WINE);
        file.apply(which, &root);
        let text = file.render();
        // What is written is read as the same again.
        assert_eq!(RegistryFile::parse(&text).render(), text);
    }
});
