//! ClusterRoles put together from others (pkg/controller/clusterroleaggregation): done here, at once with the write that calls for it.

use super::Registry;
use super::update::Target;
use crate::authn::{MASTERS, UserInfo};
use crate::fields::{self, Conversions};
use crate::kind::{FieldWriter, Kind, Part, WriteContext};
use crate::kinds;
use crate::object;
use crate::selectors::LabelSelector;
use crate::status::ApiError;
use futures::future::try_join_all;
use serde_json::{Value, json};
use std::sync::Arc;

/// Upstream's controller, as owners of fields are named.
const MANAGER: &str = "clusterrole-aggregation-controller";

/// Roles of roles of roles: upstream's admin ← edit ← view needs three rounds.
const DEEPEST: usize = 8;

impl Registry {
    /// Gives every aggregating ClusterRole the rules of the roles it selects.
    pub async fn aggregate_roles(&self) -> Result<(), ApiError> {
        let kind = kinds::by_resource("rbac.authorization.k8s.io", "v1", "clusterroles").ok_or_else(ApiError::no_such_resource)?;
        let context = WriteContext::new(UserInfo::new("system:apiserver", &[MASTERS]), false);
        for _ in 0..DEEPEST {
            let roles: Vec<Value> = self.store.list(&kind.prefix("")).1.into_iter().map(|(_, entry)| entry.value()).collect();
            let changes = plan(&roles);
            if changes.is_empty() {
                return Ok(());
            }
            try_join_all(changes.iter().map(|(name, rules)| self.set_rules(&context, kind, name, rules))).await?;
        }
        tracing::warn!("cluster roles aggregate one another in a circle");
        Ok(())
    }

    async fn set_rules(&self, context: &WriteContext, kind: &Arc<Kind>, name: &str, rules: &[Value]) -> Result<(), ApiError> {
        let config = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": name}, "rules": rules});
        let writer = FieldWriter { applies: true, ..FieldWriter::own(MANAGER) };
        let conversions = Conversions::new(&self.cluster, kind);
        let set = |role: &Value| fields::apply(kind, Part::Main, &writer, Some(role), &config, true, &conversions);
        match self.update(context, Target { kind, namespace: "", name, part: Part::Internal }, true, set).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

/// The aggregating roles whose rules are not what they select, with the rules they should have. `roles` are in order of their names.
fn plan(roles: &[Value]) -> Vec<(String, Vec<Value>)> {
    let aggregating = roles.iter().filter_map(|role| Some((role, object::lookup(role, &["aggregationRule", "clusterRoleSelectors"])?.as_array()?)));
    aggregating
        .filter_map(|(role, selectors)| {
            let mut rules: Vec<Value> = Vec::new();
            for selector in selectors.iter().map(LabelSelector::from_value) {
                let selected = roles.iter().filter(|other| object::name(other) != object::name(role) && selector.matches(other));
                for rule in selected.flat_map(|other| object::list(other, &["rules"])) {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
            (object::list(role, &["rules"]) != rules.as_slice()).then(|| (object::name(role).to_string(), rules))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_gets_the_rules_of_those_it_selects() {
        let rule = |verb: &str| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
        let selectors = |label: &str| json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
        let roles = [
            json!({"metadata": {"name": "a", "labels": {"to-edit": "true"}}, "rules": [rule("get"), rule("list")]}),
            json!({"metadata": {"name": "b", "labels": {"to-edit": "true"}}, "rules": [rule("list"), rule("watch")]}),
            json!({"metadata": {"name": "c"}, "rules": [rule("delete")]}),
            json!({"metadata": {"name": "edit", "labels": {"to-edit": "true"}}, "aggregationRule": selectors("to-edit"), "rules": [rule("own")]}),
        ];
        let changes = plan(&roles);
        assert_eq!(changes, [("edit".to_string(), vec![rule("get"), rule("list"), rule("watch")])]);
        let mut done = roles.to_vec();
        done[3]["rules"] = json!(changes[0].1);
        assert!(plan(&done).is_empty());
    }
}
