//! Journal of changes on disk, one JSON line each, compacted when it has grown.
//!
//! A line that a crash cut short is the last one and is ignored. The journal is not synced to the disk: it must survive the service, not the
//! machine, and after a reboot only networks are kept anyway.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use hcn::{Guid, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, Kind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::state::{Balancer, Change, Endpoint, Object, State};

/// The version of the journal's form.
const FORMAT: u32 = 1;

/// Lines beyond the number of objects at which the journal is rewritten.
const SLACK: usize = 4096;

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot use the service's state {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// A newer program wrote it.
    #[error("the service's state {} has format {found}, this program knows {FORMAT}: run the newer program, or delete the file while no cluster runs", path.display())]
    Newer {
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    #[error("line {line} of the service's state {} cannot be read: delete the file to begin with an empty service", path.display())]
    Damaged {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        source: serde_json::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    id: Guid,
    #[serde(default)]
    after: Option<Value>,
}

/// A line as it is written: straight from the objects.
#[derive(Serialize)]
struct Written<'a> {
    kind: &'a str,
    id: Guid,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<WrittenObject<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenObject<'a> {
    Network(&'a HostComputeNetwork),
    Endpoint(&'a Endpoint),
    Namespace(&'a HostComputeNamespace),
    Balancer(&'a Balancer),
    Route(&'a HostComputeRoute),
}

pub struct Store {
    path: PathBuf,
    /// None after the journal could not be rewritten: the next change tries again.
    file: Option<File>,
    lines: usize,
}

fn write_line(writer: &mut impl Write, change: &Change) -> io::Result<()> {
    let after = change.after.as_ref().map(|object| match object {
        Object::Network(it) => WrittenObject::Network(it),
        Object::Endpoint(it) => WrittenObject::Endpoint(it),
        Object::Namespace(it) => WrittenObject::Namespace(it),
        Object::Balancer(it) => WrittenObject::Balancer(it),
        Object::Route(it) => WrittenObject::Route(it),
    });
    serde_json::to_writer(&mut *writer, &Written { kind: change.kind.as_str(), id: change.id, after })?;
    writer.write_all(b"\n")
}

fn from_line(line: Line) -> Result<Change, serde_json::Error> {
    let unknown = || <serde_json::Error as serde::de::Error>::custom(format!("unknown kind {:?}", line.kind));
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == line.kind).ok_or_else(unknown)?;
    let Some(value) = line.after else { return Ok(Change::delete(kind, line.id)) };
    let object = match kind {
        Kind::Network => Object::Network(serde_json::from_value(value)?),
        Kind::Endpoint => Object::Endpoint(serde_json::from_value(value)?),
        Kind::Namespace => Object::Namespace(serde_json::from_value(value)?),
        Kind::LoadBalancer => Object::Balancer(serde_json::from_value(value)?),
        Kind::SdnRoute => Object::Route(serde_json::from_value(value)?),
        Kind::GuestNetworkService => return Err(unknown()),
    };
    Ok(Change::put(line.id, object))
}

impl Store {
    /// Opens the journal in `directory`, and reads the state from it.
    pub fn open(directory: &Path) -> Result<(Self, State), StoreError> {
        let path = directory.join("hns.journal");
        let failed = |source| StoreError::Io { path: path.clone(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let state = match File::open(&path) {
            Ok(file) => read(&path, file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(failed(error)),
        };
        let (file, lines) = rewrite(&path, &state).map_err(failed)?;
        Ok((Self { path, file: Some(file), lines }, state))
    }

    /// Notes changes that led to `state`.
    pub fn append(&mut self, changes: &[Change], state: &State) -> Result<(), StoreError> {
        let Some(file) = self.file.as_mut().filter(|_| self.lines <= 2 * state.len() + SLACK) else { return self.replace(state) };
        let mut bytes = Vec::new();
        self.lines += changes.len();
        let written = changes.iter().try_for_each(|change| write_line(&mut bytes, change)).and_then(|()| file.write_all(&bytes));
        written.map_err(|source| StoreError::Io { path: self.path.clone(), source })
    }

    /// Replaces the journal by the lines that make `state`.
    pub fn replace(&mut self, state: &State) -> Result<(), StoreError> {
        // Windows replaces no file that is open.
        self.file = None;
        let (file, lines) = rewrite(&self.path, state).map_err(|source| StoreError::Io { path: self.path.clone(), source })?;
        (self.file, self.lines) = (Some(file), lines);
        Ok(())
    }
}

fn read(path: &Path, file: File) -> Result<State, StoreError> {
    let mut state = State::default();
    let mut lines = BufReader::new(file).split(b'\n').enumerate().peekable();
    while let Some((index, bytes)) = lines.next() {
        let bytes = bytes.map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        let damaged = |source| StoreError::Damaged { path: path.to_owned(), line: index + 1, source };
        if index == 0 {
            let Header { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
            if format > FORMAT {
                return Err(StoreError::Newer { path: path.to_owned(), found: format });
            }
            continue;
        }
        match serde_json::from_slice(&bytes).and_then(from_line) {
            Ok(change) => state.apply(change),
            Err(_) if lines.peek().is_none() => tracing::warn!(line = index + 1, "the journal's last line was cut short and is ignored"),
            Err(source) => return Err(damaged(source)),
        }
    }
    Ok(state)
}

/// Writes the journal anew beside the old one and puts it in its place.
fn rewrite(path: &Path, state: &State) -> io::Result<(File, usize)> {
    let lines = atomic_file::Options::new().write_with(path, |writer| {
        serde_json::to_writer(&mut *writer, &Header { format: FORMAT })?;
        writer.write_all(b"\n")?;
        let mut lines = 1;
        for (kind, id) in state.ids() {
            if let Some(object) = state.get(kind, &id) {
                write_line(writer, &Change::put(id, object))?;
                lines += 1;
            }
        }
        Ok(lines)
    })?;
    Ok((OpenOptions::new().append(true).open(path)?, lines))
}
