//! The Windows template that the tests share.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wine::template::{NAME, Programs, Work, make};

/// Makes the template where it is missing or older than the sources.
pub fn build() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest");
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("tools/guest starts");
    assert!(output.status.success(), "tools/guest failed: these tests need a compiler for Windows (tools/setup)");
    let dir = PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim());
    let programs = Programs::read(&dir).expect("tools/guest builds the guest programs");
    let mut step = |what: &str, took: std::time::Duration| eprintln!("{what}: {took:?}");
    let work = Work { cache: &cache(), programs: &programs, anew: false, interrupted: &|| false, step: &mut step };
    make(work).expect("the Windows template is made: these tests need Wine (tools/setup)");
}

/// A place of the tests' own: root's template is for its clusters' users, and these labs run as whoever calls.
fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mullion")
}

/// Compiles a Windows program of this directory to `target`.
#[allow(dead_code, reason = "not every test has programs of its own")]
pub fn compile(source: &str, target: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/template").join(source);
    let status = Command::new("x86_64-w64-mingw32-gcc").args(["-O1", "-s", "-o"]).arg(target).arg(source).arg("-lws2_32").status();
    let status = status.expect("a compiler for Windows (Debian: apt-get install gcc-mingw-w64-x86-64)");
    assert!(status.success(), "the test's program does not compile");
}

/// Gives the template to a node whose directory will be `dir`.
pub fn share(dir: &Path) {
    std::os::unix::fs::symlink(cache().join(NAME), dir.join(NAME)).unwrap();
}
