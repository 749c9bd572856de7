//! The processes of the node: containerd and `mullion node`.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use test_lab::until;

/// containerd's socket.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// Where it listens beside.
pub const TCP: &str = "127.0.0.1:10010";
/// Where plug-ins and their configuration are.
pub const CNI: &str = "/run/cni";
const CONFIG: &str = "/run/containerd.toml";
/// What moves the agent's clock, where it is there.
pub const CLOCK: &str = "/run/clock.so";

/// A process that is ended and started again by name.
pub struct Process {
    name: &'static str,
    command: fn() -> Command,
    child: Mutex<Option<Child>>,
}

impl Process {
    pub fn containerd() -> Self {
        Self::of("containerd", || {
            let mut command = Command::new("containerd");
            command.args(["--config", CONFIG]);
            command
        })
    }

    /// The agent, with service proxy and pod network.
    pub fn node() -> Self {
        Self::of("node", || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
            command.args(["node", "--config", "/run/node.yaml"]);
            if Path::new(CLOCK).exists() {
                command.env("LD_PRELOAD", CLOCK);
            }
            command
        })
    }

    fn of(name: &'static str, command: fn() -> Command) -> Self {
        Self { name, command, child: Mutex::default() }
    }

    pub fn start(&self) {
        let log = |file: std::io::Result<File>| file.unwrap_or_else(|error| panic!("the log of {}: {error}", self.name));
        let path = format!("/run/{}.log", self.name);
        let file = log(File::options().create(true).append(true).open(&path));
        let mut command = (self.command)();
        command.stdin(Stdio::null()).stdout(log(file.try_clone())).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        *self.child.lock().unwrap() = Some(child);
    }

    /// Ends it as a crash would.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().and_then(|()| child.wait()).unwrap_or_else(|error| panic!("ending {}: {error}", self.name));
        }
    }

    /// How it ended by itself, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().as_mut()?.try_wait().unwrap_or_else(|error| panic!("looking for {}: {error}", self.name))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.lock().unwrap().as_ref().map(Child::id)
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(format!("/run/{}.log", self.name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// Writes containerd's configuration, links the plug-ins, and starts it. What a container without CAP_SYS_RESOURCE above it lacks is left
/// out: lower scores of the kernel's killer. By default CRI is not among what its TCP port serves.
pub fn start_containerd(process: &Process) {
    let config = format!(
        r#"version = 2
[grpc]
  address = "{SOCKET}"
  tcp_address = "{TCP}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_tcp_service = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}/bin"
    conf_dir = "{CNI}/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{other}]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{other}.options]
      Root = "{root}"
"#,
        other = crate::runtimes::HANDLER,
        root = crate::runtimes::ROOT,
        pause = crate::image::PAUSE,
    );
    std::fs::write(CONFIG, config).unwrap();
    for plugin in ["bridge", "host-local", "portmap", "loopback"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mullion"), Path::new(CNI).join("bin").join(plugin)).unwrap();
    }
    process.start();
    until("containerd", || ctr(&["version"]));
}

/// containerd's own client, in the namespace that CRI uses.
pub fn ctr(args: &[&str]) -> Result<String, String> {
    let output = Command::new("ctr").args(["--address", SOCKET, "--namespace", "k8s.io"]).args(args).output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Sandboxes and containers that containerd holds.
pub fn held() -> Vec<String> {
    ctr(&["containers", "list", "--quiet"]).expect("containerd's list").lines().map(str::to_owned).collect()
}
