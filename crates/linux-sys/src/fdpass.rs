//! Descriptors over unix sockets.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::socket::{self, AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr};

/// Most descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Two connected sockets that keep message boundaries; a peer's end reads as an empty message.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// A socket at a path that takes connections which keep message boundaries.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, where nothing may be yet.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let named = |e: nix::Error| io::Error::new(io::Error::from(e).kind(), format!("listen at {}: {e}", path.display()));
        let fd = socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(named)?;
        UnixAddr::new(path).and_then(|address| socket::bind(fd.as_raw_fd(), &address)).map_err(named)?;
        Backlog::new(16).and_then(|backlog| socket::listen(&fd, backlog)).map_err(named)?;
        Ok(Self(fd))
    }

    /// Waits for the next connection.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        loop {
            match socket::accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
                Ok(raw) => return Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
                Err(nix::Error::EINTR | nix::Error::ECONNABORTED) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Ends [`Self::accept`] in other threads with an error.
    pub fn shutdown(&self) {
        let _ = socket::shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

/// Connects to a [`Listener`].
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let named = |e: nix::Error| io::Error::new(io::Error::from(e).kind(), format!("connect to {}: {e}", path.display()));
    let fd = socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(named)?;
    UnixAddr::new(path).and_then(|address| socket::connect(fd.as_raw_fd(), &address)).map_err(named)?;
    Ok(fd)
}

/// Sends one message with descriptors (at most [`MAX_FDS`]); the message must not be empty.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    loop {
        match socket::sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(nix::Error::EINTR) => {}
            other => return other.map(drop).map_err(Into::into),
        }
    }
}

/// Receives one message into `buffer`: its length (0: the peer is gone) and its descriptors, which
/// are closed on exec.
///
/// # Errors
/// A message longer than `buffer`, or more descriptors than [`MAX_FDS`], is invalid data.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = loop {
        match socket::recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::ECONNRESET) => return Ok((0, Vec::new())),
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has just made these descriptors for us; nobody else knows them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message longer than its buffer"));
    }
    Ok((message.bytes, fds))
}

/// Takes over a descriptor that this process was started with, and closes it on exec from now on.
///
/// # Errors
/// When there is no such descriptor, or when it is closed on exec: then it was not inherited but
/// opened (or taken over already) by this process and has an owner.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only asks; an unused number answers EBADF.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 || number <= 2 {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("descriptor {number} was not handed to this process")));
    }
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("descriptor {number} has an owner in this process")));
    }
    // SAFETY: sets a flag of a descriptor that exists.
    unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
    // SAFETY: everything in this process opens descriptors closed on exec, so one that is not came
    // with the start and has no owner yet; the flag just set keeps a second taker out.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_descriptor_travels_with_its_message() {
        let (a, b) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&a, b"pipe", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut buffer = [0; 16];
        let (n, fds) = receive(&b, &mut buffer).unwrap();
        assert_eq!((&buffer[..n], fds.len()), (&b"pipe"[..], 1));
        std::fs::File::from(fds.into_iter().next().unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        drop(a);
        assert_eq!(receive(&b, &mut buffer).unwrap().0, 0, "the peer's end");
    }
}
