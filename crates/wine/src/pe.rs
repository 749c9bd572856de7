//! PE headers: whether Wine on this machine can run a program's file, or why not.

use thiserror::Error;

/// How much of a file has to be known.
pub const HEAD: u64 = 64 * 1024;

/// Why a program cannot run here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// No executable at all.
    #[error("it is not a Windows executable (no MZ header)")]
    NotExecutable,
    /// MZ without PE.
    #[error("it is a program for DOS or 16-bit Windows, which 64-bit Windows does not run")]
    Dos,
    /// The headers end early or lead nowhere.
    #[error("its PE header is damaged or cut off")]
    Damaged,
    /// Another processor.
    #[error("it is for {0}, and Wine here runs programs for x64: build it for windows/amd64")]
    Machine(&'static str),
    /// Managed code.
    #[error(
        "it is a .NET Framework program, which needs Microsoft's own runtime: publish it for .NET 8 or later with its own host \
         (dotnet publish -r win-x64 --self-contained)"
    )]
    DotNetFramework,
    #[error("it is a library (DLL), not a program")]
    Library,
    /// Native subsystem.
    #[error("it is a driver or a part of the Windows kernel's own start, which needs a real Windows")]
    Native,
}

/// Little-endian numbers at places that may not exist.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u16(&self, at: usize) -> Option<u16> {
        self.0.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.0.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
    }
}

/// Checks a program by the beginning of its file ([`HEAD`] bytes of it are enough).
///
/// # Errors
/// With the reason why it cannot run.
pub fn check(head: &[u8]) -> Result<(), Unfit> {
    let bytes = Bytes(head);
    if !head.starts_with(b"MZ") {
        return Err(Unfit::NotExecutable);
    }
    let at = bytes.u32(0x3c).and_then(|at| usize::try_from(at).ok()).ok_or(Unfit::Dos)?;
    match head.get(at..).map(|rest| rest.get(..4)) {
        Some(Some(b"PE\0\0")) => {}
        Some(_) => return Err(Unfit::Dos),
        None => return Err(Unfit::Damaged),
    }
    headers(&bytes, at + 4).unwrap_or(Err(Unfit::Damaged))
}

/// The COFF header at `coff`, and what follows. None: they end early.
fn headers(bytes: &Bytes<'_>, coff: usize) -> Option<Result<(), Unfit>> {
    let machine = bytes.u16(coff)?;
    let characteristics = bytes.u16(coff + 18)?;
    let optional = coff + 20;
    // PE32 and PE32+ differ in the size of addresses.
    let directories = optional
        + match bytes.u16(optional)? {
            0x10b => 96,
            0x20b => 112,
            _ => return Some(Err(Unfit::Damaged)),
        };
    let subsystem = bytes.u16(optional + 68)?;
    let count = bytes.u32(directories - 4)?;
    // The 15th directory is the CLR's. A program that may run on any processor says i386 there.
    if count > 14 && bytes.u32(directories + 14 * 8)? != 0 {
        return Some(Err(Unfit::DotNetFramework));
    }
    Some(match machine {
        0x8664 if characteristics & 0x2000 != 0 => Err(Unfit::Library),
        0x8664 if subsystem == 1 => Err(Unfit::Native),
        0x8664 => Ok(()),
        0x014c => Err(Unfit::Machine("32-bit x86")),
        0xaa64 => Err(Unfit::Machine("ARM64")),
        0x01c0 | 0x01c2 | 0x01c4 => Err(Unfit::Machine("32-bit ARM")),
        _ => Err(Unfit::Machine("another kind of processor")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with what matters in it.
    fn program(machine: u16, magic: u16, characteristics: u16, subsystem: u16, clr: u32) -> Vec<u8> {
        let mut bytes = vec![0; 0x200];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[0x3c] = 0x80;
        bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0x84, &machine.to_le_bytes());
        put(0x84 + 18, &characteristics.to_le_bytes());
        let optional = 0x84 + 20;
        put(optional, &magic.to_le_bytes());
        put(optional + 68, &subsystem.to_le_bytes());
        let directories = optional + if magic == 0x20b { 112 } else { 96 };
        put(directories - 4, &16_u32.to_le_bytes());
        put(directories + 14 * 8, &clr.to_le_bytes());
        bytes
    }

    #[test]
    fn headers_are_classified() {
        assert_eq!(check(&program(0x8664, 0x20b, 0x22, 3, 0)), Ok(()));
        assert_eq!(check(&program(0x8664, 0x20b, 0x22, 2, 0)), Ok(()), "with windows");
        assert_eq!(check(&program(0x014c, 0x10b, 0x102, 3, 0)), Err(Unfit::Machine("32-bit x86")));
        assert_eq!(check(&program(0xaa64, 0x20b, 0x22, 3, 0)), Err(Unfit::Machine("ARM64")));
        assert_eq!(check(&program(0x014c, 0x10b, 0x102, 3, 0x2008)), Err(Unfit::DotNetFramework), "any processor");
        assert_eq!(check(&program(0x8664, 0x20b, 0x2022, 3, 0)), Err(Unfit::Library));
        assert_eq!(check(&program(0x8664, 0x20b, 0x22, 1, 0)), Err(Unfit::Native));
        assert_eq!(check(b"#!/bin/sh\n"), Err(Unfit::NotExecutable));
        assert_eq!(check(b""), Err(Unfit::NotExecutable));
        assert_eq!(check(b"MZ"), Err(Unfit::Dos));
    }

    #[test]
    fn truncated_headers_are_refused() {
        let whole = program(0x8664, 0x20b, 0x22, 3, 0);
        for length in 0..whole.len() {
            let checked = check(&whole[..length]);
            assert!(checked.is_err() || length >= 0x84 + 20 + 112 + 14 * 8 + 4, "{length}: {checked:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_checked_without_panic(noise in proptest::collection::vec(proptest::num::u8::ANY, 0..400), at in 0_u32..500) {
            let mut bytes = b"MZ".to_vec();
            bytes.resize(0x3c, 0);
            bytes.extend(at.to_le_bytes());
            bytes.extend(&noise);
            let _ = check(&bytes);
            let at = usize::try_from(at).unwrap();
            if at + 4 <= bytes.len() {
                bytes[at..at + 4].copy_from_slice(b"PE\0\0");
                let _ = check(&bytes);
            }
        }
    }
}
