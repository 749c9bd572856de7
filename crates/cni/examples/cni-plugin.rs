//! Standalone program with every CNI plug-in: link or copy it under a plug-in's name into a CNI directory.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    cni::plugin_main(&name)
}
