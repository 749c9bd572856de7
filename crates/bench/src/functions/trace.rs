//! Which functions a program runs, from its start to its end: `bench called --output FILE -- PROGRAM ARGUMENT...`.
//!
//! This process becomes the program, and a child of it traces it. An `int3` stands at each function; the first call of one notes its name
//! and takes the `int3` away, so that the program is as fast as ever once it has run for a while. `SIGUSR1` does not reach the program: it
//! begins a second list, of the functions that are called from then on. The lists are written just before the program ends. Programs that it
//! starts are left alone; what runs between fork and exec counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use linux_sys::spawn::{Spawn, Stdio};
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

/// What is run, and where the names go.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the names go, one a line
    #[arg(long)]
    output: PathBuf,
    /// A program with names of functions, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// What the child of it takes.
#[derive(Clone, Debug, clap::Args)]
pub struct TracerArgs {
    #[arg(long)]
    pid: i32,
    #[arg(long)]
    program: PathBuf,
    #[arg(long)]
    output: PathBuf,
}

/// Where the functions are listed that were called after `SIGUSR1`; there is no such file without that signal.
pub fn later(output: &Path) -> PathBuf {
    output.with_extension("later")
}

/// The arguments of this program before those of a program that is to be traced.
pub fn arguments(output: &Path) -> Vec<String> {
    vec!["called".to_owned(), "--output".to_owned(), output.display().to_string(), "--".to_owned()]
}

/// Becomes the program.
pub fn main(args: &Args) -> Result<ExitCode> {
    let [program, rest @ ..] = args.command.as_slice() else { bail!("a program is missing") };
    let (said, say) = std::io::pipe()?;
    // It inherits no descriptor: whoever waits for the program to close one waits for the program alone.
    let tracer = Spawn::new(std::env::current_exe()?)
        .args(["tracer", "--pid", &std::process::id().to_string(), "--program", program, "--output", &args.output.display().to_string()])
        .stdin(Stdio::Null)
        .stdout(Stdio::Fd(say.into()))
        .spawn()
        .context("starting a tracer failed")?;
    // It ends after the program, which does not know of it.
    let _tracer = std::mem::ManuallyDrop::new(tracer);
    let line = BufReader::new(said).lines().next().context("the tracer ended")??;
    ensure!(line == ATTACHED, "the tracer said {line}");
    Err(Command::new(program).args(rest).exec()).with_context(|| format!("starting {program} failed"))
}

/// What the tracer says when the program may begin.
const ATTACHED: &str = "attached";
/// `int3`.
const BREAK: u8 = 0xcc;

/// What the tracer wants to hear of; its end ends the program.
const OPTIONS: Options = Options::PTRACE_O_TRACEEXEC
    .union(Options::PTRACE_O_TRACECLONE)
    .union(Options::PTRACE_O_TRACEFORK)
    .union(Options::PTRACE_O_TRACEVFORK)
    .union(Options::PTRACE_O_TRACEEXIT)
    .union(Options::PTRACE_O_EXITKILL);

/// Traces its parent.
pub fn trace(args: &TracerArgs) -> Result<ExitCode> {
    let leader = Pid::from_raw(args.pid);
    ptrace::seize(leader, OPTIONS).context("tracing a program failed")?;
    println!("{ATTACHED}");
    until_the_end(leader, args)?;
    Ok(ExitCode::SUCCESS)
}

fn until_the_end(leader: Pid, args: &TracerArgs) -> Result<()> {
    let mut tracer = Tracer { leader, program: args.program.clone(), functions: Functions::default(), called: BTreeSet::new(), later: None };
    loop {
        // What this thread traces, and no other child.
        let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Ok(status) => status,
            Err(nix::Error::ECHILD) => return Ok(()),
            Err(nix::Error::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if tracer.is_last(&status) {
            write(&args.output, &tracer.called)?;
            if let Some(later) = &tracer.later {
                write(&self::later(&args.output), later)?;
            }
        }
        tracer.step(status)?;
    }
}

fn write(path: &Path, names: &BTreeSet<String>) -> Result<()> {
    let text: String = names.iter().flat_map(|name| [name, "\n"]).collect();
    std::fs::write(path, text).with_context(|| format!("writing {} failed", path.display()))
}

/// Functions of a program's file, by their addresses in memory.
#[derive(Default)]
struct Functions {
    names: BTreeMap<u64, String>,
    /// The first byte of each.
    bytes: BTreeMap<u64, u8>,
}

struct Tracer {
    leader: Pid,
    program: PathBuf,
    functions: Functions,
    called: BTreeSet<String>,
    /// Those called since `SIGUSR1`.
    later: Option<BTreeSet<String>>,
}

impl Tracer {
    /// Whether the program itself is about to end.
    fn is_last(&self, status: &WaitStatus) -> bool {
        matches!(status, WaitStatus::PtraceEvent(pid, _, event) if *pid == self.leader && *event == libc::PTRACE_EVENT_EXIT)
    }

    fn step(&mut self, status: WaitStatus) -> Result<()> {
        match status {
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) if pid == self.leader => {
                self.functions = Functions::set(pid, &self.program)?;
                resume(pid, None)
            }
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) => gone(ptrace::detach(pid, None)),
            WaitStatus::PtraceEvent(pid, ..) => resume(pid, None),
            WaitStatus::Stopped(pid, Signal::SIGTRAP) => self.trap(pid),
            WaitStatus::Stopped(pid, Signal::SIGUSR1) => {
                self.functions.set_again(pid)?;
                self.later = Some(BTreeSet::new());
                resume(pid, None)
            }
            WaitStatus::Stopped(pid, signal) => resume(pid, Some(signal)),
            _ => Ok(()),
        }
    }

    /// A thread that came to an `int3` goes on with the function; another may have been there before.
    fn trap(&mut self, thread: Pid) -> Result<()> {
        let Ok(mut registers) = ptrace::getregs(thread) else { return Ok(()) };
        let at = registers.rip - 1;
        let Some(byte) = self.functions.bytes.get(&at) else { return resume(thread, Some(Signal::SIGTRAP)) };
        if let Some(name) = self.functions.names.get(&at) {
            self.called.insert(name.clone());
            if let Some(later) = &mut self.later {
                later.insert(name.clone());
            }
        }
        // A process that forked has breakpoints of its own.
        memory(thread)?.write_all_at(&[*byte], at)?;
        registers.rip = at;
        gone(ptrace::setregs(thread, registers))?;
        resume(thread, None)
    }
}

impl Functions {
    /// Sets a breakpoint at each function of `program`, which `pid` has just begun.
    fn set(pid: Pid, program: &Path) -> Result<Self> {
        let file = std::fs::read(program)?;
        let file = object::File::parse(file.as_slice()).with_context(|| format!("{} is no program", program.display()))?;
        let base = loaded_at(pid, program)?;
        let mut found = Self::default();
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0) {
            found.names.entry(base + symbol.address()).or_insert_with(|| symbol.name().unwrap_or_default().to_owned());
        }
        let memory = memory(pid)?;
        for segment in file.segments() {
            let (start, length) = (base + segment.address(), segment.size());
            let inside: Vec<u64> = found.names.range(start..start + length).map(|(at, _)| *at).collect();
            if inside.is_empty() {
                continue;
            }
            let mut code = vec![0; usize::try_from(length)?];
            memory.read_exact_at(&mut code, start)?;
            for at in inside {
                let byte = &mut code[usize::try_from(at - start)?];
                found.bytes.insert(at, *byte);
                *byte = BREAK;
            }
            memory.write_all_at(&code, start)?;
        }
        ensure!(!found.bytes.is_empty(), "{} has no names of functions: was it linked with -C strip=none?", program.display());
        Ok(found)
    }
}

impl Functions {
    /// Sets the breakpoints again, byte by byte: other threads run meanwhile.
    fn set_again(&self, thread: Pid) -> Result<()> {
        let memory = memory(thread)?;
        for at in self.bytes.keys() {
            memory.write_all_at(&[BREAK], *at)?;
        }
        Ok(())
    }
}

/// Where the first byte of the program's file is mapped.
fn loaded_at(pid: Pid, program: &Path) -> Result<u64> {
    let program = program.canonicalize()?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let first = maps.lines().find(|line| line.ends_with(&program.display().to_string())).context("the program's file is not mapped")?;
    let start = first.split('-').next().context("a mapping has no address")?;
    Ok(u64::from_str_radix(start, 16)?)
}

fn memory(pid: Pid) -> Result<File> {
    let path = format!("/proc/{pid}/mem");
    OpenOptions::new().read(true).write(true).open(&path).with_context(|| format!("opening {path} failed"))
}

fn resume(pid: Pid, signal: Option<Signal>) -> Result<()> {
    gone(ptrace::cont(pid, signal))
}

/// A thread that was ended meanwhile needs nothing any more.
fn gone(result: nix::Result<()>) -> Result<()> {
    match result {
        Err(nix::Error::ESRCH) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests;
