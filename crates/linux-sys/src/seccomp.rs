//! Filters of system calls.
#![allow(unsafe_code)]

use std::io;

/// One instruction of a filter program, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip when a comparison holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Binds this process and all that it starts by a filter, beside those that bind it already; the strictest answer counts.
///
/// # Errors
/// When the program is wrong, or when the process has neither CAP_SYS_ADMIN in its user namespace nor `no_new_privs`.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "filter of more than 65535 instructions"))?;
    // The kernel only reads what `filter` points to; `Instruction` is laid out as `sock_filter`.
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the call reads `len` instructions at `filter`, which live across it, and copies them.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
