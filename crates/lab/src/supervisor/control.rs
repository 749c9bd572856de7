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
use nix::sys::socket::{Shutdown, shutdown};

use super::Shared;
use crate::dir::Dirs;
use crate::error::LabError;
use crate::protocol::{Event, Request, Status};

/// A supervisor that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections of those who asked for the end; they close when it has come.
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
    let answer = move || {
        for stream in listener.incoming() {
            // One slow or broken client must not keep others waiting long.
            let Ok(stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let mut line = String::new();
            if BufReader::new((&stream).take(4096)).read_line(&mut line).is_err() {
                continue;
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
    };
    thread::Builder::new().name("lab-control".into()).spawn(answer)?;
    Ok(server)
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

/// Ends the cluster that runs on DIR; returns when it is gone.
///
/// # Errors
/// [`LabError::NotRunning`]; when it does not end.
pub fn down(dirs: &Dirs) -> Result<(), LabError> {
    let mut stream = ask(dirs, Request::Down)?;
    match stream.read(&mut [0]) {
        Err(e) if e.kind() != io::ErrorKind::ConnectionReset => Err(LabError::file("wait for the end of", &dirs.dir)(e)),
        _ => wait_unlocked(dirs),
    }
}

/// The supervisor holds the lock until its very end; a next `up` must not meet it.
fn wait_unlocked(dirs: &Dirs) -> Result<(), LabError> {
    let path = dirs.dir.join("lock");
    let deadline = Instant::now() + PATIENCE;
    while FileLock::try_acquire(&path).map_err(LabError::file("lock", &path))?.is_none() {
        if Instant::now() >= deadline {
            return Err(LabError::Running { dir: dirs.dir.clone(), pid: dirs.holder() });
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
