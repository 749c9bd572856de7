//! Makes the Windows template: Wine's own files, a registry, the guest programs.
//!
//! It grows in a directory of its own beside its place and takes the place in one step, so that nobody ever sees half of it. One process at a
//! time makes it. What an earlier one left behind (killed, or a template that was in use) is removed first.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use linux_sys::lock::FileLock;

use super::{LOCK, Loader, Missing, NAME, Programs, STAMP, find, whole_version};

/// What a template's version depends on beside its programs.
pub(super) const RECIPE: &[&str] = &[include_str!("make.rs"), REGISTRY];
/// What Wine's registry is given.
const REGISTRY: &str = include_str!("windows.reg");
/// The build that a plain `wine` finds in the template.
const BUILD: &str = "10.0.20348";
/// User of the programs of containers, whichever user makes the template.
const USER: &str = "ContainerAdministrator";

/// Directories beside the template: one that is being made, one that was replaced while runtimes used it.
const MAKING: &str = "wine-template.making-";
const REPLACED: &str = "wine-template.replaced-";

/// How long one program of Wine may take, on a busy machine.
const PROGRAM: Duration = Duration::from_secs(180);
/// How long Wine's server may take to end.
const SETTLE: Duration = Duration::from_secs(60);
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);

/// What is wanted.
pub struct Work<'a> {
    /// Mullion's cache directory; made when it is missing.
    pub cache: &'a Path,
    /// What goes into the template.
    pub programs: &'a Programs,
    /// Make it even if a current one is there.
    pub anew: bool,
    /// Asked again and again: whether to stop.
    pub interrupted: &'a dyn Fn() -> bool,
    /// Called after each step, with how long it took.
    pub step: &'a mut dyn FnMut(&str, Duration),
}

/// The template that is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its directory.
    pub dir: PathBuf,
    /// Whether it was made just now.
    pub fresh: bool,
}

/// Somebody wanted no template any longer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted before the Windows template was complete: nothing of it was kept")]
pub struct Interrupted;

/// Makes the template unless a current one is there.
///
/// # Errors
/// [`Missing::Wine`], [`Interrupted`], or what failed. Nothing is left behind then, and an older template stays as it is.
pub fn make(work: Work<'_>) -> Result<Made> {
    let loader = Loader::find().ok_or(Missing::Wine)?;
    let programs = work.programs.version();
    let version = whole_version(&programs, loader);
    fs::create_dir_all(work.cache).with_context(|| format!("cannot make {}", work.cache.display()))?;
    let Work { cache, interrupted, .. } = work;
    let mut maker = Maker { loader, cache, interrupted, programs: work.programs, step: work.step, since: Instant::now() };
    let _turn = maker.turn()?;
    sweep(cache, loader);
    if !work.anew
        && let Ok(dir) = find(cache, Some(&programs))
    {
        return Ok(Made { dir, fresh: false });
    }
    let scratch = tempfile::Builder::new().prefix(MAKING).tempdir_in(cache).with_context(|| format!("cannot write into {}", cache.display()))?;
    let made = maker.fill(scratch.path()).and_then(|prefix| {
        fs::write(prefix.join(STAMP), format!("{version}\n")).context("cannot write the template's stamp")?;
        own(&prefix).context("cannot give the template's files this user's group")?;
        take_place(&prefix, cache)
    });
    // Ends Wine's server, which is no child of this process, after failures too.
    end_server(loader, &scratch.path().join("prefix"));
    drop(scratch);
    sweep(cache, loader);
    Ok(Made { dir: made?, fresh: true })
}

struct Maker<'a> {
    loader: Loader,
    cache: &'a Path,
    programs: &'a Programs,
    interrupted: &'a dyn Fn() -> bool,
    step: &'a mut dyn FnMut(&str, Duration),
    since: Instant,
}

impl Maker<'_> {
    fn done(&mut self, what: &str) {
        (self.step)(what, self.since.elapsed());
        self.since = Instant::now();
    }

    fn check(&self) -> Result<(), Interrupted> {
        if (self.interrupted)() { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits until no other process makes a template in this cache.
    fn turn(&mut self) -> Result<FileLock> {
        let path = self.cache.join(LOCK);
        let mut waited = false;
        loop {
            if let Some(lock) = FileLock::try_acquire(&path)? {
                if waited {
                    self.done("waited for another mullion that made the template");
                }
                return Ok(lock);
            }
            waited = true;
            self.check()?;
            std::thread::sleep(POLL);
        }
    }

    /// Makes the prefix below `scratch`.
    fn fill(&mut self, scratch: &Path) -> Result<PathBuf> {
        let prefix = scratch.join("prefix");
        // Wine links the user's folders to those of the machine, unless there are none.
        fs::create_dir(scratch.join("home"))?;
        self.boot(scratch)?;
        self.done("started Windows for the first time");

        let registry = scratch.join("windows.reg");
        fs::write(&registry, REGISTRY)?;
        let argument = format!("Z:{}", registry.display().to_string().replace('/', "\\"));
        self.wine(scratch, &["regedit", "/S", &argument])?;
        self.settle(scratch)?;
        let version = self.wine(scratch, &["cmd", "/c", "ver"])?;
        self.settle(scratch)?;
        if !version.contains(BUILD) {
            bail!("Wine's Windows calls itself {:?}, not {BUILD}", version.trim());
        }
        self.done("set version and services");

        self.install(&prefix).context("cannot install the guest programs")?;
        tidy(&prefix).context("cannot finish the template")?;
        sweep_server(&prefix);
        self.check()?;
        self.done("installed the guest programs");
        Ok(prefix)
    }

    fn boot(&self, scratch: &Path) -> Result<()> {
        let first = self.wine(scratch, &["wineboot", "--init"]);
        if let Err(error) = first {
            if error.is::<Interrupted>() {
                return Err(error);
            }
            // Seen once on a busy machine: Wine had printed that it was done, and did not end.
            end_server(self.loader, &scratch.join("prefix"));
            fs::remove_dir_all(scratch.join("prefix")).ok();
            self.wine(scratch, &["wineboot", "--init"])?;
        }
        self.settle(scratch)
    }

    fn install(&self, prefix: &Path) -> Result<()> {
        let windows = prefix.join("drive_c/windows");
        let system = windows.join("system32");
        let put = |path: &Path, name: &str| -> Result<()> {
            // Not through a link, should Wine have made one.
            fs::remove_file(path).ok();
            let mut file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            file.write_all(self.programs.content(name))?;
            Ok(file.set_permissions(fs::Permissions::from_mode(0o755))?)
        };
        put(&system.join("mullion-init.exe"), "mullion-init.exe")?;
        put(&system.join("bcryptprimitives.dll"), "bcryptprimitives.dll")?;
        // No screen, so no shell on it, which would cost each session a process. Wine starts one for programs that ask for the desktop,
        // and complains when there is none: this one ends at once.
        put(&system.join("explorer.exe"), "explorer.exe")?;
        put(&windows.join("explorer.exe"), "explorer.exe")?;
        let tools = system.join("mullion-tools.exe");
        put(&tools, "mullion-tools.exe")?;
        for name in guest::tools::INSTALLED {
            let path = system.join(format!("{name}.exe"));
            fs::create_dir_all(path.parent().unwrap_or(&system))?;
            fs::remove_file(&path).ok();
            fs::hard_link(&tools, &path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(fs::remove_file(&tools)?)
    }

    /// Runs a program in Wine and returns what it printed.
    fn wine(&self, scratch: &Path, args: &[&str]) -> Result<String> {
        let (log, out) = (scratch.join("log"), scratch.join("out"));
        let mut command = wine_command(self.loader.wine, self.loader, &scratch.join("prefix"), &scratch.join("home"));
        let child = command.args(args).stdout(File::create(&out)?).stderr(File::create(&log)?).spawn();
        let child = child.with_context(|| format!("cannot start {}", self.loader.wine))?;
        let printed = || fs::read(&out).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
        match self.wait(child, PROGRAM)? {
            Some(status) if status.success() => Ok(printed()),
            ended => {
                let output = fs::read(&log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default() + &printed();
                let how = ended.map_or_else(|| format!("did not end within {PROGRAM:?}"), |status| format!("ended with {status}"));
                let output = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").to_owned();
                bail!("Wine's {} {how}: {output}", args.join(" "))
            }
        }
    }

    /// Waits until Wine's server has written the registry and ended.
    fn settle(&self, scratch: &Path) -> Result<()> {
        let mut command = wine_command(self.loader.server, self.loader, &scratch.join("prefix"), &scratch.join("home"));
        let child = command.arg("-w").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let ended = self.wait(child.with_context(|| format!("cannot start {}", self.loader.server))?, SETTLE)?;
        if ended.is_none() { bail!("Wine's server did not end within {SETTLE:?}") } else { Ok(()) }
    }

    /// None: it took too long, and was killed.
    fn wait(&self, mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            let interrupted = self.check();
            if interrupted.is_err() || Instant::now() > deadline {
                child.kill().ok();
                child.wait().ok();
                interrupted?;
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A program of Wine's, with nothing of the caller's environment. In a process group of its own: whether an interrupted terminal ends it is
/// decided here.
fn wine_command(program: &str, loader: Loader, prefix: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).env("WINEPREFIX", prefix).env("WINESERVER", loader.server);
    command.env("WINEARCH", "win64").env("WINEDEBUG", "-all").env("WINEDLLOVERRIDES", "mscoree,mshtml=").env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::null()).process_group(0).current_dir("/");
    command
}

/// Ends whatever of Wine runs in a prefix.
fn end_server(loader: Loader, prefix: &Path) {
    if !prefix.is_dir() {
        return;
    }
    for order in ["-k", "-w"] {
        let mut command = wine_command(loader.server, loader, prefix, prefix);
        // Without a server the first one fails, and so there is nothing to wait for.
        match command.arg(order).stdout(Stdio::null()).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            _ => break,
        }
    }
    sweep_server(prefix);
}

/// Debian's wineserver makes a directory below /tmp, notes its name in the prefix, and leaves both behind.
fn sweep_server(prefix: &Path) {
    let note = prefix.join("wineserver");
    let name = fs::read_to_string(&note).unwrap_or_default();
    let name = name.trim();
    if let Some(rest) = name.strip_prefix("wine-")
        && !rest.is_empty()
        && rest.chars().all(|c| c.is_ascii_alphanumeric())
    {
        fs::remove_dir_all(Path::new("/tmp").join(name)).ok();
    }
    fs::remove_file(note).ok();
}

/// Removes what others left: a template half made by a process that was killed, templates that were replaced and that nobody uses any longer.
fn sweep(cache: &Path, loader: Loader) {
    let Ok(entries) = fs::read_dir(cache) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with(MAKING) {
            end_server(loader, &path.join("prefix"));
            fs::remove_dir_all(&path).ok();
        } else if name.starts_with(REPLACED) {
            let stamp = path.join("prefix").join(STAMP);
            // Runtimes that use it share this lock.
            if !stamp.exists() || matches!(FileLock::try_acquire(&stamp), Ok(Some(_))) {
                fs::remove_dir_all(&path).ok();
            }
        }
    }
}

/// Puts a finished prefix where templates are looked for, and an older one aside.
fn take_place(prefix: &Path, cache: &Path) -> Result<PathBuf> {
    let template = cache.join(NAME);
    let named = || format!("cannot put the template at {}", template.display());
    if fs::symlink_metadata(&template).is_err() {
        fs::rename(prefix, &template).with_context(named)?;
        return Ok(template);
    }
    let aside = tempfile::Builder::new().prefix(REPLACED).tempdir_in(cache)?.keep();
    let old = aside.join("prefix");
    fs::rename(prefix, &old).with_context(named)?;
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    if rustix::fs::renameat_with(rustix::fs::CWD, &old, rustix::fs::CWD, &template, exchange).is_ok() {
        return Ok(template);
    }
    // File systems that cannot exchange two names: for a moment there is no template.
    let second = aside.join("older");
    fs::rename(&template, &second).and_then(|()| fs::rename(&old, &template)).and_then(|()| fs::rename(&second, &old)).with_context(named)?;
    Ok(template)
}

/// Takes out of the prefix what containers must not have, and what would cost each of them something.
fn tidy(prefix: &Path) -> Result<()> {
    let drive = prefix.join("drive_c");
    for name in ["winebus.sys", "winehid.sys", "wineusb.sys"] {
        fs::remove_file(drive.join("windows/system32/drivers").join(name)).ok();
    }
    // Of the machine outside, only what is mounted will be in sight.
    for entry in fs::read_dir(prefix.join("dosdevices"))? {
        let entry = entry?;
        if entry.file_name() != "c:" {
            fs::remove_file(entry.path())?;
        }
    }
    let users = drive.join("users");
    let maker = fs::read_dir(&users)?.flatten().map(|entry| entry.file_name()).find(|name| *name != "Public" && *name != USER);
    let maker = maker.context("Wine made no user")?;
    fs::rename(users.join(&maker), users.join(USER))?;
    links_to_directories(&drive)?;
    for dir in [format!("users/{USER}/AppData/Local/Temp"), "inetpub/wwwroot".to_owned()] {
        fs::create_dir_all(drive.join(dir))?;
    }
    for file in ["system.reg", "user.reg", "userdef.reg"] {
        let path = prefix.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = renamed(&text, &maker.to_string_lossy());
        fs::write(&path, if file == "system.reg" { without_proxies(&text) } else { text })?;
    }
    // Wine would update the prefix when it is itself updated: at each start, in each container.
    fs::write(prefix.join(".update-timestamp"), "disable\n")?;
    Ok(())
}

/// Wine links some of a user's folders to the machine's; in containers they are directories.
fn links_to_directories(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            fs::remove_file(entry.path())?;
            fs::create_dir(entry.path())?;
        } else if kind.is_dir() {
            links_to_directories(&entry.path())?;
        }
    }
    Ok(())
}

/// Overlays of a user namespace refuse files of a group that is not mapped there: a set-group-ID bit of the cache gives one.
fn own(path: &Path) -> std::io::Result<()> {
    let group = nix::unistd::getegid().as_raw();
    let metadata = fs::symlink_metadata(path)?;
    if metadata.gid() != group {
        std::os::unix::fs::lchown(path, None, Some(group))?;
    }
    if metadata.is_dir() {
        fs::read_dir(path)?.try_for_each(|entry| own(&entry?.path()))?;
    }
    Ok(())
}

/// Wine's registry with another name of the user's folder.
fn renamed(text: &str, maker: &str) -> String {
    let old = format!(r"C:\\users\\{maker}");
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(&old) {
        let after = &rest[at + old.len()..];
        result.push_str(&rest[..at]);
        // Another user's name may begin like this one.
        if after.starts_with(|c: char| c.is_alphanumeric() || "_-.".contains(c)) {
            result.push_str(&old);
        } else {
            result.push_str(r"C:\\users\\");
            result.push_str(USER);
        }
        rest = after;
    }
    result + rest
}

/// Wine's registry without the keys for passing COM objects between threads and processes, which needs a service that is off. Each session's
/// server holds the registry in memory: this is a third of it.
fn without_proxies(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut keep = true;
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') {
            keep = !line.starts_with(r"[Software\\Classes\\Interface\\");
        }
        if keep {
            result.push_str(line);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_names_the_containers_user() {
        let text = "\"A\"=\"C:\\\\users\\\\al\\\\Temp\"\n\"B\"=\"C:\\\\users\\\\albert\"\n\"C\"=\"C:\\\\users\\\\al\"\n";
        let expected = "\"A\"=\"C:\\\\users\\\\ContainerAdministrator\\\\Temp\"\n\"B\"=\"C:\\\\users\\\\albert\"\n\"C\"=\"C:\\\\users\\\\ContainerAdministrator\"\n";
        assert_eq!(renamed(text, "al"), expected);
    }

    #[test]
    fn only_com_proxies_go() {
        let text = "head\n[Software\\\\Classes\\\\Interface\\\\{1}] 1\n@=\"x\"\n[Software\\\\Classes\\\\InterfaceX] 2\n\"y\"=\"z\"\n";
        assert_eq!(without_proxies(text), "head\n[Software\\\\Classes\\\\InterfaceX] 2\n\"y\"=\"z\"\n");
    }

    #[test]
    fn a_replaced_template_stays_while_it_is_used() {
        let cache = tempfile::tempdir().unwrap();
        let Some(loader) = Loader::find() else { panic!("this test needs Wine (tools/setup)") };
        let prefix = |name: &str| {
            let dir = cache.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join(STAMP), name).unwrap();
            dir
        };
        let template = take_place(&prefix("one"), cache.path()).unwrap();
        let used = FileLock::try_share(&template.join(STAMP)).unwrap().expect("nobody replaces it");
        assert_eq!(take_place(&prefix("two"), cache.path()).unwrap(), template);
        assert_eq!(fs::read_to_string(template.join(STAMP)).unwrap(), "two");
        let names = || fs::read_dir(cache.path()).unwrap().count();
        sweep(cache.path(), loader);
        assert_eq!(names(), 2, "the first one is in use");
        drop(used);
        fs::create_dir(cache.path().join(format!("{MAKING}killed"))).unwrap();
        sweep(cache.path(), loader);
        assert_eq!(names(), 1);
    }
}
