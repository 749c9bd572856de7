//! The lab for `tests/lab.rs`: namespaces, a node, an image, and short ways to ask.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use container_sim::{CniDirs, Config, HostDirs};
use cri::v1;
use futures::FutureExt as _;
use host::NodeOs;
use images::Store;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use sha2::{Digest as _, Sha256};
use test_lab::until_async;

pub type Test = fn(PathBuf) -> Pin<Box<dyn Future<Output = ()>>>;

/// The parts that a test executable plays: a CNI plug-in or a shim where the runtime starts it as one, the runner of `tests` inside the lab,
/// and at first the one who makes the lab, after `prepare`.
pub fn play(tests: &[(&str, Test)], prepare: fn()) -> ExitCode {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    if cni::is_own_plugin(&name) {
        return cni::plugin_main(&name);
    }
    let args: Vec<String> = args.collect();
    match args.first().map(String::as_str) {
        Some("shim") => container_sim::shim_main(args.into_iter().skip(1)),
        Some("inside") => run_all(tests),
        _ => {
            prepare();
            lab()
        }
    }
}

/// Makes the lab's namespaces and runs this executable inside.
fn lab() -> ExitCode {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    let all = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    unshare(all).expect("user namespaces are required by this test");
    std::fs::write("/proc/self/setgroups", "deny").unwrap();
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1\n")).unwrap();
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1\n")).unwrap();
    let status = Command::new("/proc/self/exe").arg("inside").args(std::env::args().skip(1).filter(|arg| !arg.starts_with('-'))).status().unwrap();
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

/// Runs the tests whose names hold what was asked for, each in a directory of its own.
fn run_all(tests: &[(&str, Test)]) -> ExitCode {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>).unwrap();
    linux_sys::ns::inherit_for_tests().and_then(|()| linux_sys::ns::reset_switches()).unwrap();
    let links = linux_sys::netlink::Rtnl::open().unwrap();
    links.set_up(links.link("lo").unwrap().unwrap().index).unwrap();
    let filter = std::env::args().nth(2);
    let mut failed = 0;
    for (name, test) in tests.iter().filter(|(name, _)| filter.as_ref().is_none_or(|filter| name.contains(filter))) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let began = Instant::now();
        let result = runtime.block_on(AssertUnwindSafe(test(dir.path().to_owned())).catch_unwind());
        println!("test {name} ... {} ({:?})", if result.is_ok() { "ok" } else { "FAILED" }, began.elapsed());
        failed += usize::from(result.is_err());
        if result.is_err() {
            for log in find(dir.path(), "shim.log") {
                println!("  {}: {}", log.display(), std::fs::read_to_string(&log).unwrap_or_default());
            }
            end_all();
        }
    }
    println!("\ntest result: {failed} failed; in a lab by hand: nsenter -U -m -n -p -t PID\n");
    // Pid 1 ends, and with it whatever a failed test left.
    ExitCode::from(u8::from(failed > 0))
}

/// Ends what a failed test left running, which later tests would count as theirs. This process is pid 1 of the lab.
fn end_all() {
    assert_eq!(std::process::id(), 1, "outside a lab this would end the machine's processes");
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), nix::sys::signal::Signal::SIGKILL);
    while !matches!(nix::sys::wait::wait(), Err(nix::Error::ECHILD)) {}
}

fn find(dir: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(find(&path, name));
        } else if entry.file_name() == name {
            found.push(path);
        }
    }
    found
}

/// A node's runtime, served in a task, and a client of it.
pub struct Node {
    config: Config,
    pub client: cri::Client,
    task: Option<(tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<()>)>,
}

impl Node {
    pub async fn linux(dir: &Path) -> Self {
        Self::new(dir, NodeOs::Linux, HostDirs::Root(dir.join("host")), true, None).await
    }

    pub async fn windows(dir: &Path, build: u32, stand_ins: bool) -> Self {
        std::fs::create_dir_all(dir.join("d")).unwrap();
        let drives = HostDirs::Drives([('C', dir.join("host")), ('D', dir.join("d"))].into());
        Self::new(dir, NodeOs::Windows { build }, drives, stand_ins, None).await
    }

    /// A Windows node whose pods are connected by HNS.
    pub async fn windows_over(dir: &Path, build: u32, hcn: &str) -> Self {
        let drives = HostDirs::Drives([('C', dir.join("host"))].into());
        Self::new(dir, NodeOs::Windows { build }, drives, true, Some(hcn.to_owned())).await
    }

    async fn new(dir: &Path, os: NodeOs, host: HostDirs, stand_ins: bool, hcn: Option<String>) -> Self {
        for name in ["host", "ns", "net.d", "bin", "power"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        let socket = dir.join("cri");
        let client = cri::Client::connect(&format!("unix://{}", socket.display())).unwrap();
        let config = Config {
            node: "node01".into(),
            os,
            socket,
            state_dir: dir.join("state"),
            cache_dir: dir.join("cache"),
            host,
            netns_dir: dir.join("ns"),
            hcn,
            cni: CniDirs { conf_dir: dir.join("net.d"), bin_dir: dir.join("bin") },
            processors: 8,
            registries: images::registry::Registries::default(),
            stand_ins,
            power_dir: Some(dir.join("power")),
            template: None,
        };
        let mut node = Self { config, client, task: None };
        node.restart().await;
        node
    }

    pub async fn restart(&mut self) {
        self.halt().await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let config = self.config.clone();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            container_sim::run(config, stopped).await.unwrap();
        });
        self.task = Some((stop, task));
        let socket = self.config.socket.clone();
        until_async("the runtime listens", async || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
        // The first call after a restart may still meet the end of the old connection.
        let _ = self.client.version(Default::default()).await;
        self.client.version(Default::default()).await.unwrap();
    }

    async fn halt(&mut self) {
        if let Some((stop, task)) = self.task.take() {
            let _ = stop.send(());
            let ended = task.await;
            assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()), "the runtime panicked");
        }
    }

    /// Ends the runtime as hard as kill -9 would, as far as its memory goes; pods stay.
    pub async fn stop(&self) {
        if let Some((_, task)) = &self.task {
            task.abort();
            until_async("the runtime is gone", async || task.is_finished()).await;
        }
    }

    pub fn store(&self) -> Store {
        Store::open(&self.config.state_dir.join("images"), &self.config.cache_dir, self.config.os).unwrap()
    }

    pub async fn pull(&self, name: &str) -> Result<String, cri::Error> {
        let image = Some(v1::ImageSpec { image: name.into(), ..Default::default() });
        self.client.pull_image(v1::PullImageRequest { image, auth: None, sandbox_config: None }).await
    }

    pub async fn run(&self, config: v1::PodSandboxConfig) -> String {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        self.client.run_pod_sandbox(request).await.unwrap()
    }

    pub async fn create(&self, pod: &str, config: v1::ContainerConfig) -> Result<String, cri::Error> {
        let request = v1::CreateContainerRequest { pod_sandbox_id: pod.into(), config: Some(config), sandbox_config: None };
        self.client.create_container(request).await
    }

    pub async fn start(&self, pod: &str, mut config: v1::ContainerConfig) -> String {
        if matches!(self.config.os, NodeOs::Linux) && !config.mounts.iter().any(|mount| mount.container_path == "/data") {
            config.mounts.push(v1::Mount { container_path: "/data".into(), host_path: "/data".into(), ..Default::default() });
        }
        let id = self.create(pod, config).await.unwrap();
        self.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap();
        id
    }

    pub async fn status(&self, id: &str) -> v1::ContainerStatus {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        self.client.container_status(request).await.unwrap().status.unwrap()
    }

    pub async fn sandbox(&self, id: &str) -> v1::PodSandboxStatus {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        self.client.pod_sandbox_status(request).await.unwrap().status.unwrap()
    }

    pub async fn wait_exit(&self, id: &str) -> v1::ContainerStatus {
        let exited = async || {
            let status = self.status(id).await;
            if status.state() == v1::ContainerState::ContainerExited { Ok(status) } else { Err(format!("{status:?}")) }
        };
        until_async(format_args!("the end of container {id}"), exited).await
    }

    pub async fn remove(&self, pod: &str) {
        self.client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod.into() }).await.unwrap();
        self.client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: pod.into() }).await.unwrap();
    }
}

pub fn describe(status: &v1::ContainerStatus) -> String {
    format!("{} {} {}", status.exit_code, status.reason, status.message)
}

/// A pod on the node's network.
pub fn sandbox(name: &str) -> v1::PodSandboxConfig {
    let options = v1::NamespaceOption { network: v1::NamespaceMode::Node as i32, ..Default::default() };
    let security = v1::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata { name: name.into(), uid: format!("uid-{name}"), namespace: "default".into(), attempt: 0 }),
        hostname: name.into(),
        log_directory: format!("/var/log/pods/{name}"),
        dns_config: Some(v1::DnsConfig { servers: vec!["10.96.0.10".into()], ..Default::default() }),
        linux: Some(v1::LinuxPodSandboxConfig { security_context: Some(security), ..Default::default() }),
        ..Default::default()
    }
}

/// A HostProcess pod: on the node's network.
pub fn windows_sandbox(name: &str) -> v1::PodSandboxConfig {
    let security = v1::WindowsSandboxSecurityContext { host_process: true, ..Default::default() };
    v1::PodSandboxConfig {
        log_directory: format!(r"C:\var\log\pods\{name}"),
        linux: None,
        windows: Some(v1::WindowsPodSandboxConfig { security_context: Some(security) }),
        ..sandbox(name)
    }
}

pub fn container(name: &str, image: &str, command: &[&str]) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: image.into(), ..Default::default() }),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        log_path: format!("{name}/0.log"),
        ..Default::default()
    }
}

/// Asks the web server on this network namespace's port 80.
pub fn http(method: &str, path: &str, body: &str) -> Option<String> {
    http_at("127.0.0.1:80", method, path, body)
}

pub fn http_at(server: &str, method: &str, path: &str, body: &str) -> Option<String> {
    let server = server.parse().unwrap();
    let mut stream = std::net::TcpStream::connect_timeout(&server, Duration::from_secs(10)).ok()?;
    stream.set_read_timeout(Some(test_lab::LIMIT)).ok()?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

pub fn get(path: &str) -> String {
    http("GET", path, "").expect("the server answers")
}

/// A docker-save archive of `demo:1` in two layers: Debian's static busybox, and a file over it.
pub fn image_archive(dir: &Path) -> PathBuf {
    let busybox = std::fs::read("/bin/busybox").expect("Debian's busybox-static is required by this test");
    let layer = |build: &dyn Fn(&mut tar::Builder<Vec<u8>>)| {
        let mut builder = tar::Builder::new(Vec::new());
        build(&mut builder);
        builder.into_inner().unwrap()
    };
    let file = |builder: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, name, data).unwrap();
    };
    let first = layer(&|builder| {
        file(builder, "bin/busybox", 0o755, &busybox);
        file(builder, "etc/motd", 0o644, b"replaced above\n");
        for name in [
            "sh", "cat", "sleep", "true", "hostname", "id", "ls", "touch", "grep", "printf", "echo", "pwd", "test", "head", "tty", "stty", "mount",
            "tail", "chmod", "unshare",
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_mode(0o777);
            header.set_size(0);
            builder.append_link(&mut header, format!("bin/{name}"), "busybox").unwrap();
        }
    });
    let second = layer(&|builder| file(builder, "etc/motd", 0o644, b"Mullion's test image\n"));
    let digest = |data: &[u8]| format!("sha256:{:x}", Sha256::digest(data));
    let config = serde_json::json!({
        "os": "linux", "architecture": images::platform::host_architecture(),
        "config": { "Cmd": ["/bin/sh"], "WorkingDir": "/work" },
        "rootfs": { "type": "layers", "diff_ids": [digest(&first), digest(&second)] },
    });
    let manifest = serde_json::json!([{ "Config": "config.json", "RepoTags": ["demo:1"], "Layers": ["1.tar", "2.tar"] }]);
    let archive = layer(&|builder| {
        file(builder, "config.json", 0o644, config.to_string().as_bytes());
        file(builder, "1.tar", 0o644, &first);
        file(builder, "2.tar", 0o644, &second);
        file(builder, "manifest.json", 0o644, manifest.to_string().as_bytes());
    });
    let path = dir.join("demo.tar");
    std::fs::write(&path, archive).unwrap();
    path
}

/// A CNI plug-in that writes down its calls and always gives the same address.
pub fn stub_plugin(dir: &Path) {
    let script = format!(
        "#!/bin/sh\ncat >/dev/null\necho $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME >> {}/calls\n\
         [ $CNI_COMMAND = ADD ] && echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"192.168.7.9/24\"}}]}}'\nexit 0\n",
        dir.display()
    );
    let plugin = dir.join("bin/stub");
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let conf = r#"{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"stub"}]}"#;
    std::fs::write(dir.join("net.d/10-test.conflist"), conf).unwrap();
}

/// A simulated HNS over this network namespace with an L2Bridge network, and the configuration that fabric would write.
/// Returns its address and a hold on it.
pub fn hns(dir: &Path) -> (String, hns_sim::Simulator) {
    linux_sys::ns::inherit_for_tests().and_then(|()| linux_sys::ns::reset_switches()).unwrap();
    let links = linux_sys::netlink::Rtnl::open().unwrap();
    // A test of this lab that had an HNS before leaves its switch and adapter.
    for old in links.links().unwrap().into_iter().filter(|link| link.name != "lo") {
        // The other end of a pair goes with the first.
        let _ = links.del_link(old.index);
    }
    links.add_veth("eth0", "lan", None).unwrap();
    for name in ["eth0", "lan"] {
        links.set_up(links.link(name).unwrap().unwrap().index).unwrap();
    }
    links.add_addr(links.link("eth0").unwrap().unwrap().index, "10.240.0.11/24".parse().unwrap()).unwrap();
    std::fs::create_dir_all(dir.join("net.d")).unwrap();
    let config = hns_sim::Config {
        node: "node01".into(),
        netns_dir: dir.join("ns"),
        state_dir: dir.join("hns"),
        socket: dir.join("hcn"),
        admin_socket: dir.join("hcn-admin"),
        hns_version: hcn::HnsVersion::of_build(20348),
        uplink: "eth0".into(),
        switches: Vec::new(),
        options: hns_sim::Options::default(),
    };
    let kernel = hns_sim::linux::LinuxKernel::open(&config.netns_dir, &config.uplink).unwrap();
    let simulator = hns_sim::Simulator::new(Box::new(kernel), hns_sim::switches::Switches::of(config.hns_version), None).unwrap();
    hns_sim::server::serve(&simulator, &config).unwrap();
    let client = hcn::blocking::Client::new(simulator.session());
    let subnet = hcn::Subnet::new("192.168.1.0/24".parse().unwrap(), [192, 168, 1, 1].into());
    client.create(hcn::owned_id("test", "network", "mullion"), &hcn::HostComputeNetwork::new("mullion", hcn::NetworkType::L2Bridge, subnet)).unwrap();
    let conf = serde_json::json!({
        "cniVersion": "1.0.0", "name": "mullion",
        "plugins": [{
            "type": "win-bridge", "apiVersion": 2, "capabilities": { "portMappings": true, "dns": true },
            "ipam": {
                "type": "host-local", "dataDir": dir.join("ipam"),
                "ranges": [[{ "subnet": "192.168.1.0/24", "rangeStart": "192.168.1.3" }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    std::fs::write(dir.join("net.d/10-mullion.conflist"), conf.to_string()).unwrap();
    (format!("unix:{}", dir.join("hcn").display()), simulator)
}
