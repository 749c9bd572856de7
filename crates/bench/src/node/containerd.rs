//! Debian's containerd with runc, in a directory of the benchmark's own, and the image of its pods.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cri::v1;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::process::Running;
use crate::up::run;

/// The image's name.
pub const IMAGE: &str = "bench.local/wait:1";
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program of the image, for Linux on x86-64: blocks SIGINT and SIGTERM, waits for one of them, and ends with 0.
const WAIT: [u8; 69] = [
    0xb8, 0x0e, 0, 0, 0, 0x31, 0xff, 0x48, 0x8d, 0x35, 0x2f, 0, 0, 0, 0x31, 0xd2, 0x41, 0xba, 0x08, 0, 0, 0, 0x0f, 0x05, 0xb8, 0x80, 0, 0, 0, 0x48,
    0x8d, 0x3d, 0x19, 0, 0, 0, 0x31, 0xf6, 0x31, 0xd2, 0x41, 0xba, 0x08, 0, 0, 0, 0x0f, 0x05, 0x85, 0xc0, 0x78, 0xe4, 0xb8, 0x3c, 0, 0, 0, 0x31,
    0xff, 0x0f, 0x05, 0x02, 0x40, 0, 0, 0, 0, 0, 0,
];

/// A containerd that runs.
pub struct Containerd {
    directory: PathBuf,
    process: Running,
    pub client: cri::Client,
}

impl Containerd {
    /// Starts it with directories below `directory`, and brings the image.
    pub async fn start(directory: &Path, cni: &Path) -> Result<Self> {
        let path = |name: &str| directory.join(name);
        for name in ["root", "state", "conf", "bin"] {
            std::fs::create_dir_all(path(name))?;
        }
        for plugin in PLUGINS {
            std::os::unix::fs::symlink(cni, path("bin").join(plugin))?;
        }
        std::fs::write(path("config.toml"), config(directory))?;
        let log = std::fs::File::create(path("log"))?;
        let process = Command::new("containerd")
            .arg("--config")
            .arg(path("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map(Running)
            .context("starting containerd failed: install the packages containerd and runc")?;
        let client = cri::Client::connect(&format!("unix://{}", path("socket").display()))?;
        let begun = Instant::now();
        while client.version(v1::VersionRequest::default()).await.is_err() {
            let log = || std::fs::read_to_string(path("log")).unwrap_or_default();
            ensure!(begun.elapsed() < PATIENCE, "containerd does not answer:\n{}", log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        std::fs::write(path("image.tar"), image()?)?;
        run(Command::new("ctr").arg("--address").arg(path("socket")).args(["--namespace", "k8s.io", "images", "import"]).arg(path("image.tar")), "")?;
        Ok(Self { directory: directory.to_owned(), process, client })
    }

    /// Its address, as an agent takes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.directory.join("socket").display())
    }

    /// Where the pod network writes its configuration.
    pub fn cni_conf(&self) -> PathBuf {
        self.directory.join("conf")
    }

    /// Ends it; what its pods had mounted is unmounted with the benchmark's namespace.
    pub fn end(mut self) -> Result<()> {
        self.process.interrupt()?;
        self.process.0.wait()?;
        Ok(())
    }
}

/// Version 2 of containerd's configuration. Control groups of version 1 and machines that restrict `oom_score_adj` will do.
fn config(directory: &Path) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    format!(
        "version = 2\nroot = {root:?}\nstate = {state:?}\noom_score = 0\n[grpc]\naddress = {socket:?}\n[plugins.\"io.containerd.internal.v1.opt\"]\n\
         path = {opt:?}\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {IMAGE:?}\nrestrict_oom_score_adj = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {bin:?}\nconf_dir = {conf:?}\n",
        root = path("root"),
        state = path("state"),
        socket = path("socket"),
        opt = path("opt"),
        bin = path("bin"),
        conf = path("conf"),
    )
}

/// A static program for Linux on x86-64 with one segment, which is read and run.
fn program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADS: u16 = 64 + 56;
    let length = u64::from(HEADS) + WAIT.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    file.extend(1u32.to_le_bytes());
    file.extend([BASE + u64::from(HEADS), 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    file.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    file.extend([0, BASE, BASE, length, length, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(WAIT);
    file
}

/// The image as an archive of OCI.
pub fn image() -> Result<Vec<u8>> {
    let layer = archive(&[("wait".to_owned(), program())])?;
    let digest = |content: &[u8]| format!("sha256:{}", Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let text = |value: serde_json::Value| value.to_string().into_bytes();
    let config = text(json!({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/wait"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    }));
    let described = |kind: &str, content: &[u8]| json!({"mediaType": kind, "digest": digest(content), "size": content.len()});
    let manifest = text(json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", &config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar", &layer)],
    }));
    let mut entry = described("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({"io.containerd.image.name": IMAGE});
    let index = text(json!({"schemaVersion": 2, "manifests": [entry]}));
    let blob = |content: Vec<u8>| (format!("blobs/sha256/{}", digest(&content).trim_start_matches("sha256:")), content);
    let layout = text(json!({"imageLayoutVersion": "1.0.0"}));
    archive(&[("oci-layout".to_owned(), layout), ("index.json".to_owned(), index), blob(manifest), blob(config), blob(layer)])
}

fn archive(files: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut head = tar::Header::new_gnu();
        head.set_size(content.len() as u64);
        head.set_mode(0o755);
        archive.append_data(&mut head, name, content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_program_waits_for_a_signal_and_ends_with_0() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wait");
        std::fs::write(&path, program()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut running = Running(Command::new(&path).spawn().unwrap());
        // It blocks its signals before it sleeps; a signal before that would end it otherwise. While it sleeps in rt_sigtimedwait, the kernel
        // shows those it waits for as not blocked.
        let sleeps = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            status.lines().any(|line| line.starts_with("State:\tS"))
        };
        while !sleeps(running.0.id()) {
            assert_eq!(running.0.try_wait().unwrap(), None, "it ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        running.interrupt().unwrap();
        let status = running.0.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
    }
}
