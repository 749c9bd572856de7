//! `mullion hns wine-prefix`: a Wine prefix whose Windows programs use a simulated host.
//!
//! It is the template that all Windows programs here start from, with computenetwork.dll and vmcompute.dll in its system32 (programs of Go
//! load system libraries only from there). The template's 700 MB are linked, not copied; what programs write is the prefix's own.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;

use crate::exit::Failure;

/// `mullion hns wine-prefix`.
#[derive(Clone, Debug, Args)]
pub struct WinePrefixArgs {
    /// Directory of the prefix; a prefix that this command created there before is replaced
    directory: PathBuf,
    /// Library to install as both DLLs [default: computenetwork.dll beside this program, or below its Windows target's directory]
    #[arg(long)]
    dll: Option<PathBuf>,
    /// Wine template to start from [default: mullion/wine-template in the XDG cache]
    #[arg(long)]
    template: Option<PathBuf>,
}

/// The file that says that a directory is a prefix of ours.
const STAMP: &str = "mullion-prefix";

/// Makes the prefix and prints how it is used.
pub fn main(args: &WinePrefixArgs) -> Result<(), Failure> {
    let template = args.template.clone().map_or_else(template, Ok)?;
    if !template.join("mullion-template").is_file() {
        return Err(anyhow!("there is no Windows template at {}: make it with `mullion template`", template.display()).into());
    }
    let dll = args.dll.clone().map_or_else(library, Ok)?;
    make(&args.directory, &template, &dll)?;
    let directory = fs::canonicalize(&args.directory).with_context(|| format!("cannot find {}", args.directory.display()))?;
    println!("WINEPREFIX={}", directory.display());
    Ok(())
}

fn template() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set: give --template DIR")?;
    Ok(cache.join("mullion/wine-template"))
}

/// The library where builds and packages put it.
fn library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("this program cannot find itself: give --dll FILE")?;
    let beside = program.parent().unwrap_or(Path::new("."));
    let profile = beside.file_name().unwrap_or_default();
    let built = beside.parent().unwrap_or(beside).join("x86_64-pc-windows-gnu").join(profile);
    let candidates = [beside.join("computenetwork.dll"), built.join("computenetwork.dll")];
    let found = candidates.iter().find(|candidate| candidate.is_file()).cloned();
    found.ok_or_else(|| {
        let looked = candidates.map(|candidate| candidate.display().to_string()).join(" and ");
        anyhow!("no computenetwork.dll at {looked}: build it (tools/windows-cargo build -p hcn-dll) or give --dll FILE")
    })
}

/// Makes the prefix at `directory`.
fn make(directory: &Path, template: &Path, dll: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    let empty = fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none());
    if directory.join(STAMP).is_file() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot replace {shown}"))?;
    } else if !empty {
        bail!("{shown} is not empty and no prefix of this command: choose another directory");
    }
    let drive = directory.join("drive_c");
    let system = drive.join("windows/system32");
    fs::create_dir_all(&system).with_context(|| format!("cannot make {shown}"))?;
    fill(directory, template, &drive).with_context(|| format!("cannot fill {shown} from {}", template.display()))?;
    for name in ["computenetwork.dll", "vmcompute.dll"] {
        fs::copy(dll, system.join(name)).with_context(|| format!("cannot copy {} into {shown}", dll.display()))?;
    }
    fs::write(directory.join(STAMP), "").with_context(|| format!("cannot write into {shown}"))
}

fn fill(directory: &Path, template: &Path, drive: &Path) -> io::Result<()> {
    for entry in fs::read_dir(template)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != "mullion-template" {
            fs::copy(entry.path(), directory.join(entry.file_name()))?;
        }
    }
    let devices = directory.join("dosdevices");
    fs::create_dir_all(&devices)?;
    symlink("../drive_c", devices.join("c:"))?;
    symlink("/", devices.join("z:"))?;
    let windows = template.join("drive_c/windows");
    link_all(&windows.join("system32"), &drive.join("windows/system32"))?;
    link_all(&windows, &drive.join("windows"))?;
    copy_all(&template.join("drive_c"), drive)
}

/// Links every entry that is not there yet.
fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        match symlink(entry.path(), to.join(entry.file_name())) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Copies every directory that is not there yet, with what is in it.
fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if target.exists() {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            copy_all(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_links_the_system_and_owns_the_rest() {
        let home = tempfile::tempdir().unwrap();
        let template = home.path().join("template");
        let file = |path: &str, text: &str| {
            let path = template.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("mullion-template", "1");
        file("system.reg", "registry");
        file("drive_c/windows/system32/kernel32.dll", "kernel");
        file("drive_c/windows/regedit.exe", "editor");
        file("drive_c/users/ContainerAdministrator/note", "mine");
        let dll = home.path().join("computenetwork.dll");
        fs::write(&dll, "library").unwrap();
        let prefix = home.path().join("prefix");
        for _ in 0..2 {
            make(&prefix, &template, &dll).unwrap();
        }
        let read = |path: &str| fs::read_to_string(prefix.join(path)).unwrap();
        for name in ["computenetwork.dll", "vmcompute.dll"] {
            assert_eq!(read(&format!("dosdevices/c:/windows/system32/{name}")), "library");
        }
        assert_eq!(read("drive_c/windows/system32/kernel32.dll"), "kernel");
        assert_eq!((read("drive_c/windows/regedit.exe"), read("system.reg")), ("editor".into(), "registry".into()));
        fs::write(prefix.join("drive_c/users/ContainerAdministrator/note"), "other").unwrap();
        assert_eq!(fs::read_to_string(template.join("drive_c/users/ContainerAdministrator/note")).unwrap(), "mine");
        assert!(!template.join("drive_c/windows/system32/computenetwork.dll").exists(), "the template stays as it is");

        let foreign = home.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("file"), "").unwrap();
        assert!(make(&foreign, &template, &dll).unwrap_err().to_string().contains("not empty"));
    }
}
