//! Whether the runtime and its network are ready, asked of CRI Status.

use std::time::Duration;

use cri::v1;
use tokio::sync::watch;
use tokio::time::Instant;

/// What CRI Version and Status say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RuntimeHealth {
    /// `containerd`.
    pub name: String,
    pub version: String,
    pub runtime_ready: bool,
    pub network_ready: bool,
    /// Why not, in the words of the Ready condition.
    pub messages: Vec<String>,
    pub handlers: Vec<String>,
}

const STEADY: Duration = Duration::from_secs(5);
/// While something is not ready the answer is what everything waits for, so it is asked often at
/// first.
const EAGER: Duration = Duration::from_millis(25);
const EAGER_TRIES: u32 = 1200;
/// What is not ready for so long is warned about: a runtime that starts beside the agent is not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Follows the runtime's health, for ever.
pub(crate) async fn follow(client: cri::Client, health: watch::Sender<RuntimeHealth>) {
    let mut unready = 0u32;
    let mut failures = 0u32;
    let mut log = Log::default();
    loop {
        let seen = look(&client).await;
        log.note(&seen, Instant::now());
        // Single failed calls of a healthy runtime are no news (upstream waits 30 s).
        failures = if seen.name.is_empty() { failures + 1 } else { 0 };
        let hide = failures > 0 && failures < 3 && health.borrow().runtime_ready;
        if !hide {
            health.send_if_modified(|old| {
                let changed = *old != seen;
                *old = seen.clone();
                changed
            });
        }
        let ready = seen.runtime_ready && seen.network_ready;
        unready = if ready { 0 } else { unready.saturating_add(1) };
        let pause = match unready {
            0 => STEADY,
            n if n < EAGER_TRIES => EAGER,
            _ => Duration::from_secs(1),
        };
        tokio::time::sleep(pause).await;
    }
}

/// What the log says of the runtime: once what is wrong, and once that it is right again.
#[derive(Default)]
struct Log {
    since: Option<Instant>,
    warned: Vec<String>,
}

impl Log {
    fn note(&mut self, seen: &RuntimeHealth, now: Instant) {
        if seen.messages.is_empty() {
            if !std::mem::take(self).warned.is_empty() {
                tracing::info!("the container runtime and its network are ready again");
            }
            return;
        }
        let since = *self.since.get_or_insert(now);
        if now - since >= PATIENCE && self.warned != seen.messages {
            self.warned.clone_from(&seen.messages);
            let messages = seen.messages.join(", ");
            tracing::warn!("cannot run pods: {messages}; look into the logs of the container runtime and of the pod network");
        }
    }
}

async fn look(client: &cri::Client) -> RuntimeHealth {
    let version = client.version(v1::VersionRequest::default()).await;
    let status = client.status(v1::StatusRequest { verbose: false }).await;
    let (version, status) = match (version, status) {
        (Ok(version), Ok(status)) => (version, status),
        (Err(e), _) | (_, Err(e)) => {
            let messages = vec![format!("container runtime is down: {}", e.message())];
            return RuntimeHealth { messages, ..Default::default() };
        }
    };
    let conditions = status.status.unwrap_or_default().conditions;
    let of = |type_: &str| conditions.iter().find(|c| c.r#type == type_);
    let mut messages = Vec::new();
    for (type_, what) in [("RuntimeReady", "container runtime not ready"), ("NetworkReady", "container runtime network not ready")] {
        match of(type_) {
            Some(c) if c.status => {}
            Some(c) => messages.push(format!("{what}: {type_}=false reason:{} message:{}", c.reason, c.message)),
            None => messages.push(format!("{what}: {type_} is not reported")),
        }
    }
    RuntimeHealth {
        name: version.runtime_name,
        version: version.runtime_version,
        runtime_ready: of("RuntimeReady").is_some_and(|c| c.status),
        network_ready: of("NetworkReady").is_some_and(|c| c.status),
        messages,
        handlers: status.runtime_handlers.into_iter().map(|h| h.name).collect(),
    }
}
