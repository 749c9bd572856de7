//! Whether the runtime and its network are ready, asked of CRI Status, and whether the Host Networking Service of a Windows node answers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cri::v1;
use hcn::watch::Health;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Cgroups, Polls};
use crate::go_time::go_duration;

/// A way in which the runtime runs pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handler {
    /// Empty for the usual one.
    pub name: String,
    /// It gives pods users of their own.
    pub user_namespaces: bool,
    /// Its mounts can be read-only at every level.
    pub recursive_read_only: bool,
}

/// What CRI Version and Status say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RuntimeHealth {
    /// `containerd`.
    pub name: String,
    pub version: String,
    pub runtime_ready: bool,
    pub network_ready: bool,
    /// Whether a sandbox that is made now can get a network. No while the Host Networking Service restarts, though that does not yet make
    /// the node unready.
    pub connects: bool,
    /// The Host Networking Service, on nodes that have one.
    pub host_network: Option<Health>,
    /// Why not, in the words of the Ready condition.
    pub messages: Vec<String>,
    pub handlers: Vec<Handler>,
    /// Whether it obeys `supplementalGroupsPolicy`; None where it does not say.
    pub groups_policy: Option<bool>,
}

/// While something is not ready the answer is what everything waits for, so it is asked often at
/// first.
const EAGER: Duration = Duration::from_millis(25);
const EAGER_TRIES: u32 = 1200;
/// What is not ready for so long is warned about: a runtime that starts beside the agent is not.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pod network is made again when the Host Networking Service is back, so the runtime is asked often for that long.
const AFTER_CHANGE: Duration = Duration::from_secs(3);

/// A runtime that was ready and does not answer may restart: for so long that is no news (upstream's `baseRuntimeSyncThreshold`, `pkg/kubelet/runtime.go`).
const SILENCE: Duration = Duration::from_secs(30);

/// The calls of a look.
const LOOKS: [&str; 2] = ["Version", "Status"];

/// Type of the condition of Windows nodes.
const CONDITION: &str = "HNSUnavailable";

/// A Node condition: type, status, reason and message.
pub(crate) type Condition = (&'static str, &'static str, &'static str, String);

/// What the Node says of the service; nothing before it was asked.
pub(crate) fn condition(health: &Health) -> Option<Condition> {
    Some(match health {
        Health::Unknown => return None,
        Health::Answering | Health::Failing { .. } => (CONDITION, "False", "HNSResponding", "the Host Networking Service answers".to_owned()),
        Health::Slow { reason } => (CONDITION, "Unknown", "HNSSlow", format!("the Host Networking Service is slow: {reason}")),
        Health::Down { reason } => (CONDITION, "True", "HNSDown", format!("the Host Networking Service does not answer: {reason}")),
    })
}

/// The service's health as a metric.
pub(crate) fn encode(encoder: &mut DescriptorEncoder<'_>, health: &Health) -> std::fmt::Result {
    let states = [
        ("answering", matches!(health, Health::Answering)),
        ("failing", matches!(health, Health::Failing { .. })),
        ("slow", matches!(health, Health::Slow { .. })),
        ("down", matches!(health, Health::Down { .. })),
    ];
    let help = "1 for the state that the Host Networking Service is in.";
    let mut family = encoder.encode_descriptor("mullion_hns_state", help, None, MetricType::Gauge)?;
    for (state, is) in states {
        family.encode_family(&[("state", state)])?.encode_gauge(&u64::from(is))?;
    }
    Ok(())
}

impl Handler {
    fn of(handler: v1::RuntimeHandler) -> Self {
        let features = handler.features.unwrap_or_default();
        Handler { name: handler.name, user_namespaces: features.user_namespaces, recursive_read_only: features.recursive_read_only_mounts }
    }
}

impl RuntimeHealth {
    /// What the Node says of the Host Networking Service.
    pub(crate) fn host_network_condition(&self) -> Option<Condition> {
        self.host_network.as_ref().and_then(condition)
    }

    /// Takes the Host Networking Service's health in.
    fn with(mut self, host_network: Option<Health>) -> Self {
        if let Some(Health::Down { reason }) = &host_network {
            self.network_ready = false;
            self.messages.push(format!("container runtime network not ready: NetworkReady=false reason:HNSDown message:{reason}"));
        }
        let works = !matches!(host_network, Some(Health::Down { .. } | Health::Failing { .. }));
        self.connects = self.network_ready && works;
        self.host_network = host_network;
        self
    }
}

/// Follows the runtime's health, for ever.
pub(crate) async fn follow(
    client: cri::Client,
    Polls { runtime: steady, patience, .. }: Polls,
    mut host_network: Option<watch::Receiver<Health>>,
    cgroups: Arc<OnceLock<Cgroups>>,
    health: watch::Sender<RuntimeHealth>,
) {
    let mut unready = 0u32;
    let mut tolerance = Tolerance::default();
    let mut log = Log::default();
    let mut changed: Option<Instant> = None;
    let mut asked = false;
    loop {
        let seen = Box::pin(look_long(&client, patience, &health)).await;
        // One that hung is told of already.
        if !health.borrow().runtime_ready {
            tolerance = Tolerance::default();
        }
        let network = host_network.as_mut().map(|health| health.borrow_and_update().clone());
        let told = tolerance.take(&seen, Instant::now()).with(network.clone());
        let seen = seen.with(network);
        log.note(&seen, Instant::now());
        // Before anybody hears of the runtime, and makes a sandbox.
        if !seen.name.is_empty() && !asked {
            asked = tokio::time::timeout(patience, ask_driver(&client, &cgroups)).await.unwrap_or(false);
        }
        health.send_if_modified(|old| {
            let changed = *old != told;
            *old = told;
            changed
        });
        let ready = seen.runtime_ready && seen.network_ready;
        unready = if ready { 0 } else { unready.saturating_add(1) };
        let pause = match unready {
            0 if changed.is_some_and(|at| at.elapsed() < AFTER_CHANGE) => EAGER,
            0 => steady,
            n if n < EAGER_TRIES => EAGER,
            _ => Duration::from_secs(1),
        };
        let news = async {
            let heard = match &mut host_network {
                Some(health) => health.changed().await.is_ok(),
                None => false,
            };
            // A watch that ended says nothing more.
            if !heard {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = news => changed = Some(Instant::now()),
        }
    }
}

/// What the last good look saw, which counts until the runtime has not answered for [`SILENCE`].
#[derive(Default)]
struct Tolerance {
    good: Option<(Instant, RuntimeHealth)>,
}

impl Tolerance {
    /// What is told of a look that saw `seen`.
    fn take(&mut self, seen: &RuntimeHealth, now: Instant) -> RuntimeHealth {
        if !seen.name.is_empty() {
            self.good = seen.runtime_ready.then(|| (now, seen.clone()));
        }
        match &self.good {
            Some((at, good)) if now - *at < SILENCE => good.clone(),
            _ => seen.clone(),
        }
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

/// Looks, and meanwhile says which call the runtime does not answer: it hangs, which its silence alone would not tell.
async fn look_long(client: &cri::Client, patience: Duration, health: &watch::Sender<RuntimeHealth>) -> RuntimeHealth {
    let mut look = std::pin::pin!(look(client));
    let mut waited = Duration::ZERO;
    loop {
        match tokio::time::timeout(patience, &mut look).await {
            Ok(seen) => return seen,
            Err(_) => waited += patience,
        }
        let call = client.waiting().iter().map(|waiting| waiting.call).find(|call| LOOKS.contains(call)).unwrap_or(LOOKS[1]);
        let message = format!("container runtime at {} hangs: it has not answered {call} for {}", client.endpoint(), go_duration(waited));
        tracing::warn!("{message}; look into its log, and restart it");
        health.send_modify(|health| {
            (health.runtime_ready, health.connects, health.messages) = (false, false, vec![message]);
        });
    }
}

/// Asks how the runtime makes control groups, which containerd says from 2.0 on and CRI-O from 1.28 on. Returns whether there is an answer, that
/// it does not know the call among them.
async fn ask_driver(client: &cri::Client, cgroups: &OnceLock<Cgroups>) -> bool {
    let config = match client.runtime_config(v1::RuntimeConfigRequest::default()).await {
        Ok(config) => config,
        Err(error) => return error.kind() == cri::Kind::Unimplemented,
    };
    let driver = config.linux.and_then(|linux| v1::CgroupDriver::try_from(linux.cgroup_driver).ok());
    if let Some(driver) = driver {
        cgroups.get_or_init(|| match driver {
            v1::CgroupDriver::Systemd => Cgroups::Systemd,
            v1::CgroupDriver::Cgroupfs => Cgroups::Files,
        });
    }
    true
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
        connects: false,
        host_network: None,
        messages,
        handlers: status.runtime_handlers.into_iter().map(Handler::of).collect(),
        groups_policy: status.features.map(|features| features.supplemental_groups_policy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_restarts_is_no_news_for_thirty_seconds() {
        let up = RuntimeHealth { name: "containerd".into(), runtime_ready: true, network_ready: true, ..Default::default() };
        let no_network = RuntimeHealth { network_ready: false, ..up.clone() };
        let not_ready = RuntimeHealth { runtime_ready: false, ..up.clone() };
        let down = RuntimeHealth { messages: vec!["container runtime is down: refused".into()], ..Default::default() };
        let began = Instant::now();
        let mut tolerance = Tolerance::default();
        let looks = [
            (0, &down, &down, "was never up"),
            (1_000, &up, &up, "answers"),
            (1_025, &down, &up, "first failure"),
            (1_100, &down, &up, "fourth failure"),
            (30_999, &down, &up, "just before the end"),
            (31_000, &down, &down, "silent for 30 s"),
            (31_025, &no_network, &no_network, "what it answers is told at once"),
            (31_050, &down, &no_network, "the last answer counts"),
            (32_000, &up, &up, "answers again"),
            (33_000, &not_ready, &not_ready, "says itself that it is not ready"),
            (33_025, &down, &down, "and then nothing"),
        ];
        for (at, seen, told, what) in looks {
            assert_eq!(tolerance.take(seen, began + Duration::from_millis(at)), *told, "{what}");
        }
    }
}
