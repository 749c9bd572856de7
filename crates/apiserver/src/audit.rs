//! The audit of requests: what the policy asks for of each is kept while the request is handled, and written at its stages
//! (apiserver/pkg/endpoints/filters/audit.go). Without a policy no request has a [`Trail`], and nothing is kept.

mod trail;

pub use trail::{Completion, Trail, write_panic};

use ::audit::event::Event;
use ::audit::{Log, LogConfig, LogError, Policy, Post, Stage, Truncate, Webhook, WebhookConfig};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What is audited, and who gets the events.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    pub policy: Policy,
    pub log: Option<AuditLog>,
    pub webhook: Option<AuditWebhook>,
}

/// The log.
#[derive(Clone, Debug)]
pub struct AuditLog {
    pub config: LogConfig,
    /// Bounds of its lines; none when absent.
    pub truncate: Option<Truncate>,
}

/// A receiver of events.
#[derive(Clone, Debug)]
pub struct AuditWebhook {
    pub config: WebhookConfig,
    /// Bounds of what it gets; none when absent.
    pub truncate: Option<Truncate>,
    pub post: Arc<dyn Post>,
}

/// The policy, and those that get events.
pub struct Auditor {
    policy: Policy,
    log: Option<(Log, Option<Truncate>)>,
    webhook: Option<(Webhook, Option<Truncate>)>,
}

/// An event as each of those gets it; none when it does not get it.
#[derive(Default)]
struct Lines {
    log: Option<Vec<u8>>,
    webhook: Option<Vec<u8>>,
}

impl Auditor {
    pub fn open(config: &AuditConfig) -> Result<Self, LogError> {
        let log = config.log.as_ref().map(|log| Ok((Log::open(&log.config)?, log.truncate))).transpose()?;
        let webhook = config.webhook.as_ref().map(|webhook| (Webhook::start(&webhook.config, Arc::clone(&webhook.post)), webhook.truncate));
        Ok(Self { policy: config.policy.clone(), log, webhook })
    }

    fn lines(&self, event: &Event, stage: Stage, annotations: &BTreeMap<String, String>) -> Lines {
        let now = jiff::Timestamp::now();
        let line = |bounds: Option<Truncate>| match bounds {
            Some(bounds) => {
                let line = event.line_within(bounds, stage, now, annotations);
                if line.is_none() {
                    tracing::warn!(
                        audit_id = event.audit_id,
                        bytes = bounds.max_event,
                        "an audit event is too large even without its objects: it is lost"
                    );
                }
                line
            }
            None => Some(event.line(stage, now, annotations)),
        };
        match (&self.log, &self.webhook) {
            (Some((_, one)), Some((_, other))) if one == other => {
                let log = line(*one);
                Lines { webhook: log.clone(), log }
            }
            (log, webhook) => {
                Lines { log: log.as_ref().and_then(|(_, bounds)| line(*bounds)), webhook: webhook.as_ref().and_then(|(_, bounds)| line(*bounds)) }
            }
        }
    }

    /// Hands an event to everybody. Whether those took it without whom there is no request.
    async fn write(&self, lines: Lines) -> bool {
        let log = async {
            match (&self.log, lines.log) {
                (Some((log, _)), Some(line)) => log.write(line).await.is_ok() || !log.is_strict(),
                (log, _) => log.as_ref().is_none_or(|(log, _)| !log.is_strict()),
            }
        };
        let webhook = async {
            match (&self.webhook, lines.webhook) {
                (Some((webhook, _)), Some(line)) => webhook.write(line).await.is_ok() || !webhook.is_strict(),
                (webhook, _) => webhook.as_ref().is_none_or(|(webhook, _)| !webhook.is_strict()),
            }
        };
        let (log, webhook) = tokio::join!(log, webhook);
        log && webhook
    }

    /// The same from outside of tasks: waits for the log alone.
    fn write_blocking(&self, lines: Lines) {
        if let (Some((webhook, _)), Some(line)) = (&self.webhook, lines.webhook) {
            webhook.write_later(line);
        }
        if let (Some((log, _)), Some(line)) = (&self.log, lines.log) {
            // A failure is reported by the log.
            let _ = log.write_blocking(line);
        }
    }

    /// Returns when every event is written, and sent as far as the receiver takes it.
    pub async fn close(&self) {
        if let Some((webhook, _)) = &self.webhook {
            webhook.close().await;
        }
        if let Some((log, _)) = &self.log {
            log.close();
        }
    }
}

/// Annotations of a request's audit event. The first value of a key stays, as upstream.
#[derive(Default)]
pub struct Annotations(Mutex<BTreeMap<String, String>>);

impl Annotations {
    pub fn add(&self, key: impl Into<String>, value: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.into()).or_insert_with(|| value.into());
    }

    /// All of them so far.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
