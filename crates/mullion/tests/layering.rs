//! The rules between crates, over what cargo and the sources say: which crate may use which, where `unsafe` may stand, what every file opens with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where `unsafe` may stand.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/linux-sys/",
    "crates/host/",
    "crates/hcn/src/windows.rs",
    "crates/hcn/src/windows/",
    "crates/hcn-dll/",
    // The first process of Windows programs in pods: jobs, console events and exact command lines have no safe form in std.
    "crates/guest/src/windows/init.rs",
    // Echo requests, console events and named events of the tools in pods.
    "crates/guest/src/windows/api.rs",
];

const LONGEST_FILE: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/mullion lies two below").to_owned()
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    serde_json::from_value(metadata["packages"].take()).expect("packages are a list")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What each crate uses of ours, by the table in ARCHITECTURE.md: name, purpose, and names in backticks. None: anything.
fn documented() -> BTreeMap<String, Option<BTreeSet<String>>> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let rows = text.lines().skip_while(|line| *line != "| crate | what it is | uses |").skip(2).take_while(|line| line.starts_with('|'));
    let named = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').collect();
        let [_, name, _, uses, _] = cells[..] else { panic!("a row of ARCHITECTURE.md's table has another number of cells: {line}") };
        let name = named(name).pop().expect("a row names a crate");
        (name, (uses.trim() != "all").then(|| named(uses).into_iter().collect()))
    };
    rows.map(row).collect()
}

#[test]
fn architecture_names_every_dependency_between_crates() {
    let packages = packages();
    let ours: BTreeSet<&str> = packages.iter().map(|package| text(&package["name"])).collect();
    let documented = documented();
    let mut wrong: Vec<String> =
        documented.keys().filter(|name| !ours.contains(name.as_str())).map(|name| format!("there is no crate {name}")).collect();
    for package in &packages {
        let name = text(&package["name"]);
        // Tests may use more.
        let dependencies =
            package["dependencies"].as_array().expect("dependencies are a list").iter().filter(|dependency| dependency["kind"].is_null());
        let used: BTreeSet<String> =
            dependencies.map(|dependency| text(&dependency["name"])).filter(|used| ours.contains(used)).map(str::to_owned).collect();
        match documented.get(name) {
            None => wrong.push(format!("{name} is not in the table")),
            Some(Some(listed)) if *listed != used => wrong.push(format!("{name} uses {used:?}; the table says {listed:?}")),
            Some(_) if used.contains("test-lab") => wrong.push(format!("{name} uses test-lab in more than tests")),
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "the table of crates in ARCHITECTURE.md is wrong:\n{}", wrong.join("\n"));
}

#[test]
fn crates_inherit_version_and_license() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = text(&package["name"]);
        if package["rust_version"].is_null() {
            wrong.push(format!("{name} states no rust-version: inherit the workspace's"));
        }
        if text(&package["license"]) != "Apache-2.0" {
            wrong.push(format!("{name} is not under Apache-2.0"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

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

/// Path from the root, and content, of every source file.
fn all_sources() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    sources(&root.join("crates"), &mut found);
    assert!(found.len() > 100, "the sources were not found");
    let read = |path: PathBuf| {
        let content = std::fs::read_to_string(&path).expect("a source can be read");
        (path.strip_prefix(&root).expect("below the root").display().to_string(), content)
    };
    found.into_iter().map(read).collect()
}

/// Whether the code, comments and texts apart, has the word.
fn has_word(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word) && !code.contains('"')
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let this = "crates/mullion/tests/layering.rs";
    let mut wrong = Vec::new();
    for (path, content) in all_sources() {
        if path == this || MAY_BE_UNSAFE.iter().any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        let lines = content.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe"));
        wrong.extend(lines.map(|(number, _)| format!("{path}:{}", number + 1)));
    }
    assert!(wrong.is_empty(), "unsafe outside of linux-sys, host, hcn's windows.rs and guest's windows directory:\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_short_and_crates_say_their_purpose() {
    let mut wrong = Vec::new();
    for (path, content) in all_sources() {
        let lines = content.lines().count();
        if lines > LONGEST_FILE {
            wrong.push(format!("{path} has {lines} lines, more than {LONGEST_FILE}: cut it"));
        }
        if (path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")) && !content.starts_with("//!") {
            wrong.push(format!("{path} does not open with a line that says its purpose"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Examples in a crate's documentation are compiled; where there are none, the seconds of an empty run are saved.
#[test]
fn crates_test_the_examples_of_their_documentation() {
    let is_example = |content: &str| {
        let fences = content.lines().map(str::trim_start).filter(|line| line.starts_with("//! ```") || line.starts_with("/// ```"));
        fences.step_by(2).any(|line| !line.ends_with("```text"))
    };
    let with_examples: BTreeSet<String> = all_sources()
        .iter()
        .filter_map(|(path, content)| Some((path.strip_prefix("crates/")?.split_once("/src/")?.0, content)))
        .filter(|(_, content)| is_example(content))
        .map(|(name, _)| name.to_owned())
        .collect();
    let mut wrong = Vec::new();
    for package in packages() {
        let name = text(&package["name"]);
        let targets: Vec<Value> = serde_json::from_value(package["targets"].clone()).expect("targets are a list");
        let has_library = |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"));
        let Some(library) = targets.iter().find(|target| has_library(target)) else { continue };
        let are_tested = library["doctest"] == true;
        if are_tested != with_examples.contains(name) {
            wrong.push(format!("crates/{name}/Cargo.toml: doctest = {} belongs in [lib]", !are_tested));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A node agent starts the drivers and credential providers that its operator has installed, and no other program (CVE-2023-3676, -3955, -3893, -5528).
#[test]
fn the_node_agent_starts_declared_programs_alone() {
    let of_agent = [
        "crates/kubelet/src/",
        "crates/host/src/",
        "crates/csi/src/",
        "crates/device-plugin/src/",
        "crates/cri/src/",
        "crates/kube-rules/src/",
        "crates/install/src/",
        "crates/join/src/",
    ];
    let starts = |(path, content): &(String, String)| {
        of_agent.iter().any(|part| path.contains(part)) && !path.contains("test") && content.contains("Command::new(")
    };
    let found: Vec<String> = all_sources().into_iter().filter(starts).map(|(path, _)| path).collect();
    // systemctl, with fixed arguments.
    let of_install = "crates/install/src/control.rs";
    let declared = ["crates/kubelet/src/images/providers/call.rs", "crates/kubelet/src/volumes/flexvolume/call.rs", of_install];
    let is_declared = |path: &String| declared.iter().any(|known| path.ends_with(known));
    assert!(found.len() == declared.len() && found.iter().all(is_declared), "{found:?}");
}

/// Product code starts no shell: nothing of others can become a command.
#[test]
fn product_code_starts_no_shell() {
    let shells = ["\"sh\"", "\"bash\"", "\"cmd\"", "\"cmd.exe\"", "\"powershell\"", "\"powershell.exe\"", "\"pwsh\"", "\"/bin/sh\""];
    let mut wrong = Vec::new();
    for (path, content) in all_sources().into_iter().filter(|(path, _)| path.contains("/src/") && !path.contains("test")) {
        let starts = content
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//") && (line.contains("Command::new(") || line.contains("Spawn::new(")));
        wrong.extend(starts.filter(|(_, line)| shells.iter().any(|shell| line.contains(shell))).map(|(number, _)| format!("{path}:{}", number + 1)));
    }
    assert!(wrong.is_empty(), "a shell is started:\n{}", wrong.join("\n"));
}

/// The tables of past vulnerabilities name tests that there are.
#[test]
fn every_vulnerability_in_the_documentation_has_its_test() {
    let sources = all_sources();
    let mut rows = 0;
    for page in ["docs/security.md", "docs/volumes.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect("a page can be read");
        for row in text.lines().filter(|line| line.starts_with("| 20")) {
            let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
            let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
            assert!(!tests.is_empty(), "{page}: no test in {row}");
            for test in tests {
                let declared = format!("fn {test}(");
                assert!(sources.iter().any(|(_, content)| content.contains(&declared)), "{page}: there is no test {test}");
            }
            rows += 1;
        }
    }
    assert!(rows > 15, "the tables were not found");
}
