//! What the explanation says of states that the machine reaches.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_rules::Refusal;
use serde_json::json;

use super::*;
use crate::pod::{Event, Failed, NodeInfo, Observed, Outcome, Sandbox, on};

const PROBED: &str = r#"{"containers": [{"name": "c", "image": "img:1", "readinessProbe": {"httpGet": {"port": 80}}}]}"#;

fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

struct Case {
    state: PodState,
    warnings: Warnings,
}

impl Case {
    fn new(spec: serde_json::Value) -> Self {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})).unwrap();
        let node = NodeInfo {
            network_ready: true,
            host_ips: vec!["10.0.0.1".into()],
            runtime: "sim".into(),
            dead_kept: Some(1),
            recursive: vec![],
            resizes: true,
        };
        Case { state: PodState::new(Arc::new(pod), node, SignedDuration::from_secs(10), None), warnings: Warnings::new() }
    }

    fn plain() -> Self {
        Case::new(json!({"containers": [{"name": "c", "image": "img:1"}]}))
    }

    /// Takes events in at second 0.
    fn after(mut self, events: impl IntoIterator<Item = Event>) -> Self {
        for event in events {
            on(event, &mut self.state, t(0));
        }
        self
    }

    fn look(mut self, seen: Observed) -> Self {
        let as_of = self.state.version();
        on(Event::Observed { as_of, seen: Some(seen) }, &mut self.state, t(0));
        self
    }

    /// Brings the pod to the point where volumes are mounted.
    fn admitted(self) -> Self {
        self.after([Event::Tick, Event::Admitted(Ok(())), Event::ResourcesSaved(Outcome::Done)]).look(Observed::default())
    }

    fn in_sandbox(self) -> Self {
        let case = self.admitted().after([Event::VolumesMounted(Outcome::Done), Event::SandboxCreated(Outcome::Done)]);
        case.look(Observed { sandboxes: vec![sandbox()], ..Default::default() })
    }

    fn warned(mut self, of: &str, reason: &str, message: &str) -> Self {
        self.warnings.insert((of.into(), reason.into()), message.into());
        self
    }

    /// The lines at a second.
    fn lines(&self, second: i64) -> Vec<String> {
        let line = |s: &Step| format!("{:?} {} {}: {}", s.progress, s.step, s.of.as_deref().unwrap_or("-"), s.detail);
        explain(&self.state, &self.warnings, t(second)).steps.iter().map(line).collect()
    }
}

fn sandbox() -> Sandbox {
    Sandbox { id: "0123456789abcdef".into(), ready: true, ips: vec!["10.1.0.2".into()], created_at: Some(t(-5)), ..Default::default() }
}

fn running(id: &str) -> Observed {
    let c =
        Container { id: id.into(), sandbox: sandbox().id, name: "c".into(), state: State::Running, started_at: Some(t(-90)), ..Default::default() };
    Observed { sandboxes: vec![sandbox()], containers: vec![c] }
}

#[test]
fn a_refusal_is_the_only_step() {
    let refusal = Refusal { reason: "OutOfcpu".into(), message: "Node didn't have enough resource: cpu".into() };
    let case = Case::plain().after([Event::Tick]);
    assert_eq!(case.lines(0), ["Working admission -: the node looks whether it can take the pod"]);
    let case = case.after([Event::Admitted(Err(refusal))]);
    assert_eq!(case.lines(0), ["Failed admission -: OutOfcpu: Node didn't have enough resource: cpu; this is final"]);
}

#[test]
fn what_follows_a_failed_step_is_not_yet_done() {
    let why = "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found";
    let case = Case::plain().admitted().after([Event::VolumesMounted(Outcome::Failed)]).warned("", "FailedMount", why);
    let next = format!("Failed volumes -: {why}; tried again now (1 failure)");
    let rest = ["NotYet sandbox -: ", "NotYet network -: ", "NotYet image c: ", "NotYet start c: "];
    let all = |first: &str| ["Done admission -: the node took the pod", first].into_iter().chain(rest).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(case.lines(1), all(&next));
}

#[test]
fn a_pull_that_failed_says_when_it_is_tried_again() {
    let failed = Failed { reason: WaitingReason::ErrImagePull, message: "img:1: not found".into(), image: None };
    let case = Case::plain().in_sandbox().after([Event::Image { container: "c".into(), result: Err(failed) }]);
    let lines = case.lines(4);
    assert_eq!(lines[2..4], ["Done sandbox -: 0123456789abc, attempt 0, made 9s ago", "Done network -: 10.1.0.2"]);
    assert_eq!(lines[4..], ["Failed image c: ErrImagePull: img:1: not found; tried again in 6s (1 failure)", "NotYet start c: "]);
}

#[test]
fn a_probe_that_fails_has_its_last_words() {
    let case = Case::new(serde_json::from_str(PROBED).unwrap()).in_sandbox().look(running("c0"));
    let lines = case.lines(0);
    assert_eq!(lines[5..], ["Done start c: it runs for 1m30s, 0 restarts", "Waiting probes c: the readiness probe has not succeeded"]);
    let case = case.warned("c", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503");
    let last =
        "Failed probes c: the readiness probe has not succeeded; the last failure: Readiness probe failed: HTTP probe failed with statuscode: 503";
    assert_eq!(case.lines(0)[6], last);
    assert!(!explain(&case.state, &case.warnings, t(0)).ready);
    let case = case.after([Event::Probed { id: "c0".into(), health: Health { started: true, ready: true, alive: true } }]);
    assert_eq!(case.lines(0)[6], "Done probes c: all succeed");
    assert!(explain(&case.state, &case.warnings, t(0)).ready);
}

#[test]
fn a_crash_loop_says_when_it_starts_again() {
    let mut seen = running("c0");
    let c = &mut seen.containers[0];
    (c.state, c.exit_code, c.reason, c.finished_at) = (State::Exited, 3, "Error".into(), Some(t(0)));
    let spec = json!({"restartPolicy": "Always", "containers": [{"name": "c", "image": "img:1"}]});
    let start = |case: Case| {
        let image = Event::Image { container: "c".into(), result: Ok("sha".into()) };
        case.after([image, Event::Started { container: "c".into(), result: Ok("c0".into()) }])
    };
    // The first restart follows at once; the one after it waits ten seconds.
    let case = start(start(Case::new(spec).in_sandbox()).look(seen.clone())).look(seen);
    let line = case.lines(3).pop().unwrap();
    assert!(line.starts_with("Failed start c: it ended with exit code 3 (Error); CrashLoopBackOff: back-off 10s restarting failed"), "{line}");
    assert!(line.ends_with("it starts again in 7s"), "{line}");
}

#[test]
fn init_containers_hold_up_the_rest_and_gates_stand_alone() {
    let spec = json!({
        "initContainers": [{"name": "i", "image": "init:1"}],
        "containers": [{"name": "c", "image": "img:1"}],
        "readinessGates": [{"conditionType": "example.com/lb"}],
    });
    let mut seen = running("i0");
    seen.containers[0].name = "i".into();
    let case = Case::new(spec).in_sandbox().look(seen);
    let lines = case.lines(0);
    let want = [
        "Done image i: init:1",
        "Done start i: it runs for 1m30s, 0 restarts",
        "NotYet image c: ",
        "NotYet start c: ",
        "Waiting readiness-gate example.com/lb: no one has set the condition",
    ];
    assert_eq!(lines[4..], want);
}

#[test]
fn the_networks_of_node_and_sandbox_are_told_apart() {
    let mut node = NodeInfo { host_ips: vec!["10.0.0.1".into()], runtime: "sim".into(), ..Default::default() };
    let case = Case::plain().admitted().after([Event::Node(node.clone()), Event::VolumesMounted(Outcome::Done)]);
    assert_eq!(case.lines(0)[2], "Waiting sandbox -: the network of the node is not ready: look at the conditions of the Node");
    node.network_ready = true;
    let broken = Sandbox { problem: Some("the endpoint is gone".into()), ..sandbox() };
    let case = case.after([Event::Node(node), Event::SandboxCreated(Outcome::Done)]).look(Observed { sandboxes: vec![broken], ..Default::default() });
    assert_eq!(case.lines(0)[3], "Failed network -: the endpoint is gone");
}
