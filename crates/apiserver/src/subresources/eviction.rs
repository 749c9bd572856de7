//! pods/eviction: a deletion that disruption budgets may forbid (pkg/registry/core/pod/storage/eviction.go).

use super::{success, typed_new};
use crate::http::call::Call;
use crate::kind::{Attributes, Kind, Operation, Part, WriteContext};
use crate::kinds;
use crate::object;
use crate::registry;
use crate::registry::delete::DeleteOptions;
use crate::selectors::LabelSelector;
use crate::server::Api;
use crate::status::ApiError;
use kube_rules::is_status_ready;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Tries when the pod or its budget changes meanwhile.
const TRIES: usize = 20;
/// More disruptions than this, unseen by the controller, and no further one is allowed.
const MOST_DISRUPTED: usize = 2000;

/// Deletes a pod on behalf of a drain.
pub(super) async fn evict(api: &Api, call: &Call, kind: &Arc<Kind>, context: &WriteContext) -> Result<Value, ApiError> {
    let mut body = typed_new(call, kind, context)?;
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    if object::name(&body) != name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let asked = DeleteOptions::from_value(body.get("deleteOptions").unwrap_or(&Value::Null))?;
    let dry_run = context.dry_run || object::list(&body, &["deleteOptions", "dryRun"]).iter().any(|value| value == "All");
    let (options, audit) = (context.options.clone(), Arc::clone(&context.audit));
    let context = WriteContext::new(context.user.clone(), dry_run).with_options(options, audit);
    let attributes = Attributes::create(&api.registry, &context, kind, namespace, name).below(Operation::Create, "eviction");
    api.registry.admission.admit(&attributes, &mut body).await?;
    for _ in 0..TRIES {
        let pod = api.registry.get(kind, namespace, name)?.value();
        let mut options = asked.clone();
        let guarded = if needs_no_budget(&pod) {
            // A pending pod might become ready meanwhile: only in the state seen here.
            !is_over(&pod)
        } else {
            ask_budget(api, &context, &pod).await?
        };
        let pinned = guarded && options.resource_version.is_none();
        if pinned {
            options.resource_version = Some(object::resource_version(&pod).to_string());
        }
        if !dry_run {
            match mark(api, &context, kind, &pod, &options).await {
                Err(error) if error.is_conflict() && pinned => continue,
                marked => options.resource_version = options.resource_version.take().and(marked?),
            }
        }
        match api.registry.delete_admitted(&context, kind, namespace, name, &options).await {
            Err(error) if error.is_conflict() && pinned => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(success()),
        }
    }
    Err(ApiError::disruption_budget(&format!("The pod {name} keeps changing."), Some(10)))
}

/// Lets the pod say why it ends; answers with its new resourceVersion (`addConditionAndDeletePod`).
async fn mark(api: &Api, context: &WriteContext, kind: &Arc<Kind>, pod: &Value, options: &DeleteOptions) -> Result<Option<String>, ApiError> {
    let target = registry::update::Target { kind, namespace: object::namespace(pod), name: object::name(pod), part: Part::Internal };
    let now = object::now();
    let change = |current: &Value| {
        let checks = [("UID", &options.uid, object::uid(current)), ("ResourceVersion", &options.resource_version, object::resource_version(current))];
        for (what, wanted, found) in checks {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| !wanted.is_empty() && *wanted != found) {
                let why = format!("the {what} in the precondition ({wanted}) does not match the {what} in record ({found})");
                return Err(ApiError::conflict(kind, object::name(current), &why));
            }
        }
        let mut marked = current.clone();
        disrupt(&mut marked, &now);
        Ok(marked)
    };
    let marked = api.registry.update(context, target, options.resource_version.is_none(), change).await?;
    Ok(Some(object::resource_version(&marked).to_string()))
}

/// Pure.
fn disrupt(pod: &mut Value, now: &str) {
    const DISRUPTED: &str = "DisruptionTarget";
    let conditions = object::array_mut(object::map_mut(pod, "status"), "conditions");
    let known = conditions.iter().find(|condition| condition["type"] == DISRUPTED && condition["status"] == "True");
    let since = known.map_or_else(|| now.into(), |condition| condition["lastTransitionTime"].clone());
    conditions.retain(|condition| condition["type"] != DISRUPTED);
    conditions.push(json!({"type": DISRUPTED, "status": "True", "lastProbeTime": null, "lastTransitionTime": since,
        "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}));
}

/// Whether the pod counts in no budget (any more).
fn needs_no_budget(pod: &Value) -> bool {
    is_over(pod) || object::text(pod, &["status", "phase"]) == "Pending"
}

fn is_over(pod: &Value) -> bool {
    object::is_deleting(pod) || matches!(object::text(pod, &["status", "phase"]), "Succeeded" | "Failed")
}

/// Takes one disruption from the pod's budget; says whether the pod may be deleted only in the state that was seen.
async fn ask_budget(api: &Api, context: &WriteContext, pod: &Value) -> Result<bool, ApiError> {
    let kind = kinds::by_resource("policy", "v1", "poddisruptionbudgets").ok_or_else(ApiError::no_such_resource)?;
    let (_, rows) = api.registry.store.list(&kind.prefix(object::namespace(pod)));
    let budgets: Vec<Value> = rows.into_iter().map(|(_, entry)| entry.value()).filter(|budget| covers(budget, pod)).collect();
    let budget = match budgets.as_slice() {
        [] => return Ok(false),
        [budget] => budget,
        _ => {
            let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(ApiError::new(500, "", why));
        }
    };
    if !is_status_ready(&pod["status"]) && is_free_when_unready(budget) {
        return Ok(true);
    }
    let take = |budget: &mut Value| take_disruption(kind, budget, object::name(pod));
    let target = registry::update::Target { kind, namespace: object::namespace(pod), name: object::name(budget), part: Part::Internal };
    let edit = |current: &Value| {
        let mut budget = current.clone();
        take(&mut budget)?;
        Ok(budget)
    };
    api.registry.update(context, target, true, edit).await?;
    Ok(false)
}

/// No selector selects nothing, the empty one everything.
fn covers(budget: &Value, pod: &Value) -> bool {
    object::lookup(budget, &["spec", "selector"]).map(LabelSelector::from_value).is_some_and(|selector| selector.matches(pod))
}

/// A pod that is not ready counts as unhealthy already.
fn is_free_when_unready(budget: &Value) -> bool {
    let count = |member: &str| object::integer(budget, &["status", member]).unwrap_or_default();
    let (healthy, desired) = (count("currentHealthy"), count("desiredHealthy"));
    object::text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" || healthy >= desired && desired > 0
}

/// `checkAndDecrement`. Pure.
fn take_disruption(kind: &Kind, budget: &mut Value, pod: &str) -> Result<(), ApiError> {
    let name = object::name(budget).to_string();
    let count = |member: &str| object::integer(budget, &["status", member]).unwrap_or_default();
    let (allowed, desired, healthy) = (count("disruptionsAllowed"), count("desiredHealthy"), count("currentHealthy"));
    if count("observedGeneration") < object::integer(budget, &["metadata", "generation"]).unwrap_or_default() {
        return Err(ApiError::disruption_budget(&format!("The disruption budget {name} is still being processed by the server."), Some(10)));
    }
    if allowed < 0 {
        return Err(ApiError::forbidden(kind, &name, "pdb disruptions allowed is negative"));
    }
    if object::lookup(budget, &["status", "disruptedPods"]).and_then(Value::as_object).is_some_and(|pods| pods.len() > MOST_DISRUPTED) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(ApiError::forbidden(kind, &name, why));
    }
    if allowed == 0 {
        let why = format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
        return Err(ApiError::disruption_budget(&why, None));
    }
    let generation = object::integer(budget, &["metadata", "generation"]).unwrap_or_default();
    let status = object::map_mut(budget, "status");
    status.insert("disruptionsAllowed".into(), (allowed - 1).into());
    let disrupted = status.entry("disruptedPods").or_insert_with(|| Value::Object(Map::new()));
    disrupted[pod] = object::now().into();
    if allowed == 1 {
        exhausted(status, generation);
    }
    Ok(())
}

/// The condition of a budget that allows no more.
fn exhausted(status: &mut Map<String, Value>, generation: i64) {
    const TYPE: &str = "DisruptionAllowed";
    let conditions = object::array_mut(status, "conditions");
    let was_false = conditions.iter().find(|condition| condition["type"] == TYPE).filter(|condition| condition["status"] == "False");
    let since = was_false.map_or_else(|| object::now().into(), |condition| condition["lastTransitionTime"].clone());
    conditions.retain(|condition| condition["type"] != TYPE);
    conditions.push(json!({"type": TYPE, "status": "False", "reason": "InsufficientPods", "message": "", "observedGeneration": generation, "lastTransitionTime": since}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_pod_says_so_once() {
        let mut pod = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        disrupt(&mut pod, "1");
        let once = pod.clone();
        disrupt(&mut pod, "2");
        assert_eq!(pod, once);
        let condition = &pod["status"]["conditions"][1];
        assert_eq!((&condition["type"], &condition["reason"]), (&json!("DisruptionTarget"), &json!("EvictionByEvictionAPI")));
    }

    fn budget(status: Value) -> Value {
        json!({"metadata": {"name": "b", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": status})
    }

    fn kind() -> &'static Arc<Kind> {
        kinds::by_resource("policy", "v1", "poddisruptionbudgets").unwrap()
    }

    #[test]
    fn a_disruption_is_taken_while_there_is_one() {
        let mut budget = budget(json!({"observedGeneration": 1, "disruptionsAllowed": 1, "desiredHealthy": 2, "currentHealthy": 3}));
        take_disruption(kind(), &mut budget, "p").unwrap();
        assert_eq!(budget["status"]["disruptionsAllowed"], 0);
        assert!(budget["status"]["disruptedPods"]["p"].is_string());
        assert_eq!(budget["status"]["conditions"][0]["reason"], "InsufficientPods");
        let error = take_disruption(kind(), &mut budget, "q").unwrap_err();
        assert_eq!((error.code, &*error.reason), (429, "TooManyRequests"));
        assert_eq!(error.details.unwrap()["causes"][0]["message"], "The disruption budget b needs 2 healthy pods and has 3 currently");
    }

    #[test]
    fn an_unseen_budget_lets_nobody_go() {
        let error = take_disruption(kind(), &mut budget(json!({"disruptionsAllowed": 5})), "p").unwrap_err();
        assert_eq!(error.details.unwrap()["retryAfterSeconds"], 10);
    }

    #[test]
    fn pods_that_are_not_ready_go_while_the_budget_is_healthy_or_does_not_mind() {
        let free = |policy: &str, healthy: i64, desired: i64| {
            is_free_when_unready(
                &json!({"spec": {"unhealthyPodEvictionPolicy": policy}, "status": {"currentHealthy": healthy, "desiredHealthy": desired}}),
            )
        };
        assert_eq!(
            [free("", 2, 2), free("IfHealthyBudget", 1, 2), free("IfHealthyBudget", 0, 0), free("AlwaysAllow", 0, 2)],
            [true, false, false, true]
        );
    }

    #[test]
    fn budgets_cover_what_they_select() {
        let pod = json!({"metadata": {"labels": {"app": "web"}}});
        assert!(covers(&budget(json!({})), &pod));
        assert!(covers(&json!({"spec": {"selector": {}}}), &pod), "an empty selector covers everything");
        assert!(!covers(&json!({"spec": {}}), &pod));
        let expression = json!({"spec": {"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}});
        assert!(!covers(&expression, &pod));
    }
}
