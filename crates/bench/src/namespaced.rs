//! What benchmarks in namespaces of their own share: how the program starts itself again there, and the table that grows.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use linux_sys::spawn::{Namespaces, Spawn, Step};

/// Runs this program again with `args`, to its end, in new namespaces: an ordinary user may.
pub fn again<const N: usize>(args: [&str; N]) -> Result<()> {
    let child = Spawn::new(std::env::current_exe()?)
        .args(args)
        .new_namespaces(Namespaces::USER | Namespaces::MOUNT | Namespaces::NET | Namespaces::PID)
        .map_users()
        .steps([Step::MakePrivate, Step::Proc("/proc".into())])
        .spawn()
        .context("namespaces cannot be had; see `unshare --user --map-root-user true`")?;
    ensure!(child.wait()?.success(), "the benchmark failed in its namespaces");
    Ok(())
}

/// Rows of figures, with their limits.
#[derive(Default)]
pub struct Figures {
    text: String,
    over: Vec<String>,
}

impl Figures {
    /// A figure; one that does not hold is an error in the end.
    pub fn add(&mut self, name: &str, measured: &str, limit: &str, holds: bool) {
        let _ = writeln!(self.text, "| {name} | {measured} | {limit} |");
        if !holds {
            self.over.push(name.to_owned());
        }
    }

    /// A time: milliseconds up to a hundred of them, then seconds.
    pub fn time(&mut self, name: &str, measured: Duration, limit: Option<Duration>) {
        let text = |time: Duration| {
            if time < Duration::from_millis(100) { format!("{:.3} ms", time.as_secs_f64() * 1e3) } else { format!("{:.2} s", time.as_secs_f64()) }
        };
        self.add(name, &text(measured), &limit.map(text).unwrap_or_default(), limit.is_none_or(|limit| measured <= limit));
    }

    /// Prints the table under `title`; the names of figures over their limits.
    pub fn print(self, title: &str) -> Vec<String> {
        println!("| {title} | measured | limit |\n| --- | ---: | ---: |\n{}", self.text);
        self.over
    }
}

/// An error that names figures over their limits, if there are any.
pub fn judge(over: &[String]) -> Result<()> {
    if !over.is_empty() {
        bail!("over the limit: {}", over.join(", "));
    }
    Ok(())
}
