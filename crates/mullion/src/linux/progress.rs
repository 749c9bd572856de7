//! Progress messages of `mullion up`: one line per step, with its time.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::dir::Dirs;
use serde_json::Value;

use crate::exit::Failure;

/// First word of a message to the waiting parent of a detached supervisor.
pub const STEP: &str = "step";
/// All nodes are Ready; a document about the cluster follows.
pub const READY: &str = "ready";
/// The supervisor gives up: exit code and reason follow.
pub const FAILED: &str = "failed";

/// Where steps are told.
pub struct Progress {
    last: Instant,
    parent: Option<File>,
    as_json: bool,
}

/// The one document that `-o json` prints.
pub fn print_document(document: &Value) {
    // Who closed the pipe wants no more of it; the cluster is what counts.
    drop(writeln!(std::io::stdout(), "{document:#}"));
}

impl Progress {
    /// To the terminal, or to the parent that waits at `report_fd`.
    pub fn new(report_fd: Option<i32>, as_json: bool) -> Result<Self> {
        let parent = report_fd.map(linux_sys::fdpass::inherited).transpose().context("the parent of a detached cluster is missing")?;
        Ok(Self { last: Instant::now(), parent: parent.map(File::from), as_json })
    }

    fn tell(&mut self, word: &str, text: &str) {
        match &mut self.parent {
            // A parent that went away does not matter: the cluster is what counts.
            Some(parent) => drop(writeln!(parent, "{word} {}", text.replace('\n', " "))),
            None if word == FAILED => {}
            None => eprintln!("{text}"),
        }
    }

    /// A step is done.
    pub fn step(&mut self, text: &str) {
        let took = self.last.elapsed();
        self.last = Instant::now();
        self.tell(STEP, &format!("{text:32} {:>7.3} s", took.as_secs_f64()));
    }

    /// Something to know, or that takes a while.
    pub fn note(&mut self, text: &str) {
        self.tell(STEP, text);
    }

    /// Everything is there, as `document` says.
    pub fn ready(&mut self, took: Duration, dirs: &Dirs, server: &str, document: &Value) {
        let dir = dirs.dir.display();
        let kubeconfig = lab::shell::quote(document["kubeconfig"].as_str().unwrap_or_default());
        self.tell(STEP, &format!("the cluster of {dir} is ready after {:.3} s: {server}", took.as_secs_f64()));
        self.tell(STEP, &format!("use it: export KUBECONFIG={kubeconfig}"));
        match &mut self.parent {
            Some(_) => self.tell(READY, &document.to_string()),
            None if self.as_json => print_document(document),
            None => {}
        }
    }

    /// The cluster stays for as long as this process.
    pub fn running(&mut self, dirs: &Dirs) {
        self.tell(STEP, &format!("Ctrl-C ends it; the next `{}` resumes it", dirs.command("up")));
    }

    /// Nothing came of it. In the foreground the caller prints the reason.
    pub fn failed(&mut self, failure: &Failure) {
        self.tell(FAILED, &format!("{} {:#}", failure.code, failure.error));
    }
}
