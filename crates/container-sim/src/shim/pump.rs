//! Copies a container's output from pipes or a terminal to its log and to attached clients.
//!
//! An attached client that does not read makes the program wait, as with containerd: nothing is lost, and nothing piles up
//! here. The end of its connection detaches it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::log::{Cutter, LogWriter};

/// One stream of one container. Its descriptors do not block.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) name: &'static str,
    /// None after its end, while an attached client still has to read.
    file: Option<File>,
    cutter: Cutter,
    taps: Vec<Tap>,
}

/// An attached client.
#[derive(Debug)]
struct Tap {
    connection: u64,
    file: File,
    waiting: VecDeque<u8>,
}

/// Most bytes that are read from one stream before others get their turn.
const TURN: usize = 256 * 1024;

/// Bytes that may wait for one client before the program waits too.
const ROOM: usize = 64 * 1024;

impl Stream {
    pub(super) fn new(fd: OwnedFd, name: &'static str) -> Self {
        Self { name, file: Some(File::from(fd)), cutter: Cutter::new(name), taps: Vec::new() }
    }

    /// Copies everything from now on to `fd` too.
    pub(super) fn attach(&mut self, connection: u64, fd: OwnedFd) {
        self.taps.push(Tap { connection, file: File::from(fd), waiting: VecDeque::new() });
    }

    /// Detaches the client of a connection.
    pub(super) fn detach(&mut self, connection: u64) {
        self.taps.retain(|tap| tap.connection != connection);
    }

    /// Descriptors to wait for: input, unless a client is behind, and the clients that are.
    pub(super) fn sources(&self) -> (Option<BorrowedFd<'_>>, impl Iterator<Item = BorrowedFd<'_>>) {
        let behind = self.taps.iter().any(|tap| tap.waiting.len() >= ROOM);
        let input = self.file.as_ref().filter(|_| !behind).map(AsFd::as_fd);
        (input, self.taps.iter().filter(|tap| !tap.waiting.is_empty()).map(|tap| tap.file.as_fd()))
    }

    /// Moves what is there into the log and to those attached. Returns false when nothing is left to do.
    pub(super) fn pump(&mut self, log: &mut LogWriter) -> bool {
        self.taps.retain_mut(Tap::flush);
        if self.sources().0.is_some() {
            self.read(log);
        }
        self.file.is_some() || self.taps.iter().any(|tap| !tap.waiting.is_empty())
    }

    fn read(&mut self, log: &mut LogWriter) {
        let mut buffer = [0u8; 16 * 1024];
        let mut lines = Vec::new();
        let mut read = 0;
        let open = loop {
            let Some(file) = &mut self.file else { return };
            match file.read(&mut buffer) {
                Ok(0) => break false,
                Ok(count) => {
                    self.cutter.push(&buffer[..count], jiff::Timestamp::now(), &mut lines);
                    self.taps.retain_mut(|tap| tap.push(&buffer[..count]));
                    read += count;
                    if read >= TURN || self.sources().0.is_none() {
                        break true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                // A terminal returns EIO once its other end is closed.
                Err(_) => break false,
            }
        };
        if !open {
            self.cutter.finish(jiff::Timestamp::now(), &mut lines);
            self.file = None;
        }
        if !lines.is_empty() {
            log.write(&lines);
        }
    }
}

impl Tap {
    /// Returns false when its reader is gone.
    fn push(&mut self, bytes: &[u8]) -> bool {
        self.waiting.extend(bytes);
        self.flush()
    }

    fn flush(&mut self) -> bool {
        while !self.waiting.is_empty() {
            let (first, _) = self.waiting.as_slices();
            match self.file.write(first) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::stage::nonblocking;

    fn pipe() -> (File, File) {
        let (reader, writer) = std::io::pipe().unwrap();
        (File::from(OwnedFd::from(reader)), File::from(nonblocking(writer.into()).unwrap()))
    }

    #[test]
    fn slow_client_makes_the_program_wait_and_loses_nothing() {
        let (input, mut program) = pipe();
        let mut log = LogWriter::open(None).unwrap();
        let mut stream = Stream::new(nonblocking(input.into()).unwrap(), "stdout");
        let (mut reader, tap) = pipe();
        stream.attach(1, tap.into());
        let mut written = 0;
        // Until the program's pipe is full, since the client does not read.
        loop {
            match program.write(&[b'x'; 4096]) {
                Ok(count) => written += count,
                Err(_) if stream.sources().0.is_none() => break,
                Err(_) => assert!(stream.pump(&mut log)),
            }
        }
        assert!(written > ROOM);
        drop(program);
        let mut got = 0;
        let mut buffer = vec![0; 1 << 20];
        while got < written {
            stream.pump(&mut log);
            got += reader.read(&mut buffer).unwrap();
        }
        assert_eq!(got, written);
        assert!(!stream.pump(&mut log), "the end, once all was read");
    }

    #[test]
    fn gone_client_is_detached() {
        let (input, mut program) = pipe();
        let mut log = LogWriter::open(None).unwrap();
        let mut stream = Stream::new(nonblocking(input.into()).unwrap(), "stdout");
        let (reader, tap) = pipe();
        stream.attach(1, tap.into());
        drop(reader);
        program.write_all(b"to nobody").unwrap();
        assert!(stream.pump(&mut log));
        assert!(stream.taps.is_empty());
    }
}
