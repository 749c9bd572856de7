//! The documentation's links and paths lead somewhere, and the program takes its commands.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/mullion lies two below").to_owned()
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Every page of the documentation, by its path from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = root();
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)).into();
    collect(&root.join("docs"), &mut found);
    collect(&root.join("examples"), &mut found);
    assert!(found.len() > 20, "the documentation was not found");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a page can be read");
        (path.strip_prefix(&root).expect("below the root").to_owned(), text)
    };
    found.into_iter().map(read).collect()
}

/// Lines with their numbers, code blocks left out.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        (!inside && !fence).then_some((number + 1, line))
    })
}

/// Targets of `[text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// The anchors of a page's headings, as forges make them: lower case, punctuation left out, hyphens for spaces.
fn anchors(text: &str) -> Vec<String> {
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c)).collect::<String>();
        kept.replace(' ', "-")
    };
    prose(text).filter_map(|(_, line)| line.strip_prefix('#').map(|rest| anchor(rest.trim_start_matches('#').trim()))).collect()
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let pages = pages();
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for (number, target) in prose(text).flat_map(|(number, line)| links(line).map(move |target| (number, target))) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
            let path = if file.is_empty() { page.clone() } else { normal(&page.parent().expect("a page has a directory").join(file)) };
            if !root().join(&path).exists() {
                wrong.push(format!("{}:{number}: there is no {}", page.display(), path.display()));
            } else if let Some(heading) = heading
                && !pages.get(&path).is_some_and(|text| anchors(text).iter().any(|anchor| anchor == heading))
            {
                wrong.push(format!("{}:{number}: {} has no heading #{heading}", page.display(), path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn every_path_of_the_repository_that_the_documentation_names_exists() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for (number, line) in prose(&text) {
            // Paths stand between backticks, alone or as the program of a command.
            for named in line.split('`').skip(1).step_by(2) {
                let path = named.split_whitespace().next().unwrap_or_default();
                let ours = ["crates/", "docs/", "examples/", "tools/", "fuzz/"].iter().any(|dir| path.starts_with(dir));
                // What a run leaves behind.
                let made = ["fuzz/corpus", "fuzz/artifacts"].contains(&path);
                if ours && !made && !path.contains(['*', '{']) && !root().join(path).exists() {
                    wrong.push(format!("{}:{number}: there is no {path}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "paths that do not exist:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_index() {
    let pages = pages();
    let index = &pages[Path::new("docs/README.md")];
    let listed: Vec<&str> = index.lines().flat_map(links).collect();
    let missing: Vec<_> = pages
        .keys()
        .filter(|page| page.starts_with("docs") && !page.ends_with("README.md"))
        .filter(|page| !listed.iter().any(|target| Some(*target) == page.file_name().and_then(|name| name.to_str())))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
}

/// The commands of a page: lines of code blocks, and code between backticks, that begin with the program's name. What stands for several
/// commands, or needs a shell, is left out.
#[cfg(target_os = "linux")]
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut inside = false;
    let mut found: Vec<&str> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            let line = line.trim_start();
            found.push(line.strip_prefix("$ ").unwrap_or(line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    let alone =
        |command: &str| [" #", "&&", ";", " > "].iter().fold(command.to_owned(), |text, end| text.split(end).next().unwrap_or_default().to_owned());
    let words = |command: String| command.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned()).collect();
    found
        .into_iter()
        .filter(|command| command.starts_with("mullion ") && !command.starts_with("mullion shim"))
        .map(alone)
        .filter(|command| !command.contains(['|', '[', '…', '$']))
        .map(words)
        .collect()
}

/// `--help` behind a command makes the program read what stands before it, and run nothing.
#[cfg(target_os = "linux")]
#[test]
fn the_program_takes_every_command_of_the_documentation() {
    let mut wrong = Vec::new();
    let mut tried = std::collections::BTreeSet::new();
    for (page, text) in pages() {
        for words in commands(&text) {
            if !tried.insert(words.clone()) {
                continue;
            }
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_mullion")).args(&words[1..]).arg("--help").output().expect("mullion runs");
            if !output.status.success() {
                wrong.push(format!("{}: {}: {}", page.display(), words.join(" "), String::from_utf8_lossy(&output.stderr)));
            }
        }
    }
    assert!(tried.len() > 50, "only {} commands were found", tried.len());
    assert!(wrong.is_empty(), "commands that the program refuses:\n{}", wrong.join("\n"));
}
