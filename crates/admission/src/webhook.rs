//! Admission webhooks: whom a request is shown to, in which form, and what the answers do (apiserver/pkg/admission/plugin/webhook).

mod call;
mod dispatch;
mod review;

pub use call::{Answer, Caller, Endpoint, MAX_ANSWER, Service};
pub use dispatch::{Environment, mutate, validate};
pub use review::{Response, Version, parse_response};

use crate::value::{list, name, text};
use serde_json::Value;
use std::sync::Arc;

/// One webhook of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// Name of the configuration.
    pub configuration: String,
    /// Unique among all webhooks.
    pub(crate) id: String,
    /// The entry of `webhooks`.
    pub spec: Value,
}

impl Hook {
    pub(crate) fn name(&self) -> &str {
        text(&self.spec, &["name"])
    }

    pub(crate) fn ignores_failures(&self) -> bool {
        text(&self.spec, &["failurePolicy"]) == "Ignore"
    }
}

/// All webhooks of MutatingWebhookConfigurations or ValidatingWebhookConfigurations, in the order in which they are called.
pub fn hooks(configurations: &[Arc<Value>]) -> Vec<Hook> {
    let mut sorted: Vec<&Arc<Value>> = configurations.iter().collect();
    sorted.sort_by(|a, b| name(a).cmp(name(b)));
    let entries = sorted.into_iter().flat_map(|one| list(one, &["webhooks"]).iter().enumerate().map(move |(index, spec)| (name(one), index, spec)));
    entries
        .map(|(configuration, index, spec)| Hook {
            configuration: configuration.to_owned(),
            id: format!("{configuration}/{}/{index}", text(spec, &["name"])),
            spec: spec.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
