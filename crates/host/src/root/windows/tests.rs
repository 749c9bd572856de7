//! Tests of a Windows node's files, which Wine can run. Wine 8 makes no links: there the files of volumes are copies.

use super::super::HostRoot;
use super::*;
use kube_rules::{NodeOs, PodPath};

fn root() -> (tempfile::TempDir, HostRoot) {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::windows(NodeOs::Windows { build: 20348 }, [('C', dir.path().to_owned())]).unwrap();
    (dir, root)
}

fn path(root: &HostRoot, text: &str) -> PodPath {
    root.parse(text).unwrap()
}

#[test]
fn files_are_made_read_listed_renamed_and_removed_by_handles() {
    let (dir, root) = root();
    let p = |text: &str| path(&root, text);
    root.create_dir_all(&p(r"C:\a\b"), 0o755).unwrap();
    root.create_dir_all(&p(r"C:\A\B\c"), 0o755).unwrap();
    for bytes in [&b"one"[..], b"two"] {
        root.write_file(&p(r"C:\a\b\f.txt"), bytes, 0o600).unwrap();
        assert_eq!(std::fs::read(dir.path().join(r"a\b\f.txt")).unwrap(), bytes);
    }
    assert_eq!(root.read(&p(r"C:\a\b\F.TXT"), 2).unwrap().unwrap(), b"tw");
    assert_eq!(root.read(&p(r"C:\a\none\f"), 2).unwrap(), None);
    root.open_append(&p(r"C:\a\b\f.txt"), 0o600).unwrap().write_all(b"!").unwrap();
    root.create_file(&p(r"C:\a\b\f.txt"), 0o600).unwrap();
    root.rename(&p(r"C:\a\b\f.txt"), &p(r"C:\a\b\g.txt")).unwrap();
    assert_eq!(std::fs::read(dir.path().join(r"a\b\g.txt")).unwrap(), b"two!");
    let names = root.read_dir(&p(r"C:\a\b")).unwrap();
    assert_eq!(names, [("c".to_owned(), FileKind::Directory), ("g.txt".to_owned(), FileKind::File)]);
    assert_eq!((root.kind(&p(r"C:\a")).unwrap(), root.kind(&p(r"C:\x")).unwrap()), (Some(FileKind::Directory), None));
    assert_eq!(root.usage(&p(r"C:\a")).unwrap(), Usage { bytes: 4, inodes: 4 });
    assert!(root.remove_dir(&p(r"C:\a\b")).is_err(), "it holds something");
    root.remove_dir(&p(r"C:\a\b\c")).unwrap();
    root.remove_tree(&p(r"C:\a")).unwrap();
    root.remove_tree(&p(r"C:\a")).unwrap();
    assert!(!dir.path().join("a").exists());
    assert!(root.remove_tree(&p(r"C:\")).is_err(), "the drive itself stays");
}

#[test]
fn many_names_are_listed_in_more_than_one_go() {
    let (dir, root) = root();
    for number in 0..1500 {
        std::fs::write(dir.path().join(format!("a-name-of-some-length-{number}")), "").unwrap();
    }
    assert_eq!(root.read_dir(&path(&root, r"C:\")).unwrap().len(), 1500);
}

/// CVE-2021-25741, CVE-2017-1002101: what a sub-path leads to is the same until the container has started.
#[test]
fn cve_2021_25741_a_sub_path_cannot_be_exchanged_while_it_is_held() {
    let (dir, root) = root();
    let p = |text: &str| path(&root, text);
    root.create_dir_all(&p(r"C:\vol"), 0o755).unwrap();
    let (found, hold) = root.sub_path(&p(r"C:\vol"), "a/b", &p(r"C:\place")).unwrap();
    assert_eq!(found, p(r"C:\vol\a\b"));
    for name in ["vol", r"vol\a", r"vol\a\b"] {
        let (name, other) = (dir.path().join(name), dir.path().join("other"));
        assert!(std::fs::rename(&name, &other).is_err(), "{} was renamed", name.display());
        assert!(std::fs::remove_dir(&name).is_err(), "{} was removed", name.display());
    }
    // What a pod does in its volume meanwhile is not hindered.
    std::fs::write(dir.path().join(r"vol\a\b\file"), "x").unwrap();
    drop(hold);
    std::fs::rename(dir.path().join("vol"), dir.path().join("other")).unwrap();
}

#[test]
fn a_volume_is_restricted_and_its_files_are_written_anew() {
    let (dir, root) = root();
    let volume = path(&root, r"C:\pods\u\volumes\s");
    let readers = BTreeSet::from([Reader::ContainerAdministrator, Reader::ContainerUser, Reader::NetworkService, Reader::WebServer]);
    let files = |text: &str| BTreeMap::from([(text.to_owned(), VolumeFile { bytes: text.as_bytes().to_vec(), mode: 0o600, group: None })]);
    root.write_volume(&volume, &files("a"), Some(&readers)).unwrap();
    let on_disk = dir.path().join(r"pods\u\volumes\s");
    let generation = || {
        let names = root.read_dir(&volume).unwrap().into_iter();
        names.filter(|(name, kind)| name.starts_with("..") && *kind == FileKind::Directory).map(|(name, _)| name).collect::<Vec<_>>()
    };
    let first = generation();
    assert_eq!(std::fs::read(on_disk.join(&first[0]).join("a")).unwrap(), b"a");
    assert_eq!(std::fs::read(on_disk.join("a")).unwrap(), b"a", "under its own name");
    assert!(!root.write_volume(&volume, &files("a"), Some(&readers)).unwrap(), "nothing changes");
    assert_eq!(generation(), first);
    // One that is there already gets the access list, too.
    root.write_volume(&volume, &files("deep/b"), Some(&readers)).unwrap();
    let second = generation();
    assert_eq!((second.len(), second == first), (1, false), "the old generation goes");
    assert_eq!(std::fs::read(on_disk.join(&second[0]).join("deep").join("b")).unwrap(), b"deep/b");
    assert_eq!(std::fs::read(on_disk.join("deep").join("b")).unwrap(), b"deep/b");
    assert!(!on_disk.join("a").exists(), "what is no longer wanted goes");
    // A file where a directory was, and back.
    for name in ["deep", "deep/c", "deep/b"] {
        assert!(root.write_volume(&volume, &files(name), Some(&readers)).unwrap());
        assert_eq!(std::fs::read(on_disk.join(name)).unwrap(), name.as_bytes());
        assert_eq!(std::fs::read_dir(&on_disk).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() == "deep").count(), 1);
    }
    assert!(!on_disk.join("deep").join("c").exists());
    root.remove_tree(&path(&root, r"C:\pods\u")).unwrap();
    assert!(!dir.path().join(r"pods\u").exists());
}

#[test]
fn directories_of_the_agents_own_are_made_and_taken_over() {
    let (dir, root) = root();
    let p = |text: &str| path(&root, text);
    root.make_private(&p(r"C:\var\lib\kubelet")).unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    root.make_private(&p(r"C:\mine")).unwrap();
    let keys = dir.path().join(r"keys\pki");
    super::super::make_private_dir(&keys).unwrap();
    super::super::make_private_dir(&keys).unwrap();
    std::fs::write(keys.join("a.key"), "k").unwrap();
    for (name, mode) in [("private", 0o750), ("readable", 0o755), ("open", 0o777)] {
        root.create_dir_all(&p(&format!(r"C:\var\lib\kubelet\{name}")), mode).unwrap();
        root.write_file(&p(&format!(r"C:\var\lib\kubelet\{name}\f")), b"x", 0o644).unwrap();
        assert_eq!(root.read(&p(&format!(r"C:\var\lib\kubelet\{name}\f")), 2).unwrap().unwrap(), b"x");
    }
    root.create_shared_dir_all(&p(r"C:\data\a"), 0o755).unwrap();
    root.create_shared_file(&p(r"C:\data\a\f"), 0o644).unwrap();
    for mode in [0o700, 0o755, 0o777] {
        Descriptor::parse(&acl::of_mode(mode)).unwrap();
    }
    assert!(root.make_private(&p(r"C:\")).is_err(), "a drive is no directory of the agent's");
}

#[test]
fn only_what_stands_for_another_name_is_a_link() {
    let of = |attributes, tag| kind_of(Entry { attributes, tag });
    let (reparse, directory) = (FILE_ATTRIBUTE_REPARSE_POINT, FILE_ATTRIBUTE_DIRECTORY);
    assert_eq!((of(0, 7), of(directory, 7)), (FileKind::File, FileKind::Directory), "not a reparse point: the number is none");
    for tag in [0xA000_000C, 0xA000_0003, 0xA000_001D, 0] {
        assert_eq!(of(reparse | directory, tag), FileKind::Link, "{tag:x}");
    }
    assert_eq!(of(reparse, UNIX_SOCKET), FileKind::Socket);
    assert_eq!(of(reparse, 0x8000_0013), FileKind::File, "a deduplicated file");
}

#[test]
fn windows_reads_each_access_list() {
    let all = [Reader::LocalService, Reader::NetworkService, Reader::Users, Reader::WebServer, Reader::ContainerUser];
    for count in 0..=all.len() {
        Descriptor::parse(&acl::sddl(&all[..count].iter().copied().collect())).unwrap();
    }
    assert!(Descriptor::parse("D:P(A;OICI;FA;;;nobody)").is_err());
}
