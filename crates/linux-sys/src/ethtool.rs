//! Switches of network cards and of links that behave like them.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// ETHTOOL_STXCSUM of linux/ethtool.h.
const SET_TX_CHECKSUM: u32 = 0x17;
/// SIOCETHTOOL of linux/sockios.h.
const REQUEST: libc::c_ulong = 0x8946;

/// `struct ethtool_value`.
#[repr(C)]
struct Setting {
    command: u32,
    value: u32,
}

/// Whether the kernel leaves checksums of sent packets to a link of this thread's network namespace.
///
/// # Errors
/// There is no such link, or it has no such switch.
pub fn set_tx_checksum(link: &str, on: bool) -> io::Result<()> {
    let mut setting = Setting { command: SET_TX_CHECKSUM, value: u32::from(on) };
    // SAFETY: plain numbers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: `ifreq` is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if link.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut setting).cast();
    // SAFETY: the request reads the name and one `ethtool_value`, which lives across the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), REQUEST as _, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_not_there_is_an_error() {
        for name in ["no-such-link", "a-name-that-is-longer-than-any-links"] {
            assert_eq!(set_tx_checksum(name, false).unwrap_err().raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
