//! A cluster for the time of a test, and the programs that are run against it.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long one command may take, `up` and `down` included.
const COMMAND: Duration = Duration::from_secs(600);
/// How long the cluster may take to become as it was asked to be.
pub const PATIENCE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(50);

/// What a command output.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Output {
    /// Standard output of a command that must succeed.
    #[track_caller]
    pub fn ok(self, what: &str) -> String {
        assert_eq!(self.code, Some(0), "{what} failed: {}{}", self.out, self.err);
        self.out
    }
}

/// Runs a command to its end. Its output goes to files: children that outlive it hold no pipe open.
pub fn run(command: &mut Command, stdin: &str) -> Output {
    let mut files: Vec<File> = (0..3).map(|_| tempfile::tempfile().expect("a temporary file")).collect();
    files[0].write_all(stdin.as_bytes()).expect("a written file");
    files[0].seek(SeekFrom::Start(0)).expect("a file");
    let handle = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
    let mut child = command
        .stdin(handle(&files[0]))
        .stdout(handle(&files[1]))
        .stderr(handle(&files[2]))
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let end = Instant::now() + COMMAND;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break Some(status);
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        sleep(Duration::from_millis(5));
    };
    let mut read = |at: usize| {
        let mut bytes = Vec::new();
        files[at].seek(SeekFrom::Start(0)).and_then(|_| files[at].read_to_end(&mut bytes)).expect("a file");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = (read(1), read(2));
    assert!(status.is_some(), "{command:?} did not end within {COMMAND:?}: {out}{err}");
    Output { code: status.and_then(|status| status.code()), out, err }
}

/// Asks until the answer is there.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + limit;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(why) => assert!(Instant::now() < end, "{what}: not within {limit:?}: {why}"),
        }
        sleep(POLL);
    }
}

/// A port of 127.0.0.1 that nobody has now.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).expect("a free port").port()
}

/// Ports of 127.0.0.1 for one cluster: its API server's, which is the first, and its NodePorts. They lie below those that the kernel
/// gives to connections, and no other test of this machine has them while the value lives.
struct Ports {
    api: u16,
    node_ports: RangeInclusive<u16>,
    _claim: UnixListener,
}

impl Ports {
    const COUNT: u16 = 40;

    fn claim() -> Self {
        let claim = |first: u16| {
            // An abstract socket belongs to the network namespace, as ports do, and is gone when its process is.
            let name = SocketAddr::from_abstract_name(format!("mullion-e2e-ports-{first}")).ok()?;
            let claim = UnixListener::bind_addr(&name).ok()?;
            let ports = first..=first + (Self::COUNT - 1);
            let free = ports.clone().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
            free.then(|| Self { api: first, node_ports: first + 1..=*ports.end(), _claim: claim })
        };
        (20_000..30_000).step_by(usize::from(Self::COUNT)).find_map(claim).expect("free ports below 30000")
    }
}

/// Directories of one test: DIR, and the XDG directories, so that nothing of the user's is read or written.
pub struct Place {
    home: tempfile::TempDir,
    _share: Share,
}

impl Place {
    pub fn new() -> Self {
        Self::with_windows(Share::shared())
    }

    /// Without the Windows that containers see, on a machine on which no other test runs.
    pub fn alone_without_windows() -> Self {
        Self::empty(Share::Alone { _guard: MACHINE.write().unwrap_or_else(PoisonError::into_inner) })
    }

    /// For commands that start nothing, while a cluster of the same test runs.
    pub fn new_beside() -> Self {
        Self::empty(Share::Second)
    }

    fn with_windows(share: Share) -> Self {
        let place = Self::empty(share);
        // The Windows that containers see is built once a user (`mullion template`), not once a test.
        let cache = place.path().join("cache").join("mullion");
        fs::create_dir(&cache).and_then(|()| std::os::unix::fs::symlink(template(), cache.join("wine-template"))).expect("a link");
        place
    }

    fn empty(share: Share) -> Self {
        let home = tempfile::Builder::new().prefix("mln").tempdir_in("/tmp").expect("a temporary directory");
        for dir in ["run", "cache"] {
            fs::create_dir(home.path().join(dir)).expect("a directory");
        }
        Self { home, _share: share }
    }

    pub fn path(&self) -> &Path {
        self.home.path()
    }

    pub fn dir(&self) -> PathBuf {
        self.path().join("dir")
    }

    /// A command with this place's directories.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("HOME", self.path()).env("XDG_RUNTIME_DIR", self.path().join("run")).env("XDG_CACHE_HOME", self.path().join("cache"));
        command.env_remove("XDG_STATE_HOME").env_remove("KUBECONFIG").current_dir(self.path());
        command
    }

    /// `mullion ARGS`, with `--dir DIR` behind.
    pub fn mullion(&self, args: &[&str]) -> Output {
        run(self.command(mullion()).args(args).arg("--dir").arg(self.dir()), "")
    }
}

/// `MULLION_TEST_TEMPLATE`, or the user's own.
fn template() -> PathBuf {
    let of_user = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/mullion/wine-template");
    let template = std::env::var_os("MULLION_TEST_TEMPLATE").map_or_else(of_user, PathBuf::from);
    assert!(template.is_dir(), "{} is missing: `mullion template` makes it", template.display());
    template
}

/// The program under test.
pub fn mullion() -> PathBuf {
    std::env::var_os("MULLION_TEST_BIN").map_or_else(|| env!("CARGO_BIN_EXE_mullion").into(), PathBuf::from)
}

/// kubectl, unmodified.
pub fn kubectl() -> PathBuf {
    std::env::var_os("MULLION_TEST_KUBECTL").map_or_else(|| "kubectl".into(), PathBuf::from)
}

/// helm 4, unmodified.
fn helm() -> PathBuf {
    std::env::var_os("MULLION_TEST_HELM").map_or_else(|| "helm".into(), PathBuf::from)
}

/// Clusters of several tests run beside each other; a test that looks at the whole machine runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// A test's part of the machine.
enum Share {
    /// With other tests.
    Shared { _guard: RwLockReadGuard<'static, ()> },
    /// No other test has a place meanwhile.
    Alone { _guard: RwLockWriteGuard<'static, ()> },
    /// Of a test that has a place already.
    Second,
}

impl Share {
    fn shared() -> Self {
        Self::Shared { _guard: MACHINE.read().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// A step on a cluster, by name.
pub type Step = (&'static str, fn(&Cluster));

/// Takes the steps whose names contain `MULLION_TEST_STEP`, each even if others failed; fails with the names of those that did.
#[track_caller]
pub fn take(cluster: &Cluster, steps: &[Step]) {
    let chosen = chosen(steps);
    let failed = chosen.iter().filter(|step| !holds(cluster, step)).map(|(name, _)| *name).collect();
    finish(cluster, steps, failed);
}

/// The same, all steps at once. They must not meet: each has objects of its own.
#[track_caller]
pub fn take_at_once(cluster: &Cluster, steps: &[Step]) {
    let chosen = chosen(steps);
    let failed = std::thread::scope(|scope| {
        let running: Vec<_> = chosen.iter().map(|step| (step.0, scope.spawn(|| holds(cluster, step)))).collect();
        running.into_iter().filter_map(|(name, step)| (!step.join().unwrap_or(false)).then_some(name)).collect()
    });
    finish(cluster, steps, failed);
}

fn chosen(steps: &[Step]) -> Vec<Step> {
    let chosen = std::env::var("MULLION_TEST_STEP").unwrap_or_default();
    steps.iter().filter(|(name, _)| name.contains(&chosen)).copied().collect()
}

fn holds(cluster: &Cluster, (name, step): &Step) -> bool {
    let begin = Instant::now();
    let held = catch_unwind(AssertUnwindSafe(|| step(cluster))).is_ok();
    eprintln!("{} {name} ({:.2} s)", if held { "ok  " } else { "FAIL" }, begin.elapsed().as_secs_f64());
    held
}

#[track_caller]
fn finish(cluster: &Cluster, steps: &[Step], failed: Vec<&str>) {
    if !failed.is_empty() {
        cluster.print_logs();
    }
    assert!(failed.is_empty(), "{} of {} steps failed: {}", failed.len(), steps.len(), failed.join("; "));
}

/// A running cluster; ends with the value.
pub struct Cluster {
    pub place: Place,
    pub port: u16,
    /// Interfaces and routes of the real host before the cluster was there.
    pub host_network: String,
    ports: Ports,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    up: bool,
}

impl Cluster {
    /// A cluster of `nodes` (empty: the default ones), all of them Ready.
    pub fn up(nodes: &str) -> Self {
        Self::up_with(nodes, &[])
    }

    /// A cluster with further options of `up`.
    pub fn up_with(nodes: &str, options: &[&str]) -> Self {
        let mut cluster = Self::new(Place::new());
        cluster.start_with(nodes, options);
        cluster
    }

    /// A second cluster at the same time.
    pub fn beside(&self, nodes: &str) -> Self {
        let mut cluster = Self::new(Place::with_windows(Share::Second));
        cluster.start_with(nodes, &[]);
        cluster
    }

    fn new(place: Place) -> Self {
        let kubeconfig = place.path().join("kubeconfig");
        let kubectl = kubectl();
        let host_network = crate::footprint::host_network();
        let ports = Ports::claim();
        Self { place, port: ports.api, host_network, ports, kubeconfig, kubectl, up: false }
    }

    /// Its `--service-node-port-range`. NodePorts are ports of 127.0.0.1, where clusters of other tests have theirs.
    pub fn node_ports(&self) -> RangeInclusive<u16> {
        self.ports.node_ports.clone()
    }

    /// Starts it, or starts it again.
    #[track_caller]
    pub fn start(&mut self, nodes: &str) {
        self.start_with(nodes, &[]);
    }

    #[track_caller]
    fn start_with(&mut self, nodes: &str, options: &[&str]) {
        let (port, kubeconfig) = (self.port.to_string(), self.kubeconfig.to_string_lossy().into_owned());
        let node_ports = format!("{}-{}", self.node_ports().start(), self.node_ports().end());
        let mut args = vec!["up", "--detach", "--port", &port, "--kubeconfig", &kubeconfig, "--service-node-port-range", &node_ports];
        if !nodes.is_empty() {
            args.extend(["--nodes", nodes]);
        }
        args.extend(options);
        let begin = Instant::now();
        let output = self.place.mullion(&args);
        if output.code != Some(0) {
            self.print_logs();
        }
        output.ok("mullion up --detach");
        self.up = true;
        eprintln!("ok   up ({:.2} s)", begin.elapsed().as_secs_f64());
    }

    /// Ends it as a user does.
    pub fn down(&mut self) -> Output {
        self.up = false;
        self.place.mullion(&["down"])
    }

    /// The tails of all logs, on standard error.
    pub fn print_logs(&self) {
        let mut dirs = vec![self.place.dir().join("log")];
        let hosts = fs::read_dir(self.place.dir().join("hosts"));
        dirs.extend(hosts.into_iter().flatten().flatten().map(|host| host.path().join("log")));
        let mut logs: Vec<PathBuf> = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten().map(|entry| entry.path()).collect();
        logs.sort();
        for log in logs.iter().filter(|log| log.is_file()) {
            let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {} ({} lines)", log.display(), lines.len());
            for line in &lines[lines.len().saturating_sub(40)..] {
                eprintln!("{line}");
            }
        }
    }

    /// kubectl for this cluster.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(&self.kubectl);
        command.env("KUBECONFIG", &self.kubeconfig).args(args);
        command
    }

    /// What helm says to `args`.
    pub fn helm(&self, args: &[&str]) -> Output {
        run(self.place.command(helm()).env("KUBECONFIG", &self.kubeconfig).args(args), "")
    }

    /// What kubectl says to `args`, with `stdin` for `-f -`.
    pub fn try_kubectl(&self, args: &[&str], stdin: &str) -> Output {
        run(&mut self.command(args), stdin)
    }

    /// Standard output of a kubectl that must succeed.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args, "").ok(&format!("kubectl {}", args.join(" ")))
    }

    /// `kubectl apply` of a manifest that must be taken.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.try_kubectl(&["apply", "-f", "-"], manifest).ok("kubectl apply")
    }

    /// `kubectl get ARGS -o json`.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("kubectl get {args:?} printed no JSON ({error}): {text}"))
    }

    /// Waits until a Deployment has rolled out; says how its pods are if it does not.
    #[track_caller]
    pub fn rolled_out(&self, deployment: &str) {
        let limit = format!("--timeout={}s", PATIENCE.as_secs());
        let output = self.try_kubectl(&["rollout", "status", &format!("deployment/{deployment}"), &limit], "");
        if output.code != Some(0) {
            let pods = self.try_kubectl(&["describe", "pods", "-l", &format!("app={deployment}")], "");
            panic!("{deployment} did not roll out: {}{}\n{}", output.out, output.err, pods.out);
        }
    }

    /// The NodePort of a Service's first port.
    #[track_caller]
    pub fn node_port(&self, service: &str) -> u16 {
        let port = self.json(&["service", service])["spec"]["ports"][0]["nodePort"].as_u64();
        port.and_then(|port| port.try_into().ok()).unwrap_or_else(|| panic!("service {service} has no NodePort"))
    }

    #[track_caller]
    pub fn pods(&self, app: &str) -> Vec<Value> {
        self.json(&["pods", "-l", &format!("app={app}")])["items"].as_array().cloned().unwrap_or_default()
    }

    /// Drive C of a node, as the host has it.
    pub fn drive_c(&self, node: &str) -> PathBuf {
        self.drive(node, "c")
    }

    /// A drive of a node, as the host has it.
    pub fn drive(&self, node: &str, letter: &str) -> PathBuf {
        self.place.dir().join("hosts").join(node).join(letter)
    }

    /// Waits until `KIND/NAME` is Ready; says what is with it if not.
    #[track_caller]
    pub fn ready(&self, object: &str) {
        let limit = format!("--timeout={}s", PATIENCE.as_secs());
        let output = self.try_kubectl(&["wait", "--for=condition=Ready", object, &limit], "");
        if output.code != Some(0) {
            panic!("{object} is not Ready: {}{}\n{}", output.out, output.err, self.try_kubectl(&["describe", object], "").out);
        }
    }

    /// Waits until no object of a kind has the label.
    #[track_caller]
    pub fn gone(&self, kind: &str, label: &str) {
        until(&format!("no {kind} with {label}"), PATIENCE, || {
            let left = self.kubectl(&["get", kind, "-l", label, "-o", "name"]);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }

    /// Waits until an object has an Event with this reason whose message contains `part`.
    #[track_caller]
    pub fn event(&self, kind: &str, name: &str, reason: &str, part: &str) {
        until(&format!("{reason} of {kind} {name}"), PATIENCE, || {
            let text = self.kubectl(&["describe", kind, name]);
            if text.contains(reason) && text.contains(part) { Ok(()) } else { Err(text) }
        });
    }

    /// Kills the process of a pod's stand-in, as a crash would.
    #[track_caller]
    pub fn crash(&self, pod: &str) {
        let status = self.json(&["pod", pod])["status"]["containerStatuses"][0].clone();
        let id = status["containerID"].as_str().and_then(|id| id.split_once("://")).map(|(_, id)| id.to_owned()).expect("a container");
        let killed = crate::recovery::kill_container(self, &id);
        assert!(killed > 0, "container {id} of pod {pod} has a process");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.up {
            let output = self.down();
            if output.code != Some(0) {
                eprintln!("mullion down failed: {}{}", output.out, output.err);
            }
        }
    }
}
