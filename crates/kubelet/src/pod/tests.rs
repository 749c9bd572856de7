//! Table tests of the pod machine: what is there → what happens next and what the status says.

use jiff::SignedDuration;
use kube_rules::Refusal;
use serde_json::json;

use super::plan::{Step, step};
use super::*;

fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

struct World {
    pod: Pod,
    observed: Observed,
    memory: Memory,
    network_ready: bool,
    gone: bool,
    now: i64,
    dead_kept: Option<usize>,
    recursive: Vec<&'static str>,
}

fn failure(reason: WaitingReason, message: &str, retry: Retry) -> Failure {
    Failure { reason, message: message.into(), image: None, failed_at: t(95), retry }
}

impl World {
    fn new(spec: serde_json::Value) -> Self {
        let mut full = json!({"containers": [{"name": "c", "image": "img"}]});
        for (k, v) in spec.as_object().unwrap() {
            full[k] = v.clone();
        }
        let meta = json!({"name": "p", "namespace": "ns", "uid": "u", "generation": 3});
        World {
            pod: serde_json::from_value(json!({"metadata": meta, "spec": full})).unwrap(),
            observed: Observed::default(),
            memory: Memory { volumes: Volumes::Ready, ..Default::default() },
            network_ready: true,
            gone: false,
            now: 100,
            dead_kept: Some(1),
            recursive: Vec::new(),
        }
    }

    fn sandbox(mut self, ready: bool) -> Self {
        self.observed.sandboxes.insert(
            0,
            Sandbox {
                id: format!("s{}", self.observed.sandboxes.len()),
                attempt: self.observed.sandboxes.len() as u32,
                ready,
                created_at: Some(t(0)),
                ips: vec!["10.0.0.5".into()],
                ..Sandbox::default()
            },
        );
        self
    }

    fn container(mut self, name: &str, state: State, restarts: u32, exit_code: i32) -> Self {
        let spec = containers(self.pod.spec.as_ref().unwrap()).find(|(_, c)| c.name == name).unwrap().1;
        let hash = container_hash(spec);
        self.observed.containers.insert(
            0,
            Container {
                id: format!("{name}{restarts}"),
                sandbox: self.observed.sandboxes[0].id.clone(),
                name: name.into(),
                state,
                restarts,
                hash,
                created_at: Some(t(0)),
                started_at: Some(t(1)),
                finished_at: (state == State::Exited).then(|| t(90)),
                exit_code,
                image: "img".into(),
                ..Default::default()
            },
        );
        self
    }

    fn image(mut self, name: &str) -> Self {
        self.memory.images.insert(name.into(), ImageState::Present("sha".into()));
        self
    }

    fn old_status(mut self, status: serde_json::Value) -> Self {
        self.pod.status = Some(serde_json::from_value(status).unwrap());
        self
    }

    fn deleted(mut self, grace: i64) -> Self {
        self.pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(t(99)));
        self.pod.metadata.deletion_grace_period_seconds = Some(grace);
        self
    }

    fn step(&self) -> Step {
        let ephemeral = ephemeral(&self.pod);
        let resources = resize::resources(&self.pod);
        step(&Input {
            record: &Record::of(resources),
            ephemeral: &ephemeral,
            pod: &self.pod,
            observed: &self.observed,
            memory: &self.memory,
            gone: self.gone,
            now: t(self.now),
            node: &NodeInfo {
                network_ready: self.network_ready,
                host_ips: vec!["10.240.0.11".into()],
                runtime: "sim".into(),
                dead_kept: self.dead_kept,
                recursive: self.recursive.iter().map(|name| (*name).to_owned()).collect(),
                resizes: true,
            },
        })
    }

    fn plan(&self) -> Vec<String> {
        self.step().actions.iter().map(ToString::to_string).collect()
    }

    fn phase(&self) -> String {
        self.step().status.phase.unwrap()
    }

    fn condition(&self, type_: &str) -> (String, Option<String>) {
        let status = self.step().status;
        let c = status.conditions.unwrap().into_iter().find(|c| c.type_ == type_).unwrap();
        (c.status, c.message)
    }

    fn state(&self, name: &str) -> String {
        let status = self.step().status;
        let mut all = status.init_container_statuses.into_iter().flatten().chain(status.container_statuses.into_iter().flatten());
        let s = all.find(|s| s.name == name).unwrap();
        let show = |state: Option<k8s_openapi::api::core::v1::ContainerState>| {
            let state = state.unwrap_or_default();
            if let Some(w) = state.waiting {
                w.reason.unwrap()
            } else if let Some(term) = state.terminated {
                format!("{}:{}", term.reason.unwrap(), term.exit_code)
            } else if state.running.is_some() {
                "running".into()
            } else {
                "-".into()
            }
        };
        format!("{} last={} ready={} n={}", show(s.state), show(s.last_state), s.ready, s.restart_count)
    }
}

const INIT: &str = r#"{"initContainers":[{"name":"i","image":"x"},{"name":"side","image":"x","restartPolicy":"Always"},{"name":"j","image":"x"}]}"#;

#[test]
fn statuses_repeat_mounts_and_the_pods_requests_as_upstreams_do() {
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
    let mounts = json!([{"name": "token", "mountPath": "/token", "readOnly": true}, {"name": "scratch", "mountPath": "/scratch"}]);
    let world = World::new(json!({"containers": [{"name": "c", "image": "img", "volumeMounts": mounts, "resources": resources("10m", "20Mi")},
        {"name": "d", "image": "img", "resources": resources("500m", "1Gi")}]}));
    let (missing, running) = (world.step().status, world.sandbox(true).container("c", State::Running, 0, 0).step().status);
    for status in [missing, running] {
        let c = &status.container_statuses.as_ref().unwrap()[0];
        let want = json!([{"name": "token", "mountPath": "/token", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "scratch", "mountPath": "/scratch"}]);
        assert_eq!(json!(c.volume_mounts), want);
        assert_eq!(json!(status.allocated_resources), json!({"cpu": "510m", "memory": "1044Mi"}));
    }
}

#[test]
fn container_hashes_are_those_of_upstreams_kubelet() {
    // The first is of upstream's own test (container/container_hash_test.go), the others of containers that its kubelet 1.36 made.
    let (agnhost, busybox) = ("registry.k8s.io/e2e-test-images/agnhost:2.63.0", "registry.k8s.io/e2e-test-images/busybox:1.37.0-1");
    for (name, image, want) in [
        ("test_container", "foo/image:v1", "8e45cbd0"),
        ("c", agnhost, "8cd7e80f"),
        ("c", busybox, "a6dd0ded"),
        ("i1", busybox, "51efb9d8"),
        ("side", busybox, "5f5f5957"),
    ] {
        let spec: Spec = serde_json::from_value(json!({"name": name, "image": image, "command": ["any"]})).unwrap();
        assert_eq!(container_hash(&spec), want, "{name} {image}");
    }
}

#[test]
fn a_new_pod_comes_up_step_by_step() {
    let mut w = World::new(json!({}));
    w.memory.volumes = Volumes::NotReady;
    assert_eq!(w.plan(), ["mount volumes"]);
    assert_eq!((w.phase().as_str(), w.state("c").as_str()), ("Pending", "ContainerCreating last=- ready=false n=0"));
    w.memory.volumes = Volumes::Ready;
    assert_eq!(w.plan(), ["create sandbox, attempt 0"]);
    let w = w.sandbox(true);
    assert_eq!(w.plan(), ["get image of c"]);
    assert_eq!(w.condition("PodReadyToStartContainers").0, "True");
    let w = w.image("c");
    assert_eq!(w.plan(), ["start c, restart 0"]);
    let w = w.container("c", State::Running, 0, 0);
    assert_eq!(w.plan(), [""; 0]);
    assert_eq!((w.phase().as_str(), w.state("c").as_str()), ("Running", "running last=- ready=true n=0"));
    assert_eq!(w.condition("Ready").0, "True");
    let status = w.step().status;
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.5"));
    assert_eq!(status.host_ip.as_deref(), Some("10.240.0.11"));
    assert_eq!(status.observed_generation, Some(3));
}

#[test]
fn a_pod_in_the_hosts_network_keeps_the_address_that_it_got() {
    let shown = |had: &[&str]| {
        let mut w = World::new(json!({"hostNetwork": true})).sandbox(true);
        let had: Vec<_> = had.iter().map(|ip| k8s_openapi::api::core::v1::PodIP { ip: (*ip).to_owned() }).collect();
        w.pod.status.get_or_insert_default().pod_ips = Some(had);
        let status = w.step().status;
        let ips: Vec<_> = status.pod_ips.unwrap().into_iter().map(|own| own.ip).collect();
        assert_eq!(status.host_ip.as_deref(), Some("10.240.0.11"), "that of the node follows it");
        ips
    };
    assert_eq!(shown(&[]), ["10.240.0.11"]);
    assert_eq!(shown(&["10.240.0.5"]), ["10.240.0.5"]);
}

#[test]
fn no_sandbox_before_the_network() {
    let mut w = World::new(json!({}));
    w.network_ready = false;
    assert_eq!(w.plan(), [""; 0]);
    let mut w = World::new(json!({"hostNetwork": true}));
    w.network_ready = false;
    assert_eq!(w.plan(), ["create sandbox, attempt 0"]);
}

#[test]
fn restarts_follow_policy_and_back_off() {
    let crashed = |policy: &str, code| World::new(json!({"restartPolicy": policy})).sandbox(true).container("c", State::Exited, 2, code).image("c");
    for (policy, code, plan, phase) in [
        ("Always", 0, &["start c, restart 3"][..], "Running"),
        ("Always", 1, &["start c, restart 3"], "Running"),
        ("OnFailure", 1, &["start c, restart 3"], "Running"),
        ("OnFailure", 0, &["stop sandbox s0"], "Succeeded"),
        ("Never", 0, &["stop sandbox s0"], "Succeeded"),
        ("Never", 7, &["stop sandbox s0"], "Failed"),
    ] {
        let w = crashed(policy, code);
        assert_eq!(w.plan(), plan, "{policy} {code}");
        assert_eq!(w.phase(), phase, "{policy} {code}");
    }
    let mut w = crashed("Always", 1);
    let key = format!("c/{}", w.observed.containers[0].hash);
    w.memory.restarts.tried(&key, t(80), t(85));
    w.now = 95;
    assert_eq!((w.plan(), w.step().wake), (vec!["wait before restarting c (c2)".to_owned()], Some(t(100))));
    w.memory.announced.insert("c2".into());
    assert_eq!(w.plan(), [""; 0], "announced once");
    assert_eq!(w.state("c"), "CrashLoopBackOff last=Error:1 ready=false n=2");
    assert_eq!(w.phase(), "Running");
    w.now = 100;
    assert_eq!(w.plan(), ["start c, restart 3"]);
}

#[test]
fn a_containers_own_policy_and_rules_decide_about_its_restart() {
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "c", "image": "img", "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]},
        {"name": "d", "image": "img", "restartPolicy": "OnFailure"}]});
    let ended = |c: i32, d: i32| {
        let w = World::new(spec.clone()).sandbox(true).image("c").image("d");
        let w = w.container("c", State::Exited, 0, c).container("d", State::Exited, 0, d);
        (w.plan(), w.phase())
    };
    assert_eq!(ended(42, 0), (vec!["start c, restart 1".to_owned()], "Running".to_owned()));
    assert_eq!(ended(1, 7), (vec!["start d, restart 1".to_owned()], "Running".to_owned()));
    assert_eq!(ended(1, 0), (vec!["stop sandbox s0".to_owned()], "Failed".to_owned()));
    assert_eq!(ended(0, 0), (vec!["stop sandbox s0".to_owned()], "Succeeded".to_owned()));
}

#[test]
fn a_container_that_is_replaced_does_not_end_its_pod() {
    let mut w = World::new(json!({"restartPolicy": "Never"})).sandbox(true).container("c", State::Exited, 0, 1).image("c");
    w.pod.spec.as_mut().unwrap().containers[0].image = Some("img:2".into());
    w.memory.stops.insert("c0".into(), Stop { grace: 30, why: Why::Changed, attempt: Attempt::Done });
    assert_eq!((w.plan(), w.phase().as_str()), (vec!["start c, restart 1".to_owned()], "Running"));
}

#[test]
fn a_replaced_sandbox_does_not_count_towards_the_back_off() {
    let mut w = World::new(json!({})).sandbox(true).container("c", State::Exited, 2, 0).image("c");
    let key = format!("c/{}", w.observed.containers[0].hash);
    w.memory.restarts.tried(&key, t(80), t(85));
    w.now = 95;
    let new = Sandbox { id: "s1".into(), attempt: 1, ..w.observed.sandboxes[0].clone() };
    w.observed.sandboxes.insert(0, new);
    w.memory.announced.insert(w.observed.containers[0].id.clone());
    assert_eq!(w.plan(), [""; 0], "it had crashed before");
    w.memory.stops.insert(w.observed.containers[0].id.clone(), Stop { grace: 30, why: Why::SandboxGone, attempt: Attempt::Done });
    assert_eq!(w.plan(), ["start c, restart 3"], "it was stopped for the sandbox");
    w.observed.sandboxes.remove(0);
    assert_eq!(w.plan(), [""; 0], "it was stopped for something else");
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    let w = World::new(serde_json::from_str(INIT).unwrap()).sandbox(true).image("i").image("side").image("j").image("c");
    assert_eq!(w.plan(), ["start i, restart 0"]);
    assert_eq!(w.state("c"), "PodInitializing last=- ready=false n=0");
    assert_eq!(w.condition("Initialized").1.unwrap(), "containers with incomplete status: [i side j]");
    let w = w.container("i", State::Running, 0, 0);
    assert_eq!(w.plan(), [""; 0]);
    let mut w = w;
    w.observed.containers.clear();
    let w = w.container("i", State::Exited, 0, 0);
    assert_eq!(w.plan(), ["start side, restart 0"]);
    let w = w.container("side", State::Running, 0, 0);
    assert_eq!(w.plan(), ["start j, restart 0"]);
    let w = w.container("j", State::Exited, 0, 0);
    assert_eq!(w.plan(), ["start c, restart 0"]);
    let w = w.container("c", State::Running, 0, 0);
    assert_eq!((w.plan(), w.phase().as_str()), (vec![], "Running"));
    assert_eq!(w.condition("Initialized").0, "True");
    // The end: mains first, sidecars after them.
    let w = w.deleted(20);
    assert_eq!(w.plan(), ["stop c (c0) within 20 s: PodEnds", "prepare the stop of side (side0) within 20 s"]);
    let mut w = w;
    w.observed.containers[0].state = State::Exited;
    assert_eq!(w.plan(), ["stop side (side0) within 20 s: PodEnds"]);
    // It gets what the mains have left, and 2 s at least.
    let now = w.now;
    for (gone, left) in [(0, 20), (12, 8), (19, 2), (100, 2), (-50, 20)] {
        w.memory.ends_since = Some(t(now - gone));
        assert_eq!(w.plan(), [format!("stop side (side0) within {left} s: PodEnds")], "{gone} s are gone");
    }
    // Once it is being stopped, only a shorter grace of the pod stops it again.
    w.memory.ends_since = Some(t(now - 15));
    w.memory.stops.insert("side0".into(), Stop { grace: 8, why: Why::PodEnds, attempt: Attempt::UnderWay });
    assert_eq!(w.plan(), [""; 0]);
    assert_eq!(w.deleted(3).plan(), ["stop side (side0) within 3 s: PodEnds"]);
}

#[test]
fn statuses_of_containers_are_sorted_by_name_and_those_of_init_containers_are_not() {
    let list = |names: [&str; 2]| json!(names.map(|name| json!({"name": name, "image": "x"})));
    let status = World::new(json!({"containers": list(["z", "a"]), "initContainers": list(["y", "b"])})).step().status;
    let names = |all: Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>| all.unwrap().into_iter().map(|s| s.name).collect::<Vec<_>>();
    assert_eq!(
        (names(status.container_statuses), names(status.init_container_statuses)),
        (vec!["a".into(), "z".into()], vec!["y".into(), "b".into()])
    );
}

#[test]
fn the_status_says_which_signal_ends_a_container() {
    for state in [State::Running, State::Exited] {
        let mut w = World::new(json!({})).sandbox(true).container("c", state, 0, 0);
        let shown = |w: &World| w.step().status.container_statuses.unwrap()[0].stop_signal.clone();
        assert_eq!(shown(&w), None, "the runtime does not say so");
        w.observed.containers[0].stop_signal = cri::Signal::named("SIGQUIT");
        assert_eq!(shown(&w).as_deref(), Some("SIGQUIT"));
    }
}

#[test]
fn the_status_says_which_mounts_are_read_only_at_every_level() {
    let mounts = json!([
        {"name": "v", "mountPath": "/a", "readOnly": true, "recursiveReadOnly": "IfPossible"},
        {"name": "v", "mountPath": "/b", "readOnly": true},
        {"name": "v", "mountPath": "/c"},
    ]);
    let modes = |class: Option<&str>, handler: Option<&str>, recursive: Vec<&'static str>| {
        let containers = json!([{"name": "c", "image": "img", "volumeMounts": mounts.clone()}]);
        let mut w = World::new(json!({"containers": containers, "runtimeClassName": class}));
        if let Some(handler) = handler {
            w = w.sandbox(true).container("c", State::Running, 0, 0);
            w.observed.sandboxes[0].handler = handler.to_owned();
        }
        w.recursive = recursive;
        let mounts = w.step().status.container_statuses.unwrap().remove(0).volume_mounts.unwrap();
        mounts.into_iter().map(|mount| mount.recursive_read_only).collect::<Vec<_>>()
    };
    let (on, off) = (Some("Enabled".to_owned()), Some("Disabled".to_owned()));
    for (class, handler, recursive, want) in [
        (None, Some(""), vec![], &off),
        (None, Some(""), vec![""], &on),
        (Some("vm"), Some("kata"), vec![""], &off),
        (Some("vm"), Some("kata"), vec!["kata"], &on),
        // No sandbox yet.
        (None, None, vec![""], &on),
        (Some("vm"), None, vec!["", "kata"], &off),
    ] {
        assert_eq!(modes(class, handler, recursive.clone()), [want.clone(), off.clone(), None], "{class:?} {handler:?} {recursive:?}");
    }
}

#[test]
fn pre_stop_hooks_run_at_once_and_stop_signals_in_turn() {
    let sidecar = |name: &str| json!({"name": name, "image": "x", "restartPolicy": "Always"});
    let spec = json!({"initContainers": [sidecar("first"), sidecar("second")]});
    let w = World::new(spec).sandbox(true).container("first", State::Running, 0, 0).container("second", State::Running, 0, 0);
    let mut w = w.container("c", State::Running, 0, 0).deleted(20);
    let main = "stop c (c0) within 20 s: PodEnds";
    let prepares = ["prepare the stop of first (first0) within 20 s", "prepare the stop of second (second0) within 20 s"];
    let mut begun = w.plan();
    begun.sort();
    assert_eq!(begun, [prepares[0], prepares[1], main]);
    // One that is stopped for another reason already has run its hook.
    w.memory.stops.insert("first0".into(), Stop { grace: 20, why: Why::Unhealthy, attempt: Attempt::UnderWay });
    begun = w.plan();
    begun.sort();
    assert_eq!(begun, [prepares[1], main]);
    w.memory.stops.clear();
    // All have begun: the sidecars wait, though the hook of one is over.
    w.memory.ends_since = Some(t(w.now));
    w.memory.stops.insert("c0".into(), Stop { grace: 20, why: Why::PodEnds, attempt: Attempt::UnderWay });
    w.memory.prepared = [("first0".into(), PreStop::Over), ("second0".into(), PreStop::Running)].into();
    assert_eq!((w.plan(), w.step().wake), (vec![], Some(t(w.now + 20))));
    // The main container ended: the second sidecar is next, once its hook is over.
    w.observed.containers[0].state = State::Exited;
    w.now += 5;
    assert_eq!(w.plan(), [""; 0]);
    w.memory.prepared.insert("second0".into(), PreStop::Over);
    let step = w.step();
    let [Action::Kill(kill)] = &step.actions[..] else { panic!("{:?}", step.actions) };
    assert_eq!((kill.id.as_str(), kill.grace, kill.prepared, kill.again), ("second0", 15, true, false));
    // The grace is over: nobody waits for anything.
    w.memory.prepared.insert("second0".into(), PreStop::Running);
    w.observed.containers[0].state = State::Running;
    w.now += 15;
    let mut over = w.plan();
    over.sort();
    assert_eq!(over, ["stop first (first0) within 2 s: PodEnds", "stop second (second0) within 2 s: PodEnds"]);
}

#[test]
fn a_failed_init_container_ends_or_repeats() {
    let spec = |policy: &str| json!({"restartPolicy": policy, "initContainers": [{"name": "i", "image": "x"}]});
    let w = World::new(spec("Never")).sandbox(true).container("i", State::Exited, 0, 3);
    assert_eq!((w.plan(), w.phase().as_str()), (vec!["stop sandbox s0".to_owned()], "Failed"));
    let w = World::new(spec("OnFailure")).sandbox(true).container("i", State::Exited, 0, 3).image("i");
    assert_eq!((w.plan(), w.phase().as_str()), (vec!["start i, restart 1".to_owned()], "Pending"));
}

#[test]
fn a_lost_sandbox_is_replaced_and_counts_a_restart() {
    let w = World::new(json!({})).sandbox(true).container("c", State::Running, 4, 0);
    let mut w = w;
    w.observed.sandboxes[0].ready = false;
    assert_eq!(w.plan(), ["stop c (c4) within 30 s: SandboxGone"]);
    w.observed.containers[0].state = State::Exited;
    assert_eq!(w.plan(), ["stop sandbox s0"]);
    w.memory.sandbox_stops.insert("s0".into(), Attempt::Done);
    assert_eq!(w.plan(), ["create sandbox, attempt 1"]);
    let w = w.sandbox(true).image("c");
    assert_eq!(w.plan(), ["start c, restart 5"]);
}

#[test]
fn a_runtime_that_forgot_everything_counts_once() {
    let running = json!({"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 2, "ready": true,
        "image": "img", "imageID": "", "containerID": "sim://x", "state": {"running": {}}}]});
    let w = World::new(json!({})).old_status(running).sandbox(true).image("c");
    assert_eq!(w.plan(), ["start c, restart 3"]);
    assert_eq!(w.state("c"), "ContainerCreating last=ContainerStatusUnknown:137 ready=false n=3");
    let status = serde_json::to_value(w.step().status).unwrap();
    let w = w.old_status(status);
    assert_eq!(w.plan(), ["start c, restart 3"], "the reported loss is not counted again");
}

#[test]
fn images_and_failures_wait_with_their_reason() {
    let mut w = World::new(json!({})).sandbox(true);
    w.memory.images.insert("c".into(), ImageState::Getting(None));
    assert_eq!((w.plan(), w.state("c").as_str()), (vec![], "ContainerCreating last=- ready=false n=0"));
    let limits = (SignedDuration::from_secs(10), SignedDuration::from_secs(300));
    let retry = Retry::after(None, t(95), limits);
    w.memory.images.insert("c".into(), ImageState::Failed(failure(WaitingReason::ErrImagePull, "not found", retry)));
    w.now = 96;
    assert_eq!((w.plan(), w.state("c").as_str()), (vec![], "ErrImagePull last=- ready=false n=0"));
    assert_eq!(w.step().wake, Some(t(97)));
    w.now = 97;
    assert_eq!(w.plan(), ["wait before pulling the image of c again"]);
    w.memory.images.insert("c".into(), ImageState::Failed(failure(WaitingReason::ImagePullBackOff, "not found", retry)));
    assert_eq!((w.plan(), w.state("c").as_str()), (vec![], "ImagePullBackOff last=- ready=false n=0"));
    assert_eq!(w.step().wake, Some(t(105)));
    w.now = 105;
    assert_eq!(w.plan(), ["get image of c"]);
    assert_eq!(Retry::after(Some(retry), t(105), limits).at, t(125));
    w.memory.images.insert("c".into(), ImageState::Present("sha".into()));
    let failed = failure(WaitingReason::CreateContainerConfigError, "", Retry { at: t(200), count: 1 });
    w.memory.failures.insert("c".into(), failed);
    assert_eq!((w.plan(), w.state("c").as_str()), (vec![], "CreateContainerConfigError last=- ready=false n=0"));
}

#[test]
fn deletion_runs_to_the_end() {
    let w = World::new(json!({})).sandbox(true).container("c", State::Running, 0, 0).deleted(30);
    assert_eq!(w.plan(), ["stop c (c0) within 30 s: PodEnds"]);
    let mut w = w;
    w.memory.stops.insert("c0".into(), Stop { grace: 30, why: Why::PodEnds, attempt: Attempt::UnderWay });
    assert_eq!(w.plan(), [""; 0], "a stop under way is not repeated");
    w.pod.metadata.deletion_grace_period_seconds = Some(5);
    assert_eq!(w.plan(), ["stop c (c0) within 5 s: PodEnds"], "a shorter grace counts");
    w.observed.containers[0].state = State::Exited;
    w.observed.containers[0].exit_code = 137;
    assert_eq!(w.plan(), ["stop sandbox s0"]);
    assert_eq!(w.phase(), "Failed");
    w.memory.sandbox_stops.insert("s0".into(), Attempt::Done);
    assert_eq!(w.plan(), ["remove everything of the pod"]);
    w.memory.cleaned = true;
    w.observed = Observed::default();
    assert_eq!(w.plan(), ["delete from the API"]);
    w.gone = true;
    assert_eq!(w.plan(), [""; 0]);
}

#[test]
fn deletion_before_anything_started() {
    let mut w = World::new(json!({})).deleted(30);
    assert_eq!(w.plan(), ["remove everything of the pod"]);
    assert_eq!(w.phase(), "Failed");
    w.memory.cleaned = true;
    assert_eq!(w.plan(), ["delete from the API"]);
}

#[test]
fn probes_gate_readiness_and_kill() {
    let spec = json!({"containers": [{"name": "c", "image": "img", "readinessProbe": {}, "livenessProbe": {"terminationGracePeriodSeconds": 7}, "startupProbe": {}}]});
    let mut w = World::new(spec).sandbox(true).container("c", State::Running, 0, 0);
    assert_eq!(w.state("c"), "running last=- ready=false n=0");
    assert_eq!(w.condition("Ready").1.unwrap(), "containers with unready status: [c]");
    w.memory.health.insert("c0".into(), Health { started: true, ready: true, alive: true });
    assert_eq!(w.condition("Ready").0, "True");
    w.memory.health.insert("c0".into(), Health { started: true, ready: true, alive: false });
    assert_eq!(w.plan(), ["stop c (c0) within 7 s: Unhealthy"]);
}

#[test]
fn readiness_gates_and_foreign_conditions() {
    let gate = json!({"conditions": [{"type": "example.com/lb", "status": "False"}], "phase": "Running"});
    let w = World::new(json!({"readinessGates": [{"conditionType": "example.com/lb"}]}))
        .sandbox(true)
        .container("c", State::Running, 0, 0)
        .old_status(gate);
    assert_eq!(w.condition("ContainersReady").0, "True");
    let why = r#"the status of pod readiness gate "example.com/lb" is not "True", but False"#;
    assert_eq!(w.condition("Ready"), ("False".to_owned(), Some(why.to_owned())));
    assert_eq!(w.condition("example.com/lb").0, "False");
    let w = w.old_status(json!({"phase": "Running"}));
    let why = r#"corresponding condition of pod readiness gate "example.com/lb" does not exist."#;
    assert_eq!(w.condition("Ready"), ("False".to_owned(), Some(why.to_owned())));
}

#[test]
fn a_changed_image_restarts_the_container() {
    let mut w = World::new(json!({})).sandbox(true).container("c", State::Running, 0, 0);
    w.pod.spec.as_mut().unwrap().containers[0].image = Some("img:2".into());
    assert_eq!(w.plan(), ["stop c (c0) within 30 s: Changed"]);
}

#[test]
fn a_restart_in_place_leaves_the_pod_ready_unless_it_waits() {
    let old = json!({"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 0, "ready": true, "started": true, "image": "img",
        "imageID": "", "containerID": "sim://c0", "state": {"running": {}}}]});
    let stopped = |spec: serde_json::Value, why: Why| {
        let mut w = World::new(spec).old_status(old.clone()).sandbox(true).container("c", State::Exited, 0, 137);
        w.memory.stops.insert("c0".into(), Stop { grace: 30, why, attempt: Attempt::Done });
        if why == Why::Changed {
            w.pod.spec.as_mut().unwrap().containers[0].image = Some("img:2".into());
        }
        w
    };
    let shown = |w: &World| (w.state("c"), w.condition("Ready").0, w.phase());
    let of = |state: &str, ready: &str| (state.to_owned(), ready.to_owned(), "Running".to_owned());
    for why in [Why::Changed, Why::Resized, Why::Unhealthy, Why::StartupFailed, Why::PostStartFailed] {
        let mut w = stopped(json!({}), why);
        assert_eq!(w.plan(), ["get image of c"]);
        assert_eq!(shown(&w), of("running last=- ready=true n=0", "True"), "{why:?}");
        w.memory.images.insert("c".into(), ImageState::Getting(None));
        assert_eq!(shown(&w), of("running last=- ready=true n=0", "True"), "{why:?}: while the image is pulled");
        let retry = Retry { at: t(110), count: 1 };
        w.memory.images.insert("c".into(), ImageState::Failed(failure(WaitingReason::ErrImagePull, "no", retry)));
        assert_eq!(shown(&w), of("ErrImagePull last=Error:137 ready=false n=0", "False"), "{why:?}: it waits");
    }
    let probed = json!({"containers": [{"name": "c", "image": "img", "readinessProbe": {"exec": {"command": ["x"]}}}]});
    assert_eq!(shown(&stopped(probed, Why::Changed)), of("running last=- ready=false n=0", "False"), "the next run has to prove it");
    let mut w = stopped(json!({}), Why::Changed);
    w.memory.stops.clear();
    assert_eq!(shown(&w), of("Error:137 last=- ready=false n=0", "False"), "it ended by itself");
    let mut w = stopped(json!({}), Why::Changed).deleted(5);
    w.memory.volumes_down = true;
    assert_eq!(w.condition("Ready").0, "False", "the pod ends");
    let w = stopped(json!({"restartPolicy": "Never"}), Why::Unhealthy);
    assert_eq!(w.condition("Ready").0, "False", "no run follows");
}

#[test]
fn a_refused_pod_fails_with_its_reason() {
    let mut w = World::new(json!({}));
    w.memory.refused = Some(Refusal { reason: "OutOfcpu".into(), message: "too much".into() });
    let out = w.step();
    assert_eq!(out.status.message.as_deref(), Some("Pod was rejected: too much"));
    assert_eq!((out.status.phase.as_deref(), out.status.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
    assert_eq!(w.plan(), ["tear down volumes"]);
    w.memory.volumes_down = true;
    assert_eq!(w.plan(), [""; 0]);
    w.gone = true;
    assert_eq!(w.plan(), ["remove everything of the pod"]);
}

#[test]
fn a_finished_pod_stays_finished() {
    let old = json!({"phase": "Succeeded", "containerStatuses": [{"name": "c", "restartCount": 0, "ready": false, "image": "img",
        "imageID": "", "containerID": "sim://x", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]});
    let mut w = World::new(json!({"restartPolicy": "Never"})).old_status(old);
    w.memory.volumes_down = true;
    assert_eq!((w.plan(), w.phase().as_str()), (vec![], "Succeeded"));
    assert_eq!(w.state("c"), "Completed:0 last=- ready=false n=0");
}

#[test]
fn a_deadline_ends_the_pod_as_failed() {
    let started = json!({"startTime": t(0).to_string(), "phase": "Running"});
    let mut w = World::new(json!({"activeDeadlineSeconds": 150})).old_status(started).sandbox(true).container("c", State::Running, 0, 0);
    assert_eq!((w.plan(), w.step().wake), (vec![], Some(t(150))));
    w.now = 150;
    assert_eq!(w.plan(), ["stop c (c0) within 30 s: PodEnds"]);
    assert_eq!(w.phase(), "Running", "not terminal while something runs");
    w.observed.containers[0].state = State::Exited;
    let status = w.step().status;
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn an_evicted_pod_ends_within_its_grace_and_fails() {
    let mut w = World::new(json!({"terminationGracePeriodSeconds": 60})).sandbox(true).container("c", State::Running, 0, 0);
    let message = "The node was low on resource: memory. ";
    let evicted = Evicted { reason: Reason::Evicted, message: message.into(), grace: 1, disruption: Some(message.into()) };
    w.memory.evicted = Some(evicted.clone());
    assert_eq!((w.plan(), w.phase().as_str()), (vec!["stop c (c0) within 1 s: PodEnds".to_owned()], "Running"));
    w.observed.containers[0].state = State::Exited;
    assert_eq!(w.plan(), ["stop sandbox s0"]);
    let status = w.step().status;
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert_eq!(status.message.as_deref(), Some("The node was low on resource: memory. "));
    assert_eq!(w.condition("DisruptionTarget"), ("True".to_owned(), Some("The node was low on resource: memory. ".to_owned())));
    w.memory.evicted = Some(Evicted { disruption: None, grace: 90, ..evicted });
    assert!(w.step().status.conditions.unwrap().iter().all(|c| c.type_ != "DisruptionTarget"));
    w.observed.containers[0].state = State::Running;
    assert_eq!(w.plan(), ["stop c (c0) within 60 s: PodEnds"], "never longer than its own grace");
    w.observed.containers[0].state = State::Exited;
    let w = w.old_status(json!({"phase": "Succeeded"}));
    assert_eq!((w.phase().as_str(), w.step().status.reason), ("Succeeded", None), "it had ended before");
}

#[test]
fn older_dead_attempts_go_at_once_unless_others_decide() {
    let mut w = World::new(json!({})).sandbox(true);
    for restarts in 0..4 {
        w = w.container("c", State::Exited, restarts, 1);
    }
    w = w.container("c", State::Running, 4, 0);
    assert_eq!(w.plan(), ["remove container c2", "remove container c1", "remove container c0"]);
    w.dead_kept = Some(3);
    assert_eq!(w.plan(), ["remove container c0"]);
    w.dead_kept = None;
    assert_eq!(w.plan(), [""; 0], "the collector of dead containers has another rule");
}
