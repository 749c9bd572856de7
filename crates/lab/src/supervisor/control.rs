//! `status` and `down`, over the supervisor's socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use linux_sys::lock::FileLock;
use linux_sys::spawn::PidFd;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{Shutdown, getsockopt, shutdown};

use super::Shared;
use crate::dir::Dirs;
use crate::error::LabError;
use crate::protocol::{Event, Request, Status};

/// A supervisor that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client has to say what it wants.
const CLIENT: Duration = Duration::from_secs(30);
/// How long a cluster has to end. Its own limits are below two seconds; the rest is for a busy machine.
const END: Duration = Duration::from_secs(60);
/// How often a lock that somebody else holds is tried.
const TRY_LOCK: Duration = Duration::from_millis(5);

/// Connections that asked for the end; they close when it has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting(Arc<Mutex<Vec<UnixStream>>>);

impl Waiting {
    pub(super) fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Serves until [`Server::close`].
#[derive(Debug)]
pub(super) struct Server(OwnedFd);

impl Server {
    pub(super) fn close(&self) {
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

pub(super) fn serve(path: &Path, shared: Arc<Shared>, events: Sender<Event>, waiting: Waiting) -> io::Result<Server> {
    let listener = UnixListener::bind(path)?;
    let server = Server(listener.try_clone()?.into());
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let (shared, events, waiting) = (Arc::clone(&shared), events.clone(), waiting.clone());
            // Of its own: a client that a busy machine keeps from writing holds up nobody, and is waited for.
            let _ = thread::Builder::new().name("lab-client".into()).spawn(move || answer(stream, &shared, &events, &waiting));
        }
    };
    thread::Builder::new().name("lab-control".into()).spawn(accept)?;
    Ok(server)
}

/// Answers one request.
fn answer(stream: UnixStream, shared: &Shared, events: &Sender<Event>, waiting: &Waiting) {
    let _ = stream.set_read_timeout(Some(CLIENT));
    let mut line = String::new();
    if BufReader::new((&stream).take(4096)).read_line(&mut line).is_err() {
        return;
    }
    match serde_json::from_str(&line) {
        Ok(Request::Status) => {
            let text = serde_json::to_string(&*shared.status()).unwrap_or_default();
            let _ = writeln!(&stream, "{text}");
        }
        Ok(Request::Down) => {
            waiting.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            let _ = events.send(Event::DownRequested);
        }
        Err(e) => tracing::debug!("unknown request on the control socket: {e}"),
    }
}

fn ask(dirs: &Dirs, request: Request) -> Result<UnixStream, LabError> {
    // The socket of a supervisor that was killed stays; nobody answers it then.
    let stream = UnixStream::connect(dirs.control_socket()).map_err(|_| LabError::NotRunning(dirs.dir.clone()))?;
    let send = || {
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(&stream, "{}", serde_json::to_string(&request)?)
    };
    send().map_err(LabError::file("write to", dirs.control_socket()))?;
    Ok(stream)
}

/// What runs on DIR.
///
/// # Errors
/// [`LabError::NotRunning`].
pub fn status(dirs: &Dirs) -> Result<Status, LabError> {
    let stream = ask(dirs, Request::Status)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(LabError::file("read from", dirs.control_socket()))?;
    serde_json::from_str(&line).map_err(|e| LabError::Damaged { path: dirs.control_socket(), reason: e.to_string() })
}

/// Ends the cluster that runs on DIR; returns when its last process has ended, the supervisor included. A lab whose supervisor was
/// killed is ending by itself: its end is waited for. `power` is how long processes that get SIGPWR may take.
///
/// # Errors
/// [`LabError::NotRunning`]; [`LabError::StillRuns`].
pub fn down(dirs: &Dirs, power: Duration) -> Result<(), LabError> {
    let end = END.saturating_add(power);
    let deadline = Instant::now() + end;
    let mut was_there = false;
    // One that is being started has the lock before it has the socket.
    let stream = loop {
        match ask(dirs, Request::Down) {
            Ok(stream) => break stream,
            Err(LabError::NotRunning(dir)) if is_free(dirs)? => return if was_there { Ok(()) } else { Err(LabError::NotRunning(dir)) },
            Err(LabError::NotRunning(dir)) if Instant::now() >= deadline => return Err(LabError::Running { dir, pid: dirs.holder() }),
            Err(LabError::NotRunning(_)) => {}
            // It is ending already.
            Err(LabError::File { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe && Instant::now() < deadline => {}
            Err(e) => return Err(e),
        }
        was_there = true;
        thread::sleep(TRY_LOCK);
    };
    let wait = || LabError::file("wait for the end of", &dirs.dir);
    // Held by a descriptor, its number cannot come to mean another process. (None where it is in another pid namespace.)
    let pid = getsockopt(&stream, PeerCredentials).ok().and_then(|peer| u32::try_from(peer.pid()).ok()).filter(|pid| *pid > 0);
    let supervisor = pid.and_then(|pid| PidFd::open(pid).ok());
    stream.set_read_timeout(Some(end)).map_err(wait())?;
    let still_runs = || LabError::StillRuns { dir: dirs.dir.clone(), pid: pid.or(dirs.holder()).unwrap_or(0), seconds: end.as_secs() };
    match (&stream).read(&mut [0]) {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return Err(still_runs()),
        Err(e) if e.kind() != io::ErrorKind::ConnectionReset => return Err(wait()(e)),
        _ => {}
    }
    if let Some(supervisor) = supervisor
        && !supervisor.wait_end(END).map_err(wait())?
    {
        return Err(still_runs());
    }
    while !is_free(dirs)? {
        if Instant::now() >= deadline + END {
            return Err(still_runs());
        }
        thread::sleep(TRY_LOCK);
    }
    Ok(())
}

/// Whether nobody holds DIR's lock: neither a supervisor nor a lab that outlived one.
fn is_free(dirs: &Dirs) -> Result<bool, LabError> {
    let path = dirs.dir.join("lock");
    if !path.exists() {
        return Ok(true);
    }
    FileLock::try_acquire(&path).map(|lock| lock.is_some()).map_err(LabError::file("lock", &path))
}
