//! Calls of providers: one process each, without a shell, with a bounded answer and a time limit.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::config::Provider;
use super::protocol::MAX_ANSWER;

/// How long a provider may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are kept of its complaints.
const MAX_COMPLAINT: usize = 4096;

/// Why a provider gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("error execing credential provider plugin {name} for image {image}: it did not end within {}s and was killed", LIMIT.as_secs())]
    Late { name: String, image: String },
    #[error("error execing credential provider plugin {name} for image {image}")]
    Start { name: String, image: String, source: io::Error },
    #[error("error execing credential provider plugin {name} for image {image}: {status}: {complaint}")]
    Failed { name: String, image: String, status: ExitStatus, complaint: String },
}

/// What a program is started with.
pub(super) struct Call<'a> {
    pub program: std::path::PathBuf,
    pub provider: &'a Provider,
    pub image: &'a str,
    pub request: Vec<u8>,
    /// The token in the request, which must not get into a message.
    pub token: &'a str,
}

impl Call<'_> {
    /// Runs the program, and returns what it wrote: at most one byte more than an answer may have.
    pub(super) async fn run(self, limit: Duration) -> Result<Vec<u8>, CallError> {
        let (name, image) = (|| self.provider.name.clone(), || self.image.to_owned());
        let start = |source| CallError::Start { name: name(), image: image(), source };
        // The directory is the operator's: who writes there runs programs on the node anyway.
        let mut command = Command::new(&self.program);
        command.args(&self.provider.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // Upstream's providers have the agent's environment: proxies, clouds' settings. What opens our own services is none of theirs.
        command.env_remove("MULLION_HCN_TOKEN").envs(self.provider.env.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().map_err(start)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A program that does not want to read its request need not.
                let _ = stdin.write_all(&self.request).await;
            }
            Ok(())
        };
        let run = async {
            let ((), answer, complaint) = tokio::try_join!(write, read(stdout, MAX_ANSWER + 1), read(stderr, MAX_COMPLAINT))?;
            Ok::<_, io::Error>((answer, complaint, child.wait().await?))
        };
        let ended = tokio::time::timeout(limit, run).await.map_err(|_| CallError::Late { name: name(), image: image() })?;
        let (answer, complaint, status) = ended.map_err(start)?;
        if !status.success() {
            let complaint = printable(&String::from_utf8_lossy(&complaint), self.token);
            return Err(CallError::Failed { name: name(), image: image(), status, complaint });
        }
        Ok(answer)
    }
}

/// Reads to the end, and keeps what comes first.
async fn read(from: Option<impl AsyncRead + Unpin>, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let mut from = from.take(most as u64);
        from.read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut from.into_inner(), &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

/// A text that cannot steer a terminal and has no token in it.
fn printable(text: &str, token: &str) -> String {
    let text = if token.is_empty() { text.to_owned() } else { text.replace(token, "(token)") };
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
