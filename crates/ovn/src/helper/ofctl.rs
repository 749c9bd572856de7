//! Flows of a bridge by `ovs-ofctl`, which speaks the versions of OpenFlow that the switch does.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The program.
const PROGRAM: &str = "ovs-ofctl";
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Why flows are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum FlowsError {
    /// The program cannot be started.
    #[error("cannot start {PROGRAM}: install Open vSwitch, or put it on PATH")]
    Start(#[source] std::io::Error),
    /// It does not end.
    #[error("{PROGRAM} {0} did not end in time and was killed")]
    Late(&'static str),
    /// It refused.
    #[error("{PROGRAM} {what} of {bridge} failed: {complaint}")]
    Failed {
        /// What it was to do.
        what: &'static str,
        /// The bridge.
        bridge: String,
        /// Its words.
        complaint: String,
    },
    /// The ports are not there.
    #[error("bridge {bridge} has no ports {interface} and k8s-patch-{bridge}-br-int with numbers: run gateway-init --bridge-interface {bridge}")]
    NoPorts {
        /// The bridge.
        bridge: String,
        /// The network card.
        interface: String,
    },
}

async fn run(what: &'static str, bridge: &str, args: &[&str], input: Option<String>) -> Result<String, FlowsError> {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let done = async {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.unwrap_or_default().as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(LIMIT, done).await.map_err(|_| FlowsError::Late(what))?.map_err(FlowsError::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().chars().take(400).collect();
    Err(FlowsError::Failed { what, bridge: bridge.to_owned(), complaint })
}

/// The flows with a cookie.
pub(super) async fn dump(bridge: &str, cookie: u64) -> Result<BTreeSet<String>, FlowsError> {
    let of = format!("cookie={cookie:#x}/-1");
    let text = run("dump-flows", bridge, &["--no-stats", "--no-names", "dump-flows", bridge, &of], None).await?;
    Ok(parse(&text, cookie))
}

fn parse(text: &str, cookie: u64) -> BTreeSet<String> {
    let prefix = format!("cookie={cookie:#x}, ");
    text.lines().filter_map(|line| line.trim().strip_prefix(&prefix)).map(str::to_owned).collect()
}

/// Applies changes, all or none.
pub(super) async fn apply(bridge: &str, changes: &[String]) -> Result<(), FlowsError> {
    run("add-flows", bridge, &["--bundle", "add-flows", bridge, "-"], Some(changes.join("\n") + "\n")).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_read_without_what_is_not_ours() {
        let text = " cookie=0x1, priority=100,ip,in_port=2 actions=output:1\n cookie=0x1, table=1, priority=0 actions=NORMAL\n cookie=0x0, priority=0 actions=NORMAL\n";
        let expected = ["priority=100,ip,in_port=2 actions=output:1", "table=1, priority=0 actions=NORMAL"];
        assert_eq!(parse(text, 1).into_iter().collect::<Vec<_>>(), expected);
    }
}
