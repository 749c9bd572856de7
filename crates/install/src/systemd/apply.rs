//! What there is of units on a machine, and carrying steps out: files, links, and `systemctl`.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{ASIDE, Content, Observed, Step, artefacts};
use crate::control::{ServiceError, Systemctl};
use crate::{Desired, Plan};

/// Bytes of a file that are looked at: a unit is much smaller.
const MOST: u64 = 64 << 10;

/// A step that failed; those before it are done, and another run goes on.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("cannot {step}")]
    File {
        step: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Whether systemd runs the machine (sd_booted(3)).
#[must_use]
pub fn runs(root: &Path) -> bool {
    root == Path::new("/") && Path::new("/run/systemd/system").is_dir()
}

/// A path below the root. Of another machine's files no link may lead out of them, to those of this one.
fn at(root: &Path, path: &str) -> io::Result<PathBuf> {
    let found = root.join(path.trim_start_matches('/'));
    if root == Path::new("/") || !root.exists() {
        return Ok(found);
    }
    let there = found.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok()).unwrap_or(root);
    if there.canonicalize()?.starts_with(root.canonicalize()?) {
        return Ok(found);
    }
    Err(io::Error::other(format!("a link on the way leads out of {}; install on that machine itself", root.display())))
}

/// Looks at the files of a service, and at what it does.
///
/// # Errors
/// [`ApplyError`].
pub async fn observe(desired: &Desired, root: &Path, systemctl: &Systemctl) -> Result<Observed, ApplyError> {
    let mut observed = Observed { runs: runs(root), ..Observed::default() };
    for (path, _) in artefacts(desired) {
        for path in [format!("{path}{ASIDE}"), path] {
            let place = at(root, &path).map_err(|source| ApplyError::Read { path: path.clone().into(), source })?;
            if let Some(content) = content(&place)? {
                observed.present.insert(path, content);
            }
        }
    }
    if observed.runs {
        observed.is_active = systemctl.state(desired.part().service()).await?.is_active;
    }
    Ok(observed)
}

fn content(path: &Path) -> Result<Option<Content>, ApplyError> {
    let failed = |source| ApplyError::Read { path: path.to_owned(), source };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if metadata.is_symlink() {
        return std::fs::read_link(path).map(|target| Some(Content::Link(target.to_string_lossy().into_owned()))).map_err(failed);
    }
    if !metadata.is_file() {
        return Ok(Some(Content::File(String::new())));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes)).map_err(failed)?;
    Ok(Some(Content::File(String::from_utf8_lossy(&bytes).into_owned())))
}

/// Carries the steps out.
///
/// # Errors
/// [`ApplyError`] of the first step that failed.
pub async fn apply(plan: &Plan<Step>, root: &Path, systemctl: &Systemctl, progress: &(dyn Fn(&Step) + Sync)) -> Result<(), ApplyError> {
    for step in &plan.steps {
        progress(step);
        match step {
            Step::Reload => systemctl.run(&["daemon-reload"]).await.map(drop)?,
            Step::Start(service) => systemctl.run(&["start", &format!("{service}.service")]).await.map(drop)?,
            Step::Restart(service) => systemctl.run(&["restart", &format!("{service}.service")]).await.map(drop)?,
            Step::Stop(service) => systemctl.run(&["stop", &format!("{service}.service")]).await.map(drop)?,
            _ => change(step, root).map_err(|source| ApplyError::File { step: step.to_string(), source })?,
        }
    }
    Ok(())
}

/// A step that changes files.
fn change(step: &Step, root: &Path) -> io::Result<()> {
    let parent = |path: &Path| path.parent().map_or(Ok(()), std::fs::create_dir_all);
    match step {
        Step::PutAside(path) => std::fs::rename(at(root, path)?, at(root, &format!("{path}{ASIDE}"))?),
        Step::GiveBack(path) => std::fs::rename(at(root, &format!("{path}{ASIDE}"))?, at(root, path)?),
        Step::Write { path, text } => {
            let path = at(root, path)?;
            parent(&path)?;
            atomic_file::Options::new().mode(0o644).synced().write(&path, text)
        }
        Step::Link { path, target } => {
            let path = at(root, path)?;
            parent(&path)?;
            remove(&path)?;
            link(target, &path)
        }
        Step::Remove(path) => remove(&at(root, path)?),
        Step::RemoveDirectory(path) => {
            // Drop-ins of others stay.
            let _ = std::fs::remove_dir(at(root, path)?);
            Ok(())
        }
        Step::Reload | Step::Start(_) | Step::Restart(_) | Step::Stop(_) => Ok(()),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn link(target: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn link(_: &str, _: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "units are of Linux"))
}
