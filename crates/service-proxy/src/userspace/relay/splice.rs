//! Relay by splice: from a socket into a pipe, and from there into the other socket, so that bytes never enter this process.
//!
//! The event loop carries thousands of connections, and each has a pipe only while bytes are on their way. A connection that
//! carries much in a short time gets a thread until it pauses: bytes cost so little that being woken through the event loop
//! would cost more.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// What a pipe may hold; the kernel takes less where its limits say so.
const SIZE: usize = 1 << 18;
/// Pipes that are kept for the next connection that needs one.
const KEPT: usize = 64;
/// A connection that carries so much at once is in no hurry.
const HEAVY: usize = 1 << 16;
/// So much within a spell earns a thread.
const LONG: usize = 8 << 20;
const SPELL: Duration = Duration::from_millis(250);
/// Most threads at once. Further connections stay with the event loop.
const THREADS: usize = 64;
/// A thread without anything to do for so long is given up.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// What connections share: empty pipes, and the right to a thread.
pub struct Relays {
    pipes: Mutex<Vec<Pipe>>,
    threads: Arc<Semaphore>,
}

impl Default for Relays {
    fn default() -> Self {
        Self::with_threads(THREADS)
    }
}

impl Relays {
    fn with_threads(most: usize) -> Self {
        Self { pipes: Mutex::default(), threads: Arc::new(Semaphore::new(most)) }
    }

    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.pipes.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // Smaller pipes work too.
        let _ = fcntl_setpipe_size(&write, SIZE);
        Ok(Pipe { read, write })
    }

    fn give(&self, pipe: Pipe) {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        if pipes.len() < KEPT {
            pipes.push(pipe);
        }
    }
}

/// One direction. Its whole state is here at every moment, so that another thread can go on wherever one stops.
#[derive(Default)]
struct Lane {
    pipe: Option<Pipe>,
    /// How many bytes are in the pipe.
    inside: usize,
    ended: bool,
}

/// Why a lane stopped before its end.
enum Stop {
    Failed(io::Error),
    /// It carries so much that a thread is worth it.
    Heavy,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// How much went through since when.
struct Spell {
    since: Instant,
    carried: usize,
}

impl Spell {
    fn new() -> Self {
        Self { since: Instant::now(), carried: 0 }
    }

    /// Whether these bytes complete a heavy spell.
    fn is_heavy_with(&mut self, count: usize) -> bool {
        self.carried += count;
        if self.carried < LONG {
            return false;
        }
        let heavy = self.since.elapsed() < SPELL;
        *self = Self::new();
        heavy
    }
}

fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl Lane {
    /// Takes what is there into the empty pipe; nothing is the end.
    fn pull(&mut self, from: impl AsFd, relays: &Relays) -> io::Result<usize> {
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            none => none.insert(relays.take()?),
        };
        self.inside = splice(from, None, &pipe.write, None, SIZE, FLAGS)?;
        Ok(self.inside)
    }

    /// Lets out what the other end takes.
    fn push(&mut self, to: impl AsFd) -> io::Result<()> {
        if let Some(pipe) = &self.pipe {
            self.inside -= splice(&pipe.read, None, to, None, self.inside, FLAGS)?;
        }
        Ok(())
    }

    /// Nothing comes for now, or any more. A pipe with bytes left in it is never given back.
    fn rest(&mut self, relays: &Relays) {
        if self.inside == 0
            && let Some(pipe) = self.pipe.take()
        {
            relays.give(pipe);
        }
    }

    fn end(&mut self, to: impl AsFd, relays: &Relays) {
        self.ended = true;
        self.rest(relays);
        // The other end may be gone already, which ends the other way too.
        let _ = shutdown(to, Shutdown::Write);
    }

    /// Carries by the event loop until the stream ends.
    async fn carry(&mut self, from: &TcpStream, to: &TcpStream, relays: &Relays) -> Result<(), Stop> {
        let (mut spell, mut at_once) = (Spell::new(), 0);
        while !self.ended {
            while self.inside > 0 {
                to.writable().await?;
                would_block(to.try_io(Interest::WRITABLE, || self.push(to)))?;
            }
            from.readable().await?;
            if at_once >= HEAVY {
                at_once = 0;
                // Others first: meanwhile more arrives, and one call carries it all.
                tokio::task::yield_now().await;
            }
            match would_block(from.try_io(Interest::READABLE, || self.pull(from, relays)))? {
                None => self.rest(relays),
                Some(0) => self.end(to, relays),
                Some(count) => {
                    at_once += count;
                    if spell.is_heavy_with(count) {
                        return Err(Stop::Heavy);
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries what can be carried now; says whether that was anything.
    fn step(&mut self, from: impl AsFd, to: impl AsFd + Copy, relays: &Relays) -> io::Result<bool> {
        let mut moved = false;
        if !self.ended && self.inside == 0 {
            match would_block(self.pull(from, relays))? {
                None => return Ok(false),
                Some(0) => self.end(to, relays),
                Some(_) => {}
            }
            moved = true;
        }
        while self.inside > 0 && would_block(self.push(to))?.is_some() {
            moved = true;
        }
        Ok(moved)
    }
}

/// Carries bytes both ways until both ends are done, one fails, or `cut` says so.
pub async fn both_ways(client: TcpStream, backend: TcpStream, relays: &Arc<Relays>, cut: &CancellationToken) -> io::Result<()> {
    let mut ends = [client, backend];
    let mut lanes = [Lane::default(), Lane::default()];
    loop {
        let [client, backend] = &ends;
        let [there, back] = &mut lanes;
        match tokio::try_join!(there.carry(client, backend, relays), back.carry(backend, client, relays)) {
            Ok(_) => return Ok(()),
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Heavy) => {}
        }
        let Ok(right) = relays.threads.clone().try_acquire_owned() else { continue };
        let [client, backend] = ends;
        let sockets = [client.into_std()?, backend.into_std()?];
        let (relays, cut) = (relays.clone(), cut.clone());
        let carried = tokio::task::spawn_blocking(move || {
            let _right = right;
            alone(&sockets, &mut lanes, &relays, &cut).map(|()| (sockets, lanes))
        });
        let ([client, backend], left) = carried.await.map_err(io::Error::other)??;
        ends = [TcpStream::from_std(client)?, TcpStream::from_std(backend)?];
        lanes = left;
    }
}

/// Carries in a thread of its own until there is a pause, or nothing more to carry.
fn alone(ends: &[std::net::TcpStream; 2], lanes: &mut [Lane; 2], relays: &Relays, cut: &CancellationToken) -> io::Result<()> {
    let [client, backend] = ends;
    loop {
        if cut.is_cancelled() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let [there, back] = &mut *lanes;
        let moved = there.step(client, backend, relays)? | back.step(backend, client, relays)?;
        if there.ended && back.ended {
            return Ok(());
        }
        if moved {
            continue;
        }
        let mut waits = [(client, PollFlags::empty()), (backend, PollFlags::empty())];
        for (from, lane) in lanes.iter().enumerate().filter(|(_, lane)| !lane.ended) {
            let (at, event) = if lane.inside > 0 { (1 - from, PollFlags::OUT) } else { (from, PollFlags::IN) };
            waits[at].1 |= event;
        }
        // An end that no task waits for must not stay registered: it would be reported over and over.
        let mut asked: Vec<PollFd<'_>> = waits.into_iter().filter(|(_, on)| !on.is_empty()).map(|(fd, on)| PollFd::new(fd, on)).collect();
        match poll(&mut asked, Some(&PAUSE)) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    lanes.iter_mut().for_each(|lane| lane.rest(relays));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// A relay between two connections, and its outer ends.
    fn relayed(relays: &Arc<Relays>, cut: &CancellationToken) -> (std::net::TcpStream, std::net::TcpStream, tokio::task::JoinHandle<io::Result<()>>) {
        let pair = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let outer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            outer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let inner = listener.accept().unwrap().0;
            inner.set_nonblocking(true).unwrap();
            (outer, TcpStream::from_std(inner).unwrap())
        };
        let ((client, inner), (backend, outer)) = (pair(), pair());
        let (relays, cut) = (relays.clone(), cut.clone());
        let task = tokio::spawn(async move { both_ways(inner, outer, &relays, &cut).await });
        (client, backend, task)
    }

    fn send(stream: &std::net::TcpStream, bytes: &Arc<Vec<u8>>) -> std::thread::JoinHandle<bool> {
        let (mut stream, bytes) = (stream.try_clone().unwrap(), bytes.clone());
        std::thread::spawn(move || stream.write_all(&bytes).is_ok())
    }

    fn hears(stream: &std::net::TcpStream, bytes: &Arc<Vec<u8>>) -> std::thread::JoinHandle<bool> {
        let (mut stream, bytes) = (stream.try_clone().unwrap(), bytes.clone());
        std::thread::spawn(move || {
            let mut heard = vec![0; bytes.len()];
            stream.read_exact(&mut heard).is_ok() && heard == *bytes
        })
    }

    #[tokio::test]
    async fn busy_connections_get_a_thread_and_lose_no_byte() {
        // Every byte has its place.
        let bytes = Arc::new((0..12u32 << 20).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        for threads in [0, 1] {
            let relays = Arc::new(Relays::with_threads(threads));
            let (mut client, mut backend, task) = relayed(&relays, &CancellationToken::new());
            let mut threaded = 0;
            for round in 1..=2 {
                let busy = [send(&client, &bytes), send(&backend, &bytes), hears(&client, &bytes), hears(&backend, &bytes)];
                let mut seen = false;
                while busy.iter().any(|thread| !thread.is_finished()) {
                    seen |= relays.threads.available_permits() < threads;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert!(busy.into_iter().all(|thread| thread.join().unwrap()), "round {round} with {threads} threads");
                threaded += usize::from(seen);
                test_lab::until_async("a pause to give the thread back", async || relays.threads.available_permits() == threads).await;
            }
            assert_eq!(threaded, 2 * threads);
            // One end after the other.
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let (ended, client) = tokio::task::spawn_blocking(move || {
                assert_eq!(backend.read(&mut [0; 8]).unwrap(), 0);
                backend.write_all(b"last").unwrap();
                drop(backend);
                let mut text = String::new();
                client.read_to_string(&mut text).unwrap();
                (text, client)
            })
            .await
            .unwrap();
            assert_eq!(ended, "last");
            task.await.unwrap().unwrap();
            assert!(relays.pipes.lock().unwrap().len() <= 2, "two directions need two pipes");
            drop(client);
        }
    }

    #[tokio::test]
    async fn relay_thread_ends_when_its_connection_is_cut() {
        let (relays, cut) = (Arc::new(Relays::with_threads(1)), CancellationToken::new());
        let (mut client, mut backend, task) = relayed(&relays, &cut);
        let sending = std::thread::spawn(move || while client.write_all(&[7; 1 << 16]).is_ok() {});
        let hearing = std::thread::spawn(move || while backend.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {});
        test_lab::until_async("a thread", async || relays.threads.available_permits() == 0).await;
        cut.cancel();
        assert!(task.await.unwrap().is_err());
        sending.join().unwrap();
        hearing.join().unwrap();
        assert_eq!(relays.threads.available_permits(), 1);
    }
}
