//! The speaker's sockets and clock: listens, connects, reads whole messages, and publishes what the sessions reached.
//!
//! One task owns the speaker; each connection has a task that reads and one that writes. Everything is bounded: a peer that sends
//! faster than the speaker works waits, one that does not read loses its session. Dropped, connections end without a NOTIFICATION,
//! so that peers keep this node's routes over its restart.

mod connection;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bgp::session::Side;
use bgp::{Input, Output};
use thiserror_ext::AsReport as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::mode::bgp::{Sessions, Speaker};
use connection::{Connection, Happened, News};

/// Inputs that are worked on before what changed is published.
const BATCH: usize = 512;

/// The running speaker of a host. Dropped, it ends.
#[derive(Debug)]
pub struct Running {
    configuration: watch::Sender<Speaker>,
    reached: watch::Receiver<Sessions>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    /// `restarted`: routes of an earlier run are in use.
    pub fn start(speaker: Speaker, restarted: bool) -> Self {
        let (configuration, changes) = watch::channel(speaker);
        let (publish, reached) = watch::channel(Sessions::default());
        let task = tokio::spawn(Driver::new(changes, publish, restarted).run());
        Self { configuration, reached, task }
    }

    /// Takes over a configuration that may have changed.
    pub fn configure(&self, speaker: Speaker) {
        self.configuration.send_if_modified(|held| {
            let differs = *held != speaker;
            *held = speaker;
            differs
        });
    }

    pub fn reached(&self) -> Sessions {
        self.reached.borrow().clone()
    }

    /// Waits until something else was reached.
    pub async fn changed(&mut self) {
        if self.reached.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Whether sockets of this host take passwords.
pub const PASSWORDS: bool = cfg!(target_os = "linux");

struct Listener {
    socket: Arc<TcpListener>,
    /// Peers whose passwords it knows.
    passwords: BTreeMap<IpAddr, bgp::Secret>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Driver {
    changes: watch::Receiver<Speaker>,
    publish: watch::Sender<Sessions>,
    start: Instant,
    speaker: bgp::Speaker,
    configured: Speaker,
    listeners: BTreeMap<(IpAddr, u16), Listener>,
    connections: BTreeMap<(IpAddr, Side), Connection>,
    /// Numbers connections, so that what an ended one still says is not taken for another's.
    next: u64,
    news: mpsc::Sender<News>,
    inbox: mpsc::Receiver<News>,
    /// By address and port, why it does not listen there.
    deaf: BTreeMap<(IpAddr, u16), String>,
    /// Outputs of the start.
    first: Vec<Output>,
}

impl Driver {
    fn new(changes: watch::Receiver<Speaker>, publish: watch::Sender<Sessions>, restarted: bool) -> Self {
        let configured = changes.borrow().clone();
        let (speaker, first) = bgp::Speaker::new(bgp::Time::ZERO, configured.config.clone(), restarted);
        let (news, inbox) = mpsc::channel(256);
        Self {
            changes,
            publish,
            start: Instant::now(),
            speaker,
            configured,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 0,
            news,
            inbox,
            deaf: BTreeMap::new(),
            first,
        }
    }

    async fn run(mut self) {
        self.listen();
        let first = std::mem::take(&mut self.first);
        self.carry_out(first);
        loop {
            self.publish();
            let deadline = self.speaker.deadline().map(|at| self.start + at);
            let asleep = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            // Listening is tried again by and by where the address was not there yet.
            let again = async {
                match self.deaf.is_empty() {
                    false => tokio::time::sleep(bgp::session::CONNECT_RETRY).await,
                    true => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.changes.changed() => match changed {
                    Ok(()) => self.configure(),
                    Err(_) => return,
                },
                () = asleep => self.input(Input::Tick),
                () = again => self.listen(),
                Some(news) = self.inbox.recv() => {
                    self.happened(news);
                    for _ in 0..BATCH {
                        let Ok(news) = self.inbox.try_recv() else { break };
                        self.happened(news);
                    }
                }
            }
        }
    }

    fn configure(&mut self) {
        self.configured = self.changes.borrow_and_update().clone();
        self.listen();
        self.input(Input::Configure(self.configured.config.clone()));
    }

    fn input(&mut self, input: Input) {
        let outputs = self.speaker.handle(self.start.elapsed(), input);
        self.carry_out(outputs);
    }

    fn carry_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Dial(peer) => self.dial(peer),
                Output::Send(peer, side, bytes) => {
                    let full = self.connections.get(&(peer, side)).is_some_and(|connection| !connection.send(bytes));
                    if full {
                        tracing::warn!(%peer, "a BGP peer does not read what it is sent; its connection is ended");
                        self.connections.remove(&(peer, side));
                        self.input(Input::Closed(peer, side));
                    }
                }
                Output::Close(peer, side) => drop(self.connections.remove(&(peer, side))),
                Output::Note(text) => tracing::info!("BGP: {text}"),
            }
        }
    }

    fn dial(&mut self, peer: IpAddr) {
        let Some(connect) = self.configured.config.peers.get(&peer).map(|peer| peer.connect.clone()) else { return };
        self.next += 1;
        let connection = connection::dial(self.next, peer, connect, self.news.clone());
        self.connections.insert((peer, Side::Ours), connection);
    }

    fn happened(&mut self, News { peer, side, number, what }: News) {
        if let Happened::Accepted(stream) = what {
            if self.configured.config.peers.contains_key(&peer) {
                self.next += 1;
                self.connections.insert((peer, Side::Theirs), connection::open(self.next, (peer, Side::Theirs), stream, self.news.clone()));
                self.input(Input::Accepted(peer));
            }
            return;
        }
        // Of a connection that is no longer ours.
        if self.connections.get(&(peer, side)).is_none_or(|connection| connection.number != number) {
            return;
        }
        match what {
            Happened::Accepted(_) => {}
            Happened::Dialed(Ok(stream)) => {
                self.connections.insert((peer, side), connection::open(number, (peer, side), stream, self.news.clone()));
                self.input(Input::Dialed(peer, true));
            }
            Happened::Dialed(Err(error)) => {
                tracing::debug!(%peer, "no BGP connection: {error}");
                self.connections.remove(&(peer, side));
                self.input(Input::Dialed(peer, false));
            }
            Happened::Frame(frame) => self.input(Input::Frame(peer, side, frame)),
            Happened::Broken(why) => self.input(Input::Broken(peer, side, why)),
            Happened::Closed => {
                self.connections.remove(&(peer, side));
                self.input(Input::Closed(peer, side));
            }
        }
    }

    /// Listens where it is configured, and nowhere else; passwords are given to the sockets before their peers connect.
    fn listen(&mut self) {
        let wanted: &BTreeSet<(IpAddr, u16)> = &self.configured.listen;
        self.listeners.retain(|at, _| wanted.contains(at));
        self.deaf.clear();
        for at in wanted {
            if !self.listeners.contains_key(at) {
                match listener(*at) {
                    Ok(socket) => {
                        let socket = Arc::new(socket);
                        let task = tokio::spawn(connection::accept(socket.clone(), self.news.clone()));
                        self.listeners.insert(*at, Listener { socket, passwords: BTreeMap::new(), task });
                    }
                    Err(error) => {
                        let (address, port) = at;
                        let text = format!(
                            "cannot listen for BGP peers at {address} port {port}: {}; end the program that has the port (another BGP speaker?), or give this host the address",
                            error.as_report()
                        );
                        self.deaf.insert(*at, text);
                    }
                }
            }
        }
        let secret = |(address, peer): (&IpAddr, &bgp::Peer)| Some((*address, peer.connect.password.clone()?));
        let passwords: BTreeMap<IpAddr, bgp::Secret> = self.configured.config.peers.iter().filter_map(secret).collect();
        for ((local, port), listener) in &mut self.listeners {
            let of_family: BTreeMap<IpAddr, bgp::Secret> =
                passwords.iter().filter(|(peer, _)| peer.is_ipv4() == local.is_ipv4()).map(|(peer, secret)| (*peer, secret.clone())).collect();
            let gone = listener.passwords.keys().filter(|peer| !of_family.contains_key(peer)).map(|peer| (*peer, None));
            let new =
                of_family.iter().filter(|(peer, secret)| listener.passwords.get(peer) != Some(secret)).map(|(peer, secret)| (*peer, Some(secret)));
            for (peer, secret) in gone.chain(new) {
                if let Err(error) = connection::authenticate(&*listener.socket, peer, secret) {
                    let text = format!(
                        "cannot set the password of BGP peer {peer}: {}; use one of at most 80 bytes, and a kernel with TCP MD5",
                        error.as_report()
                    );
                    self.deaf.insert((*local, *port), text);
                }
            }
            listener.passwords = of_family;
        }
    }

    fn publish(&mut self) {
        let changed = self.speaker.take_changed();
        let speaker = &self.speaker;
        let deaf = &self.deaf;
        self.publish.send_if_modified(|held| {
            let (peers, problems) = (speaker.status(), deaf.values().cloned().collect::<Vec<_>>());
            let differs = changed || held.peers != peers || held.problems != problems || held.whole != speaker.is_whole();
            if changed {
                held.routes = Arc::new(speaker.routes());
            }
            (held.peers, held.problems, held.whole) = (peers, problems, speaker.is_whole());
            differs
        });
    }
}

fn listener((address, port): (IpAddr, u16)) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(cfg!(unix))?;
    socket.bind(SocketAddr::new(address, port))?;
    socket.listen(128)
}
