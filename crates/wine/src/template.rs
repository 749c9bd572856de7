//! The Windows template: one Wine prefix per user, which all Windows containers share as their lowest layer.
//!
//! It is `wine-template` beside the layer cache. Its stamp names the version: the recipe ([`make`]), the guest programs and the machine's
//! Wine. A template is never changed in place: a new version takes its place, and the old one goes when no runtime uses it any longer.

mod make;

use std::borrow::Cow;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use linux_sys::lock::FileLock;
use sha2::{Digest as _, Sha256};

pub use make::{Interrupted, Made, Work, make};

use super::Loader;

/// The file that says that a template is complete, and of which version.
pub const STAMP: &str = "mullion-template";
/// The template's directory in Mullion's cache.
pub const NAME: &str = "wine-template";
/// The lock file beside it, held while it is made.
pub const LOCK: &str = "wine-template.lock";

/// Why Windows programs cannot run on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Wine is not installed.
    #[error("this machine has no Wine; install it (Debian: apt-get install wine64), then run `mullion template`")]
    Wine,
    /// The template does not exist yet.
    #[error("there is no Windows template at {}; make it with `mullion template`", .0.display())]
    Template(PathBuf),
    /// Another Mullion made it, or Wine was updated since.
    #[error("the Windows template at {} has version {found}, this mullion needs {needed}; replace it with `mullion template`", .dir.display())]
    Version {
        /// The template.
        dir: PathBuf,
        /// Its version.
        found: String,
        /// The version that this program and this machine's Wine make.
        needed: String,
    },
}

/// The files that a template holds beside Wine's own.
#[derive(Clone, Debug)]
pub struct Programs(Vec<(&'static str, Cow<'static, [u8]>)>);

impl Programs {
    /// Their names: the first process of containers, the command-line tools, a library that Wine 8 does not have, and a shell for a desktop that
    /// nobody sees.
    pub const NAMES: [&str; 4] = ["mullion-init.exe", "mullion-tools.exe", "bcryptprimitives.dll", "explorer.exe"];

    /// Programs that are part of this executable, in the order of [`Programs::NAMES`].
    pub fn embedded(contents: [&'static [u8]; 4]) -> Self {
        Self(Self::NAMES.into_iter().zip(contents.map(Cow::Borrowed)).collect())
    }

    /// Programs that are files of a directory.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub fn read(dir: &Path) -> std::io::Result<Self> {
        let read = |name| Ok((name, Cow::Owned(std::fs::read(dir.join(name))?)));
        Self::NAMES.into_iter().map(read).collect::<std::io::Result<_>>().map(Self)
    }

    fn content(&self, name: &str) -> &[u8] {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, content)| content.as_ref()).unwrap_or_default()
    }

    /// What identifies the templates made with them, on a machine with a given Wine.
    pub fn version(&self) -> String {
        let mut hash = Sha256::new();
        for part in make::RECIPE.iter().map(|text| text.as_bytes()).chain(guest::tools::INSTALLED.iter().map(|name| name.as_bytes())) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        for (name, content) in &self.0 {
            hash.update(name);
            hash.update(content.len().to_le_bytes());
            hash.update(content);
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Whole version of a template: of the programs, and of the Wine that made it.
fn whole_version(programs: &str, loader: Loader) -> String {
    let mut hash = Sha256::new();
    for file in [loader.wine, loader.server] {
        let known = |metadata: Metadata| (metadata.len(), metadata.mtime());
        hash.update(format!("{file} {:?}\n", std::fs::metadata(file).map(known).unwrap_or_default()));
    }
    let wine: String = hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{programs}-{wine}")
}

/// The template in Mullion's cache `dir`, if Windows programs can run in it. `version`: of [`Programs`]; none accepts any template.
///
/// # Errors
/// When Wine or the template is missing, or the template has another version.
pub fn find(dir: &Path, version: Option<&str>) -> Result<PathBuf, Missing> {
    let loader = Loader::find().ok_or(Missing::Wine)?;
    let template = dir.join(NAME);
    let Ok(found) = std::fs::read_to_string(template.join(STAMP)) else { return Err(Missing::Template(template)) };
    let found = found.trim().to_owned();
    match version.map(|version| whole_version(version, loader)) {
        Some(needed) if needed != found => Err(Missing::Version { dir: template, found, needed }),
        _ => Ok(template),
    }
}

/// What a missing `template` means on this machine.
pub fn absent(template: &Path) -> Missing {
    Loader::find().map_or(Missing::Wine, |_| Missing::Template(template.to_owned()))
}

/// The template as a runtime uses it: whatever it has found stays in the file system while the runtime lives.
#[derive(Debug)]
pub struct Template {
    dir: PathBuf,
    version: Option<String>,
    /// By the stamp's inode: a template that is replaced keeps it.
    held: Mutex<Vec<(u64, FileLock)>>,
}

impl Template {
    /// The template beside the layer cache.
    pub fn new(layers: &Path, version: Option<String>) -> Self {
        Self { dir: layers.parent().unwrap_or(layers).to_owned(), version, held: Mutex::default() }
    }

    /// The template's directory, which is not removed from now on.
    pub fn find(&self) -> Result<PathBuf, Missing> {
        let template = find(&self.dir, self.version.as_deref())?;
        let stamp = template.join(STAMP);
        let inode = std::fs::metadata(&stamp).map(|metadata| metadata.ino()).unwrap_or_default();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.iter().all(|(known, _)| *known != inode) {
            // A read-only template of another user is not removed by us either.
            if let Ok(Some(lock)) = FileLock::try_share(&stamp) {
                held.push((inode, lock));
            }
        }
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_differ_by_programs() {
        let programs = |init: &'static [u8]| Programs::embedded([init, b"tools", b"dll", b"shell"]);
        assert_eq!(programs(b"a").version(), programs(b"a").version());
        assert_ne!(programs(b"a").version(), programs(b"b").version());
        assert_ne!(Programs::embedded([b"ab", b"", b"", b""]).version(), Programs::embedded([b"a", b"b", b"", b""]).version());
    }

    #[test]
    fn missing_and_outdated_templates_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let template = dir.path().join(NAME);
        assert_eq!(find(dir.path(), None), Err(Missing::Template(template.clone())));
        std::fs::create_dir(&template).unwrap();
        assert_eq!(find(dir.path(), None), Err(Missing::Template(template.clone())), "an unfinished template");
        std::fs::write(template.join(STAMP), "old\n").unwrap();
        assert_eq!(find(dir.path(), None), Ok(template.clone()));
        assert!(matches!(find(dir.path(), Some("new")), Err(Missing::Version { found, .. }) if found == "old"));
        std::fs::write(template.join(STAMP), whole_version("new", Loader::find().expect("Wine"))).unwrap();
        assert_eq!(find(dir.path(), Some("new")), Ok(template));
    }
}
