//! Files below the directory of logs, as Go's file server shows them.

use std::fs::File;
use std::io::{self, Read as _};

use bytes::Bytes;
use host::{Beneath, FileKind, HostError, HostRoot, PodPath};
use thiserror_ext::AsReport as _;
use tokio::sync::mpsc;

/// Names of a directory that are shown.
const MAX_NAMES: usize = 10_000;
const CHUNK: usize = 64 << 10;

/// What a request leads to.
pub(super) enum Found {
    File {
        file: File,
        kind: &'static str,
    },
    Listing(String),
    /// It is to be asked for at another place.
    Moved(String),
    Missing,
    Denied,
}

/// The names of a path; None for one that leads elsewhere.
fn names(path: &str) -> Option<Vec<String>> {
    let names: Vec<String> = path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::to_owned).collect();
    names.iter().all(|name| name != ".." && !name.contains('\0')).then_some(names)
}

/// What is at a path. Errors that only tell of the node's files are logged, not sent.
pub(super) fn find(root: &HostRoot, directory: &PodPath, path: &str) -> Found {
    let Some(names) = names(path) else { return Found::Missing };
    let is_dir = path.is_empty() || path.ends_with('/');
    match root.open_beneath(directory, &names) {
        Ok(Beneath::Directory(_)) if !is_dir => Found::Moved(format!("{}/", encoded(&names[names.len() - 1]))),
        Ok(Beneath::Directory(list)) => Found::Listing(page(list)),
        Ok(Beneath::File(_)) if is_dir => Found::Moved(format!("../{}", encoded(&names[names.len() - 1]))),
        Ok(Beneath::File(file)) => Found::File { file, kind: kind(&names[names.len() - 1]) },
        Ok(Beneath::Other) => Found::Missing,
        Err(error) if error.is_not_found() => Found::Missing,
        Err(error) if error.is_denied() => Found::Denied,
        Err(error) => {
            // Links, files in the place of directories, names that the node's system does not allow.
            tracing::info!(path, error = %error.as_report(), "a log of the node is not sent");
            Found::Missing
        }
    }
}

/// By the name alone: what logs contain decides nothing.
fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("gz") => "application/gzip",
        Some("xz" | "zst" | "journal" | "evtx") => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    }
}

fn encoded(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The page of a directory.
fn page(mut list: Vec<(String, FileKind)>) -> String {
    list.sort_by(|(a, _), (b, _)| a.cmp(b));
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;");
    let mut page = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for (name, kind) in list.into_iter().take(MAX_NAMES) {
        let end = if kind == FileKind::Directory { "/" } else { "" };
        page.push_str(&format!("<a href=\"{}{end}\">{}{end}</a>\n", encoded(&name), escaped(&name)));
    }
    page.push_str("</pre>\n");
    page
}

/// The log of a service: `SERVICE`, `SERVICE.log` or `SERVICE/SERVICE.log`.
pub(super) fn of_service(root: &HostRoot, directory: &PodPath, service: &str) -> Result<Option<File>, HostError> {
    for path in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let Some(names) = names(&path).filter(|names| !names.is_empty()) else { continue };
        match root.open_beneath(directory, &names) {
            Ok(Beneath::File(file)) => return Ok(Some(file)),
            Ok(Beneath::Directory(_) | Beneath::Other) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether there is something at a name.
pub(super) fn exists(root: &HostRoot, directory: &PodPath, name: &str) -> Result<(), String> {
    let names = names(&name.replace('\\', "/")).ok_or_else(|| "path escapes from parent".to_owned())?;
    root.open_beneath(directory, &names)
        .map(drop)
        .map_err(|error| if error.is_not_found() { format!("statat {name}: no such file or directory") } else { error.to_report_string() })
}

/// Sends a file as it is now: what is added meanwhile is not waited for.
pub(super) fn copy(file: File, to: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut file = file.take(u64::MAX);
    let length = file.get_ref().metadata()?.len();
    file.set_limit(length);
    loop {
        let mut chunk = vec![0; CHUNK];
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        chunk.truncate(read);
        to.blocking_send(chunk.into()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    }
}
