//! Progress messages of `mullion up`: one line per step, with its time.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::dir::Dirs;
use serde_json::Value;

use crate::exit::Failure;

/// Kind of a message, its first word, to the waiting parent of a detached supervisor.
pub const STEP: &str = "step";
/// All nodes are Ready; a document about the cluster follows.
pub const READY: &str = "ready";
/// The supervisor gives up: exit code and reason follow.
pub const FAILED: &str = "failed";

/// Where steps are printed.
pub struct Progress {
    last: Instant,
    parent: Option<File>,
    as_json: bool,
}

/// The one document that `-o json` prints.
pub fn print_document(document: &Value) {
    // A closed pipe is no failure of the cluster.
    drop(writeln!(std::io::stdout(), "{document:#}"));
}

impl Progress {
    /// To the terminal, or to the parent that waits at `report_fd`.
    pub fn new(report_fd: Option<i32>, as_json: bool) -> Result<Self> {
        let parent = report_fd.map(linux_sys::fdpass::inherited).transpose().context("the parent of a detached cluster is missing")?;
        Ok(Self { last: Instant::now(), parent: parent.map(File::from), as_json })
    }

    fn print(&mut self, kind: &str, text: &str) {
        match &mut self.parent {
            // A parent that went away does not matter: the cluster is what counts.
            Some(parent) => drop(writeln!(parent, "{kind} {}", text.replace('\n', " "))),
            None if kind == FAILED => {}
            None => eprintln!("{text}"),
        }
    }

    /// A step is done.
    pub fn step(&mut self, text: &str) {
        let took = self.last.elapsed();
        self.last = Instant::now();
        self.print(STEP, &format!("{text:32} {:>7.3} s", took.as_secs_f64()));
    }

    /// Something to know, or that takes a while.
    pub fn note(&mut self, text: &str) {
        self.print(STEP, text);
    }

    /// Everything is there, as `document` says.
    pub fn ready(&mut self, took: Duration, dirs: &Dirs, server: &str, document: &Value) {
        let dir = dirs.dir.display();
        let kubeconfig = lab::shell::quote(document["kubeconfig"].as_str().unwrap_or_default());
        self.print(STEP, &format!("the cluster of {dir} is ready after {:.3} s: {server}", took.as_secs_f64()));
        self.print(STEP, &format!("use it: export KUBECONFIG={kubeconfig}"));
        match &mut self.parent {
            Some(_) => self.print(READY, &document.to_string()),
            None if self.as_json => print_document(document),
            None => {}
        }
    }

    /// The cluster stays for as long as this process.
    pub fn running(&mut self, dirs: &Dirs) {
        self.print(STEP, &format!("Ctrl-C ends it; the next `{}` resumes it", dirs.command("up")));
    }

    /// Nothing came of it. In the foreground the caller prints the reason.
    pub fn failed(&mut self, failure: &Failure) {
        self.print(FAILED, &format!("{} {:#}", failure.code.number(), failure.error));
    }
}
