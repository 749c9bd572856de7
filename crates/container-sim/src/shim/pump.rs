//! A container's output on its way from pipes or a terminal to its log.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};

use super::log::{Cutter, LogWriter};

/// One stream of one container. Its descriptor does not block.
#[derive(Debug)]
pub(super) struct Stream {
    file: File,
    cutter: Cutter,
}

/// Most that is read from one stream before others get their turn.
const TURN: usize = 256 * 1024;

impl Stream {
    pub(super) fn new(file: File, name: &'static str) -> Self {
        Self { file, cutter: Cutter::new(name) }
    }

    /// Moves what is there into the log. Returns false at the end of the stream.
    pub(super) fn pump(&mut self, log: &mut LogWriter) -> bool {
        let mut buffer = [0u8; 16 * 1024];
        let mut lines = Vec::new();
        let mut read = 0;
        let open = loop {
            match self.file.read(&mut buffer) {
                Ok(0) => break false,
                Ok(count) => {
                    self.cutter.push(&buffer[..count], jiff::Timestamp::now(), &mut lines);
                    read += count;
                    if read >= TURN {
                        break true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                // A terminal says EIO once nobody has its other end open.
                Err(_) => break false,
            }
        };
        if !open {
            self.cutter.finish(jiff::Timestamp::now(), &mut lines);
        }
        if !lines.is_empty() {
            log.write(&lines);
        }
        open
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
