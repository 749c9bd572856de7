//! `mullion up --detach`: a child in a session of its own supervises the cluster; the parent waits until it is ready.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use linux_sys::spawn::{Spawn, Stdio};

use super::progress::{FAILED, READY, STEP, print_document};
use crate::exit::{Code, Failure};

/// The number under which the child finds the way to its parent.
const REPORT: i32 = 3;

/// How long a child that gave up has to end.
const END: Duration = Duration::from_secs(10);

/// Starts the same command without `--detach`, and returns when all nodes are Ready or the child gave up and ended.
pub fn start(as_json: bool) -> Result<(), Failure> {
    let (ours, theirs) = std::io::pipe().context("making a pipe failed")?;
    let args: Vec<_> = std::env::args_os().skip(1).filter(|arg| arg != "--detach").collect();
    let report = REPORT.to_string();
    let child = Spawn::new("/proc/self/exe")
        .arg0("mullion")
        .args(args)
        .args(["--report-fd", report.as_str()])
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .keep_fd(theirs.into(), REPORT)
        .new_session()
        .spawn()
        .context("starting the supervisor failed")?;
    for line in BufReader::new(ours).lines() {
        let line = line.context("reading from the supervisor failed")?;
        let (kind, text) = line.split_once(' ').unwrap_or((&line, ""));
        match kind {
            STEP => eprintln!("{text}"),
            READY => {
                if let (true, Ok(document)) = (as_json, serde_json::from_str(text)) {
                    print_document(&document);
                }
                return Ok(());
            }
            FAILED => {
                // Nothing of it is left when this command returns.
                let _ = child.pidfd().wait_end(END);
                let (code, reason) = text.split_once(' ').unwrap_or(("1", text));
                return Err(Failure::new(code.parse().map_or(Code::Failure, Code::of_number), anyhow!("{reason}")));
            }
            _ => {}
        }
    }
    Err(anyhow!("the supervisor ended without a message: start without --detach to see why").into())
}
