//! Downloads blobs into files: checked, and resumed where an earlier attempt ended.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONTENT_RANGE, RANGE};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};

use super::client::{Client, RegistryError};
use thiserror_ext::AsReport;

/// How often a transfer that breaks is taken up again, and how long a pause may be.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(60);

/// A blob to fetch.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    pub digest: String,
    pub size: u64,
}

/// Fetches a blob into `dir`; returns the file. `progress` is called with the bytes as they arrive.
pub(super) async fn fetch(client: &mut Client, blob: &Blob, dir: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<PathBuf, RegistryError> {
    let path = dir.join(blob.digest.replace(':', "-"));
    let disk = |error: io::Error| RegistryError::Content(format!("cannot write {}: {error}", path.display()));
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(disk)?;
    // Another process may be fetching the same blob: its result is ours too.
    while let Err(error) = file.try_lock() {
        match error {
            std::fs::TryLockError::WouldBlock => tokio::time::sleep(Duration::from_millis(200)).await,
            std::fs::TryLockError::Error(error) => return Err(disk(error)),
        }
    }
    let mut attempt = 0;
    loop {
        let have = file.seek(SeekFrom::End(0)).map_err(disk)?;
        if have >= blob.size {
            break;
        }
        progress(have);
        match transfer(client, blob, &mut file, have, progress).await {
            Ok(()) => break,
            Err(error @ (RegistryError::NotFound(_) | RegistryError::Denied(_) | RegistryError::Token { .. } | RegistryError::Content(_))) => {
                return Err(error);
            }
            Err(error) if attempt + 1 == ATTEMPTS => return Err(error),
            Err(error) => {
                attempt += 1;
                tracing::debug!(digest = blob.digest, attempt, error = %error.as_report(), "transfer broke, going on");
                tokio::time::sleep(Duration::from_millis(250 << attempt)).await;
            }
        }
    }
    let checked = {
        let (blob, file) = (blob.clone(), file.try_clone().map_err(disk)?);
        tokio::task::spawn_blocking(move || check(file, &blob)).await.map_err(|error| RegistryError::Content(error.to_string()))?
    };
    match checked.map_err(disk)? {
        None => Ok(path),
        Some(actual) => {
            // Next time from the beginning.
            let _ = std::fs::remove_file(&path);
            Err(RegistryError::Content(format!("{} has digest {actual}: the registry or the way to it changes content", blob.digest)))
        }
    }
}

/// One request from byte `have` on.
async fn transfer(client: &mut Client, blob: &Blob, file: &mut File, have: u64, progress: &(dyn Fn(u64) + Sync)) -> Result<(), RegistryError> {
    let path = format!("blobs/{}", blob.digest);
    let range = format!("bytes={have}-");
    let mut headers = vec![(ACCEPT_ENCODING, "identity")];
    if have > 0 {
        headers.push((RANGE, range.as_str()));
    }
    let response = client.ask(Method::GET, &path, &headers).await?;
    let from = match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
            if !range.starts_with(&format!("bytes {have}-")) {
                return Err(RegistryError::Content(format!("asked for {} from byte {have}, got {range:?}", blob.digest)));
            }
            have
        }
        StatusCode::OK => 0,
        status => return Err(client.refuse(Method::GET, &path, status, &blob.digest)),
    };
    let disk = |error: io::Error| RegistryError::Content(format!("cannot write a layer: {error}"));
    file.set_len(from).map_err(disk)?;
    file.seek(SeekFrom::Start(from)).map_err(disk)?;
    body(response.into_body(), blob, file, from, progress).await
}

async fn body(mut body: Incoming, blob: &Blob, file: &mut File, from: u64, progress: &(dyn Fn(u64) + Sync)) -> Result<(), RegistryError> {
    let broken = |reason: String| RegistryError::Unreachable { method: Method::GET, url: blob.digest.clone(), reason };
    let mut have = from;
    loop {
        let frame = match tokio::time::timeout(PAUSE, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(broken(error.to_string())),
            Err(_) => return Err(broken(format!("no data for {} s", PAUSE.as_secs()))),
        };
        let Some(data) = frame.data_ref() else { continue };
        have += data.len() as u64;
        if have > blob.size {
            return Err(RegistryError::Content(format!("{} is longer than the {} bytes that its manifest says", blob.digest, blob.size)));
        }
        file.write_all(data).map_err(|error| RegistryError::Content(format!("cannot write a layer: {error}")))?;
        progress(have);
    }
    if have < blob.size { Err(broken(format!("it ended after {have} of {} bytes", blob.size))) } else { Ok(()) }
}

/// The actual digest, if it is another.
fn check(mut file: File, blob: &Blob) -> io::Result<Option<String>> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    let actual = format!("sha256:{:x}", hash.finalize());
    Ok((actual != blob.digest).then_some(actual))
}
