//! Tests of the file tree of a node.

use super::*;

const WIN: NodeOs = NodeOs::Windows { build: 20348 };

pub(super) fn windows() -> (tempfile::TempDir, HostRoot) {
    let dir = tempfile::tempdir().unwrap();
    for drive in ["c", "d"] {
        std::fs::create_dir(dir.path().join(drive)).unwrap();
    }
    let root = HostRoot::windows(WIN, [('C', dir.path().join("c")), ('d', dir.path().join("d"))]).unwrap();
    (dir, root)
}

pub(super) fn files(list: &[(&str, &str)]) -> BTreeMap<String, VolumeFile> {
    list.iter().map(|(n, b)| ((*n).to_owned(), VolumeFile { bytes: b.as_bytes().to_vec(), mode: 0o644, group: None })).collect()
}

#[test]
fn windows_paths_lead_into_their_drive() {
    let (dir, root) = windows();
    let p = |t: &str| root.parse(t).unwrap();
    root.create_dir_all(&p(r"C:\var\lib"), 0o755).unwrap();
    root.write_file(&p("c:/var/lib/a.txt"), b"hello", 0o600).unwrap();
    assert_eq!(std::fs::read(dir.path().join("c/var/lib/a.txt")).unwrap(), b"hello");
    assert_eq!(root.read(&p("/VAR/Lib/A.TXT"), 3).unwrap().unwrap(), b"hel");
    root.create_dir_all(&p(r"C:\VAR\LIB\Deep"), 0o755).unwrap();
    assert!(dir.path().join("c/var/lib/Deep").is_dir(), "case-folded parents are reused");
    root.write_file(&p(r"D:\x"), b"", 0o600).unwrap();
    assert!(dir.path().join("d/x").is_file());
    assert!(matches!(root.read(&p(r"E:\x"), 1), Err(HostError::NoDrive { drive: 'E', .. })));
    assert_eq!(root.kind(&p(r"C:\var")).unwrap(), Some(FileKind::Directory));
    assert_eq!(root.kind(&p(r"C:\nope\deeper")).unwrap(), None);
}

#[test]
fn links_never_lead_out() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("root");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(dir.path().join("secret"), "s").unwrap();
    std::os::unix::fs::symlink("../secret", inside.join("up")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), inside.join("abs")).unwrap();
    std::os::unix::fs::symlink("/real", inside.join("ok")).unwrap();
    std::fs::write(inside.join("real"), "r").unwrap();
    let root = HostRoot::linux(&inside).unwrap();
    let p = |t: &str| root.parse(t).unwrap();
    assert_eq!(root.read(&p("/up"), 9).unwrap(), None);
    assert_eq!(root.read(&p("/abs"), 9).unwrap(), None);
    assert_eq!(root.read(&p("/ok"), 9).unwrap().unwrap(), b"r", "absolute links start at the root");
    // Appending and creating never follow a link at all.
    assert!(root.open_append(&p("/ok"), 0o600).is_err());
    root.create_file(&p("/up"), 0o600).unwrap();
    assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"s");
}

#[test]
fn settings_are_written_and_directories_made_through_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::linux(dir.path()).unwrap();
    let p = |t: &str| root.parse(t).unwrap();
    std::fs::create_dir_all(dir.path().join("group")).unwrap();
    std::fs::write(dir.path().join("group/limit"), "").unwrap();
    std::os::unix::fs::symlink("group", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("limit", dir.path().join("group/to")).unwrap();
    root.write_into(&p("/group/limit"), b"7").unwrap();
    assert_eq!(std::fs::read(dir.path().join("group/limit")).unwrap(), b"7");
    assert!(root.write_into(&p("/group/missing"), b"7").unwrap_err().is_not_found(), "nothing is made");
    assert!(root.write_into(&p("/link/limit"), b"8").is_err() && root.write_into(&p("/group/to"), b"8").is_err());
    assert_eq!(std::fs::read(dir.path().join("group/limit")).unwrap(), b"7");
    assert_eq!((root.make_dir(&p("/group/a"), 0o755).unwrap(), root.make_dir(&p("/group/a"), 0o755).unwrap()), (true, false));
    assert!(root.make_dir(&p("/group/b/c"), 0o755).unwrap_err().is_not_found(), "only the last one is made");
    assert!(root.make_dir(&p("/link/d"), 0o755).is_err() && root.make_dir(&p("/link"), 0o755).is_err());
    assert!(!dir.path().join("group/d").exists());
}

#[test]
fn removal_takes_links_not_targets() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(outside.join("keep")).unwrap();
    let inside = dir.path().join("root/pod/vol");
    std::fs::create_dir_all(inside.join("a/b")).unwrap();
    std::fs::write(inside.join("a/b/f"), "x").unwrap();
    std::os::unix::fs::symlink(&outside, inside.join("a/link")).unwrap();
    let root = HostRoot::linux(dir.path().join("root")).unwrap();
    root.remove_tree(&root.parse("/pod").unwrap()).unwrap();
    assert!(outside.join("keep").is_dir());
    assert!(!dir.path().join("root/pod").exists());
    root.remove_tree(&root.parse("/pod").unwrap()).unwrap();
    assert!(root.remove_tree(&root.parse("/").unwrap()).is_err(), "the root itself stays");
}

#[test]
fn volumes_change_as_a_whole() {
    let (dir, root) = windows();
    let vol = root.parse(r"C:\vol").unwrap();
    let on_disk = dir.path().join("c/vol");
    assert!(root.write_volume(&vol, &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap());
    assert_eq!(std::fs::read_to_string(on_disk.join("a")).unwrap(), "1");
    assert_eq!(std::fs::read_to_string(on_disk.join("sub/b")).unwrap(), "2");
    let first = std::fs::read_link(on_disk.join("..data")).unwrap();
    assert!(!root.write_volume(&vol, &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap());
    assert_eq!(std::fs::read_link(on_disk.join("..data")).unwrap(), first);

    assert!(root.write_volume(&vol, &files(&[("a", "3")]), None).unwrap());
    assert_eq!(std::fs::read_to_string(on_disk.join("a")).unwrap(), "3");
    assert!(std::fs::symlink_metadata(on_disk.join("sub")).is_err());
    assert!(!on_disk.join(first).exists(), "old generations go");
    assert!(root.write_volume(&vol, &files(&[]), None).unwrap());
    assert!(std::fs::symlink_metadata(on_disk.join("a")).is_err());
    for bad in ["../x", "..data", "/", r"a\..\b", "nul"] {
        assert!(root.write_volume(&vol, &files(&[(bad, "")]), None).is_err(), "{bad}");
    }
}

#[test]
fn modes_ignore_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, root) = windows();
    let vol = root.parse(r"C:\m\vol").unwrap();
    root.create_dir_all(&vol, 0o777).unwrap();
    let one = BTreeMap::from([("k".to_owned(), VolumeFile { bytes: vec![1], mode: 0o666, group: None })]);
    root.write_volume(&vol, &one, None).unwrap();
    let mode = |p: &str| std::fs::metadata(dir.path().join(p)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("c/m/vol"), 0o777);
    assert_eq!(mode("c/m/vol/k"), 0o666);
    assert!(root.space(&vol).unwrap().capacity > 0);
}

#[test]
fn files_belong_to_the_group_that_is_asked_for() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::linux(dir.path()).unwrap();
    let vol = root.parse("/vol").unwrap();
    // Root may give files to any group, others to their own.
    let group = if nix::unistd::geteuid().is_root() { 1001 } else { nix::unistd::getegid().as_raw() };
    let files = BTreeMap::from([("k".to_owned(), VolumeFile { bytes: vec![1], mode: 0o440, group: Some(group) })]);
    assert!(root.write_volume(&vol, &files, None).unwrap());
    let found = std::fs::metadata(dir.path().join("vol/k")).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (group, 0o440));
    assert!(!root.write_volume(&vol, &files, None).unwrap(), "it is as it should be");
}

#[test]
fn a_sub_path_is_held_by_its_handle() {
    use std::os::unix::fs::PermissionsExt as _;
    linux_sys::ns::in_lab("root::tests::a_sub_path_is_held_by_its_handle", || {
        let (dir, root) = windows();
        let p = |t: &str| root.parse(t).unwrap();
        let c = dir.path().join("c");
        std::fs::create_dir_all(c.join("vol/Data")).unwrap();
        std::fs::create_dir(c.join("secret")).unwrap();
        std::fs::write(c.join("vol/file"), "f").unwrap();
        std::os::unix::fs::symlink("/secret", c.join("vol/evil")).unwrap();
        let place = p(r"C:\pod\sub\0");
        assert_eq!(root.sub_path(&p(r"C:\vol"), "data/new", &place).unwrap().0, place);
        std::fs::write(c.join("vol/Data/new/x"), "1").unwrap();
        // What a pod does afterwards changes nothing.
        std::fs::rename(c.join("vol/Data"), c.join("vol/moved")).unwrap();
        std::os::unix::fs::symlink("/secret", c.join("vol/Data")).unwrap();
        assert_eq!(std::fs::read_to_string(c.join("pod/sub/0/x")).unwrap(), "1");
        for sub in ["evil", "EVIL/x", "data/new", "../secret"] {
            assert!(root.sub_path(&p(r"C:\vol"), sub, &place).is_err(), "{sub}");
        }
        let file = p(r"C:\pod\sub\1");
        root.sub_path(&p(r"C:\vol"), "file", &file).unwrap();
        root.sub_path(&p(r"C:\vol"), "file", &file).unwrap();
        assert_eq!(root.read(&file, 9).unwrap().unwrap(), b"f");
        root.create_dir_all(&p(r"C:\pod\mem"), 0o777).unwrap();
        root.mount_memory(&p(r"C:\pod\mem"), Some(1 << 20)).unwrap();
        root.mount_memory(&p(r"C:\pod\mem"), Some(1 << 20)).unwrap();
        assert_eq!(root.space(&p(r"C:\pod\mem")).unwrap().capacity, 1 << 20);
        // As upstream's: whoever writes there removes only their own files, in directories for sub-paths too.
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&c.join("pod/mem")), 0o1777);
        std::fs::set_permissions(c.join("pod/mem"), std::fs::Permissions::from_mode(0o3777)).unwrap();
        let part = p(r"C:\pod\sub\2");
        root.sub_path(&p(r"C:\pod\mem"), "made/here", &part).unwrap();
        assert_eq!((mode(&c.join("pod/mem/made")), mode(&c.join("pod/sub/2"))), (0o3777, 0o3777));
        assert!(root.remove_tree(&p(r"C:\pod")).is_err(), "removal stays on one mount");
        root.unmount_below(&p(r"C:\pod")).unwrap();
        root.remove_tree(&p(r"C:\pod")).unwrap();
        assert!(c.join("vol/moved/new/x").exists() && !c.join("pod").exists());
    });
}

/// Only the machine's own root may mount them: what it gets is a case of tools/containerd.
#[test]
fn huge_pages_are_refused_in_a_user_namespace_and_are_no_other_mount() {
    linux_sys::ns::in_lab("root::tests::huge_pages_are_refused_in_a_user_namespace_and_are_no_other_mount", || {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        let path = root.parse("/pod/huge").unwrap();
        root.create_dir_all(&path, 0o777).unwrap();
        let error = root.mount_huge_pages(&path, 2 << 20).unwrap_err();
        assert!(error.is_denied() && !root.is_mount(&path).unwrap(), "{error:?}");
        // What else is mounted there is not taken for them.
        root.mount_memory(&path, None).unwrap();
        let error = root.mount_huge_pages(&path, 2 << 20).unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("of another kind"), "{error:?}");
        root.unmount_below(&path).unwrap();
    });
}

#[test]
fn usage_counts_files_once_and_follows_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::linux(dir.path()).unwrap();
    let path = root.parse("/v").unwrap();
    assert_eq!(root.usage(&path).unwrap(), Usage::default(), "nothing there");
    std::fs::create_dir_all(dir.path().join("v/a/b")).unwrap();
    std::fs::create_dir(dir.path().join("other")).unwrap();
    std::fs::write(dir.path().join("other/large"), vec![1; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("../other", dir.path().join("v/link")).unwrap();
    let empty = root.usage(&path).unwrap();
    assert!(empty.bytes < 1 << 20 && empty.inodes == 4, "{empty:?}");
    std::fs::write(dir.path().join("v/a/b/file"), vec![1; 1 << 16]).unwrap();
    std::fs::hard_link(dir.path().join("v/a/b/file"), dir.path().join("v/again")).unwrap();
    let full = root.usage(&path).unwrap();
    assert!(full.bytes - empty.bytes >= 1 << 16 && full.bytes - empty.bytes < 1 << 17, "{empty:?} {full:?}");
    assert_eq!(full.inodes, 5);
}

#[test]
fn usage_ends_at_a_depth() {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::linux(dir.path()).unwrap();
    std::fs::create_dir_all(dir.path().join(["d"; 300].join("/"))).unwrap();
    let error = root.usage(&root.parse("/d").unwrap()).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("256 directories within each other"), "{error}");
    root.remove_tree(&root.parse("/d").unwrap()).unwrap();
}

/// A block device of this machine, as `dev/disk0` of the directory that stands for the node's root.
fn block_device(root: &std::path::Path) {
    use std::os::unix::fs::FileTypeExt as _;
    let is_block = |path: &std::path::Path| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let device = std::fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path()).filter(|path| is_block(path)).min();
    std::fs::create_dir_all(root.join("dev")).unwrap();
    std::fs::write(root.join("dev/disk0"), "").unwrap();
    linux_sys::mount::bind(&device.expect("this test needs a block device in /dev, such as /dev/loop0"), &root.join("dev/disk0")).unwrap();
}

#[test]
fn a_device_is_bound_by_its_handle_and_held_open() {
    linux_sys::ns::in_lab("root::tests::a_device_is_bound_by_its_handle_and_held_open", || {
        let dir = tempfile::tempdir().unwrap();
        block_device(dir.path());
        let root = HostRoot::linux(dir.path()).unwrap();
        let p = |t: &str| root.parse(t).unwrap();
        std::os::unix::fs::symlink("/dev/disk0", dir.path().join("by-id")).unwrap();
        std::fs::write(dir.path().join("file"), "no device").unwrap();
        let place = p("/plugins/volumeDevices/pv/u1");
        let error = root.map_device(&p("/file"), &place).unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("it is no block device"), "{error}");
        assert_eq!(root.kind(&place).unwrap(), None);
        if File::open(dir.path().join("dev/disk0")).is_err() {
            // Who may not open the device maps none.
            assert!(root.map_device(&p("/by-id"), &place).is_err());
            assert_eq!(root.kind(&place).unwrap(), None);
            return;
        }
        let held = root.map_device(&p("/by-id"), &place).unwrap();
        assert_eq!(root.kind(&place).unwrap(), Some(FileKind::BlockDevice));
        // Another device of that name changes nothing, and what is mapped already is left alone.
        std::fs::remove_file(dir.path().join("by-id")).unwrap();
        std::fs::write(dir.path().join("by-id"), "").unwrap();
        assert_eq!(root.kind(&place).unwrap(), Some(FileKind::BlockDevice));
        root.map_device(&p("/dev/disk0"), &place).unwrap();
        let mounts = linux_sys::mount::mounts_below(dir.path()).unwrap();
        assert_eq!(mounts.iter().filter(|mount| mount.ends_with("pv/u1")).count(), 1, "{mounts:?}");
        drop(held);
        root.unmount_below(&place).unwrap();
        assert_eq!(root.kind(&place).unwrap(), Some(FileKind::File));
        // A directory of links to devices: each replaces the one before, and nothing else.
        root.create_dir_all(&p("/links"), 0o750).unwrap();
        for target in ["/dev/disk0", "/dev/disk1"] {
            root.link(&p("/links/pv"), &p(target)).unwrap();
            assert_eq!(std::fs::read_link(dir.path().join("links/pv")).unwrap(), std::path::Path::new(target));
        }
        assert!(root.link(&p("/file"), &p("/dev/disk0")).is_err());
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"no device");
    });
}

#[test]
fn nothing_is_opened_through_a_link_beneath_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::linux(dir.path()).unwrap();
    std::fs::create_dir_all(dir.path().join("log/sub")).unwrap();
    std::fs::write(dir.path().join("log/sub/a.log"), "a").unwrap();
    std::fs::write(dir.path().join("secret"), "s").unwrap();
    std::os::unix::fs::symlink("../secret", dir.path().join("log/link")).unwrap();
    std::os::unix::fs::symlink("sub", dir.path().join("log/sublink")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("log/socket")).unwrap();
    let log = root.parse("/log").unwrap();
    let open = |path: &str| root.open_beneath(&log, &path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>());
    assert!(matches!(open("sub/a.log"), Ok(Beneath::File(_))));
    assert!(matches!(open("socket"), Ok(Beneath::Other)));
    let Ok(Beneath::Directory(names)) = open("") else { panic!("no directory") };
    assert_eq!(names.len(), 4);
    for wrong in ["link", "sublink/a.log", "..", "../secret", "sub/../../secret"] {
        assert!(open(wrong).is_err(), "{wrong}");
    }
    assert!(open("none").unwrap_err().is_not_found());
}
