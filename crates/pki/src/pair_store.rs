//! The directory in which a node keeps the certificates that it asked for, with their keys, in the form of upstream's kubelet.
//!
//! Each pair is a file of its own, `PREFIX-2006-01-02-15-04-05.pem`: certificates, then the key. The link `PREFIX-current.pem` names the
//! newest. It is replaced by renaming the link `PREFIX-updated.pem` to it, so that there is always a current pair; an agent (of upstream's,
//! which removes the old link first) that was ended between its steps left only `PREFIX-updated.pem`, which becomes the current one.
//!
//! Guarantees: files with keys have mode 0600 (on Windows the directory's access list decides) and are whole or absent; the newest
//! [`KEPT`] pairs stay, older ones are removed; a file in the place of the link is refused and left alone.
//! On Windows an account may not be allowed to make links: then `PREFIX-current.pem` is a copy, which is replaced in one step alike.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::pair::{LARGEST, Pair, PairError};

/// So many pairs stay in the directory.
pub const KEPT: usize = 10;

/// Why pairs cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation} {path:?}")]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path:?}")]
    Write {
        path: PathBuf,
        #[source]
        source: Error,
    },
    /// Upstream's words.
    #[error("expected {0:?} to be a symlink but it is a file: move it away, and give certificate and key as tlsCertFile or in the kubeconfig")]
    NoLink(PathBuf),
    #[error("cannot use the certificate and key in {path:?}; replace or remove it")]
    Pair {
        path: PathBuf,
        #[source]
        source: PairError,
    },
}

/// What there is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Missing,
    /// A link to nothing.
    Dangling,
    Link,
    File,
}

/// What an interrupted replacement needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    Nothing,
    /// The prepared link becomes the current one.
    Promote,
    /// Something else has its name.
    Refuse,
}

fn recovery(current: Entry, updated: Entry) -> Recovery {
    match (current, updated) {
        (Entry::Link | Entry::File, _) | (_, Entry::Missing) => Recovery::Nothing,
        (_, Entry::Link | Entry::Dangling) => Recovery::Promote,
        (_, Entry::File) => Recovery::Refuse,
    }
}

fn entry(path: &Path) -> Result<Entry, StoreError> {
    let failed = |source| StoreError::File { operation: "look at", path: path.to_path_buf(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => match fs::metadata(path) {
            Ok(_) => Ok(Entry::Link),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Entry::Dangling),
            Err(error) => Err(failed(error)),
        },
        Ok(_) => Ok(Entry::File),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Entry::Missing),
        Err(error) => Err(failed(error)),
    }
}

/// A file's text, which is none of more than [`LARGEST`] bytes.
///
/// # Errors
/// When it cannot be read, is larger, or no text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let most = u64::try_from(LARGEST).unwrap_or(u64::MAX);
    fs::File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() > LARGEST { Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")) } else { Ok(text) }
}

/// Reads a pair from two files, or twice from one.
///
/// # Errors
/// [`StoreError::File`], [`StoreError::Pair`].
pub fn read_pair(certificate: &Path, key: &Path) -> Result<Pair, StoreError> {
    let read = |path: &Path| read_text(path).map_err(|source| StoreError::File { operation: "read", path: path.to_path_buf(), source });
    let pair = Pair::parse(&read(certificate)?, &read(key)?);
    pair.map_err(|source| StoreError::Pair { path: certificate.to_path_buf(), source })
}

/// The pairs of one purpose (upstream: `certificate.FileStore`).
#[derive(Clone, Debug)]
pub struct PairStore {
    dir: PathBuf,
    prefix: String,
    /// Certificate and key that count as long as there is no current pair.
    given: Option<(PathBuf, PathBuf)>,
}

impl PairStore {
    /// The pairs `PREFIX-*.pem` of a directory, which need not exist. Finishes a replacement that was interrupted.
    ///
    /// # Errors
    /// When the directory cannot be read, and when a file has the name of the prepared link.
    pub fn open(dir: impl Into<PathBuf>, prefix: &str, given: Option<(PathBuf, PathBuf)>) -> Result<Self, StoreError> {
        let store = Self { dir: dir.into(), prefix: prefix.to_owned(), given };
        let (current, updated) = (store.current_path(), store.path("updated"));
        match recovery(entry(&current)?, entry(&updated)?) {
            Recovery::Nothing => {}
            Recovery::Promote => {
                fs::rename(&updated, &current).map_err(|source| StoreError::File { operation: "rename", path: updated, source })?;
            }
            Recovery::Refuse => return Err(StoreError::NoLink(updated)),
        }
        Ok(store)
    }

    /// `PREFIX-current.pem`.
    pub fn current_path(&self) -> PathBuf {
        self.path("current")
    }

    /// The pair in use: the current one, else the given one, else `PREFIX.crt` and `PREFIX.key`. None when there is none of them.
    ///
    /// # Errors
    /// When the first that there is cannot be used.
    pub fn current(&self) -> Result<Option<Pair>, StoreError> {
        let current = self.current_path();
        if is_there(&current)? {
            return read_pair(&current, &current).map(Some);
        }
        let own = (self.dir.join(format!("{}.crt", self.prefix)), self.dir.join(format!("{}.key", self.prefix)));
        for (certificate, key) in self.given.iter().chain([&own]) {
            if is_there(certificate)? && is_there(key)? {
                return read_pair(certificate, key).map(Some);
            }
        }
        Ok(None)
    }

    /// Keeps a pair under the name of `stamp`, and makes it the current one. A directory that is missing is made as any other: one that has to
    /// be the caller's alone on Windows, where modes of files do nothing, is made by the caller before.
    ///
    /// # Errors
    /// When the directory cannot be written, and when a file has the name of the link. The old pair stays the current one then.
    pub fn update(&self, pair: &Pair, stamp: &str) -> Result<(), StoreError> {
        fs::create_dir_all(&self.dir).map_err(|source| StoreError::File { operation: "make the directory", path: self.dir.clone(), source })?;
        let path = self.path(stamp);
        let text = format!("{}{}", pair.cert_pem(), pair.key_pem());
        crate::write_private(&path, &text).map_err(|source| StoreError::Write { path: path.clone(), source })?;
        self.point_to(&path, &text)?;
        self.remove_old(&path);
        Ok(())
    }

    fn point_to(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.path("updated"));
        for place in [&current, &updated] {
            // On Windows it may be a copy of ours.
            if entry(place)? == Entry::File && !cfg!(windows) {
                return Err(StoreError::NoLink(place.clone()));
            }
        }
        match fs::remove_file(&updated) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::File { operation: "remove", path: updated, source: error });
            }
            _ => {}
        }
        // Wine reports links that it does not make.
        let linked = link(path.file_name().unwrap_or_default(), &updated).and_then(|()| fs::symlink_metadata(&updated).map(drop));
        match linked {
            Ok(()) => fs::rename(&updated, &current).map_err(|source| StoreError::File { operation: "rename", path: updated, source }),
            Err(_) if cfg!(windows) => crate::write_private(&current, text).map_err(|source| StoreError::Write { path: current, source }),
            Err(source) => Err(StoreError::File { operation: "make the link", path: updated, source }),
        }
    }

    /// Removes pairs that nobody uses any more. What cannot be removed stays for the next time.
    fn remove_old(&self, newest: &Path) {
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        for name in outdated(&self.prefix, names, newest.file_name().unwrap_or_default()) {
            let _ = fs::remove_file(self.dir.join(name));
        }
    }

    fn path(&self, qualifier: &str) -> PathBuf {
        self.dir.join(format!("{}-{qualifier}.pem", self.prefix))
    }
}

/// The files of old pairs, all but the newest [`KEPT`].
fn outdated(prefix: &str, names: impl Iterator<Item = OsString>, newest: &std::ffi::OsStr) -> Vec<String> {
    // 2006-01-02-15-04-05, in which the order of texts is that of times.
    let is_stamp = |text: &str| {
        text.len() == 19 && text.bytes().enumerate().all(|(i, c)| if i > 3 && (i - 4) % 3 == 0 { c == b'-' } else { c.is_ascii_digit() })
    };
    let is_pair = |name: &str| name.strip_prefix(prefix).and_then(|name| name.strip_prefix('-')?.strip_suffix(".pem")).is_some_and(is_stamp);
    let mut pairs: Vec<String> =
        names.filter(|name| name != newest).filter_map(|name| name.into_string().ok()).filter(|name| is_pair(name)).collect();
    pairs.sort_unstable();
    pairs.truncate((pairs.len() + 1).saturating_sub(KEPT));
    pairs
}

fn is_there(path: &Path) -> Result<bool, StoreError> {
    Ok(matches!(entry(path)?, Entry::Link | Entry::File))
}

#[cfg(unix)]
fn link(target: &std::ffi::OsStr, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(windows)]
fn link(target: &std::ffi::OsStr, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ca, CertRequest};
    use std::time::Duration;

    fn pair(cn: &str) -> Pair {
        let ca = Ca::generate("kubernetes", Duration::from_secs(86_400)).unwrap();
        let made = ca.issue(&CertRequest { cn: cn.into(), client: true, days: 1, ..CertRequest::default() }).unwrap();
        Pair::parse(&made.cert_pem, &made.key_pem).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn interrupted_replacements_are_finished_by_one_table() {
        use Entry::{Dangling, File, Link, Missing};
        for (current, updated, expected) in [
            (Missing, Missing, Recovery::Nothing),
            (Missing, Link, Recovery::Promote),
            (Missing, Dangling, Recovery::Promote),
            (Missing, File, Recovery::Refuse),
            (Dangling, Link, Recovery::Promote),
            (Dangling, Missing, Recovery::Nothing),
            (Link, Link, Recovery::Nothing),
            (Link, File, Recovery::Nothing),
            (File, Link, Recovery::Nothing),
        ] {
            assert_eq!(recovery(current, updated), expected, "{current:?} {updated:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_newest_pair_is_the_current_one() {
        use std::os::unix::fs::PermissionsExt as _;
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("pki");
        let store = PairStore::open(&dir, "kubelet-client", None).unwrap();
        assert!(store.current().unwrap().is_none());
        let (one, two) = (pair("one"), pair("two"));
        store.update(&one, "2026-01-02-03-04-05").unwrap();
        assert_eq!(store.current().unwrap(), Some(one));
        store.update(&two, "2026-01-02-03-04-06").unwrap();
        let store = PairStore::open(&dir, "kubelet-client", None).unwrap();
        assert_eq!(store.current().unwrap(), Some(two));
        assert_eq!(names(&dir), ["kubelet-client-2026-01-02-03-04-05.pem", "kubelet-client-2026-01-02-03-04-06.pem", "kubelet-client-current.pem"]);
        let mode = fs::metadata(store.current_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_link(store.current_path()).unwrap(), Path::new("kubelet-client-2026-01-02-03-04-06.pem"), "the directory may be moved");
    }

    #[cfg(unix)]
    #[test]
    fn a_replacement_that_was_interrupted_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = PairStore::open(dir.path(), "kubelet-client", None).unwrap();
        store.update(&pair("one"), "2026-01-02-03-04-05").unwrap();
        // As upstream's kubelet leaves it between its two steps.
        fs::rename(store.current_path(), dir.path().join("kubelet-client-updated.pem")).unwrap();
        let store = PairStore::open(dir.path(), "kubelet-client", None).unwrap();
        assert_eq!(store.current().unwrap().unwrap().leaf().common_name, "one");
        assert_eq!(names(dir.path()), ["kubelet-client-2026-01-02-03-04-05.pem", "kubelet-client-current.pem"]);
        // One that was ended before them left a prepared link, which gives way.
        std::os::unix::fs::symlink("nowhere", dir.path().join("kubelet-client-updated.pem")).unwrap();
        store.update(&pair("two"), "2026-01-02-03-04-06").unwrap();
        assert_eq!(store.current().unwrap().unwrap().leaf().common_name, "two");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_others_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = PairStore::open(dir.path(), "kubelet-client", None).unwrap();
        fs::write(store.current_path(), "mine").unwrap();
        let error = store.update(&pair("one"), "2026-01-02-03-04-05").unwrap_err().to_string();
        assert!(error.contains("kubelet-client-current.pem\" to be a symlink but it is a file"), "{error}");
        assert_eq!(fs::read_to_string(store.current_path()).unwrap(), "mine");
        assert!(store.current().unwrap_err().to_string().starts_with("cannot use the certificate and key in"), "and is read");
        fs::rename(store.current_path(), dir.path().join("kubelet-client-updated.pem")).unwrap();
        assert!(matches!(PairStore::open(dir.path(), "kubelet-client", None), Err(StoreError::NoLink(_))));
    }

    #[test]
    fn given_files_count_until_there_is_a_current_pair() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, pair: &Pair| {
            fs::write(dir.path().join(format!("{name}.crt")), pair.cert_pem()).unwrap();
            fs::write(dir.path().join(format!("{name}.key")), pair.key_pem()).unwrap();
        };
        write("kubelet-client", &pair("own"));
        let given = (dir.path().join("given.crt"), dir.path().join("given.key"));
        let store = PairStore::open(dir.path(), "kubelet-client", Some(given)).unwrap();
        let current = || store.current().unwrap().unwrap().leaf().common_name.clone();
        assert_eq!(current(), "own");
        write("given", &pair("given"));
        assert_eq!(current(), "given");
        store.update(&pair("new"), "2026-01-02-03-04-05").unwrap();
        assert_eq!(current(), "new");
    }

    #[test]
    fn old_pairs_go() {
        let stamp = |day: usize| format!("kubelet-client-2026-01-{day:02}-00-00-00.pem");
        let others = ["kubelet-client-current.pem", "kubelet-server-2026-01-01-00-00-00.pem", "kubelet-client-notes.pem", "kubelet.crt"];
        let all = (1..=12).map(stamp).chain(others.map(str::to_owned)).map(OsString::from);
        assert_eq!(outdated("kubelet-client", all.clone(), stamp(12).as_ref()), [stamp(1), stamp(2)]);
        // A clock that was set back: the one in use is the oldest, and stays.
        assert_eq!(outdated("kubelet-client", all, stamp(1).as_ref()), [stamp(2), stamp(3)]);
        assert!(outdated("kubelet-client", (1..=10).map(stamp).map(OsString::from), stamp(10).as_ref()).is_empty());
    }

    #[test]
    fn large_files_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.pem");
        fs::write(&path, " ".repeat(LARGEST + 1)).unwrap();
        let error = read_pair(&path, &path).unwrap_err();
        assert!(matches!(&error, StoreError::File { source, .. } if source.kind() == io::ErrorKind::FileTooLarge), "{error:?}");
    }
}
