//! Puts the guest programs into the binary, from the directory that MULLION_GUEST_PROGRAMS names (`tools/guest` makes one).
//! Without that variable the binary looks for them beside itself.

use std::path::PathBuf;

/// In the order of `wine::template::Programs::NAMES`.
const NAMES: [&str; 4] = ["mullion-init.exe", "mullion-tools.exe", "bcryptprimitives.dll", "explorer.exe"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MULLION_GUEST_PROGRAMS");
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let linux = variable("CARGO_CFG_TARGET_OS") == "linux";
    let dir = Some(PathBuf::from(variable("MULLION_GUEST_PROGRAMS"))).filter(|dir| linux && !dir.as_os_str().is_empty());
    let contents = dir.map(|dir| {
        let files = NAMES.map(|name| dir.join(name));
        for file in &files {
            println!("cargo::rerun-if-changed={}", file.display());
            if !file.is_file() {
                println!("cargo::error=MULLION_GUEST_PROGRAMS names no file {}: `tools/guest` makes that directory", file.display());
            }
        }
        files.map(|file| format!("include_bytes!({:?})", std::path::absolute(&file).unwrap_or(file))).join(", ")
    });
    let value = contents.map_or("None".to_owned(), |contents| format!("Some([{contents}])"));
    let place = PathBuf::from(variable("OUT_DIR")).join("programs.rs");
    std::fs::write(&place, format!("const EMBEDDED: Option<[&[u8]; 4]> = {value};\n")).expect("OUT_DIR can be written");
}
