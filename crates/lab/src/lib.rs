//! Hosts on one machine for `mullion up`: namespaces, LAN, supervision, the NodePort relay. It knows nothing of Kubernetes.
//!
//! | module | what it does | where it runs |
//! | --- | --- | --- |
//! | [`lan`] | the LAN and addresses of hosts | anywhere, pure |
//! | [`dir`] | DIR and RUN: lock and paths | real host |
//! | [`owner`] | whose files a lab of root's has | real host |
//! | [`preflight`] | port, disk, user namespaces | real host |
//! | [`supervisor`] | starts init; status, ports, the end | real host |
//! | [`init`] | pid 1: the LAN, and keeping processes running | lab |
//! | [`notify`] | "I am ready", sent by a process | lab |
//! | [`relay`] | carries connections from the real host's ports to nodes | lab |
//! | [`outside`] | the way out of the LAN through pasta | real host |
//! | [`protocol`] | what these say to each other | |
//! | [`error`] | what goes wrong: messages and exit codes | |
//! | [`shell`] | arguments of command lines that messages print | |
//!
//! # Flow of `mullion up`
//! ```no_run
//! # use lab::{dir, error::LabError, lan, preflight, protocol::*, supervisor};
//! # fn up(given: Option<&std::path::Path>) -> Result<(), LabError> {
//! let signals = supervisor::end_signals().expect("a descriptor for signals"); // before any thread
//! let env = dir::Env::of_process();
//! let dirs = dir::Dirs::resolve(given.unwrap_or(&env.default_dir()), &env)?;
//! preflight::disk(&dirs.dir)?;
//! preflight::namespaces()?;
//! let mut lock = dirs.lock()?; // to be held to the end
//! let hosts = lan::hosts(["win01"], &Default::default()).expect("room on the LAN");
//! let api = preflight::bind_api(6443)?;
//! dirs.make_run(["win01"])?;
//!
//! let mut control_plane = ProcessSpec::new("control-plane", "cp", ["/proc/self/exe", "control-plane"], dirs.log(None, "control-plane"));
//! control_plane.fds = vec![("api".into(), 4)]; // lab's descriptor "api" is number 4 there: fdpass::inherited(4)
//! control_plane.readiness = Readiness::Notify; // it calls notify::ready("…")
//! let mut cri = ProcessSpec::new("win01/container-sim", "win01", ["/proc/self/exe", "container-sim"], dirs.log(Some("win01"), "container-sim"));
//! cri.readiness = Readiness::Socket(dirs.socket("win01", "cri"));
//! let mut node = ProcessSpec::new("win01/node", "win01", ["/proc/self/exe", "node"], dirs.log(Some("win01"), "node"));
//! node.after = vec!["control-plane".into(), "win01/container-sim".into()];
//!
//! let lab = supervisor::start(supervisor::LabConfig {
//!     dirs: dirs.clone(),
//!     hosts,
//!     two_adapters: Vec::new(),
//!     processes: vec![control_plane, cri, node],
//!     // Init keeps the lock too: it is free when the last process has ended, even if the supervisor was killed.
//!     fds: vec![("api".into(), api.into()), (dir::LOCK.into(), lock.file().try_clone().expect("a descriptor").into())],
//!     routes: Vec::new(),
//!     ipv6: false,
//!     outside: None,
//!     shared: vec![supervisor::SharedDir { path: env.cache_dir(), entries: vec!["images"] }],
//!     init: vec!["/proc/self/exe".into(), "lab-init".into()], // calls init::main(last argument)
//! })?;
//! lab.end_on(signals).expect("a thread for signals");
//! lab.wait_ready(&["control-plane", "win01/node"], std::time::Duration::from_secs(30), |event| println!("{event:?}"))?;
//! loop {
//!     match lab.wait_event(std::time::Duration::from_secs(3600)) {
//!         Some(Event::DownRequested) => break lab.stop(),
//!         Some(Event::Ended { status }) => return Err(LabError::Init(status)),
//!         _ => {}
//!     }
//! }
//! # }
//! ```
//! `mullion status` and `mullion down` are [`supervisor::status`] and [`supervisor::down`]. A signal
//! that ends programs arrives as `Event::DownRequested` too. The relay runs in the control plane's process:
//! [`relay::run`] with [`dir::Dirs::ports_socket`].
//!
//! # Guarantees
//! - The real host's network, firewall, mounts and files outside DIR and RUN are not touched. Works as
//!   root and as an ordinary user.
//! - However the supervisor ends, every process, mount and namespace of the lab ends, and RUN goes.
//! - [`supervisor::down`] returns, and DIR's lock is free, only when all of them have ended.
//! - A process that ends is started again, alone, with back-off; orphans in the lab (shims) survive.
//!
//! # Caveats
//! - Orphans that end are reaped without a trace: whatever needs a shim holds a pidfd of it.
//! - A stop gives processes that want SIGPWR the time they ask for, then all 0.6 s after SIGTERM; pods get SIGKILL (a resume is a reboot of all hosts).
#![cfg(target_os = "linux")]

pub mod dir;
pub mod error;
pub mod init;
pub mod lan;
pub mod notify;
pub mod outside;
pub mod owner;
pub mod preflight;
pub mod protocol;
pub mod relay;
pub mod shell;
pub mod supervisor;
