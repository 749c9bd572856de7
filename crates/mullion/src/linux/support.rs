//! `mullion support-bundle`: all that somebody else needs to understand a cluster, in one archive without secrets.
//!
//! What cannot be had is listed in `missing.txt`, and the exit code says so; the rest is written all the same. Every file passes
//! [`redact`]: values of Secrets (as the API returns them), private keys and tokens never reach the archive.

mod api;
mod containers;
mod probe;
mod redact;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use lab::dir::{Dirs, Env};
use lab::error::LabError;
use lab::protocol::Status;
use lab::supervisor;
use serde_json::{Value, json};

use super::cli::SupportBundleArgs;
use super::cluster_file::{self, Cluster};
use super::logs;
use crate::exit::{Code, Failure};
use redact::Secrets;
use thiserror_ext::AsReport as _;

pub use probe::main as probe;

/// The most of a log that is taken, its end.
const LOG: u64 = 4 << 20;
/// The most of another file.
const FILE: u64 = 1 << 20;

/// Writes the archive.
pub fn main(args: &SupportBundleArgs) -> Result<(), Failure> {
    let dirs = cluster_file::dirs(&args.dir)?;
    let cluster = Cluster::load(&dirs)?.ok_or_else(|| LabError::NotRunning(dirs.dir.clone()))?;
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let name = format!("mullion-support-{}-{now}", dirs.id());
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let mut bundle = Bundle::default();
    let status = supervisor::status(&dirs);
    collect(&mut bundle, &dirs, &cluster, status);
    bundle.write(&path, &name).with_context(|| format!("writing {} failed", path.display()))?;
    eprintln!("{} holds {} files; have a look before you pass it on", path.display(), bundle.files.len());
    match bundle.missing.len() {
        0 => Ok(()),
        count => {
            Err(Failure::new(Code::Incomplete, anyhow!("{count} parts could not be had, {} among them; missing.txt lists them", bundle.missing[0])))
        }
    }
}

/// What goes into the archive, and what could not be had.
#[derive(Default)]
struct Bundle {
    files: Vec<(String, Vec<u8>)>,
    missing: Vec<String>,
    secrets: Secrets,
}

impl Bundle {
    fn add(&mut self, path: impl Into<String>, text: impl Into<Vec<u8>>) {
        self.files.push((path.into(), text.into()));
    }

    fn add_json(&mut self, path: impl Into<String>, value: &Value) {
        self.add(path, format!("{value:#}\n"));
    }

    fn add_missing(&mut self, what: &str, why: impl std::fmt::Display) {
        self.missing.push(format!("{what}: {why}"));
    }

    /// Redacts every file and writes all of them, readable by this user alone.
    fn write(&mut self, path: &Path, top: &str) -> Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        if !self.missing.is_empty() {
            let text = self.missing.join("\n") + "\n";
            self.add("missing.txt", text);
        }
        let file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(file, flate2::Compression::default()));
        for (name, bytes) in &self.files {
            let text = self.secrets.redact(&String::from_utf8_lossy(bytes));
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o600);
            header.set_size(text.len() as u64);
            header.set_mtime(u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default());
            tar.append_data(&mut header, format!("{top}/{name}"), text.as_bytes())?;
        }
        tar.into_inner()?.finish()?.flush()?;
        Ok(())
    }
}

/// Collects everything, part by part, and prints each part with its time.
fn collect(bundle: &mut Bundle, dirs: &Dirs, cluster: &Cluster, status: Result<Status, LabError>) {
    let mut last = Instant::now();
    let mut step = |what: &str| {
        eprintln!("{what:32} {:>7.3} s", last.elapsed().as_secs_f64());
        last = Instant::now();
    };
    bundle.add_json("versions.json", &versions());
    bundle.add_json("cluster.json", &serde_json::to_value(cluster).unwrap_or_default());
    bundle.add("files.txt", listing(&dirs.dir));
    for host in cluster.nodes.iter().map(|node| node.name.as_str()).chain(["cp", "gw", "lab"]) {
        for (component, path) in logs::files(dirs, host) {
            take(bundle, &format!("logs/{host}/{component}.log"), &path, LOG);
        }
    }
    for node in &cluster.nodes {
        tree(bundle, &format!("hosts/{}/cni", node.name), &dirs.host(&node.name).join("cni"));
        take(bundle, &format!("hosts/{}/node.yaml", node.name), &super::processes::node_config_file(dirs, &node.name), FILE);
    }
    step("took versions, logs and files");
    match status {
        Ok(status) => {
            bundle.add_json("status.json", &serde_json::to_value(&status).unwrap_or_default());
            for node in cluster.nodes.iter().filter(|node| node.os.is_windows()) {
                hns(bundle, dirs, &node.name);
            }
            step("asked the network services");
            match probe::run(status.init, &dirs.run) {
                Ok(files) => files.into_iter().for_each(|(path, text)| bundle.add(path, text)),
                Err(error) => bundle.add_missing("networks of the hosts", error.to_report_string()),
            }
            step("looked at the hosts' networks");
            let secrets_known = api::collect(bundle, &dirs.dir.join("pki").join("admin.conf"));
            step("asked the API");
            containers::collect(bundle, dirs, cluster, secrets_known);
            step("took the containers' output");
        }
        Err(error) => {
            bundle.add_missing("status, networks and objects", error);
            containers::collect(bundle, dirs, cluster, false);
        }
    }
}

fn versions() -> Value {
    let kernel = nix::sys::utsname::uname();
    let kernel = kernel.as_ref().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default().trim_matches('"').to_owned();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    json!({
        "mullion": env!("CARGO_PKG_VERSION"),
        "kubernetes": crate::app::node::VERSION,
        "kernel": kernel,
        "system": system,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": memory.lines().next().unwrap_or_default(),
        "ordinaryUser": Env::of_process().uid != 0,
    })
}

/// Names and sizes of DIR's files; what is in them stays there. Not of the nodes' own files: those are the user's.
fn listing(dir: &Path) -> String {
    let mut lines = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = entry.metadata() else { continue };
            let relative = path.strip_prefix(dir).unwrap_or(&path).display().to_string();
            let depth = relative.split('/').count();
            lines.push(format!("{:>12} {relative}{}\n", meta.len(), if meta.is_dir() { "/" } else { "" }));
            if meta.is_dir() && depth < 3 {
                todo.push(path);
            }
        }
    }
    lines.sort_by(|a, b| a[13..].cmp(&b[13..]));
    lines.concat()
}

/// The end of a file.
fn take(bundle: &mut Bundle, name: &str, path: &Path, most: u64) {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let read = || {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map(|_| bytes)
    };
    match read() {
        Ok(bytes) => bundle.add(name, bytes),
        Err(error) => bundle.add_missing(name, error),
    }
}

/// Files below a directory of ours; links (to programs) are left out.
fn tree(bundle: &mut Bundle, name: &str, dir: &Path) {
    let mut entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let inside = format!("{name}/{}", entry.file_name().to_string_lossy());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => tree(bundle, &inside, &entry.path()),
            Ok(kind) if kind.is_file() => take(bundle, &inside, &entry.path(), FILE),
            _ => {}
        }
    }
}

/// Documents of a node's Host Networking Service.
fn hns(bundle: &mut Bundle, dirs: &Dirs, node: &str) {
    use hcn::table::Listing;
    let address = format!("unix:{}", dirs.socket(node, "hcn").display());
    let client = match hcn::HcnClient::connect(&address) {
        Ok(client) => client,
        Err(error) => return bundle.add_missing(&format!("network service of {node}"), error),
    };
    for listing in [Listing::Networks, Listing::Endpoints, Listing::LoadBalancers, Listing::Namespaces] {
        let name = listing.as_str();
        match hcn::table::render(client.blocking(), listing, true) {
            Ok(text) => bundle.add(format!("hosts/{node}/hns/{name}.json"), text),
            Err(error) => bundle.add_missing(&format!("{name} of {node}"), error),
        }
    }
}
