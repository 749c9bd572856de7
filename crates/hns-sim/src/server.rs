//! The simulated service as a process: HCN socket and admin socket.
//!
//! Threads: one accepts on each socket; each HCN connection has one that reads and one for each call under way, each admin connection has
//! one; the caller's thread waits for the signal to end.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use hcn::HnsVersion;
use hcn::remote::{Address, Listener, Stream, serve_connection};

use crate::switches::Switches;
use crate::{Options, Simulator, admin};

/// Room for the stack of a connection's thread: documents are shallow, netlink messages live on the heap.
const CONNECTION_STACK: usize = 512 << 10;

/// Configuration of a simulated host's service.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the host, for logs.
    pub node: String,
    /// Where compartments are bind-mounted: `DIR/GUID`.
    pub netns_dir: PathBuf,
    /// Where the state is kept.
    pub state_dir: PathBuf,
    /// The service's socket.
    pub socket: PathBuf,
    /// Socket for faults, counters and the call log.
    pub admin_socket: PathBuf,
    /// Version of the simulated service.
    pub hns_version: HnsVersion,
    /// The host's uplink, the adapter "Ethernet" of documents.
    pub uplink: String,
    /// Settings of switches, as `NAME=VALUE`.
    pub switches: Vec<String>,
    /// Faults and latencies from the start.
    pub options: Options,
}

/// Accepts connections of `listener` on a thread of its own, and serves each on another.
fn accept(name: &str, listener: Listener, serve: impl Fn(Stream) -> io::Result<()> + Send + Sync + 'static) -> io::Result<()> {
    let serve = Arc::new(serve);
    let name = name.to_owned();
    let acceptor = std::thread::Builder::new().name(format!("{name}-accept")).stack_size(CONNECTION_STACK);
    acceptor.spawn(move || {
        loop {
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of descriptors, or a peer that is gone already: try again later.
                    tracing::warn!(socket = name, %error, "a connection was not accepted");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    continue;
                }
            };
            let serve = serve.clone();
            let thread = std::thread::Builder::new().name(name.clone()).stack_size(CONNECTION_STACK);
            let started = thread.spawn(move || {
                if let Err(error) = serve(stream) {
                    tracing::debug!(%error, "a connection broke");
                }
            });
            if let Err(error) = started {
                tracing::warn!(socket = name, %error, "no thread for a connection");
            }
        }
    })?;
    Ok(())
}

fn listen(path: &std::path::Path) -> anyhow::Result<Listener> {
    let shown = path.display();
    Address::Unix(path.to_owned())
        .listen()
        .with_context(|| format!("cannot listen on {shown}: end the service that uses it, or choose another --socket"))
}

/// Serves `simulator` on both sockets until the process ends. Returns when both listen.
pub fn serve(simulator: &Simulator, config: &Config) -> anyhow::Result<()> {
    let (hcn_socket, admin_socket) = (listen(&config.socket)?, listen(&config.admin_socket)?);
    let connections = Connections::default();
    let open = Arc::downgrade(&connections);
    simulator.on_restart(move || {
        if let Some(connections) = open.upgrade() {
            connections.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(Stream::shutdown);
        }
    });
    let (sessions, last) = (simulator.clone(), AtomicU64::new(0));
    accept("hcn", hcn_socket, move |stream| serve_hcn(stream, &sessions, &connections, last.fetch_add(1, Ordering::Relaxed)))?;
    let simulator = simulator.clone();
    accept("hcn-admin", admin_socket, move |stream| admin::serve(stream, &simulator))?;
    Ok(())
}

/// The connections of a socket, by number: a restart of the service ends them all.
type Connections = Arc<Mutex<HashMap<u64, Stream>>>;

/// Serves a connection that [`Simulator::on_restart`] can end.
fn serve_hcn(stream: Stream, simulator: &Simulator, connections: &Connections, number: u64) -> io::Result<()> {
    let lock = || connections.lock().unwrap_or_else(PoisonError::into_inner);
    lock().insert(number, stream.try_clone()?);
    let served = serve_connection(stream, &simulator.session(), None);
    lock().remove(&number);
    served
}

impl Config {
    /// The switches of the version, with the settings.
    pub fn switches(&self) -> anyhow::Result<Switches> {
        let mut switches = Switches::of(self.hns_version);
        self.switches.iter().try_for_each(|setting| switches.set(setting)).map_err(anyhow::Error::msg)?;
        Ok(switches)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: HNS {} over {} at {}", self.node, self.hns_version, self.uplink, self.socket.display())
    }
}

/// Runs the service in the current network namespace until SIGTERM or SIGINT. Compartments and their traffic stay.
#[cfg(target_os = "linux")]
pub fn run(config: &Config) -> anyhow::Result<()> {
    use crate::{linux::LinuxKernel, store::Store};
    use tokio::signal::unix::{SignalKind, signal};

    let (store, state) = Store::open(&config.state_dir)?;
    let kernel = LinuxKernel::open(&config.netns_dir, &config.uplink)?;
    let simulator = Simulator::with_options(Box::new(kernel), config.switches()?, Some((store, state)), config.options.clone())?;
    serve(&simulator, config)?;
    tracing::info!(%config, "the Host Networking Service answers");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok::<_, io::Error>(())
    })?;
    tracing::info!(node = config.node, "the Host Networking Service ends; compartments stay");
    Ok(())
}
