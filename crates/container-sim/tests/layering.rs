//! The rules inside this crate, over its sources: the shim knows neither CRI nor images nor the runtime.

use std::path::{Path, PathBuf};

/// Modules of this crate that the shim may use.
const OWN: &[&str] = &["shim", "state"];

/// Crates that it must not use.
const FOREIGN: &[&str] = &["cri", "k8s_cri", "tonic", "images", "cni", "hcn", "streaming"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The parts of the paths that a line of code names, comments apart.
fn paths(line: &str) -> Vec<Vec<&str>> {
    let code = line.split("//").next().unwrap_or_default();
    let path = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').filter(|word| word.contains("::"));
    path.map(|path| path.split("::").collect()).collect()
}

/// Why the shim must not contain a line, if so.
fn violation(line: &str) -> Option<String> {
    paths(line).into_iter().find_map(|parts| match parts[..] {
        ["crate", module, ..] if !OWN.contains(&module) => Some(format!("uses crate::{module}")),
        [name, ..] if FOREIGN.contains(&name) => Some(format!("uses the crate {name}")),
        _ => None,
    })
}

#[test]
fn the_shim_knows_neither_cri_nor_images_nor_the_runtime() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = vec![src.join("shim.rs")];
    sources(&src.join("shim"), &mut found);
    assert!(found.len() > 20, "the sources of the shim were not found");
    let mut wrong = Vec::new();
    for path in found {
        let text = std::fs::read_to_string(&path).expect("a source can be read");
        let lines = text.lines().enumerate().filter_map(|(number, line)| Some((number + 1, violation(line)?)));
        wrong.extend(lines.map(|(number, reason)| format!("{}:{number} {reason}", path.display())));
    }
    assert!(wrong.is_empty(), "the shim's inputs are its own plain types; the runtime translates:\n{}", wrong.join("\n"));
}

#[test]
fn violations_are_found() {
    for line in ["use crate::runtime::Runtime;", "    let image: images::Image = find();", "use k8s_cri::v1;", "use crate::{session, shim};"] {
        assert!(violation(line).is_some(), "{line}");
    }
    for line in ["use crate::shim::Message;", "// crate::runtime writes it", "use linux_sys::mount;", "crate::state::replace(path, &bytes)"] {
        assert_eq!(violation(line), None, "{line}");
    }
}
