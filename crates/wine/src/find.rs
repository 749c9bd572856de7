//! Finds the program of a command line, as CreateProcess does, to check the file before it is started.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use guest::Drives;

use super::{DRIVE, command, needs, pe};

/// Windows' own directory.
const WINDOWS: &str = r"C:\windows\";

/// Why the program of a command line cannot run, if that is known. `drives` are the container's.
pub fn unfit(drives: &Drives, line: &str, cwd: &str, path: &str) -> Option<String> {
    let program = command::program(line);
    let (found, place) = candidates(program, cwd, path).into_iter().find_map(|name| {
        let place: PathBuf = drives.path(&name).ok().filter(|place| place.is_file())?;
        Some((name, place))
    })?;
    let file = found.rsplit('\\').next().unwrap_or_default();
    // An image may bring its own under the name of a program of Windows.
    if let Some(reason) = needs::known(file).or_else(|| needs::missing(file).filter(|_| is_windows(&found))) {
        return Some(format!("{found} cannot run on a simulated node: {reason}"));
    }
    // Scripts are cmd's to run.
    if [".bat", ".cmd"].iter().any(|extension| file.to_ascii_lowercase().ends_with(extension)) {
        return None;
    }
    let mut head = Vec::new();
    File::open(place).ok()?.take(pe::HEAD).read_to_end(&mut head).ok()?;
    pe::check(&head).err().map(|reason| format!("{found} cannot run on a simulated node: {reason}"))
}

/// Whether a full name is below Windows' own directory.
fn is_windows(name: &str) -> bool {
    name.get(..WINDOWS.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(WINDOWS))
}

/// Whether an image has the program that a command line names, by the image's unpacked layers. `root` is where the image's drive C is in the
/// container, without a backslash at the end.
pub fn is_brought(layers: &[PathBuf], root: &str, program: &str, cwd: &str, path: &str) -> bool {
    let own = |name: &str| {
        let is_below = name.get(..root.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(root)) && name[root.len()..].starts_with('\\');
        is_below.then(|| name[root.len()..].to_owned())
    };
    let names: Vec<String> = candidates(program, cwd, path).into_iter().filter(|name| !is_windows(name)).filter_map(|name| own(&name)).collect();
    let has = |layer: &PathBuf, name: &str| Drives::below(layer.join(DRIVE), name).is_some_and(|file| file.is_file());
    layers.iter().any(|layer| names.iter().any(|name| has(layer, name)))
}

/// Full names to try, in Windows' order, with `.exe` where there is no extension.
fn candidates(program: &str, cwd: &str, path: &str) -> Vec<String> {
    let program = program.replace('/', "\\");
    let file = program.rsplit('\\').next().unwrap_or_default();
    let program = if file.is_empty() || file.contains('.') { program.clone() } else { format!("{program}.exe") };
    if program.get(1..2) == Some(":") {
        return vec![program];
    }
    let cwd = if cwd.is_empty() { r"C:\" } else { cwd };
    if let Some(rest) = program.strip_prefix('\\') {
        return vec![format!(r"{}\{rest}", cwd.get(..2).unwrap_or("C:"))];
    }
    let below = |dir: &str| format!(r"{}\{program}", dir.trim_end_matches(['\\', '/']));
    if program.contains('\\') {
        return vec![below(cwd)];
    }
    let dirs = [r"C:\windows\system32", cwd, r"C:\windows"].into_iter().chain(path.split(';').filter(|dir| !dir.is_empty()));
    dirs.map(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_searched_in_windows_order() {
        let names = |program| candidates(program, r"C:\app", r"C:\tools\;D:\x");
        assert_eq!(names("go"), [r"C:\windows\system32\go.exe", r"C:\app\go.exe", r"C:\windows\go.exe", r"C:\tools\go.exe", r"D:\x\go.exe"]);
        assert_eq!(names("bin/go.exe"), [r"C:\app\bin\go.exe"]);
        assert_eq!(names(r"\go"), [r"C:\go.exe"]);
        assert_eq!(names("D:/go"), [r"D:\go.exe"]);
    }

    #[test]
    fn programs_of_an_image_are_found_in_its_layers() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["one", "two"].map(|layer| dir.path().join(layer));
        std::fs::create_dir_all(layers[1].join("drive_c/Program Files/PowerShell")).unwrap();
        std::fs::write(layers[1].join("drive_c/Program Files/PowerShell/powershell.exe"), "MZ").unwrap();
        let path = r"C:\Windows\system32;C:\program files\powershell\";
        assert!(is_brought(&layers, "C:", "PowerShell", "", path));
        assert!(is_brought(&layers, r"C:\hpc", r"program files\powershell\powershell.exe", r"c:\HPC", ""));
        assert!(!is_brought(&layers, r"C:\hpc", "powershell", r"C:\hpc", path), "the node's own directory");
        assert!(!is_brought(&layers, "C:", "powershell", "", r"C:\Windows\system32"));
        assert!(!is_brought(&layers, "C:", r"..\two\x", "", path));
    }

    #[test]
    fn program_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let system = dir.path().join("c/Windows/System32");
        std::fs::create_dir_all(&system).unwrap();
        std::fs::create_dir_all(dir.path().join("c/app")).unwrap();
        std::fs::write(dir.path().join("c/app/Tool.exe"), "#!/bin/sh\n").unwrap();
        std::fs::write(dir.path().join("c/app/w3wp.exe"), "MZ").unwrap();
        std::fs::write(dir.path().join("c/app/run.cmd"), "echo hello\n").unwrap();
        for place in ["c/Windows/System32/powershell.exe", "c/app/PowerShell.exe"] {
            std::fs::write(dir.path().join(place), "#!/bin/sh\n").unwrap();
        }
        let drives = Drives::new(dir.path());
        let check = |line: &str| unfit(&drives, line, r"C:\APP", "");
        let message = check("tool -x").unwrap();
        assert!(message.starts_with(r"C:\APP\tool.exe cannot run") && message.contains("not a Windows executable"), "{message}");
        assert!(check(r#""C:\app\W3WP.exe""#).unwrap().contains("part of IIS"));
        assert!(check("powershell").unwrap().contains(".NET Framework"), "Windows' own is looked for first");
        assert!(check(r"C:\app\powershell").unwrap().contains("not a Windows executable"), "the image's own is judged by its file");
        assert_eq!(check("run.cmd"), None);
        assert_eq!(check("missing.exe"), None, "Windows reports it");
    }
}
