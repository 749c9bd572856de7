//! Authorization: the Node authorizer and RBAC, in that order; members of `system:masters` may do anything
//! (plugin/pkg/auth/authorizer).

pub mod bootstrap;
mod node;
mod rbac;

pub(crate) use node::names_secret;

use crate::authn::{MASTERS, UserInfo};
use crate::status::{ApiError, qualified};
use crate::store::Store;
use serde_json::Value;
use std::sync::Arc;

/// What is asked of an authorizer.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// The user of the request.
    pub user: UserInfo,
    pub verb: String,
    /// Whether a resource is meant, or a path.
    pub is_resource: bool,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Path, for other requests.
    pub path: String,
    /// The field selector of a list or watch.
    pub field_selector: String,
}

impl Attributes {
    /// `pods`, or `pods/log`.
    fn resource_and_subresource(&self) -> String {
        if self.subresource.is_empty() { self.resource.clone() } else { format!("{}/{}", self.resource, self.subresource) }
    }

    /// Upstream's `forbiddenMessage` (apiserver/pkg/endpoints/handlers/responsewriters/errors.go).
    fn forbidden_message(&self) -> String {
        let user = &self.user.name;
        if !self.is_resource {
            return format!("User {user:?} cannot {} path {:?}", self.verb, self.path);
        }
        let resource = self.resource_and_subresource();
        let place = if self.namespace.is_empty() || self.resource == "namespaces" {
            "at the cluster scope".to_string()
        } else {
            format!("in the namespace {:?}", self.namespace)
        };
        let place =
            if self.resource == "namespaces" && !self.namespace.is_empty() { format!("in the namespace {:?}", self.namespace) } else { place };
        format!("User {user:?} cannot {} resource {resource:?} in API group {:?} {place}", self.verb, self.group)
    }

    /// The 403 that a refused request gets.
    pub fn forbidden(&self, reason: &str) -> ApiError {
        let mut message = self.forbidden_message();
        if !reason.is_empty() {
            message = format!("{message}: {reason}");
        }
        if !self.is_resource {
            return ApiError { details: Some(serde_json::json!({})), ..ApiError::new(403, "Forbidden", format!("forbidden: {message}")) };
        }
        let resource = qualified(&self.group, &self.resource);
        let text = if self.name.is_empty() {
            format!("{resource} is forbidden: {message}")
        } else {
            format!("{resource} {:?} is forbidden: {message}", self.name)
        };
        let mut details = serde_json::Map::new();
        for (member, value) in [("name", &self.name), ("group", &self.group), ("kind", &self.resource)] {
            if !value.is_empty() {
                details.insert(member.into(), value.as_str().into());
            }
        }
        ApiError { details: Some(Value::Object(details)), ..ApiError::new(403, "Forbidden", text) }
    }
}

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, and why.
    Allow(String),
    /// Nobody allows it; the reason, when an authorizer has one.
    NoOpinion(String),
}

pub struct Authorizer {
    store: Arc<Store>,
    rbac: rbac::Cache,
}

impl Authorizer {
    /// Authorizers over the objects of a store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, rbac: rbac::Cache::default() }
    }

    pub fn decide(&self, attributes: &Attributes) -> Decision {
        if attributes.user.is_in(MASTERS) {
            return Decision::Allow(String::new());
        }
        let node = node::decide(&self.store, attributes);
        if matches!(node, Decision::Allow(_)) {
            return node;
        }
        match (self.rbac.current(&self.store).decide(attributes), node) {
            (Decision::NoOpinion(reason), Decision::NoOpinion(from_node)) => {
                Decision::NoOpinion(if from_node.is_empty() { reason } else { from_node })
            }
            (decision, _) => decision,
        }
    }

    /// Refuses with upstream's message unless allowed.
    pub fn check(&self, attributes: &Attributes) -> Result<(), ApiError> {
        match self.decide(attributes) {
            Decision::Allow(_) => Ok(()),
            Decision::NoOpinion(reason) => Err(attributes.forbidden(&reason)),
        }
    }

    /// The rules that apply to a user in a namespace: (resource rules, non-resource rules) as `SelfSubjectRulesReview` shows them.
    pub fn rules(&self, user: &UserInfo, namespace: &str) -> (Vec<Value>, Vec<Value>) {
        self.rbac.current(&self.store).rules(user, namespace)
    }

    /// Whether `user` holds every rule of `rules` in `namespace`: escalation check of role writes.
    pub fn covers(&self, user: &UserInfo, namespace: &str, rules: &[Value]) -> bool {
        user.is_in(MASTERS) || self.rbac.current(&self.store).covers(user, namespace, rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(namespace: &str, name: &str, subresource: &str) -> Attributes {
        Attributes {
            user: UserInfo::new("bob", &[]),
            verb: "get".into(),
            is_resource: true,
            resource: "pods".into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn refusals_read_as_upstream() {
        let error = attributes("default", "web", "log").forbidden("");
        assert_eq!(
            error.message,
            "pods \"web\" is forbidden: User \"bob\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"default\""
        );
        let error = attributes("", "", "").forbidden("");
        assert_eq!(error.message, "pods is forbidden: User \"bob\" cannot get resource \"pods\" in API group \"\" at the cluster scope");
        let path = Attributes { path: "/metrics".into(), is_resource: false, ..attributes("", "", "") };
        assert_eq!(path.forbidden("").message, "forbidden: User \"bob\" cannot get path \"/metrics\"");
    }
}
