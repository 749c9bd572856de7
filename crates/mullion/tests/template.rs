//! `mullion template`, as a user has it: a binary, the guest programs beside it, and an empty cache. Wine is required, and `tools/guest`
//! must have built the programs (`make test` does).

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use test_lab::until;

/// A home with a copy of the binary and, if asked for, the guest programs beside it.
struct Home(tempfile::TempDir);

impl Home {
    fn new(programs: bool) -> Self {
        let home = Self(tempfile::Builder::new().prefix("mullion-template").tempdir_in("/tmp").unwrap());
        let built = Path::new(env!("CARGO_BIN_EXE_mullion"));
        fs::hard_link(built, home.binary()).or_else(|_| fs::copy(built, home.binary()).map(drop)).unwrap();
        if programs {
            let guest = built.ancestors().nth(2).unwrap().join("guest");
            let files = fs::read_dir(&guest).unwrap_or_else(|_| panic!("{} is missing: tools/guest builds it", guest.display()));
            fs::create_dir(home.path("guest")).unwrap();
            for file in files.flatten() {
                fs::copy(file.path(), home.path("guest").join(file.file_name())).unwrap();
            }
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn binary(&self) -> PathBuf {
        self.path("mullion")
    }

    fn cache(&self) -> PathBuf {
        self.path("cache/mullion")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.binary());
        command.args(args).env("HOME", self.0.path()).env("XDG_CACHE_HOME", self.path("cache")).env("XDG_RUNTIME_DIR", self.path("run"));
        command.env_remove("XDG_STATE_HOME").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The only line on standard error, and the exit code.
    fn refused(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error.lines().count(), 1, "{error}");
        (output.status.code().unwrap(), error.trim().to_owned())
    }

    /// Names in the cache, the lock apart.
    fn cached(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.cache()) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name != "wine-template.lock").collect()
    }
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All files of a template, in order.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        }
        found.push(entry.path());
    }
}

#[test]
fn template_is_made_once_by_the_first_of_two_and_replaced_by_another_version() {
    let home = Home::new(true);
    let (code, error) = home.refused(&["template", "--status"]);
    assert_eq!(code, 72, "{error}");
    assert!(error.contains("there is no Windows template at") && error.ends_with("make it with `mullion template`"), "{error}");

    let both = [home.start(&["template", "-o", "json"]), home.start(&["template", "-o", "json"])];
    let made = both.map(|child| json(&child.wait_with_output().unwrap()));
    assert_eq!(made.iter().filter(|answer| answer["made"] == true).count(), 1, "{made:?}");
    assert_eq!(home.cached(), ["wine-template"], "nothing but the template stays");
    let template = home.cache().join("wine-template");
    assert_eq!(made[0]["path"], template.to_str().unwrap());

    let mut all = Vec::new();
    files(&template, &mut all);
    // Root's templates belong to users without rights, everybody else's to themselves.
    let (us, owner) = (fs::metadata(home.path("cache")).unwrap(), fs::metadata(&template).unwrap());
    assert_eq!(us.uid() == 0, owner.uid() != us.uid(), "it belongs to {}", owner.uid());
    let owned = |file: &Path| fs::symlink_metadata(file).is_ok_and(|m| (m.uid(), m.gid()) == (owner.uid(), owner.gid()));
    let foreign = all.iter().find(|file| !owned(file));
    assert!(all.len() > 500 && foreign.is_none(), "{} files, one of somebody else: {foreign:?}", all.len());
    let system = template.join("drive_c/windows/system32");
    for name in ["curl.exe", "tar.exe", "mullion-init.exe", "bcryptprimitives.dll", "WindowsPowerShell/v1.0/powershell.exe"] {
        assert!(system.join(name).is_file(), "{name}");
    }
    assert!(template.join("drive_c/users/ContainerAdministrator").is_dir());
    let links: Vec<_> = all.iter().filter(|file| file.is_symlink()).collect();
    assert_eq!(links, [&template.join("dosdevices/c:")], "nothing of the machine is in sight");

    let stamp = template.join("mullion-template");
    let inode = fs::metadata(&stamp).unwrap().ino();
    let again = json(&home.run(&["template", "-o", "json"]));
    assert_eq!((&again["made"], fs::metadata(&stamp).unwrap().ino()), (&false.into(), inode));
    assert!(home.run(&["template", "--status"]).status.success());

    fs::write(&stamp, "0123\n").unwrap();
    let (code, error) = home.refused(&["template", "--status"]);
    assert_eq!(code, 73, "{error}");
    assert!(error.contains("has version 0123, this mullion needs") && error.ends_with("replace it with `mullion template`"), "{error}");
    // A process that uses the old one keeps it.
    let user = fs::File::open(&stamp).unwrap();
    user.lock_shared().unwrap();
    assert_eq!(json(&home.run(&["template", "-o", "json"]))["made"], true);
    assert_eq!(home.cached().len(), 2, "the old one is in use");
    drop(user);
    assert_eq!(json(&home.run(&["template", "-o", "json"]))["made"], false);
    assert_eq!(home.cached(), ["wine-template"]);
}

#[test]
fn interrupted_template_leaves_nothing() {
    let home = Home::new(true);
    for signal in ["INT", "KILL"] {
        let mut child = home.start(&["template"]);
        until("the beginning of a template", || {
            home.cached().iter().any(|name| name.starts_with("wine-template.making-") && home.cache().join(name).join("prefix/drive_c").exists())
        });
        let killed = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let status = child.wait().unwrap();
        assert!(!status.success());
        if signal == "INT" {
            assert_eq!(status.code(), Some(1));
            assert!(home.cached().is_empty(), "{:?}", home.cached());
        }
    }
    // A killed process removes nothing itself: the next one does.
    assert!(home.run(&["template"]).status.success());
    assert_eq!(home.cached(), ["wine-template"]);
}

#[test]
fn template_without_wine_or_programs_names_what_is_missing() {
    let home = Home::new(false);
    let (code, error) = home.refused(&["template"]);
    assert_eq!(code, 71, "{error}");
    assert!(error.contains("built without the guest programs") && error.contains("tools/guest"), "{error}");

    // In a mount namespace of its own, this machine has no Wine.
    let hide = "for dir in /usr/lib/wine /opt/wine-stable; do [ ! -d $dir ] || mount -t tmpfs none $dir; done; exec \"$0\" template \"$@\"";
    for args in [&["--status"][..], &[]] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c", hide]).arg(home.binary()).args(args);
        let output = command.env("HOME", home.0.path()).env("XDG_CACHE_HOME", home.path("cache")).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(71), "{error}");
        assert!(error.contains("this machine has no Wine; install it (Debian: apt-get install wine64)"), "{error}");
    }
}

/// A template has the version of its programs: programs that change by themselves would have it made again and again.
#[test]
fn the_same_sources_make_the_same_programs() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest");
    let built = || {
        let output = Command::new(&script).env("QUIET", "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let dir = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        let mut times: Vec<_> =
            fs::read_dir(dir).unwrap().flatten().map(|file| (file.file_name(), file.metadata().unwrap().modified().unwrap())).collect();
        times.sort();
        times
    };
    assert_eq!(built(), built());
}
