//! Drive C of a HostProcess container: the node's own, with Wine's Windows in the place of the node's, and the image's files below `C:\\hpc`
//! (hcsshim's `internal/jobcontainers`, with its bind filter, as containerd uses it from 1.7 on).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use host::HostRoot;
use nix::mount::{MntFlags, umount2};

use super::super::StartSpec;
use super::super::root::{bind, directory, fd_path};
use super::super::spec::HostDirs;
use super::IMAGE;
use super::root::overlay;

/// Directories of Windows itself, which the container has for itself.
const WINDOWS: &[&str] = &["windows", "Program Files", "Program Files (x86)", "ProgramData", "users"];

/// Puts the node's drive in the place of `drive`, which is the template's. `dir` is the container's, `target` its root.
pub(super) fn build(dir: &Path, target: &Path, drive: &Path, layers: &[PathBuf], spec: &StartSpec) -> Result<()> {
    let node = match &spec.host {
        HostDirs::Drives(drives) => drives.iter().find(|(letter, _)| letter.eq_ignore_ascii_case(&'c')).map(|(_, dir)| dir),
        HostDirs::Root(_) => None,
    };
    let Some(node) = node else { bail!("HostProcess containers run on Windows nodes only") };
    let windows = target.join("windows");
    std::fs::create_dir(&windows)?;
    bind(drive, &windows, false)?;
    bind(node, drive, true)?;
    // Programs of earlier containers may have put links there.
    let inside = HostRoot::windows(spec.os, [('c', drive.to_owned())])?;
    for name in WINDOWS.iter().filter(|name| windows.join(name).is_dir()) {
        let place = directory(&inside, &format!(r"C:\{name}"))?;
        bind(&windows.join(name), &fd_path(&place), true)?;
    }
    umount2(&windows, MntFlags::MNT_DETACH).context("cannot leave the template's drive")?;
    std::fs::remove_dir(&windows)?;
    let own = dir.join("hpc");
    let empty = own.join("empty");
    std::fs::create_dir_all(&empty)?;
    let lowers: Vec<PathBuf> = layers.iter().map(|layer| layer.join(wine::DRIVE)).filter(|layer| layer.is_dir()).chain([empty]).collect();
    let place = directory(&inside, IMAGE)?;
    overlay(&own, &fd_path(&place), &lowers)
}
