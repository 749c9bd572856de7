//! Garbage collection: removes layers that no image and no container of any cluster uses.
//!
//! Every store that opens the cache leaves a note there with the place of its index. A layer is garbage when it occurs in
//! none of these indexes and in no container's `start.json` beside them. A process that unpacks holds the cache's lock
//! shared; then nothing is removed, and the next removal of an image tries again.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blob::digest_of;
use super::{ImageError, Index, Store, io_error};

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Store {
    /// Notes in the cache that this store uses it.
    pub(super) fn register(&self) -> Result<(), ImageError> {
        let digest = digest_of(self.state.as_os_str().as_bytes());
        let note = self.cache.join("users").join(Self::layer_name(&digest));
        if note.exists() {
            return Ok(());
        }
        atomic_file::Options::new().mode(0o600).write(&note, self.state.as_os_str().as_bytes()).map_err(io_error("write", &note))
    }

    /// As [`Store::collect_garbage`], of the cache `cache`, after the removal of a whole cluster.
    ///
    /// # Errors
    /// When the layers in use cannot be read.
    pub fn collect_garbage_of(cache: &Path) -> Result<usize, ImageError> {
        if !cache.join("users").is_dir() || !cache.join("layers").is_dir() {
            return Ok(0);
        }
        let template = cache.with_file_name(wine::template::NAME);
        Self { state: PathBuf::new(), cache: cache.to_owned(), template, os: kube_rules::NodeOs::Linux }.collect_garbage()
    }

    /// Removes what is garbage; returns how many layers that were. Nothing while another process unpacks.
    ///
    /// # Errors
    /// When the layers in use cannot be read.
    pub fn collect_garbage(&self) -> Result<usize, ImageError> {
        let (path, lock) = self.cache_lock()?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(0),
            Err(std::fs::TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
        }
        let used = self.used_layers()?;
        let layers = self.layers_dir();
        let mut removed = 0;
        for entry in std::fs::read_dir(&layers).map_err(io_error("list", &layers))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "empty" || Path::new(&name).extension().is_some_and(|extension| extension == "base") || used.contains(&name) {
                continue;
            }
            // Renamed first: half a layer must not look like one.
            let gone = if name.starts_with('.') { entry.path() } else { layers.join(format!(".removed-{name}")) };
            let renamed = entry.path() == gone || std::fs::rename(entry.path(), &gone).is_ok();
            if renamed && std::fs::remove_dir_all(&gone).is_ok() {
                removed += usize::from(!name.starts_with('.'));
            }
        }
        self.forget_transfers();
        Ok(removed)
    }

    /// Removes partial downloads that were not resumed within a day.
    fn forget_transfers(&self) {
        for entry in std::fs::read_dir(self.cache.join("ingest")).into_iter().flatten().flatten() {
            let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > DAY) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn used_layers(&self) -> Result<HashSet<String>, ImageError> {
        let users = self.cache.join("users");
        let mut used = HashSet::new();
        for note in std::fs::read_dir(&users).map_err(io_error("list", &users))?.flatten() {
            let bytes = std::fs::read(note.path()).map_err(io_error("read", &note.path()))?;
            let state = PathBuf::from(std::ffi::OsString::from_vec(bytes));
            if !state.is_dir() {
                let _ = std::fs::remove_file(note.path());
                continue;
            }
            let index: Index = Self { state: state.clone(), ..self.clone() }.read()?;
            used.extend(index.images.iter().flat_map(|image| &image.layers).map(|id| Self::layer_name(id).to_owned()));
            if let Some(node) = state.parent() {
                let sandboxes = node.join("cri").join("sandboxes");
                containers(&sandboxes, &mut used).map_err(io_error("read", &sandboxes))?;
            }
        }
        Ok(used)
    }
}

/// Adds every text in the containers' start files that could be a layer's name.
fn containers(sandboxes: &Path, used: &mut HashSet<String>) -> io::Result<()> {
    for sandbox in entries(sandboxes)? {
        for container in entries(&sandbox.join("containers"))? {
            match std::fs::read_to_string(container.join("start.json")) {
                Ok(text) => used.extend(text.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 32).map(str::to_owned)),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
