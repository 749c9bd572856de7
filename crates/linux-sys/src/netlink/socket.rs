//! A netlink socket: requests with acknowledgement, dumps, and batches answered message by message.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType};

use super::NetlinkError;
use super::wire::{self, Received, Writer};

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const EXT_MESSAGE: u16 = 1;
/// The kernel fills dumps in pieces of at most 32 KiB.
const RECEIVE: usize = 128 * 1024;
/// How often a dump is begun anew when the kernel says that it changed meanwhile.
const DUMP_TRIES: usize = 16;

/// The kernel's answer to one message.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The sequence number of the message.
    pub seq: u32,
    /// 0 is an acknowledgement.
    pub errno: i32,
    /// The kernel's own message (extended acknowledgement), when it had one.
    pub text: Option<String>,
}

/// A netlink socket of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    seq: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens and binds a socket in the current namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel has no such protocol.
    pub fn open(protocol: SockProtocol) -> Result<Self, NetlinkError> {
        let fail = |what: &'static str| move |e: nix::Error| NetlinkError::Socket { what, source: e.into() };
        let fd = socket::socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).map_err(fail("open"))?;
        socket::bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(fail("bind"))?;
        // Shorter errors that carry the kernel's reason. Both are comfort: an older kernel may refuse them.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            let on: libc::c_int = 1;
            // SAFETY: `on` outlives the call and its size is the one given.
            unsafe {
                libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const on).cast(), size_of::<libc::c_int>() as u32);
            }
        }
        Ok(Self { fd, seq: 0, buffer: Vec::new() })
    }

    /// The next sequence number; never 0.
    pub fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1).max(1);
        self.seq
    }

    /// Makes room to send and receive `bytes` at once. Beyond `net.core.wmem_max` that takes real
    /// root; `false` says that the room could not be had.
    pub fn make_room(&self, bytes: usize) -> bool {
        let size = bytes + bytes / 4 + 4096;
        if self.room() >= bytes + 1024 {
            return true;
        }
        if socket::setsockopt(&self.fd, socket::sockopt::SndBufForce, &size).is_err() {
            let _ = socket::setsockopt(&self.fd, socket::sockopt::SndBuf, &size);
        }
        self.room() >= bytes + 1024
    }

    /// Largest datagram that the send buffer takes now.
    pub fn room(&self) -> usize {
        socket::getsockopt(&self.fd, socket::sockopt::SndBuf).unwrap_or(0)
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// When the kernel does not take all of it.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = retry(|| socket::sendto(self.fd.as_raw_fd(), bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty()))?;
        if sent != bytes.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "the kernel took a part of a netlink datagram"));
        }
        Ok(())
    }

    /// One datagram; `None` when there is none and `wait` is false.
    fn receive(&mut self, wait: bool) -> io::Result<Option<&[u8]>> {
        if self.buffer.is_empty() {
            // Fresh from the kernel: what no datagram reaches is never touched. A short-lived program pays for the rest otherwise.
            self.buffer = vec![0; RECEIVE];
        }
        let flags = MsgFlags::MSG_TRUNC | if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        let (fd, buffer) = (self.fd.as_raw_fd(), &mut self.buffer);
        match retry(|| socket::recv(fd, buffer, flags)) {
            Ok(n) if n > RECEIVE => Err(io::Error::new(io::ErrorKind::InvalidData, "netlink datagram longer than the buffer")),
            Ok(n) => Ok(Some(&self.buffer[..n])),
            Err(e) if !wait && e.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Drops what an earlier, failed exchange may have left unread.
    fn drain(&mut self) {
        while matches!(self.receive(false), Ok(Some(_))) {}
    }

    /// Sends one message that asks for an acknowledgement and returns the replies before it.
    /// `build` gets the sequence number.
    ///
    /// # Errors
    /// When the kernel refuses, or cannot be asked.
    pub fn request(&mut self, operation: &str, build: impl FnOnce(&mut Writer, u32)) -> Result<Vec<Vec<u8>>, NetlinkError> {
        let seq = self.next_seq();
        let mut w = Writer::default();
        build(&mut w, seq);
        let fail = |source| NetlinkError::Exchange { operation: operation.to_owned(), source };
        self.send(w.as_bytes()).map_err(fail)?;
        let mut replies = Vec::new();
        loop {
            let datagram = self.receive(true).map_err(fail)?.unwrap_or(&[]);
            for message in wire::messages(datagram).filter(|m| m.seq == seq) {
                if message.kind != NLMSG_ERROR {
                    replies.push(message.payload.to_vec());
                    continue;
                }
                let answer = read_answer(&message);
                return match answer.errno {
                    0 => Ok(replies),
                    errno => Err(NetlinkError::refused(operation, errno, answer.text)),
                };
            }
        }
    }

    /// Sends a dump request and hands each answer's payload to `each`; begins anew (after `reset`)
    /// when the kernel says that what it listed changed under it.
    ///
    /// # Errors
    /// As [`Self::request`], and when the listing kept changing.
    pub fn dump<T>(
        &mut self,
        operation: &str,
        build: impl Fn(&mut Writer, u32),
        each: impl Fn(&mut Vec<T>, u16, &[u8]),
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_TRIES {
            let mut rows = Vec::new();
            if self.dump_once(operation, &build, |kind, payload| each(&mut rows, kind, payload))? {
                return Ok(rows);
            }
        }
        Err(NetlinkError::refused(operation, libc::EINTR, Some("it kept changing while being listed".into())))
    }

    fn dump_once(&mut self, operation: &str, build: impl Fn(&mut Writer, u32), mut each: impl FnMut(u16, &[u8])) -> Result<bool, NetlinkError> {
        let seq = self.next_seq();
        let mut w = Writer::default();
        build(&mut w, seq);
        let fail = |source| NetlinkError::Exchange { operation: operation.to_owned(), source };
        self.send(w.as_bytes()).map_err(fail)?;
        let mut consistent = true;
        loop {
            let datagram = self.receive(true).map_err(fail)?.unwrap_or(&[]);
            for message in wire::messages(datagram).filter(|m| m.seq == seq) {
                consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_ERROR => {
                        let answer = read_answer(&message);
                        return match answer.errno {
                            0 => Ok(true),
                            libc::EINTR => Ok(false),
                            errno => Err(NetlinkError::refused(operation, errno, answer.text)),
                        };
                    }
                    // The last message of a dump holds the error that stopped it half way.
                    NLMSG_DONE => match wire::u32_at(message.payload, 0).map_or(0, |e| -(e as i32)) {
                        0 => return Ok(consistent),
                        libc::EINTR => return Ok(false),
                        errno => return Err(NetlinkError::refused(operation, errno, None)),
                    },
                    kind => each(kind, message.payload),
                }
            }
        }
    }

    /// Sends a batch (which the kernel handles within the call) and collects every answer to it.
    ///
    /// # Errors
    /// When it cannot be sent, or its answers not be read.
    pub fn batch(&mut self, bytes: &[u8]) -> io::Result<Vec<Answer>> {
        self.drain();
        self.send(bytes)?;
        let mut answers = Vec::new();
        loop {
            match self.receive(false) {
                Ok(None) => return Ok(answers),
                Ok(Some(datagram)) => answers.extend(wire::messages(datagram).filter(|m| m.kind == NLMSG_ERROR).map(|m| read_answer(&m))),
                // More errors than the buffer holds: the first ones have the reason.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) && answers.iter().any(|a: &Answer| a.errno != 0) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn retry<T>(mut f: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match f() {
            Err(nix::Error::EINTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

fn read_answer(message: &Received<'_>) -> Answer {
    let errno = wire::u32_at(message.payload, 0).map_or(libc::EPROTO, |e| -(e as i32));
    let text = (message.flags & NLM_F_ACK_TLVS != 0)
        .then(|| {
            let original = wire::u32_at(message.payload, 4)? as usize;
            let skip = if message.flags & NLM_F_CAPPED != 0 { 4 + wire::HEADER } else { 4 + ((original + 3) & !3) };
            wire::attr(message.payload.get(skip..)?, EXT_MESSAGE).map(wire::text)
        })
        .flatten();
    Answer { seq: message.seq, errno, text }
}
