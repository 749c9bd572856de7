//! A connection to the shim, on the shim's side.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use linux_sys::fdpass;

use super::{Handed, Message};

/// Longest request; arguments of a program may be long.
const LONGEST: usize = 4 * 1024 * 1024;

/// A stream that does not block, and what waits on both sides of it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: VecDeque<u8>,
    pub(super) purpose: Purpose,
}

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The runtime's: it is notified of every container.
    Runtime,
    /// One second program's.
    Program,
    /// A client's that is attached to this container.
    Attached(String),
}

/// The peer is gone.
#[derive(Debug)]
pub(super) struct Gone;

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, input: Vec::new(), output: VecDeque::new(), purpose: Purpose::Runtime }
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what is there. The peer's end comes after the lines that it still sent.
    pub(super) fn read(&mut self) -> Result<(), Gone> {
        let mut buffer = [0u8; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
            if self.input.len() > LONGEST {
                return Err(Gone);
            }
        }
    }

    /// The next whole line that was read.
    pub(super) fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|b| *b == b'\n')?;
        Some(self.input.drain(..=end).collect())
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), Gone> {
        self.output.extend(encoded(message));
        self.flush()
    }

    /// Sends the begin of a session with its descriptors. The first message on a connection: descriptors travel with
    /// the bytes they are sent with.
    pub(super) fn hand_over(&mut self, what: Vec<(Handed, OwnedFd)>) -> Result<(), Gone> {
        let (kinds, fds): (Vec<Handed>, Vec<OwnedFd>) = what.into_iter().unzip();
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        fdpass::send(&self.stream, &encoded(&Message::Opened(kinds)), &fds).map_err(|_| Gone)
    }

    pub(super) fn flush(&mut self) -> Result<(), Gone> {
        while !self.output.is_empty() {
            let (first, _) = self.output.as_slices();
            match self.stream.write(first) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    // Messages are made of strings and numbers only, which always encode.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
