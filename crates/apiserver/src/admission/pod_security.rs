//! PodSecurity: what pods of a Namespace may do (plugin/pkg/admission/security/podsecurity).

use super::{Plugin, adapt};
use crate::kind::{Attributes, Cluster, Operation};
use crate::status::ApiError;
use ::admission::Notes;
use ::admission::pod_security::{Configuration, Source, validate};
use futures::future::BoxFuture;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So long the pods of a Namespace are looked at when its level changes.
const POD_CHECK: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct PodSecurity(Configuration);

struct Pods<'a> {
    cluster: &'a Cluster,
    until: Instant,
}

impl Source for Pods<'_> {
    fn namespace(&self, name: &str) -> Option<Arc<Value>> {
        self.cluster.store.get(&format!("core/namespaces//{name}")).map(|entry| Arc::new(entry.value()))
    }

    fn pods(&self, namespace: &str) -> Vec<Arc<Value>> {
        let (_, rows) = self.cluster.store.list(&format!("core/pods/{namespace}/"));
        rows.into_iter().map(|(_, entry)| Arc::new(entry.value())).collect()
    }

    fn out_of_time(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl PodSecurity {
    fn check(&self, attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
        let (user, mut notes) = (adapt::user(attributes), Notes::default());
        let source = Pods { cluster: attributes.cluster, until: Instant::now() + POD_CHECK };
        let result = validate(&self.0, &source, &adapt::request(attributes, &user, object), &mut notes);
        adapt::keep(attributes, notes);
        result.map_err(|refusal| adapt::error(attributes, object, refusal))
    }
}

impl Plugin for PodSecurity {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let is_concerned = match attributes.kind.group.as_str() {
            "" => matches!(attributes.kind.plural.as_str(), "namespaces" | "pods" | "podtemplates" | "replicationcontrollers"),
            "apps" | "batch" => true,
            _ => false,
        };
        is_concerned && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(self.check(attributes, object)))
    }
}
