//! Patched copies of Wine's modules, in the cache, which are mounted over the machine's in containers. They differ from them in
//! four points:
//!
//! - Before a thread runs, Wine fills 960 KiB of its stack with zeros (`signal_start_thread` of
//!   `dlls/ntdll/signal_x86_64.c`, for copy protections that look there). The kernel gives zeros anyway, but now every page
//!   is the thread's own, and an idle session has a dozen threads. The copy fills one page.
//! - Each program finds Wine's private variables in its environment (`WINEUSERNAME`, `WINEDLLDIR0`, …:
//!   `add_dynamic_environment` of `dlls/ntdll/unix/env.c`). In the copies their names begin with `=`, as those of Windows'
//!   own private variables do (`=C:`), which `set` and most libraries leave out.
//! - `WSAIoctl` does not know `SIO_UDP_NETRESET` (`dlls/ws2_32/socket.c`) and fails with `WSAEOPNOTSUPP`. Go's standard library
//!   sets it to false on each UDP socket, and gives the socket up when that fails. In the copy it is answered as
//!   `SIO_UDP_CONNRESET` is, with success and without effect: Linux reports no such errors on unconnected sockets, so false is
//!   what holds. It takes the place of `SIO_SET_COMPATIBILITY_MODE`, which Wine refuses as it refuses what it does not know.
//! - Messages of errors have Windows' words ([`messages`]).
//!
//! Where the machine's Wine is built otherwise, it stays as it is.

mod messages;

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where the modules may be, beside the loaders.
const LIBRARIES: &[&str] = &["/usr/lib/x86_64-linux-gnu/wine", "/opt/wine-stable/lib64/wine"];

const NTDLL: &str = "x86_64-windows/ntdll.dll";
/// Has the messages of errors, too.
const KERNEL: &str = "x86_64-windows/kernelbase.dll";

/// Modules with names of private variables. What one writes another reads, so they change together or not at all.
const NAMING: &[(&str, &[&str])] = &[
    (
        "x86_64-unix/ntdll.so",
        &[
            "WINELOADER",
            "WINEDATADIR",
            "WINEHOMEDIR",
            "WINEBUILDDIR",
            "WINECONFIGDIR",
            "WINEDLLDIR%u",
            "WINESYSTEMDLLPATH",
            "WINEUSERNAME",
            "WINEUNIXCP",
            "WINEUSERLOCALE",
            "WINEDLLOVERRIDES",
        ],
    ),
    (NTDLL, &["WINEBUILDDIR", "WINEDLLDIR%u", "WINESYSTEMDLLPATH", "WINEUSERLOCALE"]),
    (KERNEL, &["WINEUSERNAME", "WINEUNIXCP", "WINEUSERLOCALE"]),
    ("x86_64-windows/advapi32.dll", &["WINEUSERNAME"]),
    ("x86_64-windows/shell32.dll", &["WINEHOMEDIR"]),
    ("x86_64-windows/setupapi.dll", &["WINEDATADIR", "WINEBUILDDIR", "WINEDLLDIR%u"]),
    (BOOT, &[]),
];

/// Looks whether the prefix is Wine's newest, which is none of its business in a container: its C library does not find the
/// names that begin with `=`, so it does not look, and must not say so on the first program's standard error.
const BOOT: &str = "x86_64-windows/wineboot.exe";
const COMPLAINT: &[u8] = b"wine: failed to update %s, ";

const SOCKETS: &str = "x86_64-windows/ws2_32.dll";

/// cmp $0x9800000c,%ebx; je: `SIO_UDP_CONNRESET`, and the distance to its answer is what follows.
const CONNRESET: &[u8] = &[0x81, 0xfb, 0x0c, 0x00, 0x00, 0x98, 0x0f, 0x84];
/// cmp $0x9800012c,%ebx; jne: `SIO_SET_COMPATIBILITY_MODE`. A distance follows, then the refusal begins: mov %r13,0x40(%rsp).
const MODE: &[u8] = &[0x81, 0xfb, 0x2c, 0x01, 0x00, 0x98, 0x0f, 0x85];
const REFUSAL: [u8; 5] = [0x4c, 0x89, 0x6c, 0x24, 0x40];
/// cmp $0x9800000f,%ebx; je: `SIO_UDP_NETRESET`.
const NETRESET: [u8; MODE.len()] = [0x81, 0xfb, 0x0f, 0x00, 0x00, 0x98, 0x0f, 0x84];
/// Length of a distance.
const REL: usize = 4;

/// lea -0xf0000(%rcx),%rdi; mov %rdi,%rsp; sub %rdi,%rcx; xor %eax,%eax; shr $3,%rcx; rep stos %rax,%es:(%rdi)
const FILL: &[u8] =
    &[0x48, 0x8d, 0xb9, 0x00, 0x00, 0xf1, 0xff, 0x48, 0x89, 0xfc, 0x48, 0x29, 0xf9, 0x31, 0xc0, 0x48, 0xc1, 0xe9, 0x03, 0xf3, 0x48, 0xab];
/// Where the first instruction has its distance, and a shorter one: a page.
const DISTANCE: std::ops::Range<usize> = 3..7;
const PAGE: [u8; 4] = (-0x1000_i32).to_le_bytes();

/// Copies, and the files that they stand for. Makes those that are missing.
pub fn copies(cache_dir: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let Some(library) = LIBRARIES.iter().map(Path::new).find(|dir| dir.join(NTDLL).is_file()) else { return Ok(Vec::new()) };
    let dir = cache_dir.join("wine-modules").join(name(library)?);
    if !dir.is_dir() {
        keep(&dir, &changed(library)?).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let file = |module: &str| module.rsplit('/').next().unwrap_or(module).to_owned();
    let modules = NAMING.iter().map(|(module, _)| *module).chain([SOCKETS]);
    let copies = modules.map(|module| (dir.join(file(module)), library.join(module)));
    Ok(copies.filter(|(copy, _)| copy.is_file()).collect())
}

/// Another for each version of Wine.
fn name(library: &Path) -> Result<String> {
    let metadata = library.join(NTDLL).metadata().with_context(|| format!("cannot read {}", library.display()))?;
    Ok(format!("7-{}-{}.{}", metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Modules that differ from the machine's, by their names in the cache.
fn changed(library: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let read = |module: &str| std::fs::read(library.join(module)).with_context(|| format!("cannot read {}", library.join(module).display()));
    let mut modules = Vec::new();
    for (module, names) in NAMING {
        let reworded = |content: Vec<u8>| if *module == KERNEL { messages::reworded(content.clone()).unwrap_or(content) } else { content };
        let changed =
            if *module == BOOT { silent(read(module)?) } else { private(read(module)?, names, module.starts_with("x86_64-windows")).map(reworded) };
        modules.push((*module, changed));
    }
    let all = modules.iter().all(|(_, changed)| changed.is_some());
    let mut result = Vec::new();
    for (module, changed) in modules {
        let changed = if all { changed } else { None };
        let changed = if module == NTDLL {
            let whole = match changed {
                Some(changed) => changed,
                None => read(module)?,
            };
            let lean = lean(&whole);
            lean.or_else(|| all.then_some(whole))
        } else {
            changed
        };
        let file = module.rsplit('/').next().unwrap_or(module);
        result.extend(changed.map(|changed| (file.to_owned(), changed)));
    }
    result.extend(patient(read(SOCKETS)?).map(|changed| ("ws2_32.dll".to_owned(), changed)));
    Ok(result)
}

fn keep(dir: &Path, modules: &[(String, Vec<u8>)]) -> Result<()> {
    let parent = dir.parent().context("the cache has no directory")?;
    std::fs::create_dir_all(parent)?;
    let scratch = tempfile::Builder::new().prefix(".making-").tempdir_in(parent)?;
    let inner = scratch.path().join("modules");
    std::fs::create_dir(&inner)?;
    for (name, content) in modules {
        std::fs::File::create(inner.join(name))?.write_all(content)?;
    }
    match std::fs::rename(&inner, dir) {
        // Another process has made the same.
        Err(_) if dir.is_dir() => Ok(()),
        other => Ok(other?),
    }
}

/// With a `=` in the place of the first letter of each name; none when a name is not there.
fn private(mut module: Vec<u8>, names: &[&str], is_wide: bool) -> Option<Vec<u8>> {
    for name in names {
        // A text by itself: names with a `=` behind them are what Wine leaves out of the machine's environment.
        let pattern: Vec<u8> =
            if is_wide { name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect() } else { [b"\0", name.as_bytes(), b"\0"].concat() };
        let first = usize::from(!is_wide);
        let places: Vec<usize> = module.windows(pattern.len()).enumerate().filter_map(|(at, bytes)| (bytes == pattern).then_some(at)).collect();
        if places.is_empty() {
            return None;
        }
        for at in places {
            module[at + first] = b'=';
        }
    }
    Some(module)
}

/// With an empty text in the place of the complaint; none when it is not there.
fn silent(mut module: Vec<u8>) -> Option<Vec<u8>> {
    let places: Vec<usize> = module.windows(COMPLAINT.len()).enumerate().filter_map(|(at, bytes)| (bytes == COMPLAINT).then_some(at)).collect();
    for at in &places {
        module[*at] = 0;
    }
    (!places.is_empty()).then_some(module)
}

/// None when the instructions are not there, or not once.
fn lean(library: &[u8]) -> Option<Vec<u8>> {
    let at = only(library, FILL)?;
    let mut library = library.to_vec();
    library[at..][DISTANCE].copy_from_slice(&PAGE);
    Some(library)
}

/// Where a pattern is, if it is there once.
fn only(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut places = bytes.windows(pattern.len()).enumerate().filter_map(|(at, here)| (here == pattern).then_some(at));
    let (at, None) = (places.next()?, places.next()) else { return None };
    Some(at)
}

/// With an answer to `SIO_UDP_NETRESET`; none when the instructions are not there, or not once.
fn patient(mut library: Vec<u8>) -> Option<Vec<u8>> {
    let distance = only(&library, CONNRESET)? + CONNRESET.len();
    let there = i32::from_le_bytes(library.get(distance..distance + REL)?.try_into().ok()?);
    let mode = only(&library, MODE)?;
    let refusal = mode + MODE.len() + REL;
    if library.get(refusal..refusal + REFUSAL.len())? != REFUSAL {
        return None;
    }
    // Distances count from the end of their instruction.
    let target = i32::try_from(distance + REL).ok()?.checked_add(there)?;
    let jump = target.checked_sub(i32::try_from(refusal).ok()?)?;
    library[mode..][..NETRESET.len()].copy_from_slice(&NETRESET);
    library[refusal - REL..refusal].copy_from_slice(&jump.to_le_bytes());
    Some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_instructions_are_changed() {
        let once = [&[0x90; 9], FILL, &[0xe8, 1, 2]].concat();
        let changed = lean(&once).unwrap();
        let differs: Vec<usize> = (0..once.len()).filter(|at| once[*at] != changed[*at]).collect();
        assert_eq!(differs, [9 + 4, 9 + 5], "-0xf0000 and -0x1000 differ in two bytes");
        assert_eq!(changed[9 + 3..9 + 7], [0x00, 0xf0, 0xff, 0xff]);
        assert_eq!(lean(&[0x90; 64]), None, "another Wine");
        assert_eq!(lean(&[FILL, FILL].concat()), None, "ambiguous");
    }

    #[test]
    fn names_are_changed_where_they_stand_alone() {
        let module = b"x\0WINEUSERNAME=\0WINEUSERNAME\0WINEUSERNAMES\0".to_vec();
        assert_eq!(private(module, &["WINEUSERNAME"], false).unwrap(), b"x\0WINEUSERNAME=\0=INEUSERNAME\0WINEUSERNAMES\0");
        let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert_eq!(private(wide("aWINEUNIXCP\0"), &["WINEUNIXCP"], true).unwrap(), wide("a=INEUNIXCP\0"));
        assert_eq!(private(wide("aWINEUNIXCP\0"), &["WINEUNIXCP", "WINEDATADIR"], true), None, "another Wine");
    }

    #[test]
    fn a_request_of_gos_is_answered_as_its_sibling_is() {
        // The sibling's answer begins 0x100 bytes behind its instruction, which ends at 13.
        let module = [&[0x90; 1], CONNRESET, &[0, 1, 0, 0], MODE, &[0x40, 2, 0, 0], &REFUSAL, &[0xba]].concat();
        let changed = patient(module.clone()).unwrap();
        // The new instruction ends at 25, and leads to 0x10d.
        let expected = [&module[..13], &[0x81, 0xfb, 0x0f, 0, 0, 0x98, 0x0f, 0x84, 0xf4, 0, 0, 0], &REFUSAL, &[0xba]].concat();
        assert_eq!(changed, expected);
        assert_eq!(patient([module.clone(), module.clone()].concat()), None, "ambiguous");
        assert_eq!(patient(module[..26].to_vec()), None, "cut off");
        assert_eq!(patient(module[13..].to_vec()), None, "another Wine");
    }

    #[test]
    fn the_machines_modules_are_copied_once() {
        let dir = tempfile::tempdir().unwrap();
        let made = copies(dir.path()).unwrap();
        assert_eq!(made.len(), NAMING.len() + 1, "Debian's Wine differs in all points: {made:?}");
        for (copy, place) in &made {
            assert_eq!(copy.metadata().unwrap().len(), place.metadata().unwrap().len());
        }
        let first = made[0].0.metadata().unwrap().ino();
        assert_eq!(copies(dir.path()).unwrap()[0].0.metadata().unwrap().ino(), first);
    }
}
