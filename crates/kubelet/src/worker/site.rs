//! What work on a pod shares: the node's parts, the pod, its events and the objects it names.

use std::sync::{Arc, Mutex, PoisonError};

use cluster::EventType;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use thiserror_ext::AsReport as _;

use super::errors::HookError;
use super::times::Pulls;
use crate::agent::{Agent, key};
use crate::pod::explain::Warnings;
use crate::sources::{Fetched, Kind, SourceError};

#[derive(Clone)]
pub(super) struct Site {
    pub agent: Arc<Agent>,
    pub pod: Arc<Pod>,
    pub uid: String,
    pub warnings: Arc<Mutex<Warnings>>,
    pub pulls: Arc<Pulls>,
}

impl Site {
    /// Reads the objects that are named, watching them from now on.
    pub(super) async fn fetch(&self, wanted: Vec<(Kind, String)>) -> Result<Fetched, SourceError> {
        let ns = self.pod.metadata.namespace.clone().unwrap_or_default();
        let mut out = Fetched::new();
        for (kind, name) in wanted {
            if out.contains_key(&(kind, name.clone())) {
                continue;
            }
            let data = self.agent.sources.get(&self.uid, kind, &ns, &name).await?;
            out.insert((kind, name), data);
        }
        Ok(out)
    }

    /// The pod or one of its containers, as events name it.
    fn reference(&self, container: Option<&str>) -> ObjectReference {
        let m = &self.pod.metadata;
        let field = container.map(|name| {
            let spec = self.pod.spec.as_ref();
            let init = spec.is_some_and(|s| s.init_containers.iter().flatten().any(|c| c.name == name));
            let ephemeral = spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == name));
            let list = match (init, ephemeral) {
                (true, _) => "initContainers",
                (_, true) => "ephemeralContainers",
                _ => "containers",
            };
            format!("spec.{list}{{{name}}}")
        });
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: m.name.clone(),
            namespace: m.namespace.clone(),
            uid: m.uid.clone(),
            resource_version: m.resource_version.clone(),
            field_path: field,
        }
    }

    /// Reports a failed hook. What it answered is logged, as upstream does: events are read by more people, and it may hold secrets.
    pub(super) fn hook_failed(&self, container: &str, error: &HookError) {
        tracing::warn!(pod = %key(&self.pod), container, error = %error.as_report(), "a hook failed");
        self.event(Some(container), EventType::Warning, error.reason(), error.to_string());
    }

    /// Reports a hook whose server was asked by HTTPS, but speaks HTTP.
    pub(super) fn hook_done(&self, plain: Option<String>) {
        if let Some(server) = plain {
            self.agent.counts.http_fallback();
            let message = format!("request to HTTPS lifecycle hook {server} got HTTP response, retry with HTTP succeeded");
            self.event(None, EventType::Warning, "LifecycleHTTPFallback", message);
        }
    }

    /// Writes an event about the pod or one of its containers.
    pub(super) fn event(&self, container: Option<&str>, type_: EventType, reason: &str, message: impl Into<String>) {
        let (about, message) = (self.reference(container), message.into());
        if type_ == EventType::Warning {
            let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            warnings.insert((container.unwrap_or_default().to_owned(), reason.to_owned()), message.clone());
        }
        self.agent.recorder.event(&about, type_, reason, None, message);
    }
}
