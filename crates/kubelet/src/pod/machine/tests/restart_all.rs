//! A container whose rule has all containers of the pod start again.

use super::*;
use crate::pod::status::OWN_CONDITIONS;

/// An init container, a sidecar, the container with the rule, and another one.
fn spec(policy: &str) -> serde_json::Value {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    json!({"restartPolicy": policy,
        "initContainers": [{"name": "i", "image": "img:1"}, {"name": "side", "image": "img:1", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "img:1", "restartPolicy": "Never", "restartPolicyRules": rule}, {"name": "d", "image": "img:1"}]})
}

/// Containers by (name, restarts, exit code; None for running), the newest first.
fn holds(policy: &str, containers: &[(&str, u32, Option<i32>)]) -> Observed {
    let pod = pod(spec(policy));
    let container = |(name, restarts, code): &(&str, u32, Option<i32>)| Container {
        id: format!("{name}{restarts}"),
        sandbox: "s0".into(),
        name: (*name).into(),
        state: if code.is_some() { State::Exited } else { State::Running },
        restarts: *restarts,
        hash: container_hash(&crate::pod::spec_of(&pod, name).unwrap()),
        started_at: Some(t(1)),
        finished_at: code.map(|_| t(2)),
        exit_code: code.unwrap_or(0),
        ..Default::default()
    };
    Observed { containers: containers.iter().map(container).collect(), ..seen(&[]) }
}

impl Machine {
    /// With all containers running, as the API knows.
    fn with_all(policy: &str) -> Self {
        let (mut m, _) = Machine::new(spec(policy));
        m.on(Event::VolumesMounted(Outcome::Done));
        m.on(Event::SandboxCreated(Outcome::Done));
        m.look(holds(policy, &[("d", 0, None), ("c", 0, None), ("side", 0, None), ("i", 0, Some(0))]));
        m.show();
        m
    }

    /// Lets the API have the status.
    fn show(&mut self) -> PodStatus {
        let status = self.out(Event::Tick).status.unwrap();
        let mut pod = (*self.state.asked).clone();
        pod.status = Some(status.clone());
        self.on(Event::Pod(Arc::new(pod)));
        status
    }

    fn removed(&mut self, id: &str) -> Vec<String> {
        self.on(Event::Removed { id: id.into(), outcome: Outcome::Done })
    }
}

/// `NAME restarts state last` of every container.
fn containers_of(status: &PodStatus) -> Vec<String> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let show = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| match state {
        Some(state) if state.running.is_some() => "running".to_owned(),
        Some(state) => match (&state.waiting, &state.terminated) {
            (Some(waiting), _) => waiting.reason.clone().unwrap(),
            (_, Some(end)) => format!("{}:{}", end.reason.clone().unwrap(), end.exit_code),
            _ => "-".to_owned(),
        },
        None => "-".to_owned(),
    };
    all.map(|s| format!("{} {} {} {}", s.name, s.restart_count, show(s.state.as_ref()), show(s.last_state.as_ref()))).collect()
}

fn restarting(status: &PodStatus) -> (String, Option<String>, Option<String>) {
    let all = status.conditions.iter().flatten();
    all.filter(|c| c.type_ == "AllContainersRestarting").map(|c| (c.status.clone(), c.reason.clone(), c.message.clone())).next().unwrap()
}

fn initialized(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == "Initialized" && c.status == "True")
}

#[test]
fn a_rule_has_all_containers_stopped_removed_and_started_again() {
    let mut m = Machine::with_all("Never");
    assert_eq!(restarting(&m.show()), ("False".into(), None, None));
    let first = [("d", 0, None), ("c", 0, Some(42)), ("side", 0, None), ("i", 0, Some(0))];
    assert_eq!(
        m.look(holds("Never", &first)),
        ["stop d (d0) within 2 s: AllRestart", "stop side (side0) within 2 s: AllRestart", "remove container i0"]
    );
    let status = m.show();
    let message = "container exited with restart policy rule";
    assert_eq!(restarting(&status), ("True".into(), Some("RestartAllContainersStarted".into()), Some(message.into())));
    assert_eq!((status.phase.as_deref(), containers_of(&status)[2].as_str()), (Some("Running"), "c 0 Error:42 -"));
    for id in ["d0", "side0"] {
        m.on(Event::Killed { id: id.into(), outcome: Outcome::Done });
    }
    m.removed("i0");
    let stopped = [("d", 0, Some(137)), ("c", 0, Some(42)), ("side", 0, Some(137))];
    assert_eq!(m.look(holds("Never", &stopped)), ["remove container d0", "remove container side0"], "what asked for it goes last");
    assert_eq!(m.show().phase.as_deref(), Some("Running"));
    m.removed("d0");
    m.removed("side0");
    assert_eq!(m.look(holds("Never", &[("c", 0, Some(42))])), ["remove container c0"]);
    m.removed("c0");
    assert_eq!(m.look(holds("Never", &[])), ["get image of i"], "without a back-off");
    let status = m.show();
    let waits = |name: &str| format!("{name} 1 RestartingAllContainers RestartingAllContainers:137");
    assert_eq!(containers_of(&status), ["i", "side", "c", "d"].map(waits));
    assert_eq!((restarting(&status), status.phase.as_deref()), (("False".into(), None, None), Some("Running")));
    assert!(initialized(&status), "it was");
    let image = Event::Image { container: "i".into(), result: Ok("sha".into()) };
    assert_eq!(m.on(image), ["start i, restart 1"]);
    m.on(Event::Started { container: "i".into(), result: Ok("i1".into()) });
    m.look(holds("Never", &[("i", 1, None)]));
    let status = m.show();
    assert_eq!(containers_of(&status)[0], "i 1 running RestartingAllContainers:137");
    assert_eq!((status.phase.as_deref(), initialized(&status)), (Some("Pending"), true), "an init container runs");
    m.look(holds("Never", &[("d", 1, None), ("c", 1, None), ("side", 1, None), ("i", 1, Some(0))]));
    let status = m.show();
    assert_eq!((containers_of(&status)[2].as_str(), status.phase.as_deref()), ("c 1 running RestartingAllContainers:137", Some("Running")));
    m.look(holds("Never", &[("d", 1, Some(0)), ("c", 1, Some(0)), ("side", 1, None), ("i", 1, Some(0))]));
    m.on(Event::Killed { id: "side1".into(), outcome: Outcome::Done });
    m.look(holds("Never", &[("d", 1, Some(0)), ("c", 1, Some(0)), ("side", 1, Some(0)), ("i", 1, Some(0))]));
    let status = m.show();
    assert_eq!((status.phase.as_deref(), restarting(&status)), (Some("Succeeded"), ("False".into(), Some("PodCompleted".into()), None)));
}

#[test]
fn an_agent_that_starts_meanwhile_goes_on() {
    // All but the container with the rule are gone.
    let mut m = Machine::with_all("Never");
    m.look(holds("Never", &[("d", 0, None), ("c", 0, Some(42)), ("side", 0, None), ("i", 0, Some(0))]));
    let shown = m.show();
    let mut known = (*pod(spec("Never"))).clone();
    known.status = Some(shown);
    let mut next = Machine::new(spec("Never")).0;
    next.on(Event::Pod(Arc::new(known)));
    next.look(holds("Never", &[("c", 0, Some(42))]));
    assert_eq!(next.on(Event::VolumesMounted(Outcome::Done)), ["remove container c0"]);
    next.removed("c0");
    next.look(holds("Never", &[]));
    let status = next.show();
    let waits = |name: &str| format!("{name} 1 RestartingAllContainers RestartingAllContainers:137");
    assert_eq!(containers_of(&status), ["i", "side", "c", "d"].map(waits), "of what it did not remove itself the condition tells");
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn other_exit_codes_and_ends_of_the_pod_restart_nothing_else() {
    let mut m = Machine::with_all("Never");
    assert_eq!(m.look(holds("Never", &[("d", 0, None), ("c", 0, Some(1)), ("side", 0, None), ("i", 0, Some(0))])), [""; 0]);
    assert_eq!(restarting(&m.show()).0, "False");
    // A container that ended before, and one that runs again.
    let mut m = Machine::with_all("Always");
    let again = [("c", 1, None), ("d", 0, None), ("c", 0, Some(42)), ("side", 0, None), ("i", 0, Some(0))];
    assert_eq!(m.look(holds("Always", &again)), [""; 0]);
    let mut m = Machine::with_all("Always");
    let mut deleted = (*m.state.asked).clone();
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(t(30)));
    m.on(Event::Pod(Arc::new(deleted)));
    let actions = m.look(holds("Always", &[("d", 0, None), ("c", 0, Some(42)), ("side", 0, None), ("i", 0, Some(0))]));
    assert!(!actions.iter().any(|action| action.contains("AllRestart") || action.contains("remove")), "{actions:?}");
    assert_eq!(OWN_CONDITIONS.last(), Some(&"AllContainersRestarting"));
}
