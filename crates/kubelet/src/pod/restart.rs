//! Whether a container runs again after it ended (upstream pkg/api/v1/pod, ContainerShouldRestart).

use k8s_openapi::api::core::v1::{Container as Spec, ContainerRestartRule, ContainerState, ContainerStateTerminated, PodSpec};

use super::{Container, Input, Kind, Memory, Observed, State, Why, container_hash, containers};

/// What a rule may ask for: that the container runs again, or that all of the pod do.
const ONE: &str = "Restart";
const ALL: &str = "RestartAllContainers";

/// Whether an ended run of a container is followed by another one.
pub(super) fn follows(i: &Input<'_>, spec: &PodSpec, kind: Kind, c: &Spec, run: &Container) -> bool {
    is_replaced(i, c, run) || by_policy(spec, kind, c, run.exit_code)
}

/// Whether an ended run was stopped only to begin again with another image or other resources, whatever the restart policy.
fn is_replaced(i: &Input<'_>, c: &Spec, run: &Container) -> bool {
    match i.memory.stops.get(&run.id).map(|s| s.why) {
        Some(Why::Changed) => run.hash != container_hash(c),
        Some(Why::Resized | Why::AllRestart) => true,
        _ => false,
    }
}

/// What the container's rules and policy say to an exit code, else the pod's policy.
pub(super) fn by_policy(spec: &PodSpec, kind: Kind, c: &Spec, code: i32) -> bool {
    if c.restart_policy.is_some() && matching(c, code).is_some_and(|rule| [ONE, ALL].contains(&rule.action.as_str())) {
        return true;
    }
    match effective(spec, kind, c) {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

/// Whether a run that succeeded is the last one.
pub(super) fn runs_once(spec: &PodSpec, kind: Kind, c: &Spec) -> bool {
    effective(spec, kind, c) == "OnFailure"
}

fn effective<'a>(spec: &'a PodSpec, kind: Kind, c: &'a Spec) -> &'a str {
    let own = c.restart_policy.as_deref().filter(|_| kind != Kind::Sidecar);
    let pod = if kind == Kind::Sidecar { "Always" } else { spec.restart_policy.as_deref().unwrap_or("Always") };
    own.unwrap_or(pod)
}

/// Whether all containers of a pod are to start again: one of them ended with an exit code whose rule says so (upstream
/// `ShouldAllContainersRestart`). As long as its last run is there, and no longer.
pub(super) fn all_restart(observed: &Observed, spec: &PodSpec) -> bool {
    containers(spec).any(|(_, c)| observed.newest(&c.name).is_some_and(|run| asks_for_all(spec, run)))
}

/// Whether a run ended with an exit code whose rule asks for all containers.
pub(super) fn asks_for_all(spec: &PodSpec, run: &Container) -> bool {
    let rule = |c: &Spec| matching(c, run.exit_code).is_some_and(|rule| rule.action == ALL);
    run.state == State::Exited && containers(spec).any(|(_, c)| c.name == run.name && rule(c))
}

/// Whether some container of a pod may ask for all (upstream `AllContainersCouldRestart`).
pub(super) fn may_all_restart(spec: &PodSpec) -> bool {
    containers(spec).any(|(_, c)| c.restart_policy_rules.iter().flatten().any(|rule| rule.action == ALL))
}

/// Notes that a run is removed, where that is because all start again: its end is known to nobody afterwards.
pub(super) fn note_removal(memory: &mut Memory, observed: &Observed, spec: &PodSpec, id: &str) {
    let Some(run) = observed.containers.iter().find(|run| run.id == id).filter(|_| all_restart(observed, spec)) else { return };
    let next = memory.reset.entry(run.name.clone()).or_default();
    *next = (*next).max(run.restarts.saturating_add(1));
}

/// The end of a container that was removed because all start again.
pub(super) fn removed() -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some("RestartingAllContainers".into()),
        message: Some(REMOVED.into()),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// What the status says of such a container.
pub(super) const REMOVED: &str = "The container is removed because RestartAllContainers in place";

/// The first rule that an exit code meets.
fn matching(c: &Spec, code: i32) -> Option<&ContainerRestartRule> {
    let meets = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|value| *value == code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    };
    c.restart_policy_rules.iter().flatten().find(meets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_come_before_the_containers_policy_and_that_before_the_pods() {
        let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42, 43]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 1, 42]}}]);
        for (pod, own, rules, kind, code, want) in [
            ("Always", None, json!([]), Kind::Main, 0, true),
            ("OnFailure", None, json!([]), Kind::Main, 0, false),
            ("OnFailure", None, json!([]), Kind::Main, 1, true),
            ("Never", None, json!([]), Kind::Main, 1, false),
            ("Never", Some("Always"), json!([]), Kind::Main, 0, true),
            ("Always", Some("Never"), json!([]), Kind::Main, 1, false),
            ("Always", Some("OnFailure"), json!([]), Kind::Main, 0, false),
            ("Never", Some("Always"), json!([]), Kind::Sidecar, 0, true),
            ("Always", Some("Never"), json!([]), Kind::Init, 1, false),
            ("Never", Some("Never"), rules.clone(), Kind::Main, 42, true),
            ("Never", Some("Never"), rules.clone(), Kind::Main, 43, true),
            ("Never", Some("Never"), rules.clone(), Kind::Main, 7, true),
            ("Never", Some("Never"), rules.clone(), Kind::Main, 1, false),
            ("Never", None, rules.clone(), Kind::Main, 42, false),
        ] {
            let spec: PodSpec = serde_json::from_value(json!({"restartPolicy": pod, "containers": []})).unwrap();
            let c: Spec = serde_json::from_value(json!({"name": "c", "restartPolicy": own, "restartPolicyRules": rules})).unwrap();
            assert_eq!(by_policy(&spec, kind, &c, code), want, "{pod} {own:?} {kind:?} {code}");
        }
    }
}
