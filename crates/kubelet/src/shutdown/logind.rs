//! logind's delay inhibitor (upstream nodeshutdown_manager_linux.go): the machine waits for us before it goes down, and says that it is about
//! to.
//!
//! Flow: `InhibitDelayMaxSec` is raised to the sum of the periods where it is less → `PrepareForShutdown` is listened to → a lock is taken →
//! at `true` the lock goes with the announcement, whose end frees it; at `false` another one is taken. Guarantees: a connection that ends is
//! made again. The lock's descriptor alone holds the machine up: it is free when this process ends.

mod bus;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backoff::Backoff;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use host::{HostError, HostRoot};
use thiserror_ext::AsReport as _;
use tokio::sync::mpsc;

use super::Announcement;
pub use bus::Bus;

/// Upstream's drop-in file of logind's configuration: a node that changes its agent has one.
const DROP_IN_DIR: &str = "/etc/systemd/logind.conf.d";
const DROP_IN: &str = "99-kubelet.conf";
/// How often logind is asked whether it has read its configuration, and the first pause between two questions; each further one is twice as long.
const LOOKS: u32 = 5;
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// What the agent needs of logind, and of systemd for it.
#[async_trait]
pub trait Logind: Send + Sync {
    /// How long logind waits for locks: `InhibitDelayMaxSec`.
    async fn inhibit_delay(&self) -> Result<Duration, LogindError>;
    /// Has logind read its configuration again; that may take a while.
    async fn reload(&self) -> Result<(), LogindError>;
    /// Takes a lock that delays a shutdown until it is closed.
    async fn inhibit(&self) -> Result<OwnedFd, LogindError>;
    /// `PrepareForShutdown`: whether the machine is about to go down. Ends with the connection.
    async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, LogindError>;
}

/// Why shutdowns of the machine are not seen.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// There is no system bus, or it refused us.
    #[error("cannot connect to the system bus")]
    Connect(#[source] zbus::Error),
    #[error("cannot {operation}")]
    Call {
        operation: &'static str,
        #[source]
        source: zbus::Error,
    },
    #[error("cannot write the drop-in file {DROP_IN_DIR}/{DROP_IN} of logind; write there [Login] and InhibitDelayMaxSec={seconds}")]
    DropIn {
        seconds: u64,
        #[source]
        source: HostError,
    },
    /// Another drop-in file counts more, or logind did not read ours.
    #[error(
        "logind's InhibitDelayMaxSec is {} s after a reload, and the periods of a shutdown take {} s; look for another value in {DROP_IN_DIR}",
        actual.as_secs(), wanted.as_secs()
    )]
    Delay { actual: Duration, wanted: Duration },
    #[error("the connection to the system bus ended")]
    Closed,
}

/// Announces shutdowns of this machine until nobody listens. `total` is how long they are held up. Where there is no logind it tries again and
/// again: it may come later.
pub async fn follow<C, F>(connect: C, root: Arc<HostRoot>, total: Duration, sender: mpsc::UnboundedSender<Announcement>)
where
    C: Fn() -> F,
    F: Future<Output = Result<Arc<dyn Logind>, LogindError>>,
{
    let mut pause = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    let mut said = false;
    loop {
        let session = async {
            let logind = connect().await?;
            raise(&*logind, &root, total).await?;
            pause.reset();
            said = false;
            announce(&*logind, &sender).await
        };
        tokio::select! {
            Err(error) = session => match said {
                true => tracing::debug!(error = %error.as_report(), "shutdowns of the machine are not seen; trying again"),
                false => tracing::warn!(error = %error.as_report(), "shutdowns of the machine are not seen by logind, but SIGPWR is; trying again"),
            },
            () = sender.closed() => return,
        }
        said = true;
        tokio::time::sleep(pause.next_delay()).await;
    }
}

/// Has logind wait that long for locks.
async fn raise(logind: &dyn Logind, root: &HostRoot, wanted: Duration) -> Result<(), LogindError> {
    let mut actual = logind.inhibit_delay().await?;
    if actual >= wanted {
        return Ok(());
    }
    tracing::info!(from = actual.as_secs(), to = wanted.as_secs(), "raising logind's InhibitDelayMaxSec");
    write_drop_in(root, wanted).map_err(|source| LogindError::DropIn { seconds: wanted.as_secs(), source })?;
    logind.reload().await?;
    for look in 0..LOOKS {
        actual = logind.inhibit_delay().await?;
        if actual >= wanted {
            return Ok(());
        }
        tokio::time::sleep(FIRST_LOOK * 2u32.pow(look)).await;
    }
    Err(LogindError::Delay { actual, wanted })
}

fn write_drop_in(root: &HostRoot, wanted: Duration) -> Result<(), HostError> {
    let dir = root.parse(DROP_IN_DIR)?;
    root.create_dir_all(&dir, 0o755)?;
    let text = format!("# Written by the node agent: a shutdown waits for its pods.\n[Login]\nInhibitDelayMaxSec={}\n", wanted.as_secs());
    root.write_file(&dir.join(DROP_IN)?, text.as_bytes(), 0o644)
}

/// Announces what logind says. Listens before it takes the lock: a shutdown that begins in between is not missed.
async fn announce(logind: &dyn Logind, sender: &mpsc::UnboundedSender<Announcement>) -> Result<(), LogindError> {
    let mut shutdowns = logind.shutdowns().await?;
    let mut lock = Some(logind.inhibit().await?);
    tracing::info!("shutdowns of the machine wait for its pods");
    while let Some(begins) = shutdowns.next().await {
        let announcement = if begins {
            // Without a lock the machine waits for nobody, but pods may have a moment.
            Announcement::Begins { name: "shutdown", hold: Box::new(lock.take()) }
        } else {
            lock = Some(logind.inhibit().await?);
            Announcement::Cancelled
        };
        if sender.send(announcement).is_err() {
            return Ok(());
        }
    }
    Err(LogindError::Closed)
}
