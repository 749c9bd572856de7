//! Where figures come from: the machine and the commit.

use std::path::Path;
use std::process::Command;

/// Processor, cores, memory, kernel, load, and the commit of the sources, as list items of markdown.
pub fn describe() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = kib(&read("/proc/meminfo"), "MemTotal:").map_or_else(|| "unknown".to_owned(), |kib| format!("{:.1} GiB", kib as f64 / 1_048_576.0));
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned();
    format!(
        "machine: {}, {cores} cores, {memory} of memory, kernel {}, load at the start {load}\ncommit: {}\n",
        processor(&cpuinfo),
        or_unknown(read("/proc/sys/kernel/osrelease").trim()),
        commit(Path::new(env!("CARGO_MANIFEST_DIR"))),
    )
}

/// How the processors' time was spent since the machine started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    all: u64,
    /// Given to other machines by the host while this one had something to do.
    stolen: u64,
}

impl Processors {
    /// Until now; nothing where the system does not report it.
    pub fn now() -> Self {
        Self::parse(&read("/proc/stat")).unwrap_or_default()
    }

    fn parse(stat: &str) -> Option<Self> {
        // `cpu user nice system idle iowait irq softirq steal`: proc_stat(5). What follows is part of the first two.
        let ticks: Vec<u64> = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        Some(Self { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    /// How much of the time since `before` was stolen, in percent.
    pub fn stolen_since(self, before: Self) -> f64 {
        let (stolen, all) = (self.stolen.saturating_sub(before.stolen), self.all.saturating_sub(before.all));
        if all == 0 { 0.0 } else { stolen as f64 / all as f64 * 100.0 }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// The first processor's name; processors that have none are known by their parts.
fn processor(cpuinfo: &str) -> String {
    let value = |name: &str| {
        let of = |line: &str| line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned());
        cpuinfo.lines().find_map(of)
    };
    let parts = || Some(format!("{} processor, implementer {}, part {}", std::env::consts::ARCH, value("CPU implementer")?, value("CPU part")?));
    value("model name").or_else(parts).unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// The commit that is checked out at `directory`, and whether files that git knows differ from it.
fn commit(directory: &Path) -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(directory).args(args).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    let state = git(&["rev-parse", "--short=12", "HEAD"]).and_then(|revision| {
        let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
        Ok(if changed.is_empty() { revision } else { format!("{revision}, with uncommitted changes") })
    });
    state.unwrap_or_else(|reason| format!("unknown: {}", reason.lines().next().unwrap_or("git says nothing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n"), "AMD EPYC");
        assert!(processor("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n").ends_with("implementer 0x41, part 0xd0c"));
        assert!(processor("").ends_with("processor"));
    }

    #[test]
    fn the_description_names_machine_and_commit() {
        let text = describe();
        for part in ["machine: ", " cores, ", " of memory, kernel ", "\ncommit: "] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn stolen_time_is_reported() {
        let before = Processors::parse("cpu  10 0 20 60 1 2 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n").unwrap();
        let after = Processors::parse("cpu  60 0 20 90 1 2 3 24 0 0\n").unwrap();
        assert_eq!(before, Processors { all: 100, stolen: 4 });
        assert_eq!(after.stolen_since(before), 20.0);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!(Processors::parse("cpu 1 2 3\n"), None);
        #[cfg(target_os = "linux")]
        assert!(Processors::now().all > 0);
    }

    #[test]
    fn a_changed_tree_is_not_its_commit() {
        let directory = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
            assert!(Command::new("git").arg("-C").arg(directory.path()).args(identity).args(args).output().unwrap().status.success(), "{args:?}");
        };
        assert!(commit(directory.path()).starts_with("unknown: "), "no repository");
        git(&["init", "-q"]);
        std::fs::write(directory.path().join("file"), "one").unwrap();
        git(&["add", "file"]);
        git(&["commit", "-qm", "first"]);
        let clean = commit(directory.path());
        assert_eq!(clean.len(), 12, "{clean}");
        std::fs::write(directory.path().join("file"), "two").unwrap();
        assert_eq!(commit(directory.path()), format!("{clean}, with uncommitted changes"));
    }
}
