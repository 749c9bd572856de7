//! Kubeconfigs: one that is read is written so that it reads the same.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use pki::KubeConfig;

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config");
    fs::write(&path, data).expect("a file in it");
    let Ok(config) = KubeConfig::from_path(&path) else { return };
    fs::write(&path, config.to_yaml()).expect("a file in it");
    assert_eq!(KubeConfig::from_path(&path).expect("a kubeconfig that was written can be read"), config);
});
