//! TCP MD5 signatures (RFC 2385): a password of one peer on a socket.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _};

/// The longest password, in bytes.
pub const LONGEST: usize = 80;

/// Bytes of a `struct sockaddr_storage`.
const STORAGE: usize = size_of::<libc::sockaddr_storage>();

/// `struct tcp_md5sig` of `linux/tcp.h`.
#[repr(C, align(8))]
struct Signature {
    /// A `struct sockaddr_storage`.
    address: [u8; STORAGE],
    flags: u8,
    prefix: u8,
    length: u16,
    interface: libc::c_int,
    key: [u8; LONGEST],
}

/// Segments from and to `peer` carry a signature with this password; an empty one takes it back. Set it before connecting, and on a
/// listening socket before the peer connects.
///
/// # Errors
/// When the password is too long, or the kernel has no TCP MD5. That there is none to take back is fine.
pub fn set(socket: impl AsFd, peer: IpAddr, password: &[u8]) -> io::Result<()> {
    if password.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the password is longer than {LONGEST} bytes")));
    }
    let mut key = [0; LONGEST];
    key[..password.len()].copy_from_slice(password);
    let signature = Signature { address: address(peer), flags: 0, prefix: 0, length: password.len() as u16, interface: 0, key };
    let size = size_of::<Signature>() as libc::socklen_t;
    // SAFETY: the pointer is to a whole `tcp_md5sig` of that size, which the kernel only reads, and the descriptor is open.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MD5SIG, (&raw const signature).cast(), size) };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if password.is_empty() && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        },
    }
}

/// The bytes of `struct sockaddr_in` or `sockaddr_in6`, without a port.
fn address(ip: IpAddr) -> [u8; STORAGE] {
    let (family, at, octets) = match ip {
        IpAddr::V4(v4) => (libc::AF_INET, 4, v4.octets().to_vec()),
        // Behind the port come four bytes of flow information.
        IpAddr::V6(v6) => (libc::AF_INET6, 8, v6.octets().to_vec()),
    };
    let mut bytes = [0; STORAGE];
    bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    bytes[at..at + octets.len()].copy_from_slice(&octets);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_a_peer_with_the_password_connects() {
        for local in ["127.0.0.1", "::1"] {
            let ip: IpAddr = local.parse().unwrap();
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let at = listener.local_addr().unwrap();
            set(&listener, ip, b"secret").unwrap();
            let wrong = TcpStream::connect_timeout(&at, std::time::Duration::from_millis(300));
            assert!(wrong.is_err(), "without a signature there is no answer");
            set(&listener, ip, b"").unwrap();
            set(&listener, ip, b"").unwrap();
            assert!(TcpStream::connect(at).is_ok(), "the password was taken back");
        }
    }

    #[test]
    fn long_passwords_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = set(&listener, "127.0.0.1".parse().unwrap(), &[b'a'; 81]).unwrap_err();
        assert_eq!(error.to_string(), "the password is longer than 80 bytes");
    }
}
