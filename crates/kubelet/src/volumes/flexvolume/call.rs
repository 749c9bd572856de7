//! Calls of drivers: one process each, with separate arguments, a bounded answer and a time limit.

use std::process::Stdio;
use std::time::{Duration, SystemTime};

use host::{HostError, HostRoot, PodPath};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::FlexError;
use super::answer::{Answer, MAX_ANSWER, Status};

/// How long a driver may take.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Which program a file is: another one has another stamp.
pub(super) type Stamp = (SystemTime, u64);

pub(super) fn stamp(root: &HostRoot, program: &PodPath) -> Result<Stamp, HostError> {
    let metadata = root.resolve(program)?.handle.metadata();
    let read = metadata.and_then(|metadata| Ok((metadata.modified()?, metadata.len())));
    read.map_err(|source| HostError::Io { operation: "read", path: program.to_string(), source })
}

/// Calls a driver.
pub(super) async fn call(root: &HostRoot, driver: &str, program: &PodPath, call: &'static str, arguments: &[&str]) -> Result<Answer, FlexError> {
    let driver = || driver.to_owned();
    let start = |source| FlexError::Start { driver: driver(), source };
    // The directory is the operator's: who writes there runs programs on the node anyway.
    let mut command = Command::new(root.resolve(program)?.path);
    command.arg(call).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "SystemRoot"));
    let mut child = command.spawn().map_err(start)?;
    let output = child.stdout.take();
    let run = async {
        let mut bytes = Vec::new();
        if let Some(output) = output {
            output.take(MAX_ANSWER as u64 + 1).read_to_end(&mut bytes).await?;
        }
        Ok::<_, std::io::Error>((bytes, child.wait().await?))
    };
    let ended = tokio::time::timeout(LIMIT, run).await.map_err(|_| FlexError::Late { driver: driver(), call })?;
    let (bytes, status) = ended.map_err(start)?;
    match Answer::parse(&bytes) {
        Ok(answer) if status.success() && answer.status == Status::Success => Ok(answer),
        Ok(answer) if answer.status == Status::NotSupported => {
            Err(FlexError::Failed { driver: driver(), call, message: "it is not supported".into() })
        }
        Ok(answer) if answer.message.is_empty() => Err(FlexError::Failed { driver: driver(), call, message: status.to_string() }),
        Ok(answer) => Err(FlexError::Failed { driver: driver(), call, message: answer.message }),
        Err(_) if !status.success() => Err(FlexError::Failed { driver: driver(), call, message: status.to_string() }),
        Err(source) => Err(FlexError::Answer { driver: driver(), call, source }),
    }
}
