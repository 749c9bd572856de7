//! Mounts in the current mount namespace.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};

const NONE: Option<&str> = None;

fn named(operation: &str, path: &Path) -> impl FnOnce(nix::Error) -> io::Error {
    let text = format!("{operation} {}", path.display());
    move |e| io::Error::new(io::Error::from(e).kind(), format!("{text}: {e}"))
}

/// Makes `src` (with what is mounted below it) visible at `target`.
pub fn bind(src: &Path, target: &Path) -> io::Result<()> {
    mount(Some(src), target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE).map_err(named("bind-mount at", target))
}

/// Makes `src` visible at `target`, read-only there (what is mounted below it keeps its own mode).
pub fn bind_ro(src: &Path, target: &Path) -> io::Result<()> {
    bind(src, target)?;
    remount_readonly(target)
}

/// Makes the mount at `target` read-only (what is mounted below it keeps its own mode), with the flags that a user namespace may not
/// take away.
pub fn remount_readonly(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | kept_flags(target)?;
    mount(NONE, target, NONE, flags, NONE).map_err(named("make read-only", target))
}

/// A copy of what is at `path`, with what is mounted below it, mounted nowhere yet: for [`crate::spawn::Step::Attach`].
pub fn tree(path: &Path) -> io::Result<OwnedFd> {
    let text = crate::spawn::cstring(path.as_os_str())?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint;
    // SAFETY: the path is NUL-terminated; a good answer is a new descriptor that nobody else knows.
    unsafe {
        let fd = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, text.as_ptr(), flags);
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(io::Error::new(error.kind(), format!("copy the mounts at {}: {error}", path.display())));
        }
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Makes `target` and every mount below it read-only, and parts them from the mounts that they are copies of: what is
/// mounted there later does not appear here.
pub fn readonly_tree(target: &Path) -> io::Result<()> {
    let path = crate::spawn::cstring(target.as_os_str())?;
    // SAFETY: plain data, of which zero is a valid value.
    let mut attributes: libc::mount_attr = unsafe { std::mem::zeroed() };
    attributes.attr_set = libc::MOUNT_ATTR_RDONLY;
    attributes.propagation = libc::MS_PRIVATE;
    let size = size_of_val(&attributes);
    // SAFETY: the path is NUL-terminated; the kernel reads `size` bytes of `attributes`.
    let result = unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), libc::AT_RECURSIVE, &raw const attributes, size) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("make read-only with all below {}: {error}", target.display())));
    }
    Ok(())
}

/// Flags which a mount inherits from a more privileged namespace and which a remount must repeat.
fn kept_flags(path: &Path) -> io::Result<MsFlags> {
    let stat = statvfs(path).map_err(named("read the mount flags of", path))?;
    let pairs = [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ];
    Ok(pairs.into_iter().filter(|(has, _)| stat.flags().contains(*has)).map(|(_, keep)| keep).collect())
}

/// A memory file system; `options` as `mode=0755,size=16m`.
pub fn tmpfs(target: &Path, options: &str) -> io::Result<()> {
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options)).map_err(named("mount tmpfs at", target))
}

/// A file system in huge pages of `page` bytes.
///
/// # Errors
/// The kernel has no pages of this size, or refuses the mount: in user namespaces it always does.
pub fn hugetlbfs(target: &Path, page: u64) -> io::Result<()> {
    mount(Some("nodev"), target, Some("hugetlbfs"), MsFlags::empty(), Some(huge_page_option(page).as_str()))
        .map_err(named("mount hugetlbfs at", target))
}

fn huge_page_option(page: u64) -> String {
    format!("pagesize={page}")
}

/// The size of the pages of a file system in huge pages; None of other file systems.
///
/// # Errors
/// The path cannot be looked at.
pub fn huge_page_size(path: &Path) -> io::Result<Option<u64>> {
    let stat = nix::sys::statfs::statfs(path).map_err(named("read the kind of file system of", path))?;
    let is_huge = stat.filesystem_type() == nix::sys::statfs::HUGETLBFS_MAGIC;
    Ok(is_huge.then(|| u64::try_from(stat.block_size()).unwrap_or_default()))
}

/// The process file system of the current pid namespace.
pub fn proc(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), target, Some("proc"), flags, NONE).map_err(named("mount proc at", target))
}

/// An overlay that an ordinary user's namespace may mount (`userxattr`): `lower` from top to bottom.
pub fn overlay(lower: &[PathBuf], upper: &Path, work: &Path, target: &Path) -> io::Result<()> {
    let options = overlay_options(lower, upper, work)?;
    mount(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options.as_path())).map_err(named("mount overlay at", target))
}

/// The option string of an overlay, with the characters escaped that separate options and layers.
pub(crate) fn overlay_options(lower: &[PathBuf], upper: &Path, work: &Path) -> io::Result<PathBuf> {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let escape = |path: &Path, also: &[u8]| -> Vec<u8> {
        let mut out = Vec::new();
        for b in path.as_os_str().as_bytes() {
            if *b == b'\\' || also.contains(b) {
                out.push(b'\\');
            }
            out.push(*b);
        }
        out
    };
    let mut text = b"lowerdir=".to_vec();
    text.extend(lower.iter().map(|p| escape(p, b":,")).collect::<Vec<_>>().join(&b':'));
    for (key, path) in [("upperdir", upper), ("workdir", work)] {
        text.extend(format!(",{key}=").bytes());
        text.extend(escape(path, b","));
    }
    text.extend(b",userxattr");
    // The kernel copies one page of options and cuts the rest off silently.
    if text.len() >= 4096 {
        let reason = format!("{} layers need {} bytes of overlay options, the kernel takes 4095: use shorter paths", lower.len(), text.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(PathBuf::from(OsString::from_vec(text)))
}

/// Takes the topmost mount at `target` away, at once for new users and for present ones when they end.
pub fn umount(target: &Path) -> io::Result<()> {
    umount2(target, MntFlags::MNT_DETACH).map_err(named("unmount", target))
}

/// From here on, mounts of this namespace and of others do not reach each other.
pub fn make_rprivate() -> io::Result<()> {
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).map_err(named("make private", Path::new("/")))
}

/// The mount points at or below `path` in this namespace, deepest last.
pub fn mounts_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)));
    Ok(points.filter(|point| point.starts_with(path)).collect())
}

/// `\040` and the like, as mountinfo writes blanks.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b == b'\\' {
            let octal = bytes.by_ref().take(3).fold(0u32, |n, d| n * 8 + u32::from(d.wrapping_sub(b'0')));
            out.push(octal as u8);
        } else {
            out.push(b);
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_options_escape_separators_and_are_bounded() {
        let options = overlay_options(&["/a:b".into(), "/c,d".into()], Path::new("/u,p"), Path::new("/w")).unwrap();
        assert_eq!(options.to_str().unwrap(), r"lowerdir=/a\:b:/c\,d,upperdir=/u\,p,workdir=/w,userxattr");
        let many = vec![PathBuf::from("/x".repeat(100)); 30];
        assert_eq!(overlay_options(&many, Path::new("/u"), Path::new("/w")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn pages_are_named_in_bytes_and_other_file_systems_have_none() {
        assert_eq!(huge_page_option(2 << 20), "pagesize=2097152");
        assert_eq!(huge_page_size(Path::new("/proc")).unwrap(), None);
        assert_eq!(huge_page_size(Path::new("/proc/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn mountinfo_paths_are_unescaped() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
    }
}
