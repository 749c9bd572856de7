//! Waiting for a cluster that starts: the control plane, then every node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use lab::protocol::Event;
use lab::supervisor::Lab;

use super::nodes;
use super::processes::CONTROL_PLANE_PROCESS;
use super::progress::Progress;
use crate::exit::{Code, Failure};

/// How long all nodes have to become Ready, unless the user says.
const PATIENCE: Duration = Duration::from_secs(60);

/// Until when the nodes have to be Ready.
pub struct Limit {
    end: Instant,
    /// `--timeout`.
    given: Option<Duration>,
}

impl Limit {
    /// Of a command that began at `begin`; without `--timeout` it begins now.
    pub fn new(begin: Instant, timeout: Option<Duration>) -> Self {
        Self { end: timeout.map_or_else(|| Instant::now() + PATIENCE, |timeout| begin + timeout), given: timeout }
    }

    fn is_over(&self) -> bool {
        Instant::now() > self.end
    }

    /// Too late: a failure with a code of its own.
    fn failure(&self, what: &str) -> Failure {
        let (limit, way_out) = match self.given {
            Some(given) => (given, "give it more time with --timeout, or see why in the logs"),
            None => (PATIENCE, "see why in the logs, or give it more time with --timeout"),
        };
        Failure::new(Code::Timeout, anyhow!("the cluster was not ready within {limit:?}, and was ended: {what}; {way_out}"))
    }
}

/// Waits until the control plane answers and all nodes are Ready, and shows what becomes ready.
pub fn wait_ready(
    lab: &Lab,
    (boots, hollow): (BTreeMap<String, String>, u32),
    kubeconfig: &Path,
    limit: &Limit,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut trouble = Vec::new();
    let note = |event: &Event, trouble: &mut Vec<String>| {
        if let Event::Exited { name, status, .. } = event {
            trouble.push(format!("{name} {status}"));
        }
    };
    let left = limit.end.saturating_duration_since(Instant::now());
    let answers = lab.wait_ready(&[CONTROL_PLANE_PROCESS], left, |event| note(event, &mut trouble));
    answers.map_err(|error| {
        let what = format!("the control plane did not start{}", log_hint(lab, CONTROL_PLANE_PROCESS));
        if limit.is_over() { limit.failure(&what) } else { anyhow!(error).context(what).into() }
    })?;
    progress.step("control plane answers");
    let watch = nodes::Watch::start(kubeconfig.to_owned(), boots);
    let mut awaited: BTreeSet<String> = hollow::names(hollow).collect();
    loop {
        for node in watch.newly_ready() {
            // Thousands of them are one step.
            match awaited.remove(&node) {
                true if awaited.is_empty() => progress.step(&format!("{hollow} hollow nodes are Ready")),
                true => {}
                false => progress.step(&format!("node {node} is Ready")),
            }
        }
        if watch.all_ready() {
            return Ok(());
        }
        if limit.is_over() {
            let failed = if trouble.is_empty() { String::new() } else { format!(" ({})", trouble.join("; ")) };
            let logs = lab.status().dir.join("hosts");
            return Err(limit.failure(&format!("not Ready are {}{failed} (logs below {})", watch.missing(), logs.display())));
        }
        // Bounded: only while starting.
        match lab.wait_event(Duration::from_millis(5)) {
            Some(Event::Ended { status }) => {
                return Err(anyhow!("the cluster ended while it started: {status}{}", log_hint(lab, CONTROL_PLANE_PROCESS)).into());
            }
            Some(Event::DownRequested) => return Err(anyhow!("ended before it was ready").into()),
            Some(event) => note(&event, &mut trouble),
            None => {}
        }
    }
}

fn log_hint(lab: &Lab, process: &str) -> String {
    let log = lab.status().processes.into_iter().find(|p| p.name == process).map(|p| p.log);
    log.map(|log| format!(" (see {})", log.display())).unwrap_or_default()
}
