//! Descriptors over unix sockets.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{self, AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType};

/// Most descriptors in one message.
pub const MAX_FDS: usize = 16;

/// Two connected sockets that keep message boundaries; a peer's end reads as an empty message.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
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
