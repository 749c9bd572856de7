//! The supervisor, on the real host: starts init, keeps the state of processes, holds ports, stops.
//!
//! Threads: one reads init's events, one serves [`Dirs::control_socket`], one serves
//! [`Dirs::ports_socket`]; the caller waits in [`Lab::wait_event`]. None of them polls.

mod control;
mod ports;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use linux_sys::fdpass;
use linux_sys::signal::{Signal, Signals};
use linux_sys::spawn::{Child, Namespaces, Spawn, Stdio, Step};

use crate::dir::{Dirs, LOCK, PARTS};
use crate::error::LabError;
use crate::init::SOCKET;
use crate::lan::{GATEWAY, Host, LAN};
use crate::outside::{self, Outside};
use crate::owner;
use crate::preflight;
use crate::protocol::{Command, Event, InitConfig, ProcessSpec, ProcessStatus, Status};

pub use control::{down, status};

/// How long init has for namespaces and LAN.
const SET_UP: Duration = Duration::from_secs(20);
/// How long init has to end by itself.
const STOP: Duration = Duration::from_millis(900);
/// What of the environment reaches the lab.
const PASSED: [&str; 7] = ["PATH", "HOME", "USER", "MULLION_LOG", "RUST_BACKTRACE", "LANG", linux_sys::ns::TEST_INHERIT];

/// A lab to be started. RUN was made by [`Dirs::make_run`], and the caller holds the lock.
#[derive(Debug)]
pub struct LabConfig {
    /// Its paths.
    pub dirs: Dirs,
    /// Hosts on the LAN, from [`crate::lan::hosts`].
    pub hosts: Vec<Host>,
    /// Those with a second adapter, [`crate::lan::SECOND_ADAPTER`].
    pub two_adapters: Vec<String>,
    /// What runs in it.
    pub processes: Vec<ProcessSpec>,
    /// Descriptors for processes, by name (the API server's listener), and DIR's lock as [`LOCK`], which is then free only when the
    /// last process has ended, however the supervisor ends. At most 16.
    pub fds: Vec<(String, OwnedFd)>,
    /// Further networks and the hosts that know the way there, for the router.
    pub routes: Vec<(IpNet, IpAddr)>,
    /// Whether hosts have IPv6 too, [`crate::lan::ipv6`].
    pub ipv6: bool,
    /// The way to the outside, if there is to be one.
    pub outside: Option<outside::Settings>,
    /// Directories besides DIR and RUN that processes of the lab write.
    pub shared: Vec<SharedDir>,
    /// Program and arguments that call [`crate::init::main`]; the path of init's configuration is
    /// added. `/proc/self/exe` is this program.
    pub init: Vec<String>,
}

/// A directory that processes of several labs write.
#[derive(Debug)]
pub struct SharedDir {
    /// The directory; root's `up` makes it.
    pub path: PathBuf,
    /// What labs keep in it. In a lab that root starts, these entries belong to the lab's users; other entries keep their owners.
    pub entries: Vec<&'static str>,
}

/// A running lab. Dropping it ends the lab at once, as the end of this process does.
#[derive(Debug)]
pub struct Lab {
    dirs: Dirs,
    socket: OwnedFd,
    init: Child,
    events: Receiver<Event>,
    sender: Sender<Event>,
    shared: Arc<Shared>,
    ports: ports::Ports,
    control: control::Server,
    /// Closed last: the client that asked for the end waits for it.
    waiting: control::Waiting,
    outside: Option<Outside>,
    /// How long an orderly stop may wait for processes that get SIGPWR.
    power: Duration,
    ended: bool,
}

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    status: Mutex<Status>,
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ctrl-C, termination and the terminal's end, caught for [`Lab::end_on`]. To be called first
/// thing in `main`: threads that exist by then would still be ended by them.
///
/// # Errors
/// When the system has no descriptor for them.
pub fn end_signals() -> io::Result<Signals> {
    Signals::catch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}

/// Starts a lab; returns when its namespaces and LAN are there and its processes are being started.
/// May be called from any process, with threads or without.
///
/// # Errors
/// [`LabError::Namespaces`], [`LabError::Nftables`] or [`LabError::Init`]; nothing runs then, and RUN
/// is removed.
pub fn start(config: LabConfig) -> Result<Lab, LabError> {
    let dirs = config.dirs.clone();
    let started = try_start(config);
    if started.is_err() {
        let _ = dirs.remove_run();
    }
    started
}

fn try_start(config: LabConfig) -> Result<Lab, LabError> {
    let LabConfig { dirs, hosts, two_adapters, processes, fds, routes, ipv6, outside, shared: directories, init } = config;
    let shared = Arc::new(Shared::default());
    *shared.status() = first_status(&dirs, &processes);
    let power = Duration::from_millis(processes.iter().map(|process| process.power_ms).max().unwrap_or(0));
    let (names, fds): (Vec<String>, Vec<OwnedFd>) = fds.into_iter().unzip();
    let lock = names.iter().position(|name| name == LOCK).and_then(|at| fds[at].try_clone().ok());
    let init_config = InitConfig {
        run: dirs.run.clone(),
        dir: dirs.dir.clone(),
        hosts,
        two_adapters,
        gateway: GATEWAY,
        prefix: LAN.prefix_len(),
        routes,
        ipv6,
        outside: outside.is_some(),
        router_thread: outside.is_some() && linux_sys::spawn::is_machine_root().unwrap_or(false),
        processes,
        fds: names,
    };
    let path = dirs.run.join("init.json");
    let text = serde_json::to_vec(&init_config).map_err(|e| LabError::Init(e.to_string()))?;
    fs::write(&path, text).map_err(LabError::file("write", &path))?;
    let failed = |e: io::Error| LabError::Init(e.to_string());
    let log = open_log(&dirs)?;
    for shared in &directories {
        owner::share(&shared.path, &shared.entries)?;
    }
    owner::share(&dirs.dir, &PARTS)?;
    // RUN was made empty for this lab: all of it is the lab's.
    owner::give(&dirs.run)?;
    // The lab removes RUN when the supervisor cannot.
    let base = dirs.run.parent().unwrap_or(&dirs.run);
    owner::give_one(base)?;
    let (socket, theirs) = fdpass::pair().map_err(failed)?;
    let child = spawn_init(&dirs, &init, theirs, (path, log), &directories)?;
    shared.status().init = child.pid();
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    fdpass::send(&socket, b"descriptors", &borrowed).map_err(failed)?;
    let (sender, events) = channel();
    let waiting = control::Waiting::default();
    let ports = ports::serve(&dirs.ports_socket(), Arc::clone(&shared)).map_err(failed)?;
    let control = control::serve(&dirs.control_socket(), Arc::clone(&shared), sender.clone(), waiting.clone()).map_err(failed)?;
    for socket in [dirs.ports_socket(), dirs.control_socket()] {
        owner::give(&socket)?;
    }
    let reader = socket.try_clone().map_err(failed)?;
    let (thread_shared, thread_sender) = (Arc::clone(&shared), sender.clone());
    let read = move || read_events(&reader, &thread_shared, &thread_sender);
    thread::Builder::new().name("lab-events".into()).spawn(read).map_err(failed)?;
    let mut lab = Lab { dirs, socket, init: child, events, sender, shared, ports, control, waiting, outside: None, power, ended: false };
    match lab.wait_network().and_then(|router| lab.open_outside(outside.as_ref(), router, lock)) {
        Ok(()) => Ok(lab),
        Err(e) => {
            lab.end_now();
            Err(e)
        }
    }
}

fn first_status(dirs: &Dirs, processes: &[ProcessSpec]) -> Status {
    let processes = processes.iter().map(|p| ProcessStatus {
        name: p.name.clone(),
        host: p.host.clone(),
        pid: None,
        ready: false,
        restarts: 0,
        last_exit: None,
        log: p.log.clone(),
    });
    Status { supervisor: std::process::id(), dir: dirs.dir.clone(), processes: processes.collect(), ..Status::default() }
}

/// Standard output and errors of init.
type Log = (OwnedFd, OwnedFd);

fn open_log(dirs: &Dirs) -> Result<Log, LabError> {
    let log = dirs.log(None, "lab");
    let open = || {
        fs::create_dir_all(log.parent().unwrap_or(&dirs.dir))?;
        let file = OwnedFd::from(fs::File::options().create(true).append(true).open(&log)?);
        Ok((file.try_clone()?, file))
    };
    open().map_err(LabError::file("open", &log))
}

fn spawn_init(dirs: &Dirs, init: &[String], socket: OwnedFd, (config, (out, err)): (PathBuf, Log), shared: &[SharedDir]) -> Result<Child, LabError> {
    let (program, args) = init.split_first().ok_or_else(|| LabError::Init("no program for init".into()))?;
    // The program too: shims mount it by its name.
    let own = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)).filter(|dir| dir.is_dir());
    let run = dirs.run.parent().unwrap_or(&dirs.run);
    let paths = shared.iter().map(|shared| &shared.path).chain([&dirs.dir]).chain(&own).map(PathBuf::as_path).chain([run]);
    let (trees, steps) = owner::reach(&paths.collect::<Vec<_>>()).map_err(|e| LabError::Init(e.to_string()))?;
    let kinds = Namespaces::USER | Namespaces::MOUNT | Namespaces::NET | Namespaces::PID | Namespaces::IPC | Namespaces::UTS;
    let mut spawn = Spawn::new(program).args(args).arg(config).env_clear();
    for name in PASSED {
        if let Some(value) = std::env::var_os(name) {
            spawn = spawn.env(name, value);
        }
    }
    let spawned = spawn
        .stdin(Stdio::Null)
        .stdout(Stdio::Fd(out))
        .stderr(Stdio::Fd(err))
        .keep_fd(socket, SOCKET)
        .cwd("/")
        .new_session()
        .new_namespaces(kinds)
        .map_unprivileged_users()
        .step(Step::MakePrivate)
        .steps(steps)
        .steps([
            Step::Proc("/proc".into()),
            Step::Tmpfs { target: dirs.run.join("ns"), options: "mode=0700,size=1m".into() },
            Step::SetHostname("mullion".into()),
            Step::LoopbackUp,
        ])
        .spawn();
    drop(trees);
    spawned.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => LabError::Init(e.to_string()),
        _ => LabError::Namespaces(preflight::explain_now(&e.to_string())),
    })
}

fn pass_on(signals: &Signals, to: &Sender<Event>) {
    while let Ok(signal) = signals.wait() {
        tracing::debug!(%signal, "asked to end");
        if to.send(Event::DownRequested).is_err() {
            return;
        }
    }
}

/// Hands init's events on, and keeps the status up to date.
fn read_events(socket: &OwnedFd, shared: &Shared, to: &Sender<Event>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok((length, _)) = fdpass::receive(socket, &mut buffer) {
        if length == 0 {
            break;
        }
        match serde_json::from_slice::<Event>(&buffer[..length]) {
            Ok(event) => {
                note(&mut shared.status(), &event);
                let _ = to.send(event);
            }
            Err(e) => tracing::warn!("init sent an unknown event: {e}"),
        }
    }
    let _ = to.send(Event::Ended { status: "init is gone".into() });
}

fn note(status: &mut Status, event: &Event) {
    let (Event::Started { name, .. } | Event::Ready { name, .. } | Event::Exited { name, .. }) = event else { return };
    let Some(process) = status.processes.iter_mut().find(|p| p.name == *name) else { return };
    match event {
        Event::Started { pid, .. } => {
            process.restarts += u32::from(process.last_exit.is_some());
            process.pid = Some(*pid);
        }
        Event::Ready { .. } => process.ready = true,
        Event::Exited { status, .. } => {
            (process.pid, process.ready, process.last_exit) = (None, false, Some(status.clone()));
        }
        _ => {}
    }
}

impl Lab {
    /// Returns the number of init's descriptor of the router's namespace.
    fn wait_network(&mut self) -> Result<i32, LabError> {
        match self.events.recv_timeout(SET_UP) {
            Ok(Event::NetworkReady { micros, router_fd }) => {
                tracing::debug!(micros, "namespaces and LAN are there");
                Ok(router_fd)
            }
            Ok(Event::NoNftables { reason }) => Err(LabError::Nftables(reason)),
            Ok(Event::Failed { reason }) => Err(LabError::Init(reason)),
            Ok(other) => Err(LabError::Init(format!("{other:?}; see {}", self.dirs.log(None, "lab").display()))),
            Err(_) => Err(LabError::Init(format!("no network after {SET_UP:?}; see {}", self.dirs.log(None, "lab").display()))),
        }
    }

    fn open_outside(&mut self, settings: Option<&outside::Settings>, router: i32, lock: Option<OwnedFd>) -> Result<(), LabError> {
        if let Some(settings) = settings {
            self.outside = Some(Outside::start(settings, &self.dirs, self.init.pid(), router, lock)?);
        }
        Ok(())
    }

    /// The next event, or `None` after `limit`. After [`Event::Ended`] nothing follows.
    pub fn wait_event(&self, limit: Duration) -> Option<Event> {
        self.events.recv_timeout(limit).ok()
    }

    /// From now on these signals arrive as [`Event::DownRequested`], as `mullion down` does.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub fn end_on(&self, signals: Signals) -> io::Result<()> {
        let sender = self.sender.clone();
        thread::Builder::new().name("lab-signals".into()).spawn(move || pass_on(&signals, &sender)).map(drop)
    }

    /// Waits until all `names` are ready; events on the way go to `seen`.
    ///
    /// # Errors
    /// [`LabError::Init`] names what is missing after `limit`, or that the lab ended or is to end.
    pub fn wait_ready(&self, names: &[&str], limit: Duration, mut seen: impl FnMut(&Event)) -> Result<(), LabError> {
        let deadline = Instant::now() + limit;
        loop {
            let missing: Vec<_> = {
                let status = self.shared.status();
                names.iter().filter(|n| !status.processes.iter().any(|p| p.name == **n && p.ready)).copied().collect()
            };
            if missing.is_empty() {
                return Ok(());
            }
            match self.wait_event(deadline.saturating_duration_since(Instant::now())) {
                Some(Event::Ended { status }) => return Err(LabError::Init(status)),
                Some(Event::DownRequested) => return Err(LabError::Init("it was asked to end while it started".into())),
                Some(event) => seen(&event),
                None => return Err(LabError::Init(format!("not ready after {limit:?}: {}", missing.join(", ")))),
            }
        }
    }

    /// What runs.
    pub fn status(&self) -> Status {
        self.shared.status().clone()
    }

    /// Adds to the output of `mullion status`.
    pub fn set_extra(&self, key: &str, value: serde_json::Value) {
        self.shared.status().extra.insert(key.into(), value);
    }

    /// The lab's init on the real host: `nsenter -t PID -U -m -p -n` enters the lab.
    pub fn init_pid(&self) -> u32 {
        self.init.pid()
    }

    /// Ends the processes in order, then everything, and removes RUN; within a second after those have ended that get SIGPWR.
    ///
    /// # Errors
    /// When RUN cannot be removed. Nothing runs even then.
    pub fn stop(mut self) -> Result<(), LabError> {
        if let Ok(text) = serde_json::to_vec(&Command::Stop) {
            let _ = fdpass::send(&self.socket, &text, &[]);
        }
        let _ = self.init.pidfd().wait_end(STOP.saturating_add(self.power));
        self.end_now();
        self.dirs.remove_run()
    }

    /// Ends init, and with it its pid namespace, and waits for that.
    fn end_now(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.outside = None;
            let _ = self.init.kill(Signal::SIGKILL);
            let _ = self.init.wait();
            self.ports.close();
            self.control.close();
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.end_now();
        let _ = self.dirs.remove_run();
        self.waiting.release();
    }
}
