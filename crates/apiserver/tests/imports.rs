//! The files of this crate import in one direction: types lie below, HTTP above.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Every file's text without its tests, by its module's path.
fn modules(dir: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let join = |name: &str| if prefix.is_empty() { name.to_string() } else { format!("{prefix}::{name}") };
        if entry.path().is_dir() {
            modules(&entry.path(), &join(&name), found);
        } else if let Some(name) = name.strip_suffix(".rs").filter(|name| !name.ends_with("tests")) {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let module = if name == "mod" { prefix.to_string() } else { join(name) };
            found.insert(module, text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_string());
        }
    }
}

/// The paths that a `use` names: `a::{b, c::{d}}` are `a::b` and `a::c::d`.
fn paths(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.trim().to_string()] };
    let (prefix, inner) = (&tree[..open], &tree[open + 1..tree.rfind('}').unwrap()]);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| paths(&format!("{}{}", prefix.trim(), part.trim()))).collect()
}

/// The modules that a file imports with `use crate::` or `use super::`.
fn imports(module: &str, text: &str, known: &BTreeMap<String, String>) -> BTreeSet<String> {
    let uses = text.split("\nuse ").skip(1).map(|rest| rest.split(';').next().unwrap());
    let absolute = |path: String| match (path.strip_prefix("crate::"), path.strip_prefix("super::")) {
        (Some(rest), _) => Some(rest.to_string()),
        (None, Some(rest)) => Some(module.rsplit_once("::").map_or(rest.to_string(), |(above, _)| format!("{above}::{rest}"))),
        _ => None,
    };
    let file = |path: String| {
        let parts: Vec<&str> = path.split("::").collect();
        (1..=parts.len()).rev().map(|length| parts[..length].join("::")).find(|path| known.contains_key(path))
    };
    uses.flat_map(paths).filter_map(absolute).filter_map(file).filter(|found| found != module).collect()
}

/// A circle through `at`, if one is found below it.
fn circle(at: &str, graph: &BTreeMap<String, BTreeSet<String>>, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
    if let Some(start) = way.iter().position(|seen| seen == at) {
        return Some(way[start..].join(" → "));
    }
    if done.contains(at) {
        return None;
    }
    way.push(at.to_string());
    let found = graph[at].iter().find_map(|next| circle(next, graph, way, done));
    way.pop();
    done.insert(at.to_string());
    found
}

#[test]
fn no_file_imports_itself_through_others() {
    let mut files = BTreeMap::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut files);
    let graph: BTreeMap<String, BTreeSet<String>> = files.iter().map(|(module, text)| (module.clone(), imports(module, text, &files))).collect();
    assert!(graph["http::resource"].contains("registry::delete") && graph["kinds::core::pod::admission"].contains("kind"));
    let mut done = BTreeSet::new();
    for module in graph.keys() {
        assert_eq!(circle(module, &graph, &mut Vec::new(), &mut done), None);
    }
}
