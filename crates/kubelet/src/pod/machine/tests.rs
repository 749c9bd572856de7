//! Table tests of the reducer: events at given times → actions, states and times of the next try.

mod model;
mod resize;
mod restart_all;

use serde_json::json;

use super::*;
use crate::pod::Sandbox;

fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn pod(spec: serde_json::Value) -> Arc<Pod> {
    let mut full = json!({"containers": [{"name": "c", "image": "img:1"}]});
    for (k, v) in spec.as_object().unwrap() {
        full[k] = v.clone();
    }
    Arc::new(serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 1}, "spec": full})).unwrap())
}

struct Machine {
    state: PodState,
    now: i64,
    wake: Option<Timestamp>,
}

impl Machine {
    /// A machine that has admitted its pod and looked at an empty runtime.
    fn new(spec: serde_json::Value) -> (Self, Vec<String>) {
        let node = NodeInfo {
            network_ready: true,
            host_ips: vec!["10.0.0.1".into()],
            runtime: "sim".into(),
            dead_kept: Some(1),
            recursive: vec![],
            resizes: true,
        };
        let state = PodState::new(pod(spec), node, SignedDuration::from_secs(10), None);
        let mut machine = Machine { state, now: 0, wake: None };
        assert_eq!(machine.on(Event::Tick), ["admit"]);
        assert_eq!(machine.on(Event::Admitted(Ok(()))), ["save resources", "observe"]);
        assert_eq!(machine.on(Event::ResourcesSaved(Outcome::Done)), [""; 0]);
        let actions = machine.look(Observed::default());
        (machine, actions)
    }

    fn out(&mut self, event: Event) -> Output {
        let out = on(event, &mut self.state, t(self.now));
        self.wake = out.wake;
        out
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        self.out(event).actions.iter().map(ToString::to_string).collect()
    }

    fn look(&mut self, seen: Observed) -> Vec<String> {
        let as_of = self.state.version();
        self.on(Event::Observed { as_of, seen: Some(seen) })
    }

    fn tick(&mut self, now: i64) -> Vec<String> {
        self.now = now;
        self.on(Event::Tick)
    }

    /// Seconds from the start until the machine wants to be woken.
    fn wakes(&self) -> Option<f64> {
        self.wake.map(|at| at.duration_since(t(0)).as_secs_f64())
    }

    /// Brings the pod to the point where the image of `c` is being got.
    fn with_sandbox(spec: serde_json::Value) -> Self {
        let (mut m, actions) = Machine::new(spec);
        assert_eq!(actions, ["mount volumes"]);
        assert_eq!(m.on(Event::VolumesMounted(Outcome::Done)), ["create sandbox, attempt 0"]);
        assert_eq!(m.on(Event::SandboxCreated(Outcome::Done)), ["observe"]);
        assert_eq!(m.look(seen(&[])), ["get image of c"]);
        m
    }

    fn waiting(&mut self) -> (String, String) {
        let status = self.out(Event::Tick).status.unwrap();
        let waiting = status.container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
        (waiting.reason.unwrap(), waiting.message.unwrap_or_default())
    }
}

/// A sandbox that works, and containers in it, newest first: (id, state, restarts, second of its end).
fn seen(containers: &[(&str, State, u32, i64)]) -> Observed {
    let sandbox = Sandbox { id: "s0".into(), ready: true, ips: vec!["10.1.0.2".into()], ..Default::default() };
    let container = |(id, state, restarts, ended): &(&str, State, u32, i64)| Container {
        id: (*id).into(),
        sandbox: "s0".into(),
        name: "c".into(),
        state: *state,
        restarts: *restarts,
        hash: container_hash(&crate::pod::spec_of(&pod(json!({})), "c").unwrap()),
        started_at: Some(t(1)),
        finished_at: (*state == State::Exited).then(|| t(*ended)),
        exit_code: 1,
        ..Default::default()
    };
    Observed { sandboxes: vec![sandbox], containers: containers.iter().map(container).collect() }
}

fn pull_error() -> Event {
    let failed = Failed { reason: WaitingReason::ErrImagePull, message: "not found".into(), image: None };
    Event::Image { container: "c".into(), result: Err(failed) }
}

#[test]
fn outcomes_lead_from_admission_to_a_running_container() {
    let mut m = Machine::with_sandbox(json!({}));
    let image = Event::Image { container: "c".into(), result: Ok("sha".into()) };
    assert_eq!(m.on(image), ["start c, restart 0"]);
    assert_eq!(m.on(Event::Tick), [""; 0], "a start under way is not repeated");
    assert_eq!(m.on(Event::Started { container: "c".into(), result: Ok("c0".into()) }), ["observe"]);
    assert_eq!(m.look(seen(&[("c0", State::Running, 0, 0)])), [""; 0]);
    assert_eq!((m.wakes(), m.state.memory.starting.len()), (None, 0));
}

#[test]
fn waits_last_as_long_as_they_were_meant_to_when_the_clock_is_set() {
    for by in [-3600, 3600] {
        let moved = || Event::ClockMoved(SignedDuration::from_secs(by));
        // Of a pull.
        let mut m = Machine::with_sandbox(json!({}));
        m.on(pull_error());
        m.now = 4 + by;
        m.on(moved());
        assert_eq!((m.tick(9 + by), m.wakes()), (vec![], Some(10.0 + by as f64)));
        assert_eq!(m.tick(10 + by), ["get image of c"]);
        // Of a restart, whose begin is a time of the runtime.
        let mut m = Machine::with_sandbox(json!({}));
        let image = || Event::Image { container: "c".into(), result: Ok("sha".into()) };
        m.on(image());
        m.on(Event::Started { container: "c".into(), result: Ok("c0".into()) });
        assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 0)])), ["get image of c"]);
        assert_eq!(m.on(image()), ["start c, restart 1"]);
        m.on(Event::Started { container: "c".into(), result: Ok("c1".into()) });
        m.now = 2;
        let ended = seen(&[("c1", State::Exited, 1, 2), ("c0", State::Exited, 0, 0)]);
        m.look(ended.clone());
        assert_eq!((m.waiting().0.as_str(), m.wakes()), ("CrashLoopBackOff", Some(12.0)));
        m.now = 5 + by;
        m.on(moved());
        assert_eq!((m.waiting().0.as_str(), m.wakes()), ("CrashLoopBackOff", Some(12.0 + by as f64)));
        m.on(Event::RuntimeChanged);
        m.look(ended);
        assert_eq!(m.tick(12 + by), ["get image of c"]);
        // Of a look.
        let mut m = Machine::with_sandbox(json!({}));
        m.on(Event::RuntimeChanged);
        let as_of = m.state.version();
        m.on(Event::Observed { as_of, seen: None });
        m.now = by;
        m.on(moved());
        assert_eq!(m.tick(1 + by), ["observe"]);
    }
}

#[test]
fn container_ids_keep_the_name_of_a_runtime_that_is_away() {
    let (mut m, _) = Machine::new(json!({}));
    let away = NodeInfo { runtime: String::new(), network_ready: false, ..m.state.node.clone() };
    m.on(Event::Node(away));
    assert_eq!((m.state.node.runtime.as_str(), m.state.node.network_ready), ("sim", false));
}

#[test]
fn a_look_that_began_before_a_change_is_repeated() {
    let mut m = Machine::with_sandbox(json!({}));
    assert_eq!(m.on(Event::RuntimeChanged), ["observe"]);
    let as_of = m.state.version();
    assert_eq!(m.on(Event::RuntimeChanged), [""; 0], "one look at a time");
    assert_eq!(m.on(Event::Observed { as_of, seen: Some(seen(&[])) }), ["observe"]);
    assert_eq!(m.on(Event::Observed { as_of: as_of + 1, seen: None }), [""; 0]);
    assert_eq!(m.tick(0), [""; 0]);
    assert_eq!(m.wakes(), Some(1.0), "a runtime that does not answer is asked again");
    assert_eq!(m.tick(1), ["observe"]);
}

#[test]
fn a_pod_keeps_the_addresses_of_its_stopped_sandbox() {
    let mut m = Machine::with_sandbox(json!({"restartPolicy": "Never"}));
    let mut over = seen(&[("c0", State::Exited, 0, 1)]);
    over.sandboxes[0].ready = false;
    over.sandboxes[0].ips.clear();
    m.look(over.clone());
    let addresses = |m: &mut Machine| m.out(Event::Tick).status.unwrap().pod_ip;
    assert_eq!(addresses(&mut m).as_deref(), Some("10.1.0.2"));
    // Another sandbox has none of them.
    over.sandboxes[0].id = "s1".into();
    m.look(over);
    assert_eq!(addresses(&mut m), None);
}

#[test]
fn volumes_are_tried_again_with_growing_waits() {
    let (mut m, _) = Machine::new(json!({}));
    let mut wakes = Vec::new();
    for _ in 0..10 {
        assert_eq!(m.on(Event::VolumesMounted(Outcome::Failed)), [""; 0]);
        let at = m.wake.unwrap();
        wakes.push(at.duration_since(t(m.now)).as_secs_f64());
        m.now = at.duration_since(t(0)).as_secs() + 1;
        assert_eq!(m.on(Event::Tick), ["mount volumes"]);
    }
    assert_eq!(wakes, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0]);
    assert_eq!(m.on(Event::VolumesMounted(Outcome::Failed)), [""; 0]);
    assert_eq!(m.on(Event::SourcesChanged), ["mount volumes"], "a Secret that came is no reason to wait");
    // It comes while they are being mounted.
    assert_eq!(m.on(Event::SourcesChanged), [""; 0]);
    assert_eq!(m.on(Event::VolumesMounted(Outcome::Failed)), ["mount volumes"]);
}

#[test]
fn content_follows_changes_and_a_failed_refresh_is_repeated() {
    let mut m = Machine::with_sandbox(json!({}));
    assert_eq!(m.on(Event::SourcesChanged), ["refresh volumes"]);
    assert_eq!(m.on(Event::SourcesChanged), [""; 0]);
    assert_eq!(m.on(Event::VolumesRefreshed(Outcome::Done)), ["refresh volumes"], "it changed meanwhile");
    assert_eq!(m.on(Event::VolumesRefreshed(Outcome::Failed)), [""; 0]);
    assert_eq!(m.wakes(), Some(0.5));
    assert_eq!(m.tick(1), ["refresh volumes"]);
    assert_eq!(m.on(Event::VolumesRefreshed(Outcome::Done)), [""; 0]);
    let mut labelled = (*m.state.pod).clone();
    labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert_eq!(m.on(Event::Pod(Arc::new(labelled))), ["refresh volumes"]);
}

#[test]
fn a_failed_pull_becomes_a_back_off_and_waits_twice_as_long_each_time() {
    let mut m = Machine::with_sandbox(json!({}));
    let mut waits = Vec::new();
    for _ in 0..7 {
        assert_eq!(m.on(pull_error()), [""; 0]);
        assert_eq!(m.waiting(), ("ErrImagePull".to_owned(), "not found".to_owned()));
        let failed = m.now;
        assert_eq!(m.tick(failed + 2), ["wait before pulling the image of c again"]);
        assert_eq!(m.waiting(), ("ImagePullBackOff".to_owned(), "Back-off pulling image \"img:1\": ErrImagePull: not found".to_owned()));
        let at = m.wake.unwrap().duration_since(t(0)).as_secs();
        waits.push(at - failed);
        assert_eq!(m.tick(at - 1), [""; 0]);
        assert_eq!(m.tick(at), ["get image of c"]);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn the_back_off_says_which_kind_of_pull_failed() {
    for reason in [WaitingReason::RegistryUnavailable, WaitingReason::SignatureValidationFailed] {
        let mut m = Machine::with_sandbox(json!({}));
        let failed = Failed { reason, message: "why".into(), image: None };
        assert_eq!(m.on(Event::Image { container: "c".into(), result: Err(failed) }), [""; 0]);
        assert_eq!(m.waiting(), (reason.to_string(), "why".to_owned()));
        let failed = m.now;
        assert_eq!(m.tick(failed + 2), ["wait before pulling the image of c again"]);
        assert_eq!(m.waiting(), ("ImagePullBackOff".to_owned(), format!("Back-off pulling image \"img:1\": {reason}: why")));
    }
}

#[test]
fn a_failed_start_waits_and_what_never_ran_is_removed() {
    let mut m = Machine::with_sandbox(json!({}));
    m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) });
    let failed = Failed { reason: WaitingReason::RunContainerError, message: "no such file".into(), image: None };
    assert_eq!(m.on(Event::Started { container: "c".into(), result: Err(failed) }), ["observe"]);
    assert_eq!(m.look(seen(&[("c0", State::Created, 0, 0)])), [""; 0]);
    assert_eq!((m.waiting().0.as_str(), m.wakes()), ("RunContainerError", Some(10.0)));
    assert_eq!(m.tick(10), ["remove container c0", "get image of c"]);
    assert_eq!(m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) }), [""; 0], "its name is taken");
    assert_eq!(m.on(Event::Removed { id: "c0".into(), outcome: Outcome::Done }), ["observe"]);
    assert_eq!(m.look(seen(&[])), ["start c, restart 0"], "it never ran");
}

/// A machine whose runtime gave no answer to the start of `c` in time.
fn with_late_start() -> Machine {
    let mut m = Machine::with_sandbox(json!({}));
    m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) });
    let message = "StartContainer: unix:///run/containerd.sock gave no answer within 120s".to_owned();
    let failed = Failed { reason: WaitingReason::RunContainerError, message, image: None };
    m.on(Event::Started { container: "c".into(), result: Err(failed) });
    assert_eq!(m.look(seen(&[("c0", State::Created, 0, 0)])), [""; 0]);
    assert_eq!(m.tick(10), ["remove container c0", "get image of c"]);
    m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) });
    m
}

#[test]
fn a_runtime_that_still_starts_a_container_is_asked_ever_more_seldom_to_remove_it() {
    let mut m = with_late_start();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let refused = m.now;
        m.on(Event::Removed { id: "c0".into(), outcome: Outcome::Failed });
        assert_eq!(m.look(seen(&[("c0", State::Created, 0, 0)])), [""; 0]);
        let at = m.wakes().unwrap() as i64;
        waits.push(at - refused);
        assert_eq!(m.tick(at - 1), [""; 0]);
        assert_eq!(m.tick(at), ["remove container c0"]);
    }
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    m.on(Event::Removed { id: "c0".into(), outcome: Outcome::Done });
    assert_eq!(m.look(seen(&[])), ["start c, restart 0"]);
}

#[test]
fn a_container_that_starts_after_its_start_was_given_up_is_kept() {
    let mut m = with_late_start();
    m.on(Event::Removed { id: "c0".into(), outcome: Outcome::Failed });
    assert_eq!(m.look(seen(&[("c0", State::Running, 0, 0)])), [""; 0]);
    assert_eq!((m.wakes(), m.state.memory.failures.len()), (None, 0));
    m.now = 20;
    assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 20)])), ["start c, restart 1"], "its image was looked for already");
}

#[test]
fn a_crash_is_announced_once_and_restarts_after_its_back_off() {
    let mut m = Machine::with_sandbox(json!({}));
    let image = || Event::Image { container: "c".into(), result: Ok("sha".into()) };
    let started = || Event::Started { container: "c".into(), result: Ok("x".into()) };
    m.on(image());
    m.on(started());
    m.now = 5;
    assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 5)])), ["get image of c"], "the first restart is immediate");
    assert_eq!(m.on(image()), ["start c, restart 1"]);
    assert_eq!(m.on(started()), ["observe"]);
    m.now = 6;
    assert_eq!(m.look(seen(&[("c1", State::Exited, 1, 6), ("c0", State::Exited, 0, 5)])), ["wait before restarting c (c1)"]);
    assert_eq!(m.tick(7), [""; 0]);
    assert_eq!((m.wakes(), m.waiting().0.as_str()), (Some(16.0), "CrashLoopBackOff"));
    assert_eq!(m.tick(16), ["get image of c"]);
    assert_eq!(m.on(image()), ["start c, restart 2"]);
}

#[test]
fn a_post_start_hook_holds_the_other_containers_and_its_failure_ends_its_own() {
    let hook = json!({"postStart": {"sleep": {"seconds": 1}}});
    let spec = json!({"containers": [{"name": "c", "image": "img:1", "lifecycle": hook}, {"name": "d", "image": "img:2"}]});
    let (mut m, _) = Machine::new(spec);
    m.on(Event::VolumesMounted(Outcome::Done));
    m.on(Event::SandboxCreated(Outcome::Done));
    assert_eq!(m.look(seen(&[])), ["get image of c", "get image of d"]);
    assert_eq!(m.on(Event::Image { container: "d".into(), result: Ok("sha".into()) }), ["start d, restart 0"]);
    let out = m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) });
    assert_eq!(out, ["start c, restart 0"]);
    let started = Event::Started { container: "c".into(), result: Ok("c0".into()) };
    assert_eq!(m.on(started), ["run postStart of c (c0)", "observe"]);
    let out = m.out(Event::Observed { as_of: m.state.version(), seen: Some(seen(&[("c0", State::Running, 0, 0)])) });
    assert_eq!(out.status.unwrap().container_statuses.unwrap()[0].started, Some(false), "not before its hook is done");
    assert_eq!(
        m.on(Event::Started {
            container: "d".into(),
            result: Err(Failed { reason: WaitingReason::RunContainerError, message: String::new(), image: None })
        }),
        ["observe"]
    );
    m.now = 20;
    assert_eq!(m.look(seen(&[("c0", State::Running, 0, 0)])), ["get image of d"]);
    assert_eq!(m.on(Event::Image { container: "d".into(), result: Ok("sha".into()) }), [""; 0], "d waits for the hook of c");
    assert_eq!(
        m.on(Event::PostStarted { id: "c0".into(), outcome: Outcome::Failed }),
        ["stop c (c0) within 30 s: PostStartFailed", "start d, restart 0"]
    );
}

#[test]
fn a_stop_that_fails_or_does_not_help_is_repeated() {
    let mut m = Machine::with_sandbox(json!({}));
    m.look(seen(&[("c0", State::Running, 0, 0)]));
    assert_eq!(m.on(Event::Gone), ["stop c (c0) within 30 s: PodEnds"]);
    assert_eq!(m.on(Event::Killed { id: "c0".into(), outcome: Outcome::Failed }), ["observe"]);
    assert_eq!(m.look(seen(&[("c0", State::Running, 0, 0)])), [""; 0]);
    assert_eq!(m.wakes(), Some(1.0));
    assert_eq!(m.tick(1), ["stop c (c0) within 30 s: PodEnds"]);
    assert_eq!(m.on(Event::Killed { id: "c0".into(), outcome: Outcome::Done }), ["observe"]);
    assert_eq!(m.look(seen(&[("c0", State::Running, 0, 0)])), [""; 0], "the runtime says that it stopped, and it runs");
    assert_eq!(m.tick(2), ["stop c (c0) within 30 s: PodEnds"]);
    m.on(Event::Killed { id: "c0".into(), outcome: Outcome::Done });
    assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 2)])), ["stop sandbox s0"]);
    assert_eq!(m.on(Event::SandboxStopped { id: "s0".into(), outcome: Outcome::Failed }), ["observe"]);
    assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 2)])), [""; 0]);
    assert_eq!(m.tick(3), ["stop sandbox s0"]);
    m.on(Event::SandboxStopped { id: "s0".into(), outcome: Outcome::Done });
    assert_eq!(m.look(seen(&[("c0", State::Exited, 0, 2)])), ["remove everything of the pod"]);
    m.on(Event::CleanedUp(Outcome::Failed));
    assert_eq!(m.look(seen(&[])), [""; 0]);
    assert_eq!(m.tick(4), ["remove everything of the pod"]);
    m.on(Event::CleanedUp(Outcome::Done));
    let as_of = m.state.version();
    assert!(m.out(Event::Observed { as_of, seen: Some(Observed::default()) }).finished);
}

#[test]
fn a_pod_whose_image_changed_restarts_even_if_it_never_restarts() {
    let mut m = Machine::with_sandbox(json!({"restartPolicy": "Never"}));
    m.look(seen(&[("c0", State::Running, 0, 0)]));
    let mut changed = (*m.state.pod).clone();
    changed.spec.as_mut().unwrap().containers[0].image = Some("img:2".into());
    assert_eq!(m.on(Event::Pod(Arc::new(changed))), ["stop c (c0) within 30 s: Changed"]);
    m.on(Event::Killed { id: "c0".into(), outcome: Outcome::Done });
    m.look(seen(&[("c0", State::Exited, 0, 2)]));
    assert_eq!(m.on(Event::Image { container: "c".into(), result: Ok("sha".into()) }), ["start c, restart 1"]);
}

#[test]
fn a_pod_is_evicted_once() {
    let mut m = Machine::with_sandbox(json!({}));
    m.look(seen(&[("c0", State::Running, 0, 0)]));
    let evicted = |message: &str| Event::Evicted(Evicted { reason: Reason::Evicted, message: message.into(), grace: 9, disruption: None });
    assert_eq!(m.on(evicted("low")), ["report Evicted: low", "stop c (c0) within 9 s: PodEnds"]);
    assert_eq!(m.on(evicted("lower")), [""; 0]);
    assert_eq!(m.on(goes_down(20)), [""; 0]);
    assert_eq!(m.on(goes_down(3)), ["stop c (c0) within 3 s: PodEnds"], "the machine waits no longer");
    assert_eq!(m.state.memory.evicted.as_ref().map(|e| e.message.as_str()), Some("low"));
}

fn goes_down(grace: i64) -> Event {
    Event::Evicted(Evicted { reason: Reason::Terminated, message: "down".into(), grace, disruption: Some("down".into()) })
}

#[test]
fn a_shutdown_cuts_the_grace_of_a_deleted_pod_short() {
    let mut m = Machine::with_sandbox(json!({"terminationGracePeriodSeconds": 600}));
    m.look(seen(&[("c0", State::Running, 0, 0)]));
    let mut deleted = (*m.state.pod).clone();
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert_eq!(m.on(Event::Pod(Arc::new(deleted))), ["stop c (c0) within 600 s: PodEnds"]);
    assert_eq!(m.on(goes_down(5)), ["stop c (c0) within 5 s: PodEnds"]);
}

#[test]
fn a_refused_pod_says_so_and_touches_nothing() {
    let node = NodeInfo { network_ready: true, ..Default::default() };
    let state = PodState::new(pod(json!({})), node, SignedDuration::from_secs(10), None);
    let mut m = Machine { state, now: 0, wake: None };
    m.on(Event::Tick);
    assert_eq!(m.on(Event::Admitted(Err(Refusal { reason: "OutOfcpu".into(), message: "too much".into() }))), ["observe"]);
    assert_eq!(m.look(Observed::default()), ["tear down volumes"]);
    let status = m.out(Event::TornDown(Outcome::Done)).status.unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
}

#[test]
fn an_ending_pod_is_ready_as_long_as_its_readiness_probe_says_so() {
    let probe = json!({"httpGet": {"port": 80}});
    let spec =
        json!({"containers": [{"name": "c", "image": "img:1", "readinessProbe": probe}, {"name": "d", "image": "img:1", "livenessProbe": probe}]});
    let run = |name: &str| Container {
        id: format!("{name}0"),
        sandbox: "s0".into(),
        name: name.into(),
        state: State::Running,
        started_at: Some(t(0)),
        ..Default::default()
    };
    let seen = || Observed {
        sandboxes: vec![Sandbox { id: "s0".into(), ready: true, ips: vec!["10.1.0.2".into()], ..Default::default() }],
        containers: vec![run("c"), run("d")],
    };
    let health = |ready| Event::Probed { id: "c0".into(), health: Health { started: true, ready, alive: true } };
    let ready = |out: &Output| out.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].ready;
    let (mut machine, _) = Machine::new(spec.clone());
    let actions = machine.look(seen());
    assert!(actions.contains(&"probe c (c0)".to_owned()) && actions.contains(&"probe d (d0)".to_owned()), "{actions:?}");
    machine.out(health(true));
    let mut deleted = (*machine.state.pod).clone();
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(t(30)));
    deleted.metadata.deletion_grace_period_seconds = Some(30);
    let out = machine.out(Event::Pod(Arc::new(deleted.clone())));
    assert!(ready(&out), "deleted, and still serving");
    assert!(!ready(&machine.out(health(false))), "its probe fails");
    assert!(ready(&machine.out(health(true))), "its probe succeeds again");

    // An agent that starts meanwhile probes what serves alone.
    let (mut machine, _) = Machine::new(spec);
    machine.out(Event::Pod(Arc::new(deleted)));
    let actions = machine.look(seen());
    assert!(actions.contains(&"probe c (c0)".to_owned()) && !actions.contains(&"probe d (d0)".to_owned()), "{actions:?}");
}
