//! Wine's ntdll without a habit that costs each thread a megabyte of memory.
//!
//! Before a thread runs, Wine fills 960 KiB of its stack with zeros (`signal_start_thread` of
//! `dlls/ntdll/signal_x86_64.c`, for copy protections that look there). The kernel gives zeros anyway, but now every page
//! is the thread's own, and an idle session has a dozen threads. A copy in the cache, which fills one page, is
//! mounted over the machine's file in containers. Where the machine's Wine is built otherwise, it stays as it is.

use std::fs::Metadata;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where the library may be, beside the loaders.
const LIBRARIES: &[&str] = &["/usr/lib/x86_64-linux-gnu/wine/x86_64-windows/ntdll.dll", "/opt/wine-stable/lib64/wine/x86_64-windows/ntdll.dll"];

/// lea -0xf0000(%rcx),%rdi; mov %rdi,%rsp; sub %rdi,%rcx; xor %eax,%eax; shr $3,%rcx; rep stos %rax,%es:(%rdi)
const FILL: &[u8] =
    &[0x48, 0x8d, 0xb9, 0x00, 0x00, 0xf1, 0xff, 0x48, 0x89, 0xfc, 0x48, 0x29, 0xf9, 0x31, 0xc0, 0x48, 0xc1, 0xe9, 0x03, 0xf3, 0x48, 0xab];
/// Where the first instruction has its distance, and a shorter one: a page.
const DISTANCE: std::ops::Range<usize> = 3..7;
const PAGE: [u8; 4] = (-0x1000_i32).to_le_bytes();

/// The copy and the file that it stands for, if the machine's Wine has the habit. Makes the copy when it is missing.
pub(crate) fn library(cache_dir: &Path) -> Result<Option<(PathBuf, PathBuf)>> {
    let found = LIBRARIES.iter().map(Path::new).find_map(|path| Some((path, path.metadata().ok()?)));
    let Some((path, metadata)) = found else { return Ok(None) };
    let copy = cache_dir.join("wine-lean").join(name(&metadata));
    if !copy.is_file() {
        let whole = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let Some(lean) = lean(whole) else { return Ok(None) };
        keep(&copy, &lean).with_context(|| format!("cannot make {}", copy.display()))?;
    }
    Ok(Some((copy, path.to_owned())))
}

/// Another for each version of Wine.
fn name(metadata: &Metadata) -> String {
    format!("ntdll-{}-{}.{}.dll", metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

fn keep(copy: &Path, content: &[u8]) -> Result<()> {
    let dir = copy.parent().context("the cache has no directory")?;
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::Builder::new().prefix(".making-").tempfile_in(dir)?;
    file.write_all(content)?;
    file.persist(copy)?;
    Ok(())
}

/// None when the instructions are not there, or not once.
fn lean(mut library: Vec<u8>) -> Option<Vec<u8>> {
    let mut places = library.windows(FILL.len()).enumerate().filter_map(|(at, bytes)| (bytes == FILL).then_some(at));
    let (at, None) = (places.next()?, places.next()) else { return None };
    library[at..][DISTANCE].copy_from_slice(&PAGE);
    Some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_instructions_are_changed() {
        let once = [&[0x90; 9], FILL, &[0xe8, 1, 2]].concat();
        let changed = lean(once.clone()).unwrap();
        let differs: Vec<usize> = (0..once.len()).filter(|at| once[*at] != changed[*at]).collect();
        assert_eq!(differs, [9 + 4, 9 + 5], "-0xf0000 and -0x1000 differ in two bytes");
        assert_eq!(changed[9 + 3..9 + 7], [0x00, 0xf0, 0xff, 0xff]);
        assert_eq!(lean(vec![0x90; 64]), None, "another Wine");
        assert_eq!(lean([FILL, FILL].concat()), None, "nobody knows which");
    }

    #[test]
    fn the_machines_library_is_copied_once() {
        let dir = tempfile::tempdir().unwrap();
        let (copy, place) = library(dir.path()).unwrap().expect("Debian's Wine has the habit");
        assert_eq!(copy.metadata().unwrap().len(), place.metadata().unwrap().len());
        let made = copy.metadata().unwrap().ino();
        assert_eq!(library(dir.path()).unwrap().unwrap().0.metadata().unwrap().ino(), made);
    }
}
