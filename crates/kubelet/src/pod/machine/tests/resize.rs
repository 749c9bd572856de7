//! In-place resizes, event by event.

use super::*;
use crate::pod::resize::resources;
use crate::pod::{Enforced, Pending, PendingReason, Update};

fn both(cpu: &str, memory: &str) -> serde_json::Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn spec(cpu: &str, memory: &str, policy: &str) -> serde_json::Value {
    let policies = json!([{"resourceName": "cpu", "restartPolicy": policy}]);
    json!({"containers": [{"name": "c", "image": "img:1", "resources": both(cpu, memory), "resizePolicy": policies}]})
}

impl Machine {
    fn running(cpu: &str, memory: &str, policy: &str) -> Self {
        let mut m = Machine::with_sandbox(spec(cpu, memory, policy));
        assert_eq!(m.look(run("c0", 0)), [""; 0]);
        m
    }

    /// The API asks for other resources, with a new generation.
    fn ask(&mut self, cpu: &str, memory: &str, policy: &str, generation: i64) -> Output {
        let mut asked = (*pod(spec(cpu, memory, policy))).clone();
        asked.metadata.generation = Some(generation);
        asked.status = Some(self.status());
        self.out(Event::Pod(Arc::new(asked)))
    }

    fn status(&mut self) -> PodStatus {
        self.out(Event::Tick).status.unwrap()
    }

    fn decide(&mut self, verdict: Result<(), Pending>) -> Vec<String> {
        let wanted = resources(&self.state.asked);
        self.on(Event::ResizeDecided { wanted, verdict })
    }

    /// Ends the update that is under way.
    fn update(&mut self, actions: &[Action], result: Result<(), String>) -> Output {
        self.out(Event::Updated { update: update_of(actions), result })
    }

    /// (type, reason, message, generation) of the conditions of a resize.
    fn conditions(&mut self) -> Vec<(String, String, String, i64)> {
        let all = self.status().conditions.unwrap();
        let resize = all.into_iter().filter(|c| c.type_.starts_with("PodResize"));
        resize.map(|c| (c.type_, c.reason.unwrap_or_default(), c.message.unwrap_or_default(), c.observed_generation.unwrap())).collect()
    }
}

fn update_of(actions: &[Action]) -> Update {
    let mut updates = actions.iter().filter_map(|a| match a {
        Action::Update(update) => Some(update.clone()),
        _ => None,
    });
    updates.next().unwrap_or_else(|| panic!("no update in {actions:?}"))
}

fn run(id: &str, restarts: u32) -> Observed {
    seen(&[(id, State::Running, restarts, 0)])
}

/// As [`run`], with what the runtime enforces.
fn enforced(cpu: i64, memory: i64) -> Observed {
    let mut observed = run("c0", 0);
    observed.containers[0].resources = Some(Enforced { cpu_request: Some(cpu), cpu_limit: Some(cpu), memory_limit: Some(memory) });
    observed
}

fn deferred() -> Pending {
    Pending { reason: PendingReason::Deferred, message: "Node didn't have enough resource: cpu".into() }
}

fn texts(out: &Output) -> Vec<String> {
    out.actions.iter().map(ToString::to_string).collect()
}

#[test]
fn a_granted_resize_changes_memory_then_cpu_and_ends() {
    let mut m = Machine::running("20m", "35M", "NotRequired");
    let out = m.ask("25m", "30M", "NotRequired", 2);
    assert_eq!(texts(&out), ["decide about the resize"]);
    assert!(out.status.is_none(), "no status of the new generation before the decision");
    let wanted = resources(&m.state.asked);
    let out = m.out(Event::ResizeDecided { wanted, verdict: Ok(()) });
    let memory = "change memory of c: request 35000000 to 30000000, limit 35000000 to 30000000";
    assert_eq!(texts(&out), ["report: Pod resize started", "save resources", memory]);
    assert_eq!(m.conditions(), [("PodResizeInProgress".into(), String::new(), String::new(), 2)]);
    m.on(Event::ResourcesSaved(Outcome::Done));
    let out = m.update(&out.actions, Ok(()));
    assert_eq!(texts(&out), ["save resources", "observe"]);
    let as_of = m.state.version();
    let out = m.out(Event::Observed { as_of, seen: Some(enforced(20, 30_000_000)) });
    assert_eq!(texts(&out), ["change cpu of c: request 20 to 25, limit 20 to 25"]);
    let status = out.status.unwrap().container_statuses.unwrap().remove(0);
    let amounts = |r: &serde_json::Value| (r["cpu"].as_str().unwrap().to_owned(), r["memory"].as_str().unwrap().to_owned());
    let of = |list: &Option<std::collections::BTreeMap<String, _>>| amounts(&json!(list));
    assert_eq!(of(&status.allocated_resources), ("25m".into(), "30M".into()));
    let resources = status.resources.unwrap();
    assert_eq!(of(&resources.limits), ("20m".into(), "30000000".into()), "what the runtime has");
    m.on(Event::ResourcesSaved(Outcome::Done));
    m.update(&out.actions, Ok(()));
    assert_eq!(m.look(enforced(25, 30_000_000)), ["report: Pod resize completed"]);
    assert_eq!(m.conditions(), []);
}

#[test]
fn a_resize_that_does_not_fit_waits_and_says_so() {
    let mut m = Machine::running("20m", "35M", "NotRequired");
    m.ask("4", "35M", "NotRequired", 2);
    assert_eq!(m.decide(Err(deferred())), ["report: Pod resize Deferred"]);
    assert_eq!(m.conditions(), [("PodResizePending".into(), "Deferred".into(), deferred().message, 2)]);
    let status = m.status().container_statuses.unwrap().remove(0);
    assert_eq!(json!(status.allocated_resources)["cpu"], "20m");
    assert_eq!(m.on(Event::Tick), [""; 0], "the node is not asked again before something changes");
    // Room was made.
    assert_eq!(m.decide(Ok(())), ["report: Pod resize started", "save resources", "change cpu of c: request 20 to 4000, limit 20 to 4000"]);

    let mut m = Machine::running("20m", "35M", "NotRequired");
    m.ask("4", "35M", "NotRequired", 2);
    m.decide(Err(Pending { reason: PendingReason::Infeasible, message: "never".into() }));
    assert_eq!(m.conditions()[0].1, "Infeasible");
    assert_eq!(texts(&m.ask("20m", "35M", "NotRequired", 3)), [""; 0], "what it had is what it has");
    assert_eq!(m.conditions(), []);
}

#[test]
fn a_failed_change_says_why_and_is_repeated() {
    let mut m = Machine::running("20m", "35M", "NotRequired");
    m.ask("25m", "35M", "NotRequired", 2);
    let wanted = resources(&m.state.asked);
    let out = m.out(Event::ResizeDecided { wanted, verdict: Ok(()) });
    m.on(Event::ResourcesSaved(Outcome::Done));
    assert_eq!(texts(&m.update(&out.actions, Err("no cgroup".into()))), ["report: Pod resize error", "observe"]);
    assert_eq!(m.look(enforced(20, 35_000_000)), [""; 0]);
    assert_eq!(m.conditions(), [("PodResizeInProgress".into(), "Error".into(), "no cgroup".into(), 2)]);
    assert_eq!(m.wakes(), Some(10.0));
    let out = {
        m.now = 10;
        m.out(Event::Tick)
    };
    assert_eq!(texts(&out), ["change cpu of c: request 20 to 25, limit 20 to 25"]);
    assert_eq!(texts(&m.update(&out.actions, Err("no cgroup".into()))), ["observe"], "the same error is told once");
}

#[test]
fn a_policy_that_asks_for_it_restarts_the_container() {
    let mut m = Machine::running("20m", "35M", "RestartContainer");
    m.ask("25m", "35M", "RestartContainer", 2);
    assert_eq!(m.decide(Ok(())), ["report: Pod resize started", "save resources", "stop c (c0) within 30 s: Resized"]);
    m.on(Event::ResourcesSaved(Outcome::Done));
    m.on(Event::Killed { id: "c0".into(), outcome: Outcome::Done });
    assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 1)])), ["report: Pod resize completed"]);
    assert_eq!(m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) }), ["start c, restart 1"]);
    assert_eq!(m.on(Event::Started { container: "c".into(), result: Ok("c1".into()) }), ["save resources", "observe"]);
    m.on(Event::ResourcesSaved(Outcome::Done));
    assert_eq!(m.look(run("c1", 1)), [""; 0]);
}

#[test]
fn an_agents_restart_goes_on_with_the_resize_and_grants_nothing_by_itself() {
    let asked = pod(spec("25m", "35M", "NotRequired"));
    let old = resources(&pod(spec("20m", "35M", "NotRequired")));
    let node = NodeInfo { network_ready: true, host_ips: vec![], runtime: "sim".into(), dead_kept: Some(1), recursive: vec![], resizes: true };
    let restart = |record: Record| {
        let state = PodState::new(asked.clone(), node.clone(), SignedDuration::from_secs(10), Some(record));
        let mut m = Machine { state, now: 0, wake: None };
        m.on(Event::Tick);
        m.on(Event::Admitted(Ok(())));
        let first = m.look(run("c0", 0));
        (m, first)
    };
    let (m, first) = restart(Record::of(old.clone()));
    assert_eq!(first, ["decide about the resize"]);
    assert_eq!(resources(&m.state.pod), old, "it waits with what it has");
    let (mut m, first) = restart(Record { allocated: resources(&asked).into(), actuated: old.into() });
    assert_eq!(first, ["mount volumes"]);
    assert_eq!(m.conditions()[0].0, "PodResizeInProgress");
    assert_eq!(m.on(Event::VolumesMounted(Outcome::Done)), ["change cpu of c: request 20 to 25, limit 20 to 25"]);
}

#[test]
fn windows_nodes_resize_nothing() {
    let mut m = Machine::running("20m", "35M", "NotRequired");
    let node = NodeInfo { resizes: false, ..m.state.node.clone() };
    m.on(Event::Node(node));
    m.ask("25m", "35M", "NotRequired", 2);
    m.decide(Err(Pending { reason: PendingReason::Infeasible, message: "In-place pod resize is not supported on Windows".into() }));
    assert_eq!(m.conditions(), [("PodResizePending".into(), "Infeasible".into(), "In-place pod resize is not supported on Windows".into(), 2)]);
}
