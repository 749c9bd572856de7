//! Networks of the hosts and pods, as their kernels have them: a copy of this program enters the lab and prints them.

use std::fmt::{Display, Write as _};
use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{self, NetNs};
use linux_sys::spawn::{Spawn, Stdio};
use nft::{Nft, Table};

/// Elements of a set that are shown.
const ELEMENTS: usize = 200;

/// Asks a copy of this program about the lab whose init is `init`: files of the archive, by name.
pub fn run(init: u32, run: &Path) -> Result<Vec<(String, String)>> {
    let (read, write) = std::io::pipe().context("making a pipe failed")?;
    let write = OwnedFd::from(write);
    let child = Spawn::new("/proc/self/exe")
        .args(["lab-probe", &init.to_string()])
        .arg(run)
        .stdin(Stdio::Null)
        .stdout(Stdio::Fd(write.try_clone()?))
        .stderr(Stdio::Fd(write))
        .spawn()
        .context("starting the probe failed")?;
    let mut text = String::new();
    fs::File::from(OwnedFd::from(read)).read_to_string(&mut text).context("reading from the probe failed")?;
    let status = child.wait().context("waiting for the probe failed")?;
    if !status.success() {
        bail!("the probe failed: {}", text.trim());
    }
    serde_json::from_str(&text).context("the probe printed something unknown")
}

/// `mullion lab-probe INIT RUN`: prints the files. To be called before any thread exists.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Vec<String> = args.into_iter().collect();
    match look(&args) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn look(args: &[String]) -> Result<String> {
    let [init, run] = args else { bail!("usage: mullion lab-probe INIT RUN (support-bundle starts it)") };
    let pid = init.parse().with_context(|| format!("{init} is no process"))?;
    ns::enter_process(pid).context("entering the lab failed")?;
    let mut files = Vec::new();
    for (name, path) in namespaces(&Path::new(run).join("ns"))? {
        let text = NetNs::open(&path).and_then(|ns| ns.run(describe)).unwrap_or_else(|error| format!("cannot be entered: {error}\n"));
        files.push((name, text));
    }
    serde_json::to_string(&files).map_err(|error| anyhow!(error))
}

/// File name in the archive → pinned namespace: hosts, and the pods of each.
fn namespaces(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {} failed", dir.display()))?.flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        match name.strip_suffix(".d") {
            None => found.push((format!("hosts/{name}/network.txt"), path)),
            Some(host) => {
                let pods = fs::read_dir(&path).into_iter().flatten().flatten();
                found.extend(pods.map(|pod| (format!("hosts/{host}/pods/{}.txt", pod.file_name().to_string_lossy()), pod.path())));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Links, addresses, routes, neighbours and rule sets of the calling thread's namespace.
fn describe() -> String {
    let mut text = String::new();
    match Rtnl::open() {
        Ok(rtnl) => links(&rtnl, &mut text),
        Err(error) => complain(&mut text, "links", &error),
    }
    match Nft::open() {
        Ok(nft) => rules(&nft, &mut text),
        Err(error) => complain(&mut text, "rules", &error),
    }
    text
}

fn complain(text: &mut String, what: &str, error: &dyn Display) {
    let _ = writeln!(text, "{what} cannot be listed: {error}");
}

fn lines<T: std::fmt::Debug>(text: &mut String, all: &[T]) {
    for one in all {
        let _ = writeln!(text, "{one:?}");
    }
}

fn links(rtnl: &Rtnl, text: &mut String) {
    match rtnl.links() {
        Ok(links) => {
            for link in links {
                let _ = writeln!(text, "{link:?}");
                for address in rtnl.addrs(link.index).unwrap_or_default() {
                    let _ = writeln!(text, "    address {address}");
                }
                for neighbour in rtnl.neighbours(link.index).unwrap_or_default() {
                    let _ = writeln!(text, "    {neighbour:?}");
                }
            }
        }
        Err(error) => complain(text, "links", &error),
    }
    match rtnl.routes() {
        Ok(routes) => lines(text, &routes),
        Err(error) => complain(text, "routes", &error),
    }
    match rtnl.rules() {
        Ok(rules) => lines(text, &rules),
        Err(error) => complain(text, "routing rules", &error),
    }
}

fn rules(nft: &Nft, text: &mut String) {
    match nft.tables() {
        Ok(tables) => tables.iter().for_each(|table| one_table(nft, table, text)),
        Err(error) => complain(text, "tables", &error),
    }
}

/// Expressions by the kernel's names: enough to see which rule counts; `nft list ruleset` in the lab shows them in full.
fn one_table(nft: &Nft, table: &Table, text: &mut String) {
    let _ = writeln!(text, "\ntable {table}");
    for chain in nft.chains(table).unwrap_or_default() {
        let _ = writeln!(text, "  chain {}{}", chain.name, if chain.base { " (hook)" } else { "" });
        for rule in nft.rules(table, &chain.name).unwrap_or_default() {
            let counter = rule.counter.map(|(packets, bytes)| format!(" packets {packets} bytes {bytes}")).unwrap_or_default();
            let _ = writeln!(text, "    {} {}{counter}", rule.expressions.join(" "), rule.comment.map(|c| format!("# {c}")).unwrap_or_default());
        }
    }
    for set in nft.sets(table).unwrap_or_default() {
        let elements = nft.elements(table, &set.name).unwrap_or_default();
        let _ = writeln!(text, "  {} {} ({} elements)", if set.map { "map" } else { "set" }, set.name, elements.len());
        for element in elements.iter().take(ELEMENTS) {
            let _ = writeln!(text, "    {element:?}");
        }
    }
}
