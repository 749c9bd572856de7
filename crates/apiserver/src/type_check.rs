//! `status.typeChecking` of ValidatingAdmissionPolicies: warnings about expressions that do not fit the kinds they are for, as upstream's
//! status controller writes them (pkg/controller/validatingadmissionpolicystatus, apiserver/pkg/admission/plugin/policy/validating).

mod shapes;

use crate::authn::UserInfo;
use crate::fields::{self, Conversions};
use crate::kind::{FieldWriter, Part, Set, WriteContext};
use crate::object;
use crate::registry::Registry;
use crate::registry::update::Target;
use crate::status::ApiError;
use ::admission::cel::Variable;
use ::admission::cel::typed::{self, Params};
use ::admission::names::Kind as KindName;
use ::admission::policy::{type_check, types_to_check};
use kube_cel::Shape;
use serde_json::{Value, json};
use shapes::Shapes;
use std::collections::BTreeMap;
use std::sync::Arc;

const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: &str = "admissionregistration.k8s.io/validatingadmissionpolicies/";
const MANAGER: &str = "validatingadmissionpolicy-status-controller";

/// Which policies have been looked at.
#[derive(Default)]
pub struct TypeChecks {
    /// The last change of a policy that is done.
    done: u64,
}

impl Registry {
    /// Checks the policies whose specification has changed since their status was written.
    pub async fn check_types(&self, checks: &mut TypeChecks) {
        let changed = self.store.last_change(POLICIES);
        if changed == checks.done {
            return;
        }
        let mut is_done = true;
        for (_, entry) in self.store.list(POLICIES).1 {
            let policy = entry.value();
            let observed = object::integer(&policy, &["status", "observedGeneration"]).unwrap_or_default();
            if object::integer(&policy, &["metadata", "generation"]).unwrap_or_default() <= observed {
                continue;
            }
            if let Err(error) = self.write_type_check(&policy).await {
                is_done = error.is_not_found();
                tracing::debug!(error = %error.message, policy = object::name(&policy), "the status of a policy is not written; it is tried again");
            }
        }
        if is_done {
            checks.done = changed;
        }
    }

    async fn write_type_check(&self, policy: &Value) -> Result<(), ApiError> {
        let Some(kind) = self.kinds.find(GROUP, "v1", "validatingadmissionpolicies") else { return Ok(()) };
        let warnings = warnings(&self.kinds.now(), policy);
        let status = json!({"observedGeneration": policy["metadata"]["generation"], "typeChecking": checking(warnings)});
        let config = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": object::name(policy)}, "status": status});
        let writer = FieldWriter { manager: MANAGER.into(), subresource: "status".into(), applies: true, now: jiff::Timestamp::now() };
        let context = WriteContext::new(UserInfo::new("system:kube-controller-manager", &[]), false).with_fields(writer.clone());
        let target = Target { kind: &kind, namespace: "", name: object::name(policy), part: Part::Status };
        let conversions = Conversions::new(&self.cluster, &kind);
        let apply = |live: &Value| {
            let view = kind.outgoing(live.clone());
            fields::apply(&kind, Part::Status, &writer, Some(&view), &config, true, &conversions).map(|object| kind.incoming(object))
        };
        self.update(&context, target, true, apply).await.map(drop)
    }
}

/// `typeChecking`: an empty object when nothing is wrong.
fn checking(warnings: Vec<Value>) -> Value {
    if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) }
}

/// `expressionWarnings` of a policy.
fn warnings(kinds: &Set, policy: &Value) -> Vec<Value> {
    let mut shapes = Shapes::default();
    let named = types_to_check(policy, |resource| {
        let found = kinds.find(&resource.group, &resource.version, &resource.resource);
        found.map(|kind| KindName::new(&kind.group, &kind.version, &kind.kind)).into_iter().collect()
    });
    let known: BTreeMap<KindName, Arc<Shape>> = named.into_iter().filter_map(|name| shapes.of(kinds, &name).map(|shape| (name, shape))).collect();
    let text = |path: &[&str]| object::text(policy, path);
    let param = object::lookup(policy, &["spec", "paramKind"]);
    let param = param.map(|_| KindName::of(text(&["spec", "paramKind", "apiVersion"]), text(&["spec", "paramKind", "kind"])));
    let param_shape = param.as_ref().and_then(|name| shapes.of(kinds, name));
    let params = match (&param, &param_shape) {
        (None, _) => Params::None,
        (Some(_), None) => Params::Unknown,
        (Some(_), Some(shape)) => Params::Known(shape),
    };
    let variables: Vec<Variable> = object::list(policy, &["spec", "variables"])
        .iter()
        .map(|one| Variable { name: object::name_of(one).into(), expression: object::text(one, &["expression"]).into() })
        .collect();
    let names: Vec<KindName> = known.keys().cloned().collect();
    type_check(policy, &names, |name, expression| known.get(name).map_or(Ok(()), |shape| typed::check(expression, shape, params, &variables)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    fn policy(resources: &[(&str, &str, &str)], expressions: &[&str]) -> Value {
        let rules: Vec<Value> = resources
            .iter()
            .map(|(group, version, resource)| json!({"apiGroups": [group], "apiVersions": [version], "operations": ["*"], "resources": [resource]}))
            .collect();
        let validations: Vec<Value> = expressions.iter().map(|expression| json!({"expression": expression})).collect();
        json!({"spec": {"matchConstraints": {"resourceRules": rules}, "validations": validations}})
    }

    fn of(resources: &[(&str, &str, &str)], expressions: &[&str]) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        warnings(builtin(), &policy(resources, expressions)).iter().map(|one| (text(&one["fieldRef"]), text(&one["warning"]))).collect()
    }

    #[test]
    fn expressions_are_checked_against_each_kind() {
        let both = [("apps", "v1", "deployments"), ("", "v1", "pods")];
        let found = of(&both, &["object.spec.replicas > 1", "object.metadata.name.startsWith('a')", "object.spec.replicas > 'a'"]);
        let pod = "/v1, Kind=Pod: ERROR: <input>:1:12: undefined field 'replicas'\n | object.spec.replicas > 1\n | ...........^\n";
        assert_eq!(found[0], ("spec.validations[0].expression".into(), pod.into()));
        assert_eq!((found.len(), found[1].0.as_str()), (2, "spec.validations[2].expression"));
        let lines: Vec<&str> = found[1].1.lines().filter(|line| line.contains("Kind=")).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[1].starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'")
        );
    }

    #[test]
    fn members_of_every_form_are_known() {
        let good = [
            "object.spec.template.spec.containers.all(c, c.image.startsWith('a') && c.ports.all(p, p.containerPort > 80))",
            "object.metadata.labels['a'] == 'b' && object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')",
            "object.spec.template.spec.containers[0].resources.limits['cpu'] == '1'",
            "object.spec.strategy.rollingUpdate.maxSurge == 1 || object.spec.strategy.rollingUpdate.maxSurge == '10%'",
            "object.spec.template.spec.containers.exists(c, c.securityContext.privileged)",
            "object.kind == 'Deployment' && object.apiVersion == 'apps/v1'",
        ];
        assert_eq!(of(&[("apps", "v1", "deployments")], &good), []);
        let recursive = ["object.spec.versions[0].schema.openAPIV3Schema.properties['a'].items != null"];
        assert_eq!(of(&[("apiextensions.k8s.io", "v1", "customresourcedefinitions")], &recursive), []);
    }

    #[test]
    fn wildcards_and_unknown_kinds_are_not_checked() {
        assert_eq!(of(&[("*", "v1", "pods"), ("", "v1", "nothings"), ("", "v1", "pods/*")], &["object.x.y == 1"]), []);
    }

    #[test]
    fn parameters_have_the_form_of_their_kind() {
        let mut policy = policy(&[("", "v1", "pods")], &["params.data['a'] == 'b'", "params.date == 'b'"]);
        assert_eq!(warnings(builtin(), &policy).len(), 2, "a policy without paramKind has no params");
        policy["spec"]["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let found = warnings(builtin(), &policy);
        assert_eq!((found.len(), &found[0]["fieldRef"]), (1, &json!("spec.validations[1].expression")));
        policy["spec"]["paramKind"] = json!({"apiVersion": "example.com/v1", "kind": "Unknown"});
        assert_eq!(warnings(builtin(), &policy), Vec::<Value>::new());
    }

    #[test]
    fn every_built_in_kind_has_a_form() {
        let mut shapes = Shapes::default();
        for kind in builtin().all().filter(|kind| kind.is_stored() && kind.schema_type().is_some()) {
            let name = KindName::new(&kind.group, &kind.version, &kind.kind);
            let shape = shapes.of(builtin(), &name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(typed::check("has(object.metadata) && object.kind == 'x'", &shape, Params::None, &[]), Ok(()), "{name}");
        }
    }
}
