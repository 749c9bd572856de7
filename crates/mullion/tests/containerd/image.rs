//! The images of the tests: a static busybox, packed as archives that containerd imports.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::machine::ctr;

/// What pods run.
pub const IMAGE: &str = "registry.test/busybox:1";
/// What holds a sandbox's namespaces.
pub const PAUSE: &str = "registry.test/pause:1";

/// The media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Imports all of them.
pub fn import_all() {
    let plain = json!({"Cmd": ["sh"], "Env": ["PATH=/bin"], "WorkingDir": "/"});
    let pause = json!({"Entrypoint": ["/bin/sleep", "1000000000"], "Env": ["PATH=/bin"], "WorkingDir": "/"});
    for (name, config) in [(IMAGE, &plain), (PAUSE, &pause)] {
        let path = format!("/run/{}.tar", name.replace(['/', ':'], "-"));
        std::fs::write(&path, archive(name, config)).unwrap();
        ctr(&["images", "import", &path]).unwrap_or_else(|error| panic!("importing {name}: {error}"));
        std::fs::remove_file(path).unwrap();
    }
}

/// An image as registries serve it: its manifest, and what that names, by digest. `label` makes it another one than the rest.
pub fn served(label: &str) -> (Vec<u8>, BTreeMap<String, Vec<u8>>) {
    let layer = layer();
    let rootfs = json!({"type": "layers", "diff_ids": [digest(&layer)]});
    let run = json!({"Cmd": ["sh"], "Env": ["PATH=/bin"], "WorkingDir": "/", "Labels": {"test": label}});
    let config = json!({"architecture": "amd64", "os": "linux", "config": run, "rootfs": rootfs}).to_string().into_bytes();
    let part = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": part("application/vnd.oci.image.config.v1+json", &config),
        "layers": [part("application/vnd.oci.image.layer.v1.tar", &layer)]});
    (manifest.to_string().into_bytes(), [config, layer].into_iter().map(|bytes| (digest(&bytes), bytes)).collect())
}

/// Docker's archive of one image with one layer.
fn archive(name: &str, config: &serde_json::Value) -> Vec<u8> {
    let layer = layer();
    let rootfs = json!({"type": "layers", "diff_ids": [digest(&layer)]});
    let config = json!({"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}).to_string();
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).to_string();
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in [("config.json", config.as_bytes()), ("layer.tar", &layer), ("manifest.json", manifest.as_bytes())] {
        file(&mut tar, path, 0o644, bytes);
    }
    tar.into_inner().unwrap()
}

pub fn digest(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{hex}")
}

/// busybox with all its names, and the files that programs expect.
fn layer() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode) in [("bin", 0o755), ("dev", 0o755), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777), ("var", 0o755)] {
        let mut header = header(mode, 0);
        header.set_entry_type(tar::EntryType::Directory);
        tar.append_data(&mut header, format!("{path}/"), std::io::empty()).unwrap();
    }
    let busybox = std::fs::read("/bin/busybox").expect("busybox; run: tools/setup");
    file(&mut tar, "bin/busybox", 0o755, &busybox);
    file(&mut tar, "etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nweb:x:1000:1000::/:/bin/sh\n");
    file(&mut tar, "etc/group", 0o644, b"root:x:0:\nweb:x:1000:\nextra:x:4000:web\n");
    let names = Command::new("/bin/busybox").arg("--list").output().expect("busybox --list");
    for name in String::from_utf8_lossy(&names.stdout).lines().filter(|name| *name != "busybox") {
        let mut header = header(0o777, 0);
        header.set_entry_type(tar::EntryType::Symlink);
        tar.append_link(&mut header, format!("bin/{name}"), "busybox").unwrap();
    }
    tar.into_inner().unwrap()
}

fn file(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, bytes: &[u8]) {
    tar.append_data(&mut header(mode, bytes.len() as u64), path, bytes).unwrap();
}

fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header
}
