//! Rotation of container logs (upstream pkg/kubelet/logs/container_log_manager.go): a log that has
//! grown large is renamed with a time, the runtime opens a new one, and older ones are compressed.
//!
//! Guarantees: nothing but `LOG.*` beside a running container's log is touched, and a log whose
//! successor cannot be opened gets its name back.

use std::fmt;
use std::io::{self, Read as _};
use std::sync::Arc;

use cri::v1;
use flate2::{Compression, write::GzEncoder};
use host::{FileKind, HostError, HostRoot, PathError, PodPath};
use jiff::{Timestamp, tz::TimeZone};
use thiserror_ext::AsReport as _;
use tokio::task::JoinError;

use crate::config::LogRotation;
use crate::error::RuntimeError;
use crate::logs;

const COMPRESSED: &str = ".gz";
/// Of a compression that is not finished.
const UNFINISHED: &str = ".tmp";
/// Bytes of a log that is compressed at least, and twice as many as rotated logs have; a larger one stays as it is. A pod can put a file of any
/// size there, and packing it would take hours.
const MAX_PACKED: u64 = 1 << 30;

/// Why a log could not be rotated.
#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{0} has no directory")]
    NoDirectory(PodPath),
    /// The task that compresses ended in a panic.
    #[error(transparent)]
    Task(#[from] JoinError),
    #[error("the runtime did not reopen the log")]
    Reopen(#[source] RuntimeError),
    #[error("{}; giving the log its name back failed too", reopen.as_report())]
    GiveBack { reopen: Box<RotationError>, source: HostError },
}

/// What happens to one rotated log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Remove(String),
    Compress(String),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Remove(name) => write!(f, "remove {name}"),
            Step::Compress(name) => write!(f, "compress {name}"),
        }
    }
}

/// What has to happen beside `log` before it is rotated, so that at most `files` remain afterwards.
fn plan(log: &str, names: &[String], files: u32) -> Vec<Step> {
    let prefix = format!("{log}.");
    let mut steps = Vec::new();
    let mut kept = Vec::new();
    for name in names.iter().filter(|name| name.starts_with(&prefix)) {
        let half_done = name.ends_with(UNFINISHED) || (!name.ends_with(COMPRESSED) && names.contains(&format!("{name}{COMPRESSED}")));
        if half_done {
            steps.push(Step::Remove(name.clone()));
        } else {
            kept.push(name.clone());
        }
    }
    // Names end with their time: the oldest first. The log itself and the one about to be renamed count too.
    kept.sort();
    let surplus = kept.len().saturating_sub(files.saturating_sub(2) as usize);
    steps.extend(kept.drain(..surplus).map(Step::Remove));
    steps.extend(kept.into_iter().filter(|name| !name.ends_with(COMPRESSED)).map(Step::Compress));
    steps
}

/// Looks after the logs of running containers, for ever; `pods` is the directory of all pods' logs.
pub(crate) async fn keep(client: cri::Client, root: Arc<HostRoot>, pods: PodPath, settings: LogRotation) {
    loop {
        tokio::time::sleep(settings.interval).await;
        if let Err(error) = Box::pin(pass(&client, &root, &pods, settings)).await {
            tracing::warn!(error = %error.as_report(), "looking for large container logs failed; trying again");
        }
    }
}

async fn pass(client: &cri::Client, root: &Arc<HostRoot>, pods: &PodPath, settings: LogRotation) -> Result<(), cri::Error> {
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
    let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
    for container in client.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await? {
        let id = container.id;
        let request = v1::ContainerStatusRequest { container_id: id.clone(), ..Default::default() };
        let Some(path) = client.container_status(request).await.ok().and_then(|answer| answer.status).map(|status| status.log_path) else {
            continue;
        };
        // A container without a log has no path.
        if path.is_empty() {
            continue;
        }
        let outcome = match root.parse(&path) {
            Ok(log) => rotate(client, (root, pods), &id, &log, settings).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = outcome {
            tracing::warn!(container = id, log = path, error = %error.as_report(), "rotating a container's log failed; trying again");
        }
    }
    Ok(())
}

/// The directory of a log as a root of its own, and the log in it. A pod may hold the directory of all pods' logs as a volume, and put a link
/// in the place of one of a container: nothing is renamed, packed or removed where that leads.
fn directory(root: &HostRoot, pods: &PodPath, log: &PodPath) -> Result<(Arc<HostRoot>, PodPath), RotationError> {
    let dir = log.parent().ok_or_else(|| RotationError::NoDirectory(log.clone()))?;
    let (root, top) = match dir.components().strip_prefix(pods.components()) {
        Some(names) => root.beneath(pods, names)?,
        None => root.beneath(&dir, &[])?,
    };
    let log = top.join(name(log))?;
    Ok((Arc::new(root), log))
}

async fn rotate(
    client: &cri::Client,
    (root, pods): (&HostRoot, &PodPath),
    id: &str,
    path: &PodPath,
    settings: LogRotation,
) -> Result<(), RotationError> {
    let (root, log) = match directory(root, pods, path) {
        Ok((root, log)) => (root, log),
        Err(RotationError::Host(error)) if error.is_not_found() => return reopen(client, id).await,
        Err(error) => return Err(error),
    };
    let dir = log.parent().ok_or_else(|| RotationError::NoDirectory(log.clone()))?;
    let size = logs::open(&root, &dir, &[name(&log).to_owned()]).and_then(|file| file.metadata().map_err(|source| failed("measure", path, source)));
    let size = match size {
        Ok(metadata) => metadata.len(),
        // Somebody took it away: the runtime writes into nothing until it opens a new one.
        Err(error) if error.is_not_found() => return reopen(client, id).await,
        Err(error) => return Err(error.into()),
    };
    if size < settings.max_size {
        return Ok(());
    }
    let (tree, of) = (root.clone(), log.clone());
    tokio::task::spawn_blocking(move || tidy(&tree, &of, settings)).await??;
    let time = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%d-%H%M%S").to_string();
    let rotated = sibling(&log, &format!("{}.{time}", name(&log)))?;
    root.rename(&log, &rotated)?;
    if let Err(error) = reopen(client, id).await {
        return Err(match root.rename(&rotated, &log) {
            Ok(()) => error,
            Err(source) => RotationError::GiveBack { reopen: Box::new(error), source },
        });
    }
    tracing::debug!(container = id, log = %path, size, "rotated a container's log");
    Ok(())
}

async fn reopen(client: &cri::Client, id: &str) -> Result<(), RotationError> {
    let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
    client.reopen_container_log(request).await.map_err(|error| RotationError::Reopen(error.into()))
}

/// Makes room beside a log. What is no file there is not ours. A step that fails keeps no other from being done.
fn tidy(root: &HostRoot, log: &PodPath, settings: LogRotation) -> Result<(), HostError> {
    let most = MAX_PACKED.max(settings.max_size.saturating_mul(2));
    let Some(dir) = log.parent() else { return Ok(()) };
    let listed = root.read_dir(&dir)?.into_iter().filter(|(_, kind)| *kind == FileKind::File);
    let names: Vec<String> = listed.map(|(name, _)| name).collect();
    for step in plan(name(log), &names, settings.max_files) {
        tracing::debug!(%dir, "{step}");
        let done = match &step {
            Step::Remove(name) => dir.join(name).map_err(HostError::from).and_then(|path| root.remove_tree(&path)),
            Step::Compress(name) => compress(root, &dir, name, most),
        };
        if let Err(error) = done {
            tracing::warn!(%dir, error = %error.as_report(), "{step} failed; trying again");
        }
    }
    Ok(())
}

fn compress(root: &HostRoot, dir: &PodPath, name: &str, most: u64) -> Result<(), HostError> {
    let (plain, done) = (dir.join(name)?, dir.join(&format!("{name}{COMPRESSED}"))?);
    let unfinished = dir.join(&format!("{name}{UNFINISHED}"))?;
    let mut source = logs::open(root, dir, &[name.to_owned()])?;
    let size = source.metadata().map_err(|source| failed("measure", &plain, source))?.len();
    if size > most {
        return Ok(());
    }
    let mut packer = GzEncoder::new(root.open_append(&unfinished, 0o640)?, Compression::default());
    io::copy(&mut (&mut source).take(most), &mut packer).and_then(|_| packer.finish()).map_err(|source| failed("compress", &plain, source))?;
    root.rename(&unfinished, &done)?;
    root.remove_tree(&plain)
}

fn failed(operation: &'static str, path: &PodPath, source: io::Error) -> HostError {
    HostError::Io { operation, path: path.to_string(), source }
}

fn name(path: &PodPath) -> &str {
    path.components().last().map_or("", String::as_str)
}

fn sibling(path: &PodPath, name: &str) -> Result<PodPath, RotationError> {
    let dir = path.parent().ok_or_else(|| RotationError::NoDirectory(path.clone()))?;
    Ok(dir.join(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_and_what_is_compressed() {
        for (names, files, want) in [
            (&["0.log", "1.log.20260101-000000"][..], 5, &[][..]),
            (&["0.log", "0.log.20260101-000000"], 5, &["compress 0.log.20260101-000000"]),
            (&["0.log", "0.log.a.gz", "0.log.b", "0.log.b.tmp"], 5, &["remove 0.log.b.tmp", "compress 0.log.b"]),
            (&["0.log", "0.log.b", "0.log.b.gz"], 5, &["remove 0.log.b"]),
            (&["0.log", "0.log.a.gz", "0.log.b.gz", "0.log.c.gz", "0.log.d"], 5, &["remove 0.log.a.gz", "compress 0.log.d"]),
            (&["0.log", "0.log.a"], 2, &["remove 0.log.a"]),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let steps: Vec<String> = plan("0.log", &names, files).iter().map(Step::to_string).collect();
            assert_eq!(steps, want, "{names:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_a_pod_left_beside_its_log_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(dir.path().join("0.log"), "").unwrap();
        std::os::unix::fs::symlink("/secret", dir.path().join("0.log.a")).unwrap();
        // Nor does a directory or a file of any size keep the log from being rotated.
        std::fs::create_dir(dir.path().join("0.log.b")).unwrap();
        std::fs::File::create(dir.path().join("0.log.c")).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(dir.path().join("0.log.d"), "lines").unwrap();
        tidy(&root, &root.parse("/0.log").unwrap(), LogRotation::default()).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.a", "0.log.b", "0.log.c", "0.log.d.gz", "secret"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_a_pod_left_for_the_directory_of_a_container_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        let pod = dir.path().join("var/log/pods/ns_p_u");
        std::fs::create_dir_all(pod.join("c")).unwrap();
        std::fs::create_dir_all(dir.path().join("secrets")).unwrap();
        for place in ["secrets", "var/log/pods/ns_p_u/c"] {
            std::fs::write(dir.path().join(place).join("0.log"), "x").unwrap();
            std::fs::write(dir.path().join(place).join("0.log.old.tmp"), "x").unwrap();
        }
        std::os::unix::fs::symlink("/secrets", pod.join("link")).unwrap();
        let log = |container: &str| root.parse(&format!("/var/log/pods/ns_p_u/{container}/0.log")).unwrap();
        let pods = root.parse("/var/log/pods").unwrap();
        assert!(directory(&root, &pods, &log("link")).is_err());
        let (held, inside) = directory(&root, &pods, &log("c")).unwrap();
        // It is exchanged after it was looked at.
        std::fs::rename(pod.join("c"), pod.join("moved")).unwrap();
        std::os::unix::fs::symlink("/secrets", pod.join("c")).unwrap();
        tidy(&held, &inside, LogRotation::default()).unwrap();
        held.rename(&inside, &sibling(&inside, "0.log.new").unwrap()).unwrap();
        let names = |dir: std::path::PathBuf| {
            let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(pod.join("moved")), ["0.log.new"]);
        assert_eq!(names(dir.path().join("secrets")), ["0.log", "0.log.old.tmp"]);
    }

    #[test]
    fn a_compressed_log_holds_what_the_plain_one_did() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        std::fs::write(dir.path().join("0.log.a"), "text\n".repeat(1000)).unwrap();
        std::fs::write(dir.path().join("0.log"), "").unwrap();
        tidy(&root, &root.parse("/0.log").unwrap(), LogRotation::default()).unwrap();
        let mut text = String::new();
        let packed = std::fs::File::open(dir.path().join("0.log.a.gz")).unwrap();
        io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed), &mut text).unwrap();
        assert_eq!(text, "text\n".repeat(1000));
        assert!(!dir.path().join("0.log.a").exists());
    }
}
