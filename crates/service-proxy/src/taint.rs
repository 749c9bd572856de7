//! A taint that keeps pods away from a Node until its Services are served: a pod that starts before finds no DNS.

use std::str::FromStr;
use std::time::Duration;

use backoff::Backoff;
use cluster::{EventRecorder, EventType, update_with_retry};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Taint};
use kube::{Api, Client};
use thiserror_ext::AsReport;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::run::Status;

/// While it is on, the remaining time is logged this often.
const REPORT: Duration = Duration::from_secs(5);

/// A taint that this proxy puts on its Node and takes off again: `KEY[=VALUE][:NoSchedule|PreferNoSchedule]`.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupTaint(Taint);

/// Why a text is no start-up taint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaintError {
    /// Nothing before the effect.
    #[error("the start-up taint {0:?} has no key: write it as KEY:NoSchedule")]
    NoKey(String),
    /// The effect would evict pods.
    #[error("a start-up taint must not evict what runs whenever the proxy starts: use NoSchedule")]
    Evicts,
    /// An effect that taints do not have.
    #[error("{0:?} is no effect of a start-up taint: use NoSchedule or PreferNoSchedule")]
    Effect(String),
}

impl FromStr for StartupTaint {
    type Err = TaintError;

    fn from_str(text: &str) -> Result<Self, TaintError> {
        let (rest, effect) = text.split_once(':').unwrap_or((text, "NoSchedule"));
        let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value.to_owned())));
        match effect {
            _ if key.is_empty() => Err(TaintError::NoKey(text.to_owned())),
            "NoSchedule" | "PreferNoSchedule" => Ok(Self(Taint { key: key.to_owned(), value, effect: effect.to_owned(), ..Taint::default() })),
            "NoExecute" => Err(TaintError::Evicts),
            other => Err(TaintError::Effect(other.to_owned())),
        }
    }
}

impl StartupTaint {
    /// Keeps it on the Node until `status` says that every VIP was tried, so that one refused for good keeps no pod away;
    /// reports how long that will take. It is left alone from then on, whatever fails later: pods run there.
    pub async fn hold(self, client: Client, node: String, mut status: watch::Receiver<Status>) {
        let reporter = Reporter { recorder: EventRecorder::new(client.clone(), "kube-proxy", &node), node: node.clone() };
        let api = Api::<Node>::all(client);
        let progress = status.clone();
        let served = tokio::select! {
            served = status.wait_for(Status::is_ready) => served.is_ok(),
            () = async {
                self.change(&api, &node, true).await;
                reporter.report_until_the_end(&self.0.key, progress).await;
            } => return,
        };
        if !served {
            return;
        }
        self.change(&api, &node, false).await;
        tracing::info!(taint = self.0.key, "every Service is served; the start-up taint is off");
        reporter.event("ServicesServed", &format!("Every Service is served; taint {} is off", self.0.key));
    }

    /// Puts it on or takes it off, however long that takes.
    async fn change(&self, api: &Api<Node>, node: &str, on: bool) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let edit = |node: &mut Node| {
            let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
            let there = taints.iter().any(|taint| taint.key == self.0.key);
            taints.retain(|taint| on || taint.key != self.0.key);
            if on && !there {
                taints.push(self.0.clone());
            }
            on != there
        };
        while let Err(error) = update_with_retry(api, node, edit).await {
            let what = if on { "put on" } else { "taken off" };
            tracing::warn!(error = %error.as_report(), taint = self.0.key, "the start-up taint cannot be {what} yet; the proxy needs the right to update Nodes");
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }
}

/// Reports to the log and as events of the Node.
struct Reporter {
    recorder: EventRecorder,
    node: String,
}

impl Reporter {
    /// Ends with the proxy alone.
    async fn report_until_the_end(&self, key: &str, mut status: watch::Receiver<Status>) {
        let mut reported: Option<Instant> = None;
        loop {
            let (missing, eta) = {
                let status = status.borrow_and_update();
                (status.missing(), status.eta)
            };
            if let Some(eta) = eta.filter(|_| reported.is_none_or(|at| at.elapsed() >= REPORT)) {
                let seconds = eta.as_secs_f64().ceil();
                let text = format!("{missing} VIPs of Services are not served yet, which will take about {seconds} s; taint {key} stays until then");
                tracing::info!("{text}");
                if reported.replace(Instant::now()).is_none() {
                    self.event("ServicesPending", &text);
                }
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn event(&self, reason: &str, text: &str) {
        let node = ObjectReference { kind: Some("Node".into()), name: Some(self.node.clone()), uid: Some(self.node.clone()), ..Default::default() };
        self.recorder.event(&node, EventType::Normal, reason, None, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_taint_parses_kubelet_syntax_and_rejects_no_execute() {
        let read = |text: &str| text.parse::<StartupTaint>().map(|taint| (taint.0.key, taint.0.value, taint.0.effect));
        let taint = |value: Option<&str>, effect: &str| Ok(("services".to_owned(), value.map(str::to_owned), effect.to_owned()));
        assert_eq!(read("services"), taint(None, "NoSchedule"));
        assert_eq!(read("services:PreferNoSchedule"), taint(None, "PreferNoSchedule"));
        assert_eq!(read("services=pending:NoSchedule"), taint(Some("pending"), "NoSchedule"));
        for (bad, why) in [(":NoSchedule", "no key"), ("services:NoExecute", "evict"), ("services:Never", "no effect")] {
            assert!(read(bad).unwrap_err().to_string().contains(why), "{bad}");
        }
    }
}
