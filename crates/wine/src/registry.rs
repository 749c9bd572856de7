//! Registry of a Windows build: the template's, with the changes of layers and with the build's version.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use super::Account;

/// The user's part of the registry.
const USER: &str = "user.reg";

const VERSION: &str = r"[Software\\Microsoft\\Windows NT\\CurrentVersion]";

/// Name of the directory that holds it in the cache: of all that it is made of.
pub(super) fn name(stamp: &Path, build: u32, layers: &[&str], account: Account) -> Result<String> {
    let template = std::fs::read_to_string(stamp).with_context(|| format!("cannot read {}", stamp.display()))?;
    let mut hash = Sha256::new();
    for part in [template.trim()].into_iter().chain(layers.iter().copied()) {
        hash.update(part);
        hash.update("\n");
    }
    let hash: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let owner = if account == Account::default() { String::new() } else { format!("-{}", account.name().replace(' ', "")) };
    Ok(format!("{build}{owner}-{hash}"))
}

/// Makes it as a layer: a directory with the files that differ from the template's. `changed` are those that layers change.
pub(super) fn make(target: &Path, template: &Path, build: u32, mut changed: Vec<(&'static str, String)>, account: Account) -> Result<()> {
    let parent = target.parent().context("the cache has no directory")?;
    std::fs::create_dir_all(parent)?;
    if !changed.iter().any(|(file, _)| *file == "system.reg") {
        changed.push(("system.reg", std::fs::read_to_string(template.join("system.reg"))?));
    }
    if account != Account::default() {
        if !changed.iter().any(|(file, _)| *file == USER) {
            changed.push((USER, std::fs::read_to_string(template.join(USER))?));
        }
        for (_, text) in changed.iter_mut().filter(|(file, _)| *file == USER) {
            *text = owned(text, account);
        }
    }
    let scratch = tempfile::Builder::new().prefix(".making-").tempdir_in(parent)?;
    let inner = scratch.path().join("layer");
    std::fs::create_dir(&inner)?;
    for (file, text) in changed {
        let text = if file == "system.reg" { versioned(&text, build) } else { text };
        std::fs::File::create(inner.join(file))?.write_all(text.as_bytes())?;
    }
    match std::fs::rename(&inner, target) {
        // Another process has made the same.
        Err(_) if target.is_dir() => Ok(()),
        other => other.with_context(|| format!("cannot make {}", target.display())),
    }
}

/// The user's part with the folders of another account than the template's.
fn owned(text: &str, account: Account) -> String {
    let folder = |account: Account| format!(r"C:\\{}", account.profile().replace('\\', r"\\"));
    text.replace(&folder(Account::default()), &folder(account))
}

/// What Windows calls a build on a server.
fn product(build: u32) -> (&'static str, &'static str) {
    match build {
        14393 => ("Windows Server 2016 Datacenter", "1607"),
        16299 => ("Windows Server Standard", "1709"),
        17134 => ("Windows Server Standard", "1803"),
        17763 => ("Windows Server 2019 Datacenter", "1809"),
        26100.. => ("Windows Server 2025 Datacenter", "2009"),
        _ => ("Windows Server 2022 Datacenter", "2009"),
    }
}

/// Wine's file with another version. It is Wine's own: one line a value, one section a key.
fn versioned(text: &str, build: u32) -> String {
    let (name, release) = product(build);
    let display = match build {
        20348 => Some("21H2"),
        26100.. => Some("24H2"),
        _ => None,
    };
    let mut values = vec![("CurrentBuild", build.to_string()), ("CurrentBuildNumber", build.to_string())];
    values.extend([("ProductName", name.to_owned()), ("ReleaseId", release.to_owned())]);
    values.extend(display.map(|display| ("DisplayVersion", display.to_owned())));
    let mut result = String::with_capacity(text.len() + 256);
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') {
            inside = line.starts_with(VERSION);
            result.push_str(line);
            if inside {
                for (name, value) in &values {
                    result.push_str(&format!("\"{name}\"=\"{value}\"\n"));
                }
            }
            continue;
        }
        let replaced = inside
            && values
                .iter()
                .any(|(name, _)| line.strip_prefix('"').and_then(|line| line.strip_prefix(name)).is_some_and(|rest| rest.starts_with('"')));
        if !replaced {
            result.push_str(line);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_belong_to_the_account() {
        let text = "\"AppData\"=\"C:\\\\users\\\\ContainerAdministrator\\\\AppData\"\n";
        assert_eq!(owned(text, Account::User), "\"AppData\"=\"C:\\\\users\\\\ContainerUser\\\\AppData\"\n");
        assert_eq!(owned(text, Account::System), "\"AppData\"=\"C:\\\\windows\\\\system32\\\\config\\\\systemprofile\\\\AppData\"\n");
    }

    #[test]
    fn version_is_that_of_the_build() {
        let text = "WINE REGISTRY Version 2\n\n[Software\\\\Microsoft\\\\Windows NT\\\\CurrentVersion] 1795242720\n#time=1dd\n\"CurrentBuild\"=\"20348\"\n\
                    \"CurrentBuildNumber\"=\"20348\"\n\"CurrentVersion\"=\"10.0\"\n\n[Software\\\\Other] 1\n\"CurrentBuild\"=\"1\"\n";
        let changed = versioned(text, 17763);
        assert_eq!(changed.matches("\"17763\"").count(), 2, "{changed}");
        assert!(
            !changed.contains("20348")
                && changed.contains("\"CurrentVersion\"=\"10.0\"")
                && changed.contains("\"ProductName\"=\"Windows Server 2019")
        );
        assert!(changed.ends_with("[Software\\\\Other] 1\n\"CurrentBuild\"=\"1\"\n"), "{changed}");
    }
}
