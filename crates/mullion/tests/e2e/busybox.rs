//! An image for Linux pods that needs no registry: this machine's static busybox as an OCI archive.

use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::cluster::Cluster;

/// The name under which the image is loaded.
pub const IMAGE: &str = "docker.io/library/busybox:e2e";
const APPLETS: &[&str] = &["awk", "httpd", "mkdir", "nc", "nslookup", "sh", "sleep", "wget"];

fn add(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, path, content).expect("a tar member");
}

fn layer(busybox: &[u8], note: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "note", 0o644, note.as_bytes());
    add(&mut tar, "bin/busybox", 0o755, busybox);
    for applet in APPLETS {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox").expect("a link");
    }
    tar.into_inner().expect("a layer")
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Gives the image to every node of its system; says what mullion output.
pub fn load(cluster: &Cluster) -> String {
    let archive = cluster.place.path().join("busybox.tar");
    write_archive(&archive);
    cluster.place.mullion(&["image", "load", &archive.to_string_lossy()]).ok("mullion image load")
}

/// An image as registries have it: each part with its digest.
pub struct Image {
    pub layer: (String, Vec<u8>),
    pub config: (String, Vec<u8>),
    pub manifest: (String, Vec<u8>),
}

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// This machine's busybox. A layer with another `note` is another layer; `label` distinguishes images of the same layer.
pub fn image(note: &str, label: &str) -> Image {
    let program = std::fs::read("/bin/busybox").expect("/bin/busybox: install the package busybox-static");
    let named = |bytes: Vec<u8>| (digest(&bytes), bytes);
    let about = |part: &(String, Vec<u8>), media_type: &str| json!({"mediaType": media_type, "digest": part.0, "size": part.1.len()});
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let layer = named(layer(&program, note));
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "Labels": {"of": label}},
        "rootfs": {"type": "layers", "diff_ids": [layer.0]},
    });
    let config = named(config.to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": about(&config, "application/vnd.oci.image.config.v1+json"),
        "layers": [about(&layer, "application/vnd.oci.image.layer.v1.tar")],
    });
    let manifest = named(manifest.to_string().into_bytes());
    Image { layer, config, manifest }
}

/// Writes the archive to `path`.
pub fn write_archive(path: &Path) {
    let image = image("from an archive", "");
    let mut tar = tar::Builder::new(Vec::new());
    for (digest, bytes) in [&image.layer, &image.config, &image.manifest] {
        add(&mut tar, &format!("blobs/{}", digest.replace(':', "/")), 0o644, bytes);
    }
    let (digest, bytes) = &image.manifest;
    let manifest: Value = json!({
        "mediaType": MANIFEST, "digest": digest, "size": bytes.len(),
        "annotations": {"io.containerd.image.name": IMAGE},
    });
    add(&mut tar, "index.json", 0o644, json!({"schemaVersion": 2, "manifests": [manifest]}).to_string().as_bytes());
    add(&mut tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    std::fs::write(path, tar.into_inner().expect("an archive")).expect("a written archive");
}
