//! `mullion logs`: what the processes of a cluster wrote, in the order in which they wrote it. Works on the files in DIR, whether
//! the cluster runs or not.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use fabric::Mode;
use jiff::Timestamp;
use lab::dir::Dirs;
use lab::error::LabError;

use super::cli::LogsArgs;
use super::cluster_file::{Cluster, dirs};
use crate::exit::{Code, Failure};

/// How often the files are looked at with `--follow`.
const LOOK: Duration = Duration::from_millis(100);
/// Hosts of the lab itself, and the processes whose logs they are.
const OF_LAB: [(&str, &[&str]); 3] = [("cp", &["control-plane", "hollow-nodes"]), ("gw", &["outside", "router"]), ("lab", &["lab"])];

pub fn main(args: &LogsArgs) -> Result<(), Failure> {
    let dirs = dirs(&args.dir)?;
    let cluster = Cluster::load(&dirs)?.ok_or_else(|| LabError::NotRunning(dirs.dir.clone()))?;
    if args.host == "gw" && !cluster.outside && cluster.network != Mode::L3 && files(&dirs, "gw").is_empty() {
        let (down, up) = (dirs.command("down"), dirs.command("up --outside"));
        let way = format!("a running cluster gets it with `{down}`, then `{up}`");
        return Err(Failure::new(Code::Usage, anyhow!("gw has no processes unless the cluster runs with --outside or --network l3: {way}")));
    }
    let mut sources = sources(&dirs, &cluster, &args.host, args.component.as_deref())?;
    let since = args.since.map(|since| Timestamp::now().saturating_sub(since).unwrap_or(Timestamp::MIN));
    let width = sources.iter().map(|source| source.component.len()).max().filter(|_| sources.len() > 1);
    let mut lines = read(&mut sources)?;
    lines.retain(|line| since.is_none_or(|since| line.at >= since));
    if let Some(tail) = args.tail {
        lines.drain(..lines.len().saturating_sub(tail));
    }
    if lines.is_empty() && !args.follow {
        eprintln!("{}", nothing(&args.host, args.since.is_some()));
    }
    loop {
        match print(&lines, &sources, width) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.context("writing to standard output failed")?,
        }
        if !args.follow {
            return Ok(());
        }
        std::thread::sleep(LOOK);
        lines = read(&mut sources)?;
    }
}

/// The note that is printed when there are no lines.
fn nothing(host: &str, is_since: bool) -> String {
    let when = if is_since { " in that time (--since)" } else { "" };
    format!("{host} logged nothing{when}")
}

/// The log files of a host, or of one of its components.
pub fn files(dirs: &Dirs, host: &str) -> Vec<(String, PathBuf)> {
    let of_lab = OF_LAB.iter().find(|(name, _)| *name == host).map(|(_, components)| *components);
    let dir = if of_lab.is_some() { dirs.dir.join("log") } else { dirs.host(host).join("log") };
    let stem = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".log").map(str::to_owned);
    let mut files: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((stem(&path)?, path)))
        .filter(|(component, _)| of_lab.is_none_or(|components| components.contains(&component.as_str())))
        .collect();
    files.sort();
    files
}

fn sources(dirs: &Dirs, cluster: &Cluster, host: &str, component: Option<&str>) -> Result<Vec<Source>, Failure> {
    let hosts: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).chain(OF_LAB.map(|(name, _)| name)).collect();
    if !hosts.contains(&host) {
        return Err(Failure::new(Code::Usage, anyhow!("there is no host {host:?} in {}: use one of {}", dirs.dir.display(), hosts.join(", "))));
    }
    let files = files(dirs, host);
    let names = files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let sources: Vec<_> = files
        .iter()
        .filter(|(name, _)| component.is_none_or(|asked| asked == name))
        .map(|(name, path)| Source { component: name.clone(), path: path.clone(), file: None, inode: 0, rest: Vec::new(), at: Timestamp::MIN })
        .collect();
    match component {
        _ if !sources.is_empty() => Ok(sources),
        Some(component) if !files.is_empty() => {
            Err(Failure::new(Code::Usage, anyhow!("nothing on {host} is called {component:?}: use one of {names}")))
        }
        _ => Err(anyhow!("{host} has no logs yet: start the cluster with `{}`", dirs.command("up")).into()),
    }
}

/// One log file, and how far it was read.
struct Source {
    component: String,
    path: PathBuf,
    file: Option<File>,
    inode: u64,
    /// The begin of a line whose end was not written yet.
    rest: Vec<u8>,
    /// When the last line was written: lines without a time belong to it.
    at: Timestamp,
}

/// A line: of which source, when.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    source: usize,
    at: Timestamp,
    text: String,
}

/// What is new in all files, by time.
fn read(sources: &mut [Source]) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (number, source) in sources.iter_mut().enumerate() {
        source.read(number, &mut lines).with_context(|| format!("reading {} failed", source.path.display()))?;
    }
    lines.sort_by_key(|line: &Line| line.at);
    Ok(lines)
}

impl Source {
    fn read(&mut self, number: usize, lines: &mut Vec<Line>) -> io::Result<()> {
        self.read_open(number, lines)?;
        // A log that grew long is put aside and begun anew.
        let inode = match fs::metadata(&self.path) {
            Ok(now) => now.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.file.is_some() && inode == self.inode {
            return Ok(());
        }
        self.file = Some(File::open(&self.path)?);
        self.inode = inode;
        self.read_open(number, lines)
    }

    fn read_open(&mut self, number: usize, lines: &mut Vec<Line>) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.read_to_end(&mut self.rest)?;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = String::from_utf8_lossy(&self.rest[..whole]).into_owned();
        self.rest.drain(..whole);
        for text in text.lines() {
            self.at = time_of(text).unwrap_or(self.at);
            lines.push(Line { source: number, at: self.at, text: text.to_owned() });
        }
        Ok(())
    }
}

/// The time at the begin of a line.
fn time_of(line: &str) -> Option<Timestamp> {
    line.split_whitespace().next()?.parse().ok()
}

fn print(lines: &[Line], sources: &[Source], width: Option<usize>) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in lines {
        match width {
            Some(width) => writeln!(out, "{:width$} | {}", sources[line.source].component, line.text)?,
            None => writeln!(out, "{}", line.text)?,
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: PathBuf) -> Source {
        Source { component: "x".into(), path, file: None, inode: 0, rest: Vec::new(), at: Timestamp::MIN }
    }

    #[test]
    fn lines_of_several_files_stand_by_time_and_keep_what_belongs_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.log"), dir.path().join("b.log"));
        fs::write(&a, "2026-01-01T00:00:01Z one\n  and more\n2026-01-01T00:00:03Z three\n2026-01-01T00:00:05Z ha").unwrap();
        fs::write(&b, "2026-01-01T00:00:02Z two\n").unwrap();
        let mut sources = [source(a.clone()), source(b)];
        let texts = |lines: Vec<Line>| {
            lines.into_iter().map(|line| line.text.split_once("Z ").map_or(line.text.clone(), |(_, t)| t.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(texts(read(&mut sources).unwrap()), ["one", "  and more", "two", "three"]);
        assert_eq!(texts(read(&mut sources).unwrap()), [""; 0], "half a line waits");
        // Rotated with its last lines, and begun anew.
        let old = dir.path().join("a.log.old");
        fs::rename(&a, &old).unwrap();
        File::options().append(true).open(&old).unwrap().write_all(b"lf\n").unwrap();
        fs::write(&a, "2026-01-01T00:00:06Z new\n").unwrap();
        assert_eq!(texts(read(&mut sources).unwrap()), ["half", "new"]);
    }
}
