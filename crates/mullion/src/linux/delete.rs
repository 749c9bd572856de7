//! Deletion of DIR: the files of a cluster, and nothing else.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lab::dir::{DESCRIPTION, Dirs, PARTS};
use lab::error::LabError;
use linux_sys::mount::mounts_below;

use super::cluster_file::ClusterError;

/// Deletes the cluster in DIR, which nobody runs, and DIR itself when nothing else is in it. Returns the names of what stays: files
/// that no cluster makes. `also` is a file of the cluster that may be in DIR (a kubeconfig).
///
/// # Errors
/// [`ClusterError::Delete`] when DIR holds no cluster or something is mounted in it, [`LabError::Running`]; when a file cannot be removed.
pub fn delete(dirs: &Dirs, also: Option<&Path>) -> Result<Vec<String>, ClusterError> {
    let refuse = |reason: String| ClusterError::Delete { dir: dirs.dir.clone(), reason };
    if !dirs.dir.join("cluster.json").is_file() {
        return Err(refuse("it holds no cluster (no file cluster.json); name the directory of one with --dir".to_owned()));
    }
    // Nobody starts it meanwhile.
    let _lock = dirs.lock()?;
    let mounts = mounts_below(&dirs.dir).map_err(LabError::file("look for mounts below", &dirs.dir))?;
    if let Some(mount) = mounts.first() {
        return Err(refuse(format!("{} is mounted in it, and what is mounted would be deleted too; unmount it first", mount.display())));
    }
    dirs.remove_run()?;
    if let Some(file) = also.filter(|file| file.parent() == Some(&dirs.dir)) {
        remove(file)?;
    }
    let unfinished = names(&dirs.dir)?.into_iter().filter(|name| atomic_file::is_temporary(name, DESCRIPTION));
    unfinished.map(|name| dirs.dir.join(name)).try_for_each(|path| remove(&path))?;
    PARTS.iter().try_for_each(|part| remove(&dirs.dir.join(part)))?;
    let mut kept: Vec<String> = names(&dirs.dir)?;
    kept.sort();
    if kept.is_empty() {
        fs::remove_dir(&dirs.dir).map_err(LabError::file("remove", &dirs.dir))?;
    }
    Ok(kept)
}

fn names(dir: &Path) -> Result<Vec<String>, LabError> {
    let entries = fs::read_dir(dir).map_err(LabError::file("list", dir))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Removes a file or a whole directory; links are removed, not followed. That it is gone is fine.
fn remove(path: &Path) -> Result<(), LabError> {
    let failed = || LabError::file("remove", path);
    let kind = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed())?.file_type(),
    };
    if !kind.is_dir() {
        return fs::remove_file(path).map_err(failed());
    }
    match fs::remove_dir_all(path) {
        // Containers may leave directories that not even their owner may enter.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path);
            fs::remove_dir_all(path).map_err(failed())
        }
        other => other.map_err(failed()),
    }
}

fn open_up(dir: &Path) {
    // What this cannot open, the removal names.
    let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(root: &Path) -> Dirs {
        let dirs = Dirs { dir: root.join("dir"), run: root.join("run/0011aabb") };
        for part in ["hosts/lin01/root/locked/inside", "store", "pki", "log"] {
            fs::create_dir_all(dirs.dir.join(part)).unwrap();
        }
        fs::write(dirs.dir.join("cluster.json"), "{}").unwrap();
        dirs
    }

    #[test]
    fn a_cluster_goes_and_the_files_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let dirs = cluster(root.path());
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, dirs.dir.join("hosts/lin01/root/link")).unwrap();
        fs::write(dirs.dir.join("notes.txt"), "mine").unwrap();
        fs::write(dirs.dir.join("kubeconfig"), "").unwrap();
        assert_eq!(delete(&dirs, Some(&dirs.dir.join("kubeconfig"))).unwrap(), ["notes.txt"]);
        assert_eq!(names(&dirs.dir).unwrap(), ["notes.txt"]);
        assert!(outside.join("file").exists(), "a link is not followed");
    }

    #[test]
    fn nothing_is_left_of_a_cluster_alone() {
        let root = tempfile::tempdir().unwrap();
        let dirs = cluster(root.path());
        fs::write(dirs.dir.join(".cluster.json.0123456789abcdef.tmp"), "{").unwrap();
        // Root may enter anything: then this proves less.
        fs::set_permissions(dirs.dir.join("hosts/lin01/root/locked"), fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(delete(&dirs, None).unwrap(), Vec::<String>::new());
        assert!(!dirs.dir.exists());
    }

    #[test]
    fn other_directories_and_running_clusters_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dirs = Dirs { dir: root.path().join("dir"), run: root.path().join("run/0011aabb") };
        fs::create_dir_all(dirs.dir.join("hosts")).unwrap();
        let e = delete(&dirs, None).unwrap_err();
        assert!(matches!(&e, ClusterError::Delete { .. }) && e.to_string().contains("it holds no cluster"), "{e}");
        assert!(dirs.dir.join("hosts").exists() && !dirs.dir.join("lock").exists(), "untouched");
        fs::write(dirs.dir.join("cluster.json"), "{}").unwrap();
        let lock = dirs.lock().unwrap();
        assert!(matches!(delete(&dirs, None), Err(ClusterError::Lab(LabError::Running { .. }))));
        drop(lock);
        delete(&dirs, None).unwrap();
    }
}
