//! Tests of the store: archives that are loaded, and archives that are refused.

mod windows;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use kube_rules::NodeOs;
use rustix::fs::FileType;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use thiserror_ext::AsReport as _;

use super::blob::digest_of;
use super::registry::FetchOptions;
use super::{ImageError, LoadOptions, PullOptions, Store, layer, tarball};
use tarball::{Limits, TarError};

/// One member of a layer or archive under construction.
enum Entry<'a> {
    File(&'a str, &'a [u8]),
    Dir(&'a str),
    Symlink(&'a str, &'a str),
    Hard(&'a str, &'a str),
    Device(&'a str),
}
use Entry::{Device, Dir, File, Hard, Symlink};

/// Writes names as they are: the tar crate itself would refuse hostile ones.
fn tarball(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        let (name, kind, link, data): (&str, _, &str, &[u8]) = match entry {
            File(name, data) => (name, tar::EntryType::Regular, "", data),
            Dir(name) => (name, tar::EntryType::Directory, "", b""),
            Symlink(name, link) => (name, tar::EntryType::Symlink, link, b""),
            Hard(name, link) => (name, tar::EntryType::Link, link, b""),
            Device(name) => (name, tar::EntryType::Char, "", b""),
        };
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if matches!(entry, Dir(_)) { 0o755 } else { 0o644 });
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An archive of files alone.
pub(super) fn tarball_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let entries: Vec<Entry<'_>> = files.iter().map(|(name, data)| File(name, data)).collect();
    tarball(&entries)
}

pub(super) fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn config(os: &str, version: Option<&str>, diff_ids: &[String]) -> Vec<u8> {
    let mut config = json!({
        "architecture": super::platform::host_architecture(), "os": os,
        "config": { "Cmd": ["/bin/sh"], "Env": null, "Labels": null },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    if let Some(version) = version {
        config["os.version"] = version.into();
    }
    serde_json::to_vec(&config).unwrap()
}

/// An OCI archive under construction.
#[derive(Default)]
struct Oci {
    blobs: Vec<(String, Vec<u8>)>,
    manifests: Vec<Value>,
}

impl Oci {
    fn blob(&mut self, data: Vec<u8>) -> Value {
        let digest = digest_of(&data);
        let size = data.len();
        self.blobs.push((digest.replacen("sha256:", "blobs/sha256/", 1), data));
        json!({ "digest": digest, "size": size })
    }

    fn image(mut self, name: &str, os: &str, version: Option<&str>, layers: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|(plain, _)| digest_of(plain)).collect();
        let layers: Vec<Value> = layers.iter().map(|(_, stored)| self.blob(stored.clone())).collect();
        self.manifest(name, &config(os, version, &diff_ids), layers)
    }

    fn manifest(mut self, name: &str, config: &[u8], layers: Vec<Value>) -> Self {
        let config = self.blob(config.to_vec());
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
        let mut manifest = self.blob(serde_json::to_vec(&manifest).unwrap());
        manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
        if !name.is_empty() {
            manifest["annotations"] = json!({ "io.containerd.image.name": name });
        }
        self.manifests.push(manifest);
        self
    }

    fn archive(&self) -> Vec<u8> {
        let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": self.manifests })).unwrap();
        let mut entries = vec![File("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#), File("index.json", &index)];
        entries.extend(self.blobs.iter().map(|(name, data)| File(name, data)));
        tarball(&entries)
    }
}

pub(super) struct Fixture {
    pub dir: tempfile::TempDir,
    pub store: Store,
}

impl Fixture {
    pub fn new(os: NodeOs) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state"), &dir.path().join("cache"), os).unwrap();
        let system = dir.path().join("wine-template/drive_c/windows/system32");
        std::fs::create_dir_all(&system).unwrap();
        for name in ["ntdll.dll", "cmd.exe"] {
            std::fs::write(system.join(name), "Wine").unwrap();
        }
        for name in ["system.reg", "user.reg"] {
            let text = "WINE REGISTRY Version 2\n\n#arch=win64\n\n[Software\\\\Wine] 1\n\"a\"=\"b\"\n\n";
            std::fs::write(dir.path().join("wine-template").join(name), text).unwrap();
        }
        Self { dir, store }
    }

    fn file(&self, data: &[u8]) -> PathBuf {
        let path = self.dir.path().join("archive.tar");
        std::fs::write(&path, data).unwrap();
        path
    }

    fn load(&self, data: &[u8]) -> Result<Vec<super::Image>, ImageError> {
        self.store.load(&self.file(data), &LoadOptions::default())
    }

    pub fn layer(&self, diff_id: &str) -> PathBuf {
        self.store.layers_dir().join(Store::layer_name(diff_id))
    }
}

#[test]
fn an_oci_archive_is_loaded_whatever_its_compression() {
    let plain = tarball(&[Dir("bin/"), File("bin/sh", b"#!"), Symlink("bin/ash", "sh"), Hard("bin/hush", "bin/sh")]);
    let second = tarball(&[File("etc/motd", b"hello")]);
    let third = tarball(&[File("x", b"y")]);
    let layers = [(plain.clone(), gzip(&plain)), (second.clone(), compress_to_vec(&second[..], CompressionLevel::Fastest)), (third.clone(), third)];
    let archive = Oci::default().image("docker.io/library/demo:1", "linux", None, &layers).archive();
    for archive in [archive.clone(), gzip(&archive)] {
        let fixture = Fixture::new(NodeOs::Linux);
        let images = fixture.load(&archive).unwrap();
        assert_eq!(images[0].tags, ["docker.io/library/demo:1"]);
        let root = fixture.layer(&images[0].layers[0]);
        assert_eq!(std::fs::read(root.join("bin/hush")).unwrap(), b"#!");
        assert_eq!(std::fs::read_link(root.join("bin/ash")).unwrap(), Path::new("sh"));
        assert_eq!(std::fs::read(fixture.layer(&images[0].layers[1]).join("etc/motd")).unwrap(), b"hello");
        let found = fixture.store.find("demo:1").unwrap().unwrap();
        assert_eq!(found.config.cmd, ["/bin/sh"]);
        assert!(fixture.store.find(&found.id).unwrap().is_some() && fixture.store.find(&found.digests[0]).unwrap().is_some());
        assert!(fixture.store.remove("demo:1").unwrap() && !fixture.store.remove("demo:1").unwrap());
        assert!(fixture.store.list().unwrap().is_empty());
    }
}

#[test]
fn a_docker_archive_is_loaded() {
    let layer = tarball(&[File("hello", b"world")]);
    let document = config("linux", None, &[digest_of(&layer), digest_of(&layer)]);
    let name = format!("{}.json", digest_of(&document).trim_start_matches("sha256:"));
    let manifest = json!([{ "Config": name, "RepoTags": ["demo:2"], "Layers": ["a/layer.tar", "b/layer.tar"] }]);
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let archive =
        tarball(&[File(&name, &document), File("a/layer.tar", &layer), Symlink("b/layer.tar", "../a/layer.tar"), File("manifest.json", &manifest)]);
    let fixture = Fixture::new(NodeOs::Linux);
    let images = fixture.load(&archive).unwrap();
    assert_eq!(images[0].tags, ["docker.io/library/demo:2"]);
    assert_eq!(images[0].id, digest_of(&document));
    assert_eq!(std::fs::read(fixture.layer(&images[0].layers[0]).join("hello")).unwrap(), b"world");
}

#[test]
fn the_variant_is_chosen_by_system_and_build() {
    let layer = |text: &[u8]| {
        let tar = tarball(&[File("which", text), File("Files/which", text)]);
        [(tar.clone(), tar)]
    };
    let archive = Oci::default()
        .image("demo:1", "linux", None, &layer(b"linux"))
        .image("demo:1", "windows", Some("10.0.17763.1"), &layer(b"2019"))
        .image("demo:1", "windows", Some("10.0.20348.1"), &layer(b"2022"))
        .archive();
    for (os, which) in [(NodeOs::Linux, "linux"), (NodeOs::Windows { build: 20348 }, "2022"), (NodeOs::Windows { build: 17763 }, "2019")] {
        let fixture = Fixture::new(os);
        let images = fixture.load(&archive).unwrap();
        assert_eq!(images.len(), 1);
        let name = if os == NodeOs::Linux { "which" } else { "drive_c/which" };
        assert_eq!(std::fs::read_to_string(fixture.layer(&images[0].layers[0]).join(name)).unwrap(), which);
    }
    let fixture = Fixture::new(NodeOs::Windows { build: 20348 });
    let both = LoadOptions { hypervisor: true, ..LoadOptions::default() };
    assert_eq!(fixture.store.load(&fixture.file(&archive), &both).unwrap()[0].platform.build(), Some(20348), "the newest that runs");
    let old = Oci::default().image("demo:1", "windows", Some("10.0.17763.1"), &layer(b"2019")).archive();
    assert!(fixture.load(&old).is_err());
    assert_eq!(fixture.store.load(&fixture.file(&old), &both).unwrap()[0].platform.build(), Some(17763), "with Hyper-V isolation");
    let error = Fixture::new(NodeOs::Windows { build: 14393 }).load(&archive).unwrap_err().to_report_string();
    assert!(error.contains("no match for platform") && error.contains("10.0.17763.1") && error.contains("10.0.14393"), "{error}");
}

#[test]
fn content_that_differs_from_its_digest_is_refused() {
    let layer = tarball(&[File("a", b"b")]);
    let mut oci = Oci::default().image("demo:1", "linux", None, &[(layer.clone(), gzip(&layer))]);
    for index in 0..oci.blobs.len() {
        let kept = oci.blobs[index].1.clone();
        let last = oci.blobs[index].1.len() - 1;
        oci.blobs[index].1[last] ^= 1;
        let fixture = Fixture::new(NodeOs::Linux);
        let error = fixture.load(&oci.archive()).unwrap_err();
        assert!(matches!(error, ImageError::Digest { .. }), "blob {index}: {error}");
        assert!(fixture.store.list().unwrap().is_empty());
        oci.blobs[index].1 = kept;
    }
    // A layer that is not what the configuration says, under a digest of its own that is right.
    let other = tarball(&[File("a", b"c")]);
    let fixture = Fixture::new(NodeOs::Linux);
    let archive = Oci::default().image("demo:1", "linux", None, &[(layer, other)]).archive();
    assert!(matches!(fixture.load(&archive).unwrap_err(), ImageError::Digest { .. }));
    assert_eq!(std::fs::read_dir(fixture.store.layers_dir()).unwrap().count(), 0, "nothing half unpacked stays");
}

#[test]
fn truncated_archives_are_refused() {
    let layer = tarball(&[File("a", &[7; 5000])]);
    let archive = Oci::default().image("demo:1", "linux", None, &[(layer.clone(), gzip(&layer))]).archive();
    for length in [0, 100, 600, archive.len() / 2, archive.len() - 1500] {
        let fixture = Fixture::new(NodeOs::Linux);
        assert!(fixture.load(&archive[..length]).is_err(), "{length} of {} bytes were accepted", archive.len());
        let packed = gzip(&archive);
        assert!(fixture.load(&packed[..packed.len() * 2 / 3]).is_err());
        assert!(fixture.store.list().unwrap().is_empty());
    }
}

fn unpack(entries: &[Entry<'_>]) -> (tempfile::TempDir, Result<(), layer::LayerError>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let result = layer::unpack(&tarball(entries)[..], &root, Limits::default());
    (dir, result)
}

#[test]
fn nothing_escapes_from_a_layer() {
    for hostile in [
        &[File("../evil", b"x")][..],
        &[File("a/../../evil", b"x")],
        &[Dir("../evil/")],
        &[Symlink("../evil", "x")],
        &[Hard("link", "../outside")],
        &[File("a/.wh...", b"")],
    ] {
        let (dir, result) = unpack(hostile);
        assert!(result.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was written outside");
    }
    // Links that point out are inert, and what is written through them stays inside.
    let (dir, result) = unpack(&[Symlink("out", ".."), File("out/evil", b"x"), Symlink("abs", "/"), File("abs/evil2", b"x"), File("/rooted", b"x")]);
    result.unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was written outside");
    for name in ["evil", "evil2", "rooted"] {
        assert!(dir.path().join("root").join(name).is_file(), "{name}");
    }
    // A file is never written through a link of its own name.
    let outside = tempfile::NamedTempFile::new().unwrap();
    let (_dir, result) = unpack(&[Symlink("f", outside.path().to_str().unwrap()), File("f", b"overwritten")]);
    result.unwrap();
    assert_eq!(std::fs::read(outside.path()).unwrap(), b"");
    // A hard link to a link does not reach the link's target.
    let (dir, result) = unpack(&[Symlink("s", "/etc/passwd"), Hard("h", "s")]);
    result.unwrap();
    assert!(std::fs::symlink_metadata(dir.path().join("root/h")).unwrap().is_symlink());
}

#[test]
fn bombs_are_refused() {
    let limits = Limits { bytes: 30_000, file_bytes: 10_000, members: 10 };
    let big = gzip(&tarball(&[File("a", &vec![0; 40_000])]));
    let many: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let many: Vec<Entry<'_>> = many.iter().map(|name| File(name, b"")).collect();
    let pieces: Vec<Entry<'_>> = ["a", "b", "c", "d"].iter().map(|name| File(name, &[0; 9000])).collect();
    for data in [tarball(&[File("a", &vec![0; 20_000])]), tarball(&pieces), tarball(&many)] {
        let dir = tempfile::tempdir().unwrap();
        let error = layer::unpack(&data[..], dir.path(), limits).unwrap_err();
        assert!(matches!(error, layer::LayerError::Tar(TarError::TooLarge { .. })), "{error}");
    }
    let fixture = Fixture::new(NodeOs::Linux);
    let options = LoadOptions { limits, ..LoadOptions::default() };
    let error = fixture.store.load(&fixture.file(&big), &options).unwrap_err();
    assert!(error.to_report_string().contains("bomb"));
}

#[test]
fn huge_names_are_refused_before_they_are_read() {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..4].copy_from_slice(b"name");
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let dir = tempfile::tempdir().unwrap();
    let error = layer::unpack(header.as_bytes().as_slice(), dir.path(), Limits::default()).unwrap_err();
    assert!(error.to_string().contains("bytes in one name"), "{error}");
}

fn is_whiteout(path: &Path) -> bool {
    let stat = rustix::fs::lstat(path).unwrap();
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

#[test]
fn removals_become_overlay_whiteouts() {
    let (lower, result) = unpack(&[Dir("d/"), File("d/a", b"1"), Device("dev")]);
    result.unwrap();
    assert!(!lower.path().join("root/dev").exists(), "devices are left out");
    let (upper, result) = unpack(&[File("d/.wh..wh..opq", b""), File("d/b", b"2"), File(".wh.gone", b"")]);
    result.unwrap();
    assert!(is_whiteout(&upper.path().join("root/gone")));
    let mut value = [0; 4];
    let opaque = |dir: &Path, value: &mut [u8]| rustix::fs::getxattr(dir, layer::OPAQUE, value);
    assert_eq!(opaque(&upper.path().join("root/d"), &mut value).map(|length| value[..length].to_vec()), Ok(b"y".to_vec()));
    assert!(opaque(&lower.path().join("root/d"), &mut value).is_err());
}

#[tokio::test]
async fn stand_ins_are_pulled_by_tag_and_only_when_allowed() {
    async fn pull(fixture: &Fixture, name: &str, stand_ins: bool, hypervisor: bool) -> Result<super::Image, String> {
        let os = fixture.store.os();
        let fit: super::platform::Fit<'_> = &|platform| if hypervisor { platform.fit_hypervisor(os) } else { platform.fit(os) };
        let (registries, credentials) = Default::default();
        let fetch = FetchOptions { registries: &registries, credentials: &credentials, fit, limits: Limits::default(), progress: &|_| {} };
        fixture.store.pull(name, &PullOptions { stand_ins, fetch }).await.map_err(|error| error.to_report_string())
    }
    let windows = Fixture::new(NodeOs::Windows { build: 20348 });
    let image = pull(&windows, "microsoft/iis", true, false).await.unwrap();
    assert_eq!(image.platform.build(), Some(20348));
    assert_eq!(image.config.labels["mullion.io/stand-in"], "iis");
    assert!(windows.store.find("microsoft/iis:latest").unwrap().is_some());
    let base = pull(&windows, "microsoft/nanoserver", true, false).await.unwrap();
    assert_eq!((base.stand_in, base.stand_in_name()), (None, Some("wine")));
    let old = "microsoft/iis:windowsservercore-1709";
    let wrong = pull(&windows, old, true, false).await.unwrap_err();
    assert!(wrong.contains("no match for platform in manifest") && wrong.contains("10.0.16299") && wrong.contains("20348"), "{wrong}");
    assert_eq!(pull(&windows, old, true, true).await.unwrap().platform.build(), Some(16299), "with Hyper-V isolation");
    assert!(pull(&windows, old, true, false).await.is_err(), "what is here does not run without");
    let linux = Fixture::new(NodeOs::Linux);
    let os = pull(&linux, "microsoft/iis", true, false).await.unwrap_err();
    assert!(os.contains("no match for platform"), "{os}");
    // With stand-ins off the registry is asked, even for what is here as a stand-in.
    let off = pull(&windows, "127.0.0.1:1/microsoft/iis", false, false).await.unwrap_err();
    assert!(off.contains("failed to do request"), "{off}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    /// Damaged archives end in an error or in a load, never in a panic.
    #[test]
    fn damaged_bytes_never_panic(at in 0usize..9000, byte in proptest::num::u8::ANY) {
        let layer = tarball(&[File("a", b"b"), Symlink("s", "a")]);
        let mut archive = Oci::default().image("demo:1", "linux", None, &[(layer.clone(), layer)]).archive();
        let at = at % archive.len();
        archive[at] = byte;
        let _ = Fixture::new(NodeOs::Linux).load(&archive);
    }
}
