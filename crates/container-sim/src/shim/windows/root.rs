//! Root of a container in which Wine runs.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use host::HostRoot;
use nix::mount::{MsFlags, mount};

use super::super::root::{bind, escape, system_mounts};
use super::super::{StartSpec, WineRoot};
use super::host_process;
use linux_sys::mount::remount_readonly;
use wine::Account;

/// Directories of the machine with Wine and what it is linked to.
const SYSTEM: &[&str] = &["usr", "lib", "lib64", "lib32", "bin", "opt"];

/// Libraries of the machine that do not pay here, by how their files' names begin.
const USELESS: &[&str] = &["libdbus-1.so.", "libX11.so.", "libcups.so."];

/// Files of the machine that libraries read, if they are there.
const SETTINGS: &[&str] = &["ld.so.cache", "localtime", "nsswitch.conf", "gai.conf"];

/// Puts the root together in `target`, an empty directory; `dir` is the container's, `proc` as for [`super::super::root::enter`]. Returns its
/// drives.
pub(in super::super) fn build(dir: &Path, target: &Path, wine: &WineRoot, spec: &StartSpec, proc: Option<OwnedFd>) -> Result<Vec<(char, PathBuf)>> {
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=755,size=4m")).context("cannot mount the root")?;
    for name in ["proc", "dev", "sys", "etc", "tmp", "prefix", "drives"] {
        std::fs::create_dir(target.join(name))?;
    }
    system(target)?;
    for (module, machines) in &wine.modules {
        let place = target.join(machines.strip_prefix("/").unwrap_or(machines));
        bind(module, &place, false)?;
        remount_readonly(&place)?;
    }
    mount(Some("tmpfs"), &target.join("tmp"), Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=1777,size=64m"))
        .context("cannot mount /tmp")?;
    let prefix = target.join("prefix");
    overlay(dir, &prefix, &wine.lowers)?;
    if let Some(layers) = &wine.host_process {
        host_process::build(dir, target, &wine::drive(&prefix), layers, spec)?;
    }
    if let Some(power) = &wine.power {
        let place = target.join(guest::tools::POWER);
        std::fs::create_dir(&place)?;
        bind(power, &place, false)?;
        remount_readonly(&place).context("cannot show the power switch of the node")?;
    }
    let account = Account::find(&spec.account)?;
    profile(&prefix, account)?;
    settings(target, wine, account)?;
    system_mounts(&HostRoot::linux(target)?, spec, proc)?;
    drives(target, &prefix, spec)
}

/// Wine and its libraries, read-only with all that the machine mounts below them, in the places where they expect themselves.
fn system(target: &Path) -> Result<()> {
    for name in SYSTEM {
        let (source, place) = (Path::new("/").join(name), target.join(name));
        if let Ok(link) = std::fs::read_link(&source) {
            symlink(link, &place)?;
        } else if source.is_dir() {
            std::fs::create_dir(&place)?;
            bind(&source, &place, true)?;
            linux_sys::mount::readonly_tree(&place)?;
            hide(&place)?;
        }
    }
    Ok(())
}

/// Takes away libraries that Wine would load into its processes for nothing: there is no screen, no printer, and nobody to
/// talk to about disks. Wine takes each of them for not installed.
fn hide(system: &Path) -> Result<()> {
    for dir in ["lib/x86_64-linux-gnu", "lib64", "lib"] {
        for entry in std::fs::read_dir(system.join(dir)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let useless = USELESS.iter().any(|library| name.to_string_lossy().starts_with(library));
            if useless && entry.file_type()?.is_file() {
                bind(Path::new("/dev/null"), &entry.path(), false)?;
            }
        }
    }
    Ok(())
}

/// The Windows that the container sees: its own files over the lower ones.
pub(super) fn overlay(dir: &Path, prefix: &Path, lowers: &[PathBuf]) -> Result<()> {
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    for made in [&upper, &work] {
        std::fs::create_dir_all(made)?;
    }
    let lowers: Vec<String> = lowers.iter().map(|lower| escape(lower)).collect();
    let options = format!("lowerdir={},upperdir={},workdir={},userxattr", lowers.join(":"), escape(&upper), escape(&work));
    mount(Some("overlay"), prefix, Some("overlay"), MsFlags::empty(), Some(options.as_str())).with_context(|| {
        format!("cannot lay the container's files over Windows' (Windows programs need a file system that overlayfs accepts for {})", dir.display())
    })?;
    // The kernel shuts out even the owner, so that the cluster's directory could not be removed.
    let inner = work.join("work");
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).with_context(|| format!("cannot open {}", inner.display()))
}

fn settings(target: &Path, wine: &WineRoot, account: Account) -> Result<()> {
    let etc = target.join("etc");
    std::fs::write(etc.join("passwd"), format!("{}:x:0:0::/prefix:/nonexistent\n", account.name()))?;
    std::fs::write(etc.join("group"), "Administrators:x:0:\n")?;
    for name in SETTINGS {
        // Copied, so that links and what becomes of them outside do not matter.
        if let Ok(content) = std::fs::read(Path::new("/etc").join(name)) {
            std::fs::write(etc.join(name), content)?;
        }
    }
    let certificates = Path::new("/etc/ssl/certs");
    if certificates.is_dir() {
        let place = etc.join("ssl/certs");
        std::fs::create_dir_all(&place)?;
        bind(certificates, &place, false)?;
        remount_readonly(&place)?;
    }
    // Wine's own fonts are enough; without this file each program would complain.
    std::fs::create_dir(etc.join("fonts"))?;
    std::fs::write(etc.join("fonts/fonts.conf"), "<?xml version=\"1.0\"?>\n<fontconfig><cachedir>/tmp/fonts</cachedir></fontconfig>\n")?;
    if let Some(domain) = &wine.domain {
        std::fs::write(target.join(guest::tools::DOMAIN), domain)?;
    }
    if let Some(resolver) = &wine.resolver {
        std::fs::copy(resolver, etc.join("resolv.conf")).with_context(|| format!("cannot copy {}", resolver.display()))?;
    }
    // Windows' own file, onto which the kubelet mounts the pod's.
    symlink("/prefix/drive_c/windows/system32/drivers/etc/hosts", etc.join("hosts"))?;
    Ok(())
}

/// The directories of an account's profile. The template has the administrator's alone.
fn profile(prefix: &Path, account: Account) -> Result<()> {
    let home = wine::drive(prefix).join(account.profile().replace('\\', "/"));
    for name in ["AppData/Local/Temp", "AppData/Roaming", "Desktop", "Documents"] {
        std::fs::create_dir_all(home.join(name)).with_context(|| format!("cannot make the profile of {}", account.name()))?;
    }
    Ok(())
}

/// Takes what belongs to Windows and to others away from an account that is no administrator: it can read that, not write
/// it. Volumes are mounted already, and stay as they are.
pub(in super::super) fn protect(target: &Path, account: Account) -> Result<()> {
    if !account.is_limited() {
        return Ok(());
    }
    let drive = wine::drive(&target.join("prefix"));
    for own in ["windows/temp".to_owned(), account.profile().replace('\\', "/")] {
        let place = drive.join(own);
        std::fs::create_dir_all(&place)?;
        bind(&place, &place, true)?;
    }
    for name in ["windows", "Program Files", "Program Files (x86)", "users/ContainerAdministrator"] {
        let place = drive.join(name);
        if place.is_dir() {
            bind(&place, &place, true)?;
            remount_readonly(&place)?;
        }
    }
    Ok(())
}

/// The drives: C, and those on which something is mounted.
fn drives(target: &Path, prefix: &Path, spec: &StartSpec) -> Result<Vec<(char, PathBuf)>> {
    let mut drives = vec![('C', wine::drive(prefix))];
    symlink("prefix/drive_c", target.join("c"))?;
    for mount in &spec.mounts {
        let Some((letter, _)) = mount.target.split_once(':') else { continue };
        let Some(letter) = letter.chars().next().filter(char::is_ascii_alphabetic) else { continue };
        let (upper, lower) = (letter.to_ascii_uppercase(), letter.to_ascii_lowercase());
        if drives.iter().any(|(known, _)| *known == upper) {
            continue;
        }
        let place = target.join("drives").join(lower.to_string());
        std::fs::create_dir(&place)?;
        symlink(format!("drives/{lower}"), target.join(lower.to_string()))?;
        let _ = std::fs::remove_file(prefix.join("dosdevices").join(format!("{lower}:")));
        symlink(format!("/drives/{lower}"), prefix.join("dosdevices").join(format!("{lower}:")))?;
        drives.push((upper, place));
    }
    Ok(drives)
}
