//! Terminals' sizes.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets the size of the terminal behind `fd` (master or slave); its foreground programs get SIGWINCH when it changed.
///
/// # Errors
/// When `fd` is no terminal.
pub fn resize(fd: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads one `winsize`, which lives across the call.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
