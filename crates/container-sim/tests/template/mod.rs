//! Wine's template: the `C:\` that every Windows container of this user starts from.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds Wine's template in the user's cache where it is missing.
pub fn build() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wine/template");
    let status = Command::new(script).status().expect("tools/wine/template starts");
    assert!(status.success(), "tools/wine/template failed: these tests need Wine (tools/setup)");
}

/// Gives a node that shall live in `dir` the user's template.
pub fn share(dir: &Path) {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home directory")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("mullion");
    std::os::unix::fs::symlink(cache.join("wine-template"), dir.join("wine-template")).unwrap();
}
