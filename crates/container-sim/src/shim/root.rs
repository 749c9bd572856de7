//! Root of a container: made in a mount namespace of its own, then entered by pivot_root.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use host::{FileKind, HostRoot, Resolved};
use kube_rules::PodPath;
use linux_sys::mount::remount_readonly;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::flatten::flatten;
use super::{MountSource, MountSpec, Program, Propagation, RootSpec, StartSpec, windows};
use wine::{Account, command};

const NONE: Option<&str> = None;

/// Makes the root of the container in `dir` and moves into it. The mount namespace must be the caller's own. `proc` is the `/proc` of the
/// processes that the container shares; without it, `/proc` is that of the caller's pid namespace.
pub(super) fn enter(dir: &Path, spec: &StartSpec, proc: Option<OwnedFd>) -> Result<()> {
    let node = spec.host.open(spec.os)?;
    let shared = shared_sources(&node, spec)?;
    // What the node mounts later is seen; nothing goes the other way.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE).context("cannot part the container's mounts from the node's")?;
    let target = dir.join("root");
    std::fs::create_dir_all(&target)?;
    let drives = spec.root.build(dir, &target, spec, proc)?;
    let open = || if drives.is_empty() { HostRoot::linux(&target) } else { HostRoot::windows(spec.os, drives.clone()) };
    let mut inside = open()?;
    for mount in &spec.mounts {
        attach(dir, &node, &inside, mount, shared.get(&mount.target)).with_context(|| format!("cannot mount {}", mount.target))?;
        if inside.parse(&mount.target)?.components().is_empty() {
            // What was open of the drive lies below the mount now.
            inside = open()?;
        }
    }
    if spec.root.has_system_mounts() {
        restrict(&HostRoot::linux(&target)?, spec)?;
    }
    let cwd = spec.program.cwd();
    if !cwd.is_empty() {
        // While the root can still be written.
        inside.create_dir_all(&inside.parse(cwd)?, 0o755).context("cannot make the working directory")?;
    }
    drop((inside, node));
    spec.root.protect(&target, spec)?;
    if spec.security.readonly_root {
        remount_readonly(&target)?;
    }
    std::env::set_current_dir(&target)?;
    nix::unistd::pivot_root(".", ".").context("cannot change the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("cannot let go of the old root")?;
    std::env::set_current_dir("/")?;
    Ok(())
}

impl RootSpec {
    /// Puts the root together in `target`. Returns its drives; none for a root of Linux.
    fn build(&self, dir: &Path, target: &Path, spec: &StartSpec, proc: Option<OwnedFd>) -> Result<Vec<(char, PathBuf)>> {
        match self {
            Self::Layers { layers_dir, layers } => {
                layered(dir, layers_dir, layers, target)?;
                system_mounts(&HostRoot::linux(target)?, spec, proc)?;
                Ok(Vec::new())
            }
            Self::Drives => {
                drives(target, spec)?;
                bind(target, target, false)?;
                drive_dirs(target)
            }
            Self::Wine(wine) => windows::build(dir, target, wine, spec, proc),
        }
    }

    /// Takes away what the container's user may not write. Volumes are mounted already.
    fn protect(&self, target: &Path, spec: &StartSpec) -> Result<()> {
        match self {
            Self::Wine(_) => windows::protect(target, Account::find(&spec.account)?),
            Self::Layers { .. } | Self::Drives => Ok(()),
        }
    }

    /// Whether it has `/proc`, `/dev` and `/sys`, and with them terminals of its own. A root of Windows' drives under Wine has them too.
    pub(super) fn has_system_mounts(&self) -> bool {
        !matches!(self, Self::Drives)
    }

    /// Whether programs look for their terminal at `/dev/console`.
    pub(super) fn has_console(&self) -> bool {
        matches!(self, Self::Layers { .. })
    }

    /// Whether programs that are not ours can run in it.
    pub(super) fn runs_programs(&self) -> bool {
        !matches!(self, Self::Drives)
    }

    /// A second program in this root.
    pub(super) fn second_program(&self, argv: &[&str], cwd: &str) -> Result<Program> {
        match self {
            Self::Layers { .. } => Ok(Program::Exec { argv: argv.iter().map(|&word| word.to_owned()).collect(), cwd: cwd.to_owned() }),
            Self::Wine(_) => Ok(Program::Windows { line: command::join(argv), cwd: cwd.to_owned() }),
            Self::Drives => bail!(
                "this container is Mullion's stand-in for a Windows program and holds no Windows programs to run: install Wine on this machine \
                 (Debian: apt install wine64), then create the pod anew"
            ),
        }
    }
}

/// Mounts the image's layers below a writable one.
fn layered(dir: &Path, layers_dir: &Path, layers: &[String], target: &Path) -> Result<()> {
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    for made in [&upper, &work] {
        std::fs::create_dir_all(made)?;
    }
    let mut lowers: Vec<&str> = layers.iter().rev().map(String::as_str).collect();
    if lowers.is_empty() {
        std::fs::create_dir_all(layers_dir.join("empty"))?;
        lowers.push("empty");
    }
    // Relative names keep the options below one page however many layers there are.
    std::env::set_current_dir(layers_dir).with_context(|| format!("cannot enter {}", layers_dir.display()))?;
    let options = format!("lowerdir={},upperdir={},workdir={},userxattr", lowers.join(":"), escape(&upper), escape(&work));
    match mount(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options.as_str())) {
        Ok(()) => {
            // The kernel shuts out even the owner, so that the cluster's directory could not be removed.
            let inner = work.join("work");
            std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).with_context(|| format!("cannot open {}", inner.display()))
        }
        // Some file systems cannot be part of an overlay; what it would show is copied then.
        Err(refused) => {
            let flat = dir.join("flat");
            if !flat.exists() {
                let fresh = dir.join("flat.new");
                let _ = std::fs::remove_dir_all(&fresh);
                std::fs::create_dir(&fresh)?;
                let layers: Vec<PathBuf> = layers.iter().map(|layer| layers_dir.join(layer)).collect();
                flatten(&layers, &fresh).with_context(|| format!("overlay mount failed ({refused}) and so did copying the image"))?;
                std::fs::rename(&fresh, &flat)?;
            }
            bind(&flat, target, false)
        }
    }
}

/// Overlay's options are separated by commas, directories by colons.
pub(super) fn escape(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,").replace(':', "\\:")
}

/// What a container of a Windows image finds on its drives before anything is mounted.
fn drives(target: &Path, spec: &StartSpec) -> Result<()> {
    for dir in ["c/inetpub/wwwroot", "c/Windows/System32/drivers/etc", "c/Windows/Temp", "c/Users/ContainerAdministrator", "c/ProgramData"] {
        std::fs::create_dir_all(target.join(dir))?;
    }
    for mount in &spec.mounts {
        if let Some((letter, _)) = mount.target.split_once(':').filter(|(letter, _)| letter.len() == 1) {
            std::fs::create_dir_all(target.join(letter.to_ascii_lowercase()))?;
        }
    }
    Ok(())
}

fn drive_dirs(target: &Path) -> Result<Vec<(char, PathBuf)>> {
    let mut drives = Vec::new();
    for entry in std::fs::read_dir(target)? {
        let entry = entry?;
        if let Some(letter) = entry.file_name().to_string_lossy().chars().next() {
            drives.push((letter, entry.path()));
        }
    }
    Ok(drives)
}

/// /proc, /dev and /sys as runc makes them by default.
pub(super) fn system_mounts(inside: &HostRoot, spec: &StartSpec, proc: Option<OwnedFd>) -> Result<()> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let place = directory(inside, "/proc")?;
    match proc {
        Some(shared) => {
            let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&shared, "", &place.handle, "", whole).context("cannot mount the shared /proc")?;
        }
        None => mount(Some("proc"), &fd_path(&place), Some("proc"), quiet, NONE).context("cannot mount /proc")?,
    }
    let dev = directory(inside, "/dev")?;
    mount(Some("tmpfs"), &fd_path(&dev), Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME, Some("mode=755,size=65536k"))
        .context("cannot mount /dev")?;
    drop(dev);
    for device in DEVICES {
        let path = inside.parse(&format!("/dev/{device}"))?;
        inside.create_file(&path, 0o666)?;
        bind(&Path::new("/dev").join(device), &fd_path(&inside.resolve(&path)?), false)?;
    }
    let pts = directory(inside, "/dev/pts")?;
    let pts_options = Some("newinstance,ptmxmode=0666,mode=0620");
    mount(Some("devpts"), &fd_path(&pts), Some("devpts"), MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, pts_options).context("cannot mount /dev/pts")?;
    let shm = directory(inside, "/dev/shm")?;
    mount(Some("shm"), &fd_path(&shm), Some("tmpfs"), quiet, Some("mode=1777,size=65536k")).context("cannot mount /dev/shm")?;
    let dev = directory(inside, "/dev")?;
    for (name, target) in
        [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")]
    {
        nix::unistd::symlinkat(target, &dev.handle, name)?;
    }
    let sys = directory(inside, "/sys")?;
    let readonly = if spec.security.privileged { quiet } else { quiet | MsFlags::MS_RDONLY };
    // sysfs belongs to the network namespace's owner, which for the node's own network may be another one.
    if mount(Some("sysfs"), &fd_path(&sys), Some("sysfs"), readonly, NONE).is_err() {
        mount(Some("tmpfs"), &fd_path(&sys), Some("tmpfs"), quiet, Some("mode=755,size=4k")).context("cannot mount /sys")?;
        directory(inside, GROUPS)?;
        if !spec.security.privileged {
            remount_readonly(&fd_path(&directory(inside, "/sys")?)).context("cannot protect /sys")?;
        }
    }
    control_groups(inside, &spec.limits.cgroups)
}

/// Where programs look for their control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Shows the container's own control groups where programs look for them, read-only, as runc does: in version 1 a directory for each
/// controller. A kernel without control groups has no place for them.
fn control_groups(inside: &HostRoot, dirs: &[PathBuf]) -> Result<()> {
    let groups = inside.parse(GROUPS)?;
    if dirs.is_empty() || inside.kind(&groups)? != Some(FileKind::Directory) {
        return Ok(());
    }
    let show = |dir: &Path, target: &PodPath| -> Result<()> {
        bind(dir, &fd_path(&inside.resolve(target)?), false)?;
        remount_readonly(&fd_path(&inside.resolve(target)?)).with_context(|| format!("cannot protect {target}"))
    };
    if let Some(unified) = dirs.iter().find(|dir| dir.join("cgroup.controllers").exists()) {
        return show(unified, &groups);
    }
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), &fd_path(&inside.resolve(&groups)?), Some("tmpfs"), quiet, Some("mode=755,size=4k"))
        .with_context(|| format!("cannot mount {GROUPS}"))?;
    for (controller, file) in [("cpu", "cpu.shares"), ("memory", "memory.limit_in_bytes")] {
        if let Some(dir) = dirs.iter().find(|dir| dir.join(file).exists()) {
            let target = groups.join(controller)?;
            inside.create_dir_all(&target, 0o755)?;
            show(dir, &target)?;
        }
    }
    remount_readonly(&fd_path(&inside.resolve(&groups)?)).with_context(|| format!("cannot protect {GROUPS}"))
}

pub(super) fn directory(inside: &HostRoot, path: &str) -> Result<Resolved> {
    let path = inside.parse(path)?;
    inside.create_dir_all(&path, 0o755)?;
    Ok(inside.resolve(&path)?)
}

/// Copies of the mounts that shall stay peers of the node's own, by target: taken before the others are parted.
fn shared_sources(node: &HostRoot, spec: &StartSpec) -> Result<BTreeMap<String, OwnedFd>> {
    let mut copies = BTreeMap::new();
    for mount in spec.mounts.iter().filter(|mount| mount.propagation == Propagation::Both) {
        if let MountSource::Node(text) = &mount.source {
            let path = node.parse(text)?;
            node.create_dir_all(&path, 0o755)?;
            let flags =
                OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE;
            let copy = open_tree(&node.resolve(&path)?.handle, "", flags).with_context(|| format!("cannot share {text}"))?;
            copies.insert(mount.target.clone(), copy);
        }
    }
    Ok(copies)
}

/// Mounts one volume, its target resolved inside the root, its source inside the node's. `dir` is the container's own.
fn attach(dir: &Path, node: &HostRoot, inside: &HostRoot, spec: &MountSpec, shared: Option<&OwnedFd>) -> Result<()> {
    let mut whole_image = None;
    let (source, kind, _held) = match &spec.source {
        MountSource::Own(path) => (path.clone(), FileKind::File, None),
        MountSource::Layers { part, .. } if part.is_empty() => (PathBuf::new(), FileKind::Directory, None),
        MountSource::Layers { layers_dir, layers, part } => {
            let place = dir.join("image");
            std::fs::create_dir_all(&place)?;
            image_volume(layers_dir, layers, &place)?;
            let found = image_part(&place, part)?;
            whole_image = Some(place);
            (fd_path(&found), found.kind, Some(found))
        }
        MountSource::Device(text) => device(node, text)?,
        MountSource::Node(text) => {
            let path = node.parse(text)?;
            if node.kind(&path)?.is_none() {
                // As containerd does: a missing source becomes a directory.
                node.create_dir_all(&path, 0o755)?;
            }
            let found = node.resolve(&path)?;
            (fd_path(&found), found.kind, Some(found))
        }
    };
    let target = inside.parse(&spec.target)?;
    if target.components().is_empty() && target.drive().is_none_or(|letter| letter.eq_ignore_ascii_case(&'c')) {
        bail!("destination {:?} is the container's whole root or drive, which cannot be mounted over", spec.target);
    }
    if kind == FileKind::Directory {
        inside.create_dir_all(&target, 0o755)?;
    } else if inside.kind(&target)?.is_none() {
        if let Some(parent) = target.parent() {
            inside.create_dir_all(&parent, 0o755)?;
        }
        inside.create_file(&target, 0o644)?;
    }
    let place = inside.resolve(&target)?;
    if (place.kind == FileKind::Directory) != (kind == FileKind::Directory) {
        bail!("a directory can only be mounted on a directory, and a file on a file");
    }
    match (&spec.source, shared) {
        (MountSource::Layers { layers_dir, layers, part }, _) if part.is_empty() => return image_volume(layers_dir, layers, &fd_path(&place)),
        (_, Some(copy)) => {
            let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(copy, "", &place.handle, "", whole).context("cannot share a mount with the node")?;
        }
        // With what is mounted below, as containerd; of which `readonly` protects the top alone.
        _ => bind(&source, &fd_path(&place), true)?,
    }
    if spec.propagation == Propagation::None {
        mount(NONE, &fd_path(&top(inside, &target, &place)?), NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)
            .context("cannot part a volume from the node's mounts")?;
    }
    if spec.readonly {
        remount_readonly(&fd_path(&top(inside, &target, &place)?))?;
    }
    if let Some(whole) = whole_image {
        umount2(&whole, MntFlags::MNT_DETACH).context("cannot let go of an image of which a part is mounted")?;
    }
    Ok(())
}

/// A file or directory of an image that is mounted at `place`. Its links lead to what is in the image.
fn image_part(place: &Path, part: &str) -> Result<Resolved> {
    let image = HostRoot::linux(place)?;
    let path = image.parse(&format!("/{part}"))?;
    if image.kind(&path)?.is_none() {
        bail!("the image has no {part:?}: correct the volumeMount's subPath");
    }
    Ok(image.resolve(&path)?)
}

/// Devices that each container has, and that simulated hosts have of the machine.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// A device of the node: in its own tree, or one that every machine has.
fn device(node: &HostRoot, text: &str) -> Result<(PathBuf, FileKind, Option<Resolved>)> {
    let path = node.parse(text)?;
    if node.kind(&path)?.is_some() {
        let found = node.resolve(&path)?;
        if !matches!(found.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            bail!("cannot give device {text:?} to a container: it is no device");
        }
        return Ok((fd_path(&found), found.kind, Some(found)));
    }
    match text.strip_prefix("/dev/").filter(|name| DEVICES.contains(name)) {
        Some(name) => Ok((Path::new("/dev").join(name), FileKind::CharDevice, None)),
        None => bail!("cannot give device {text:?} to a container: the simulated host has none of that name; it has {} in /dev", DEVICES.join(", ")),
    }
}

/// What has just been mounted at `target`: the handle `place` lies below the new mount.
fn top(inside: &HostRoot, target: &PodPath, place: &Resolved) -> Result<Resolved> {
    if target.components().is_empty() {
        // A whole drive, whose directory only this process has seen yet.
        let handle = File::open(&place.path).with_context(|| format!("cannot open {}", place.path.display()))?;
        return Ok(Resolved { path: place.path.clone(), kind: place.kind, handle });
    }
    Ok(inside.resolve(target)?)
}

/// Mounts an image's files read-only.
fn image_volume(layers_dir: &Path, layers: &[String], target: &Path) -> Result<()> {
    std::fs::create_dir_all(layers_dir.join("empty"))?;
    // An overlay without a writable layer wants two at least.
    let lowers: Vec<&str> = layers.iter().rev().map(String::as_str).chain(["empty"]).collect();
    let lowers = if lowers.len() < 2 { vec!["empty", "empty"] } else { lowers };
    let target = File::open(target).context("cannot open the volume's place")?;
    std::env::set_current_dir(layers_dir).with_context(|| format!("cannot enter {}", layers_dir.display()))?;
    let options = format!("lowerdir={},userxattr", lowers.join(":"));
    let place = format!("/proc/self/fd/{}", target.as_raw_fd());
    mount(Some("overlay"), place.as_str(), Some("overlay"), MsFlags::MS_RDONLY, Some(options.as_str())).context("cannot mount an image as a volume")
}

/// Kernel settings that belong to the namespaces of a pod: what a privileged container may change below `/proc/sys`.
const NAMESPACED: &[&str] = &[
    "net",
    "fs/mqueue",
    "kernel/domainname",
    "kernel/hostname",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "kernel/shm_rmid_forced",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
];

/// Switches of the machine, protected in privileged containers too.
const MACHINES: &[&str] = &["/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];

/// Hides and protects what runc hides and protects. A privileged container sees everything; what belongs to the machine and not to the pod it
/// cannot write either.
fn restrict(inside: &HostRoot, spec: &StartSpec) -> Result<()> {
    if spec.security.privileged {
        for name in NAMESPACED {
            protect(inside, &format!("/proc/sys/{name}"), false)?;
        }
        protect(inside, "/proc/sys", true)?;
        return MACHINES.iter().try_for_each(|text| protect(inside, text, true));
    }
    for text in &spec.security.readonly_paths {
        protect(inside, text, true)?;
    }
    for text in &spec.security.masked_paths {
        let path = inside.parse(text)?;
        match inside.resolve(&path) {
            Ok(found) if found.kind == FileKind::Directory => {
                mount(Some("tmpfs"), &fd_path(&found), Some("tmpfs"), MsFlags::MS_RDONLY, Some("size=0k"))
                    .with_context(|| format!("cannot hide {text}"))?;
            }
            Ok(found) => bind(Path::new("/dev/null"), &fd_path(&found), false)?,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Mounts a path on itself, if it exists; read-only, or in the mode that it has whatever becomes of what is above.
fn protect(inside: &HostRoot, text: &str, readonly: bool) -> Result<()> {
    let path = inside.parse(text)?;
    if let Ok(found) = inside.resolve(&path) {
        bind(&fd_path(&found), &fd_path(&found), true)?;
        if readonly {
            remount_readonly(&fd_path(&inside.resolve(&path)?)).with_context(|| format!("cannot protect {text}"))?;
        }
    }
    Ok(())
}

pub(super) fn bind(source: &Path, target: &Path, recursive: bool) -> Result<()> {
    let flags = if recursive { MsFlags::MS_BIND | MsFlags::MS_REC } else { MsFlags::MS_BIND };
    mount(Some(source), target, NONE, flags, NONE).with_context(|| format!("cannot bind {}", source.display()))
}

/// A name of an open object by which it can be mounted.
pub(super) fn fd_path(object: &Resolved) -> PathBuf {
    let handle: &File = &object.handle;
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::WineRoot;

    #[test]
    fn second_programs_are_of_the_roots_kind() {
        let layers = RootSpec::Layers { layers_dir: "/layers".into(), layers: Vec::new() };
        let wine =
            RootSpec::Wine(WineRoot { lowers: Vec::new(), modules: Vec::new(), resolver: None, host_process: None, power: None, domain: None });
        let words = ["echo", "a b"];
        assert!(matches!(layers.second_program(&words, "/x"), Ok(Program::Exec { argv, cwd }) if argv == words && cwd == "/x"));
        assert!(matches!(wine.second_program(&words, ""), Ok(Program::Windows { line, .. }) if line == r#"echo "a b""#));
        let refused = RootSpec::Drives.second_program(&words, "").unwrap_err().to_string();
        assert!(refused.contains("holds no Windows programs to run: install Wine"), "{refused}");
    }

    #[test]
    fn only_roots_without_programs_may_share_the_shims_processes() {
        let layers = RootSpec::Layers { layers_dir: "/layers".into(), layers: Vec::new() };
        assert!(layers.runs_programs() && !RootSpec::Drives.runs_programs());
    }
}
