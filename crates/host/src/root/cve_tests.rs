//! What once went wrong in node agents with links and paths, by its number, on Linux and on simulated Windows nodes.

use super::tests::{files, windows};
use super::*;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A node of either system, its drive C or root, and how its paths begin.
fn nodes() -> Vec<(tempfile::TempDir, HostRoot, PathBuf, &'static str)> {
    let (dir, root) = windows();
    let c = dir.path().join("c");
    let plain = tempfile::tempdir().unwrap();
    let (linux, at) = (HostRoot::linux(plain.path()).unwrap(), plain.path().to_owned());
    vec![(dir, root, c, "C:/"), (plain, linux, at, "/")]
}

/// Pods could name with a sub-path what a link in their volume led to.
#[test]
fn cve_2017_1002101_a_sub_path_passes_no_link() {
    linux_sys::ns::in_lab("root::cve_tests::cve_2017_1002101_a_sub_path_passes_no_link", || {
        for (_dir, root, at, prefix) in nodes() {
            let p = |t: &str| root.parse(&format!("{prefix}{t}")).unwrap();
            std::fs::create_dir_all(at.join("host/etc")).unwrap();
            std::fs::write(at.join("host/etc/shadow"), "s").unwrap();
            std::fs::create_dir_all(at.join("vol/plain")).unwrap();
            for (link, target) in
                [("vol/abs", "/host"), ("vol/up", "../host"), ("vol/plain/deep", "../../host/etc"), ("vol/file", "/host/etc/shadow")]
            {
                symlink(target, at.join(link)).unwrap();
            }
            symlink(&at, at.join("vol/real")).unwrap();
            for sub in
                ["abs", "abs/etc", "abs/new", "up/etc/shadow", "plain/deep", "plain/deep/shadow", "file", "real/host", "../host", "plain/../../host"]
            {
                let place = p("place/0");
                assert!(root.sub_path(&p("vol"), sub, &place).is_err(), "{prefix} {sub}");
                assert_eq!(root.kind(&place).unwrap(), None, "{prefix} {sub}");
            }
            assert!(!at.join("host/new").exists(), "nothing is made behind a link");
        }
    });
}

/// A directory was checked by its name and mounted by its name, and was exchanged for a link between the two.
#[test]
fn cve_2021_25741_a_sub_path_is_mounted_by_the_handle_that_was_checked() {
    linux_sys::ns::in_lab("root::cve_tests::cve_2021_25741_a_sub_path_is_mounted_by_the_handle_that_was_checked", || {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_owned();
        let root = HostRoot::linux(&at).unwrap();
        let p = |t: &str| root.parse(t).unwrap();
        std::fs::create_dir_all(at.join("host/sub")).unwrap();
        std::fs::write(at.join("host/sub/secret"), "s").unwrap();
        std::fs::create_dir_all(at.join("vol/a/sub")).unwrap();
        symlink("/host", at.join("vol/b")).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let (stop, vol) = (ends.clone(), at.join("vol"));
        let pod = std::thread::spawn(move || {
            let (one, other) = (vol.join("a"), vol.join("b"));
            while !stop.load(Ordering::Relaxed) {
                nix::fcntl::renameat2(nix::fcntl::AT_FDCWD, &one, nix::fcntl::AT_FDCWD, &other, nix::fcntl::RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let mut mounted = 0;
        for round in 0..300 {
            let place = p(&format!("/place/{round}"));
            // A link is refused, a directory is mounted; never is what the link leads to.
            if root.sub_path(&p("/vol"), "a/sub", &place).is_ok() {
                mounted += 1;
                assert_eq!(root.kind(&place.join("secret").unwrap()).unwrap(), None, "round {round}");
            }
            root.unmount_below(&place).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        pod.join().unwrap();
        assert!(mounted > 0, "the directory was never there");
    });
}

/// Links that a pod had put into a volume led updates and removal to files of the node.
#[test]
fn cve_2017_1002102_updates_and_removal_follow_no_link() {
    for (_dir, root, at, prefix) in nodes() {
        let p = |t: &str| root.parse(&format!("{prefix}{t}")).unwrap();
        std::fs::create_dir_all(at.join("host/keep")).unwrap();
        std::fs::write(at.join("host/a"), "host").unwrap();
        let vol = p("pods/u/volumes/cm");
        let on_disk = at.join("pods/u/volumes/cm");
        root.write_volume(&vol, &files(&[("a", "1"), ("deep/b", "2")]), None).unwrap();
        // The current content, an old generation, and a visible name become links to the node's files.
        std::fs::remove_file(on_disk.join("..data")).unwrap();
        symlink("/host", on_disk.join("..data")).unwrap();
        symlink("/host", on_disk.join("..1.000000000")).unwrap();
        std::fs::remove_file(on_disk.join("deep")).unwrap();
        symlink("/host/keep", on_disk.join("deep")).unwrap();
        root.write_volume(&vol, &files(&[("a", "3")]), None).unwrap();
        assert_eq!(std::fs::read_to_string(on_disk.join("a")).unwrap(), "3");
        assert!(on_disk.join("..1.000000000").symlink_metadata().is_err() && on_disk.join("deep").symlink_metadata().is_err());
        symlink("/host", on_disk.join("again")).unwrap();
        root.remove_tree(&p("pods/u")).unwrap();
        assert!(!at.join("pods/u").exists());
        assert_eq!(std::fs::read_to_string(at.join("host/a")).unwrap(), "host", "{prefix}");
        assert!(at.join("host/keep").is_dir(), "{prefix}");
    }
}

/// Names from elsewhere led out of the directory that was to hold them (first in `kubectl cp`).
#[test]
fn cve_2018_1002100_names_of_files_stay_in_their_volume() {
    for (_dir, root, at, prefix) in nodes() {
        let vol = root.parse(&format!("{prefix}vol")).unwrap();
        let mut names = vec!["../x", "a/../../x", "/../x", "..data", "..2026/x", "."];
        if root.os().is_windows() {
            names.extend([r"..\x", r"a\..\..\x", r"C:\x", "c:x", "a:stream", "con", "nul.txt", "x.", "x "]);
        }
        for name in names {
            assert!(root.write_volume(&vol, &files(&[(name, "x")]), None).is_err(), "{prefix} {name:?}");
        }
        if root.os().is_windows() {
            // Either separator divides names, and a share is none of a volume's.
            root.write_volume(&vol, &files(&[(r"a\b", "1"), (r"\\server\share\x", "2")]), None).unwrap();
            assert_eq!(std::fs::read_to_string(at.join("vol/a/b")).unwrap(), "1");
            assert_eq!(std::fs::read_to_string(at.join("vol/server/share/x")).unwrap(), "2");
        }
        let others: Vec<_> = std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).filter(|name| name != "vol").collect();
        assert!(others.is_empty(), "{prefix} {others:?}");
    }
}
