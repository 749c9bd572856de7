//! What a join has changed on this machine: its undo log while it runs, and afterwards the list of what is ours.
//!
//! The file is written before the first change. It holds the previous content of files while a join is unfinished, so only root may read it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::places::Places;

/// The agent's present certificate: a link, or a file where there are none.
pub(crate) const CURRENT: &str = "kubelet-client-current.pem";

/// The format that this program writes.
const FORMAT: u32 = 1;
/// Bytes that the file may have.
const LARGEST: u64 = 16 << 20;
/// Bytes of a file whose content is kept.
const MOST_OF_A_FILE: u64 = 1 << 20;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {operation} {path:?}")]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} is damaged: remove it, and run mullion reset --force to remove the files of a join")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path:?} names {named:?}, which is no file of this machine below its root: it was changed; remove it")]
    Foreign { path: PathBuf, named: PathBuf },
    #[error("{path:?} has format {format}, which a newer mullion wrote: use that one")]
    Newer { path: PathBuf, format: u32 },
}

/// How far a join is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It was begun: another run finishes it.
    Joining,
    /// The machine is a node.
    Joined,
}

/// A file that a join writes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: PathBuf,
    /// What it held before; none when it was not there, or the join is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
}

/// A file as it was before.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    pub text: String,
    /// Its permissions on Linux.
    pub mode: u32,
}

/// The record of one join.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    pub format: u32,
    pub state: State,
    /// `https://HOST:PORT` of the cluster.
    pub server: String,
    /// Pins of its authority: what says that it is the same cluster.
    pub authority: Vec<String>,
    pub node_name: String,
    /// In the order in which they are written. In the file, paths are the machine's own, without another root.
    pub files: Vec<Entry>,
    /// Directories that were made, the outer ones first.
    pub directories: Vec<PathBuf>,
    /// Names in the directory of certificates that were there before.
    pub foreign_certificates: BTreeSet<String>,
    /// Links among them, and where they led.
    #[serde(default)]
    pub links: BTreeMap<String, PathBuf>,
    /// Whether the service ran before.
    pub was_active: bool,
    /// Whether the service is of this join.
    #[serde(default)]
    pub installed_service: bool,
}

impl Journal {
    /// The journal of a new join.
    #[must_use]
    pub fn new(server: &str, authority: Vec<String>, node_name: &str) -> Self {
        Self {
            format: FORMAT,
            state: State::Joining,
            server: server.to_owned(),
            authority,
            node_name: node_name.to_owned(),
            files: Vec::new(),
            directories: Vec::new(),
            foreign_certificates: BTreeSet::new(),
            links: BTreeMap::new(),
            was_active: false,
            installed_service: false,
        }
    }

    /// Reads the journal; none when there is none.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn read(places: &Places) -> Result<Option<Self>, JournalError> {
        let path = &places.journal();
        let failed = |source| JournalError::File { operation: "read", path: path.to_owned(), source };
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut text = String::new();
        file.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
        let journal: Self = serde_json::from_str(&text).map_err(|source| JournalError::Damaged { path: path.to_owned(), source })?;
        if journal.format > FORMAT {
            return Err(JournalError::Newer { path: path.to_owned(), format: journal.format });
        }
        for named in journal.files.iter().map(|entry| &entry.path).chain(&journal.directories) {
            if !is_of_machine(named) {
                return Err(JournalError::Foreign { path: path.clone(), named: named.clone() });
            }
        }
        Ok(Some(journal.with_paths(|path| places.at(&path.to_string_lossy()))))
    }

    fn with_paths(&self, change: impl Fn(&Path) -> PathBuf) -> Self {
        let files = self.files.iter().map(|entry| Entry { path: change(&entry.path), previous: entry.previous.clone() }).collect();
        Self { files, directories: self.directories.iter().map(|path| change(path)).collect(), ..self.clone() }
    }

    /// Writes the journal to the disk before it returns.
    ///
    /// # Errors
    /// [`JournalError::File`].
    pub fn write(&self, places: &Places) -> Result<(), JournalError> {
        let path = &places.journal();
        let text = serde_json::to_vec_pretty(&self.with_paths(|path| places.shown(path).into()))
            .map_err(|source| JournalError::Damaged { path: path.to_owned(), source })?;
        let written = atomic_file::Options::new().mode(0o600).synced().write(path, text);
        written.map_err(|source| JournalError::File { operation: "write", path: path.to_owned(), source })
    }

    /// The journal of the finished join: what is ours, and nothing of what was there before.
    #[must_use]
    pub fn finished(&self) -> Self {
        let files = self.files.iter().map(|entry| Entry { path: entry.path.clone(), previous: None }).collect();
        // What it leads to is of this join now, if the kubeconfig is.
        let has_asked = self.files.iter().any(|entry| entry.path.file_name().is_some_and(|name| name == "kubelet.conf"));
        let foreign_certificates = self.foreign_certificates.iter().filter(|name| !has_asked || *name != CURRENT).cloned().collect();
        Self { state: State::Joined, files, foreign_certificates, links: BTreeMap::new(), ..self.clone() }
    }
}

/// Whether a path is one that [`Places::shown`] gives: absolute, and without `..`.
fn is_of_machine(path: &Path) -> bool {
    let text = path.to_string_lossy();
    (text.starts_with('/') || text.starts_with(r"C:\")) && text.split(['/', '\\']).all(|part| part != "..")
}

/// The content of a file that a join may replace; none when there is none.
///
/// # Errors
/// [`JournalError::File`].
pub fn content(path: &Path) -> Result<Option<Previous>, JournalError> {
    let failed = |source| JournalError::File { operation: "read", path: path.to_owned(), source };
    match std::fs::File::open(path) {
        Ok(file) => {
            let (mut text, mode) = (String::new(), mode(&file).map_err(failed)?);
            // Cut off, it could not be put back.
            if file.take(MOST_OF_A_FILE + 1).read_to_string(&mut text).map_err(failed)? as u64 > MOST_OF_A_FILE {
                return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large to be kept")));
            }
            Ok(Some(Previous { text, mode }))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(unix)]
fn mode(file: &std::fs::File) -> io::Result<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(file.metadata()?.permissions().mode() & 0o777)
}

#[cfg(not(unix))]
fn mode(_: &std::fs::File) -> io::Result<u32> {
    Ok(0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_it_was_written_and_only_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path(), false);
        std::fs::create_dir_all(places.kubelet_dir()).unwrap();
        assert!(Journal::read(&places).unwrap().is_none());
        let mut journal = Journal::new("https://a:6443", vec!["sha256:0".into()], "n");
        journal.files.push(Entry { path: places.at("/a"), previous: Some(Previous { text: "before".into(), mode: 0o644 }) });
        journal.write(&places).unwrap();
        assert!(Journal::read(&places).unwrap().unwrap() == journal);
        let moved = Places::new(&dir.path().join("."), false);
        assert_eq!(Journal::read(&moved).unwrap().unwrap().files[0].path, moved.at("/a"), "the root is not part of it");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(places.journal()).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let finished = journal.finished();
        assert_eq!((finished.state, finished.files.len()), (State::Joined, 1));
        assert!(finished.files[0].previous.is_none(), "what was there before is not kept");
    }

    #[test]
    fn damaged_and_newer_journals_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path(), false);
        std::fs::create_dir_all(places.kubelet_dir()).unwrap();
        std::fs::write(places.journal(), "{").unwrap();
        assert!(matches!(Journal::read(&places), Err(JournalError::Damaged { .. })));
        let mut newer = Journal::new("s", Vec::new(), "n");
        newer.format = 2;
        newer.write(&places).unwrap();
        assert!(matches!(Journal::read(&places), Err(JournalError::Newer { format: 2, .. })));
    }

    #[test]
    fn a_journal_reaches_nothing_outside_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(&dir.path().join("root"), false);
        std::fs::create_dir_all(places.kubelet_dir()).unwrap();
        for path in ["/../outside", "/etc/../../outside", "outside"] {
            let mut journal = serde_json::to_value(Journal::new("s", Vec::new(), "n")).unwrap();
            journal["files"] = serde_json::json!([{"path": path}]);
            std::fs::write(places.journal(), journal.to_string()).unwrap();
            assert!(matches!(Journal::read(&places), Err(JournalError::Foreign { .. })), "{path}");
        }
        let mut journal = Journal::new("s", Vec::new(), "n");
        journal.files.push(Entry { path: places.at("/etc/cron.d/x"), previous: None });
        journal.write(&places).unwrap();
        assert_eq!(Journal::read(&places).unwrap().unwrap().files[0].path, dir.path().join("root/etc/cron.d/x"));
    }
}
