//! A whole lab with small programs in it, as the user who runs the tests and, for root, as an
//! ordinary user too. This binary is the test, the lab's init and the programs.
#![cfg(target_os = "linux")]

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lab::dir::{Dirs, Env, LOCK};
use lab::error::LabError;
use lab::protocol::{Event, ProcessSpec, Readiness};
use lab::supervisor::{self, Lab, LabConfig, SharedDir};
use lab::{lan, preflight};
use linux_sys::mount::mounts_below;
use linux_sys::netlink::Rtnl;
use linux_sys::signal::Signal;
use linux_sys::spawn::{Spawn, Stdio, Step};
use test_lab::{LIMIT, until};

const TESTS: [(&str, fn()); 12] = [
    ("hosts_reach_each_other_and_nothing_is_left", hosts_reach_each_other_and_nothing_is_left),
    ("hosts_have_known_sysctls_whatever_the_machine_has", hosts_have_known_sysctls_whatever_the_machine_has),
    ("nobody_in_a_lab_is_root_of_the_machine", nobody_in_a_lab_is_root_of_the_machine),
    ("processes_are_restarted_alone_and_orphans_survive", processes_are_restarted_alone_and_orphans_survive),
    ("everything_ends_with_the_supervisor", everything_ends_with_the_supervisor),
    ("signal_ends_the_lab_in_order", signal_ends_the_lab_in_order),
    ("ports_of_the_real_host_are_relayed", ports_of_the_real_host_are_relayed),
    ("down_and_status_reach_the_supervisor", down_and_status_reach_the_supervisor),
    ("processes_that_want_sigpwr_end_before_the_others", processes_that_want_sigpwr_end_before_the_others),
    ("a_power_down_ends_with_the_supervisor", a_power_down_ends_with_the_supervisor),
    ("hosts_go_down_and_start_again_when_asked", hosts_go_down_and_start_again_when_asked),
    ("a_lab_that_cannot_start_leaves_nothing", a_lab_that_cannot_start_leaves_nothing),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("lab-init") => return lab::init::main(Path::new(args.last().unwrap())),
        Some("supervise") => return supervise(Path::new(&args[1])),
        Some("shim") => return programs::shim(&args),
        Some("program") => return programs::run(&args[1], &args[2..]),
        Some("--list") => {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS {
        if !filters.is_empty() && !filters.iter().any(|f| name.contains(f.as_str())) {
            continue;
        }
        let ok = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        *(if ok { &mut passed } else { &mut failed }) += 1;
    }
    if nix::unistd::geteuid().is_root() && !args.iter().any(|a| a == "--as-user") {
        let ok = as_ordinary_user(&filters);
        println!("test all_of_it_as_an_ordinary_user ... {}", if ok { "ok" } else { "FAILED" });
        *(if ok { &mut passed } else { &mut failed }) += 1;
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::from(u8::from(failed > 0))
}

/// The same tests as user `nobody`, from a copy of this binary that this user can reach.
fn as_ordinary_user(filters: &[&String]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let exe = dir.path().join("lab-test");
    fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    let user = Spawn::new(exe)
        .args(filters)
        .arg("--as-user")
        .env("XDG_RUNTIME_DIR", "")
        .env("TMPDIR", "/tmp")
        .cwd("/")
        .stdin(Stdio::Null)
        .step(Step::SetUser { uid: 65_534, gid: 65_534 });
    user.spawn().unwrap().wait().unwrap().success()
}

/// A directory for DIR and RUN, and a mark in the environment of all processes.
struct Bench {
    root: tempfile::TempDir,
    dirs: Dirs,
    mark: String,
}

impl Bench {
    fn new(name: &str) -> Self {
        let root = tempfile::Builder::new().prefix("lab-").tempdir().unwrap();
        // As a home directory may be.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(root.path().join("shared")).unwrap();
        let env = Env { runtime_dir: Some(root.path().into()), uid: nix::unistd::geteuid().as_raw(), ..Env::default() };
        let dirs = Dirs::resolve(&root.path().join("dir"), &env).unwrap();
        Self { mark: format!("LAB_TEST_MARK={name}-{}", std::process::id()), root, dirs }
    }

    fn program(&self, name: &str, host: &str, args: &[&str]) -> ProcessSpec {
        let argv = ["/proc/self/exe", "program"].into_iter().chain(args.iter().copied());
        let mut process = ProcessSpec::new(name, host, argv, self.dirs.log(None, name));
        let (key, value) = self.mark.split_once('=').unwrap();
        process.env = vec![(key.into(), value.into())];
        process
    }

    fn config(&self, processes: Vec<ProcessSpec>) -> LabConfig {
        let names = ["n1", "n2"];
        fs::create_dir_all(&self.dirs.dir).unwrap();
        self.dirs.make_run(names).unwrap();
        let init = ["/proc/self/exe", "lab-init"].map(Into::into).into();
        LabConfig {
            dirs: self.dirs.clone(),
            hosts: lan::hosts(names, &BTreeMap::new()).unwrap(),
            two_adapters: vec!["n1".into()],
            processes,
            fds: Vec::new(),
            routes: Vec::new(),
            ipv6: false,
            outside: None,
            shared: vec![SharedDir { path: self.file("shared"), entries: Vec::new() }],
            init,
        }
    }

    fn start(&self, processes: Vec<ProcessSpec>) -> Lab {
        supervisor::start(self.config(processes)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Processes of the lab that live, by their mark.
    fn living(&self) -> Vec<String> {
        let all = fs::read_dir("/proc").unwrap().flatten().filter(|e| {
            let environ = fs::read(e.path().join("environ")).unwrap_or_default();
            environ.split(|b| *b == 0).any(|v| v == self.mark.as_bytes())
        });
        all.map(|e| fs::read_to_string(e.path().join("cmdline")).unwrap_or_default().replace('\0', " ")).collect()
    }

    fn assert_gone(&self) {
        until("the end of all processes", || self.living().is_empty());
        assert!(!self.dirs.run.exists(), "{} is left", self.dirs.run.display());
        assert_eq!(mounts_below(self.root.path()).unwrap(), Vec::<PathBuf>::new());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A file that processes of the lab write.
    fn out(&self, name: &str) -> PathBuf {
        self.file("shared").join(name)
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn links() -> Vec<String> {
    Rtnl::open().unwrap().links().unwrap().into_iter().map(|l| l.name).collect()
}

fn hosts_reach_each_other_and_nothing_is_left() {
    let bench = Bench::new("reach");
    let before = links();
    let out = bench.out("out");
    let mut server = bench.program("server", "n1", &["serve", "10.240.0.11:80", "from n1"]);
    server.readiness = Readiness::Notify;
    let mut far = bench.program("far", "n2", &["fetch", "10.240.0.11:80", out.to_str().unwrap()]);
    far.after = vec!["server".into()];
    let out6 = bench.out("out6");
    let mut server6 = bench.program("server6", "gw", &["serve", "[fd00:10:240::1]:80", "from gw"]);
    server6.readiness = Readiness::Notify;
    let mut far6 = bench.program("far6", "n2", &["fetch", "[fd00:10:240::1]:80", out6.to_str().unwrap()]);
    far6.after = vec!["server6".into()];
    let mut gateway = bench.program("gateway", "gw", &["serve", "10.240.0.1:80", "from gw"]);
    gateway.readiness = Readiness::Notify;
    let api = preflight::bind_api(0).unwrap();
    let port = api.local_addr().unwrap().port();
    let mut control = bench.program("control", "cp", &["serve-inherited", "4", "from cp"]);
    control.fds = vec![("api".into(), 4)];
    control.readiness = Readiness::Notify;
    let mut config = bench.config(vec![server, far, server6, far6, gateway, control, bench.program("sleep", "cp", &["sleep"])]);
    config.fds = vec![("api".into(), OwnedFd::from(api))];
    config.ipv6 = true;
    let start = Instant::now();
    let lab = supervisor::start(config).unwrap_or_else(|e| panic!("{e}"));
    let started = start.elapsed();
    lab.wait_ready(&["server", "gateway", "control", "sleep"], LIMIT, |_| {}).unwrap();
    until("an answer over the LAN", || read(&out) == "from n1");
    until("an answer over IPv6", || read(&out6) == "from gw");
    let mut text = String::new();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "from cp", "the inherited listener answers on the real host");
    assert_eq!(links(), before, "the real host's links");
    assert!(bench.living().len() >= 4 && !bench.dirs.netns("n1").exists(), "the pins are visible inside only");
    println!("  lab with 3 hosts and router started in {started:?}");
    let stop = Instant::now();
    lab.stop().unwrap();
    let stopped = stop.elapsed();
    println!("  stopped in {stopped:?}");
    bench.assert_gone();
    assert_eq!(links(), before);
    assert!(!bench.dirs.run.parent().unwrap().exists(), "nor the parent of RUN");
}

/// Whoever starts the lab: its user 0 is no root outside, and can neither change the machine's settings nor reach root's files.
fn nobody_in_a_lab_is_root_of_the_machine() {
    let bench = Bench::new("nobody");
    let out = bench.out("out");
    let secret = bench.root.path().join("secret");
    fs::write(&secret, "of whoever starts the lab\n").unwrap();
    let mut look = bench.program("look", "n1", &["look", out.to_str().unwrap(), "/proc/sys/kernel/printk_delay", secret.to_str().unwrap()]);
    look.readiness = Readiness::Notify;
    let lab = bench.start(vec![look]);
    lab.wait_ready(&["look"], LIMIT, |_| {}).unwrap();
    let seen = read(&out);
    let map: Vec<&str> = seen.lines().next().unwrap_or_default().split_whitespace().collect();
    assert!(matches!(map.as_slice(), ["0", outside, _] if *outside != "0"), "user 0 of the lab is user 0 of the machine: {seen}");
    assert!(seen.contains("own value: refused"), "a lab changes the machine's settings: {seen}");
    if nix::unistd::geteuid().is_root() {
        assert!(seen.contains("groups:\n"), "groups of the machine are left: {seen}");
        assert!(!seen.contains("of whoever starts the lab"), "{seen}");
    }
    lab.stop().unwrap();
    bench.assert_gone();
}

fn hosts_have_known_sysctls_whatever_the_machine_has() {
    let bench = Bench::new("switches");
    let expected = [
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/eth0/forwarding", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/eth0/rp_filter", "0"),
        ("ipv4/conf/all/route_localnet", "0"),
        ("ipv4/conf/eth0/route_localnet", "0"),
        ("ipv4/conf/eth0/proxy_arp", "0"),
        ("ipv4/conf/eth0/arp_ignore", "0"),
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/eth0/send_redirects", "0"),
        ("ipv6/conf/all/forwarding", "0"),
        ("ipv6/conf/eth0/disable_ipv6", "0"),
        ("bridge/bridge-nf-call-iptables", "0"),
    ];
    let files: Vec<String> = expected.iter().map(|(name, _)| format!("/proc/sys/net/{name}")).collect();
    let hosts = ["gw", "cp", "n1", "n2"];
    let programs = hosts.map(|host| {
        let out = bench.out(host);
        let args: Vec<&str> = ["copy", out.to_str().unwrap()].into_iter().chain(files.iter().map(String::as_str)).collect();
        bench.program(&format!("copy-{host}"), host, &args)
    });
    let lab = bench.start(programs.into());
    for host in hosts {
        until("the switches of a host", || bench.out(host).exists());
        for line in read(&bench.out(host)).lines() {
            let (file, value) = line.split_once('=').unwrap();
            let (name, right) = expected.iter().find(|(name, _)| file.ends_with(name)).unwrap();
            // The router's LAN is a bridge, and a kernel without the bridge firewall has no switch for it.
            assert!(value == *right || value == "absent" && (host == "gw" || name.starts_with("bridge/")), "{host}: {line}");
        }
    }
    lab.stop().unwrap();
}

fn processes_are_restarted_alone_and_orphans_survive() {
    let bench = Bench::new("restart");
    let orphan = bench.out("orphan");
    let steady = bench.program("steady", "n1", &["sleep"]);
    let parent = bench.program("parent", "n1", &["leave-orphan", orphan.to_str().unwrap()]);
    let missing = ProcessSpec::new("missing", "n1", ["/no/such/program"], bench.dirs.log(None, "missing"));
    let mut never = bench.program("never", "n1", &["sleep"]);
    never.after = vec!["missing".into()];
    let lab = bench.start(vec![steady, parent, missing, never]);
    let mut exits = BTreeMap::<String, Vec<u64>>::new();
    let deadline = Instant::now() + LIMIT;
    while exits.get("missing").map_or(0, Vec::len) < 3 || exits.get("parent").map_or(0, Vec::len) < 3 {
        assert!(Instant::now() < deadline, "{exits:?}");
        if let Some(Event::Exited { name, restart_ms, .. }) = lab.wait_event(LIMIT) {
            exits.entry(name).or_default().push(restart_ms);
        }
    }
    assert_eq!(exits["parent"][..3], [100, 200, 400]);
    let status = lab.status();
    let of = |name: &str| status.processes.iter().find(|p| p.name == name).unwrap();
    assert_eq!((of("steady").restarts, of("steady").ready), (0, true));
    assert!(of("parent").restarts >= 2 && of("parent").last_exit.as_deref() == Some("exit code 5"), "{:?}", of("parent"));
    assert!(of("missing").last_exit.as_ref().unwrap().contains("start /no/such/program: execute"));
    assert_eq!((of("never").pid, of("never").last_exit.clone()), (None, None));
    // The first parent's child wrote its beat before and after its parent's end.
    let beats = read(&orphan).len();
    until("more beats of the orphan", || read(&orphan).len() > beats + 1);
    lab.stop().unwrap();
    bench.assert_gone();
}

/// A supervisor in a process of its own; ready once it has written its number.
fn supervise(root: &Path) -> ExitCode {
    let signals = supervisor::end_signals().unwrap();
    let dirs = Dirs { dir: root.join("dir"), run: root.join("mullion/00000001") };
    let mark = read(&root.join("mark"));
    let mut sleeper = ProcessSpec::new("sleep", "n1", ["/proc/self/exe", "program", "sleep"], dirs.log(None, "sleep"));
    sleeper.env = vec![("LAB_TEST_MARK".into(), mark)];
    if root.join("power").exists() {
        sleeper.argv = ["/proc/self/exe", "program", "power"].map(Into::into).into();
        sleeper.argv.extend([dirs.dir.display().to_string(), read(&root.join("power"))]);
        sleeper.readiness = Readiness::Notify;
        sleeper.power_ms = 60_000;
    }
    let mut lock = dirs.lock().unwrap();
    dirs.make_run(["n1"]).unwrap();
    let init = ["/proc/self/exe", "lab-init"].map(Into::into).into();
    let fds = vec![(LOCK.to_owned(), OwnedFd::from(lock.file().try_clone().unwrap()))];
    let config = LabConfig {
        dirs: dirs.clone(),
        hosts: lan::hosts(["n1"], &BTreeMap::new()).unwrap(),
        two_adapters: Vec::new(),
        processes: vec![sleeper],
        fds,
        routes: Vec::new(),
        ipv6: false,
        outside: None,
        shared: Vec::new(),
        init,
    };
    let lab = supervisor::start(config).unwrap();
    lab.end_on(signals).unwrap();
    lab.wait_ready(&["sleep"], LIMIT, |_| {}).unwrap();
    fs::write(root.join("ready"), lab.init_pid().to_string()).unwrap();
    while !matches!(lab.wait_event(LIMIT), Some(Event::DownRequested | Event::Ended { .. }) | None) {}
    lab.stop().unwrap();
    drop(lock);
    // As one that a busy machine does not let end.
    if root.join("linger").exists() {
        std::thread::sleep(Duration::from_millis(500));
    }
    ExitCode::SUCCESS
}

fn start_supervisor(bench: &Bench) -> (linux_sys::spawn::Child, Dirs) {
    fs::write(bench.file("mark"), bench.mark.split_once('=').unwrap().1).unwrap();
    let child = Spawn::new(std::env::current_exe().unwrap()).arg("supervise").arg(bench.root.path()).stdin(Stdio::Null).spawn().unwrap();
    until("the supervisor", || !read(&bench.file("ready")).is_empty());
    (child, Dirs { dir: bench.file("dir"), run: bench.file("mullion/00000001") })
}

fn everything_ends_with_the_supervisor() {
    let bench = Bench::new("killed");
    let (child, dirs) = start_supervisor(&bench);
    assert!(!bench.living().is_empty());
    let init: u32 = read(&bench.file("ready")).parse().unwrap();
    child.kill(Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    until("the end of the lab", || bench.living().is_empty() && !dirs.run.exists());
    until("the end of init", || !Path::new(&format!("/proc/{init}/ns/net")).exists());
    dirs.lock().expect("the lock is free again");
}

fn signal_ends_the_lab_in_order() {
    let bench = Bench::new("signal");
    let (child, dirs) = start_supervisor(&bench);
    child.kill(Signal::SIGINT).unwrap();
    assert!(child.pidfd().wait_end(LIMIT).unwrap(), "the supervisor ends");
    assert!(child.wait().unwrap().success() && bench.living().is_empty() && !dirs.run.exists());
}

fn down_and_status_reach_the_supervisor() {
    let bench = Bench::new("down");
    let absent = Dirs { dir: bench.file("dir"), run: bench.file("mullion/00000001") };
    assert!(matches!(supervisor::status(&absent), Err(LabError::NotRunning(_))));
    let (child, dirs) = start_supervisor(&bench);
    let status = supervisor::status(&dirs).unwrap();
    assert_eq!((status.supervisor, status.processes.len(), status.processes[0].ready), (child.pid(), 1, true));
    assert!(matches!(dirs.lock(), Err(LabError::Running { pid, .. }) if pid == Some(child.pid())));
    // Clients that connect and are slow to say what they want, as on a busy machine: neither they nor others suffer.
    let slow: Vec<_> = (0..3).map(|_| UnixStream::connect(dirs.control_socket()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(1500));
    for mut stream in slow {
        writeln!(stream, "\"status\"").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"supervisor\""), "{answer:?}");
    }
    fs::write(bench.file("linger"), "").unwrap();
    supervisor::down(&dirs, Duration::ZERO).unwrap();
    assert!(child.try_wait().unwrap().is_some_and(|status| status.success()), "the supervisor has ended, too");
    dirs.lock().expect("a next one may start at once");
    assert!(bench.living().is_empty() && !dirs.run.exists());
    assert!(matches!(supervisor::down(&dirs, Duration::ZERO), Err(LabError::NotRunning(_))));
}

fn processes_that_want_sigpwr_end_before_the_others() {
    let bench = Bench::new("power");
    fs::write(bench.file("power"), "").unwrap();
    let (child, dirs) = start_supervisor(&bench);
    supervisor::down(&dirs, Duration::from_secs(60)).unwrap();
    assert!(child.try_wait().unwrap().is_some_and(|status| status.success()));
    assert_eq!(read(&bench.file("dir/said")), "goodbye", "it had longer than others have after SIGTERM");
    assert!(bench.living().is_empty() && !dirs.run.exists());
}

fn a_power_down_ends_with_the_supervisor() {
    let bench = Bench::new("powerless");
    fs::write(bench.file("power"), "for ever").unwrap();
    let (child, dirs) = start_supervisor(&bench);
    child.kill(Signal::SIGINT).unwrap();
    until("SIGPWR", || bench.file("dir/told").exists());
    assert!(!bench.living().is_empty());
    child.kill(Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    until("the end of the lab", || bench.living().is_empty() && !dirs.run.exists());
}

fn hosts_go_down_and_start_again_when_asked() {
    let bench = Bench::new("switch");
    fs::create_dir_all(&bench.dirs.dir).unwrap();
    let mut agent = bench.program("agent", "n1", &["power", bench.dirs.dir.to_str().unwrap(), ""]);
    agent.power_ms = 60_000;
    let (pod, other_pod, child) = (bench.out("pod"), bench.out("other"), bench.out("child"));
    let shim = |host: &str, out: &Path| {
        let dir = bench.dirs.host(host).join("cri/sandboxes/a");
        bench.program(&format!("{host}/runtime"), host, &["leave-shim", dir.to_str().unwrap(), out.to_str().unwrap()])
    };
    let apart = bench.program("apart", "n1", &["keep-apart", child.to_str().unwrap()]);
    let (n1, n2) = (bench.program("n1", "n1", &["sleep"]), bench.program("n2", "n2", &["sleep"]));
    let lab = bench.start(vec![agent, n1, n2, shim("n1", &pod), shim("n2", &other_pod), apart]);
    let of = |name: &str| lab.status().processes.iter().find(|p| p.name == name).unwrap().clone();
    until("all three", || ["agent", "n1", "n2"].iter().all(|name| of(name).pid.is_some()));
    let switch = bench.dirs.power_dir("n1");
    let ask = |line: &str| fs::File::options().write(true).open(switch.join("request")).unwrap().write_all(line.as_bytes()).unwrap();
    ask("nonsense\nrestart 1000\n");
    until("the request", || switch.join("pending").exists());
    ask("stop 0\nabort\n");
    until("its end", || !switch.join("pending").exists());
    until("the pods", || [&pod, &other_pod, &child].iter().all(|out| out.exists()));
    let length = |out: &Path| fs::metadata(out).unwrap().len();
    let (first, other) = (of("n1").pid, of("n2").pid);
    ask("restart 0\n");
    until("the next start", || of("n1").restarts == 1 && of("n1").pid.is_some() && of("agent").restarts == 1 && of("agent").ready);
    assert_eq!(read(&bench.dirs.dir.join("said")), "goodbye", "it had the time it wants after SIGPWR");
    assert!(of("n1").pid != first && of("n1").last_exit.as_deref() == Some("signal SIGKILL"));
    assert_eq!(of("agent").last_exit.as_deref(), Some("exit code 0"));
    assert_eq!((of("n2").pid, of("n2").restarts), (other, 0), "another host");
    let ended = (length(&pod), length(&child), length(&other_pod));
    until("a sign of the other host's pod", || length(&other_pod) > ended.2 + 2);
    assert_eq!((length(&pod), length(&child)), (ended.0, ended.1), "what has another namespace ends too");
    until("no request", || !switch.join("pending").exists());
    ask("stop 0\n");
    until("the end of the host", || of("n1").pid.is_none() && of("agent").pid.is_none());
    std::thread::sleep(Duration::from_millis(500));
    assert!(of("n1").pid.is_none() && of("agent").pid.is_none() && of("n2").pid == other, "it stays down");
    lab.stop().unwrap();
    bench.assert_gone();
}

fn ports_of_the_real_host_are_relayed() {
    let bench = Bench::new("ports");
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (tcp, udp) = (free(), UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().port();
    let socket = bench.dirs.ports_socket();
    let args = ["relay", socket.to_str().unwrap(), &tcp.to_string(), &taken.to_string(), &udp.to_string()].map(str::to_owned);
    let relay = bench.program("relay", "cp", &args.each_ref().map(String::as_str));
    let server = bench.program("server", "n1", &["serve", "10.240.0.11:80", "from n1"]);
    let echo = bench.program("echo", "n2", &["echo-udp", "10.240.0.12:53"]);
    let lab = bench.start(vec![server, echo, relay]);
    let fetch = |port: u16| -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    until("an answer through the relay", || fetch(tcp).is_ok_and(|t| t == "from n1"));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    client.connect((Ipv4Addr::LOCALHOST, udp)).unwrap();
    let mut buffer = [0; 64];
    until("a packet through the relay", || client.send(b"over udp").is_ok() && client.recv(&mut buffer).is_ok_and(|n| &buffer[..n] == b"over udp"));
    let ports = lab.status().ports;
    let error = |port: u16| ports.iter().find(|p| p.port.port == port).unwrap().error.clone();
    assert!(error(tcp).is_none() && error(udp).is_none() && error(taken).unwrap().contains("in use"), "{ports:?}");
    // A relay that is gone for a while: connections wait in the kept socket.
    let pid = lab.status().processes.iter().find(|p| p.name == "relay").unwrap().pid.unwrap();
    let killed = Spawn::new("/proc/self/exe").args(["program", "kill", &lab.init_pid().to_string(), &pid.to_string()]).spawn().unwrap();
    assert!(killed.wait().unwrap().success());
    until("the relay's restart", || lab.status().processes.iter().any(|p| p.name == "relay" && p.restarts == 1));
    assert_eq!(fetch(tcp).unwrap(), "from n1");
    drop(holder);
    until("the port that was taken", || fetch(taken).is_ok_and(|t| t == "from n1"));
    lab.stop().unwrap();
    assert!(fetch(tcp).is_err(), "the port is free again");
    bench.assert_gone();
}

fn a_lab_that_cannot_start_leaves_nothing() {
    let bench = Bench::new("fails");
    let mut config = bench.config(vec![]);
    config.hosts[1].name = "bad/name".into();
    let e = supervisor::start(config).unwrap_err();
    assert!(matches!(e, LabError::Init(_)), "{e}");
    bench.assert_gone();
    let mut config = bench.config(vec![]);
    config.init = vec!["/no/such/mullion".into()];
    assert!(supervisor::start(config).unwrap_err().to_string().contains("start /no/such/mullion: execute"));
    bench.assert_gone();
    io::stdout().flush().unwrap();
}
