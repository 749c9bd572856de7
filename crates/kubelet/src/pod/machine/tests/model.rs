//! The machine against a model of runtime, volumes and API: outcomes in any order, failures, exits,
//! lost sandboxes, and an agent that crashes at any point and goes on from what the runtime holds.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::pod::resize::{Amounts, resources};
use crate::pod::{Kind, Pending, PendingReason, Sandbox, is_deleted};

/// Numbers that look random and are the same in each run (an LCG of Knuth's).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.roll(n) == 0
    }
}

struct World {
    dice: Dice,
    now: i64,
    state: PodState,
    wake: Option<Timestamp>,
    finished: bool,
    runtime: Observed,
    /// The pod in the API; None once deleted.
    api: Option<Pod>,
    under_way: Vec<Begun>,
    /// The runtime changed, and the machine was not told yet.
    unseen: bool,
    /// What was done, for messages of failures.
    log: Vec<String>,
    counter: u32,
    starts: BTreeMap<(String, u32), String>,
    /// Nothing fails any more.
    calm: bool,
    /// What is kept of the pod's resources over a crash.
    disk: Option<Record>,
    /// What the runtime was told of each container's resources, by id.
    told: BTreeMap<String, Amounts>,
}

/// One line for an event.
fn short(event: &Event) -> String {
    match event {
        Event::Pod(_) => "Pod".into(),
        Event::Observed { as_of, seen } => {
            let list = |o: &Observed| {
                let sandboxes = o.sandboxes.iter().map(|s| format!("{} {}", s.id, s.ready));
                sandboxes.chain(o.containers.iter().map(|c| format!("{} {:?} n={}", c.id, c.state, c.restarts))).collect::<Vec<_>>()
            };
            format!("seen as of {as_of}: {:?}", seen.as_ref().map(list))
        }
        other => format!("{other:?}"),
    }
}

/// An action under way. A look sees the runtime as it was when the look began.
struct Begun {
    action: Action,
    look: Option<(u64, Observed)>,
}

const SPEC: &str = r#"{"terminationGracePeriodSeconds": 5, "initContainers": [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}],
    "containers": [{"name": "a", "image": "x", "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}, "readinessProbe": {}}, {"name": "b", "image": "x"}]}"#;

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        dice.roll(2);
        let mut spec: serde_json::Value = serde_json::from_str(SPEC).unwrap();
        spec["restartPolicy"] = ["Always", "OnFailure", "Never"][dice.roll(3)].into();
        let pod = pod(spec);
        let state = PodState::new(pod.clone(), node(), SignedDuration::from_secs(10), None);
        let mut world = World {
            dice,
            now: 0,
            state,
            wake: None,
            finished: false,
            runtime: Observed::default(),
            api: Some((*pod).clone()),
            under_way: Vec::new(),
            unseen: false,
            log: Vec::new(),
            counter: 0,
            starts: BTreeMap::new(),
            calm: false,
            disk: None,
            told: BTreeMap::new(),
        };
        world.tell(Event::Tick);
        world
    }

    fn tell(&mut self, event: Event) {
        self.log.push(format!("{}: {}", self.now, short(&event)));
        let out = on(event, &mut self.state, t(self.now));
        self.wake = out.wake;
        self.finished = out.finished;
        if let (Some(status), Some(api)) = (out.status, &mut self.api) {
            let phase = |s: Option<&PodStatus>| s.and_then(|s| s.phase.clone()).unwrap_or_default();
            let (old, new) = (phase(api.status.as_ref()), phase(Some(&status)));
            let ended = matches!(old.as_str(), "Succeeded" | "Failed");
            assert!(!ended || old == new || self.state.memory.cleaned, "a pod that ended lives again\n{}", self.log.join("\n"));
            if !self.state.memory.cleaned {
                api.status = Some(status);
            }
        }
        for action in out.actions {
            self.log.push(format!("{}:   -> {action}", self.now));
            self.begin(action);
        }
    }

    fn begin(&mut self, action: Action) {
        let same = |a: &Action| match (a, &action) {
            (Action::Start(a), Action::Start(b)) => a.container == b.container,
            (Action::Kill(a), Action::Kill(b)) => a.id == b.id && a.grace <= b.grace,
            (Action::CreateSandbox { .. }, Action::CreateSandbox { .. }) => true,
            (a, b) => a == b,
        };
        let doubled = self.under_way.iter().any(|b| same(&b.action));
        assert!(!doubled, "{action} is under way already\n{}", self.log.join("\n"));
        let look = (action == Action::Observe).then(|| (self.state.version(), self.runtime.clone()));
        match action {
            Action::ReportNetwork { .. }
            | Action::ReportEviction { .. }
            | Action::ReportResize(_)
            | Action::BackOffPull { .. }
            | Action::BackOffRestart { .. } => {}
            // The worker ends it before it does anything else.
            Action::SaveResources(record) => {
                let outcome = self.outcome();
                if outcome == Outcome::Done {
                    self.disk = Some(record);
                }
                self.tell(Event::ResourcesSaved(outcome));
            }
            Action::Probe { id, .. } => {
                let health = Health { started: true, ready: true, alive: true };
                self.tell(Event::Probed { id, health });
            }
            action => self.under_way.push(Begun { action, look }),
        }
    }

    fn fails(&mut self) -> bool {
        !self.calm && self.dice.one_in(4)
    }

    fn outcome(&mut self) -> Outcome {
        if self.fails() { Outcome::Failed } else { Outcome::Done }
    }

    /// Ends one of the actions under way.
    fn complete(&mut self) {
        let begun = self.under_way.remove(self.dice.roll(self.under_way.len()));
        let event = match begun.action {
            Action::Observe => {
                let (as_of, seen) = begun.look.unwrap();
                let answers = !self.fails();
                Event::Observed { as_of, seen: answers.then_some(seen) }
            }
            Action::Admit => Event::Admitted(Ok(())),
            Action::DecideResize { wanted } => {
                let deferred = Pending { reason: PendingReason::Deferred, message: String::new() };
                Event::ResizeDecided { wanted, verdict: if self.fails() { Err(deferred) } else { Ok(()) } }
            }
            Action::MountVolumes => Event::VolumesMounted(self.outcome()),
            Action::RefreshVolumes => Event::VolumesRefreshed(self.outcome()),
            Action::EnsureImage { container } => {
                let failed = Failed { reason: WaitingReason::ErrImagePull, message: String::new(), image: None };
                Event::Image { container, result: if self.fails() { Err(failed) } else { Ok("sha".into()) } }
            }
            Action::PostStart { id, .. } => Event::PostStarted { id, outcome: self.outcome() },
            Action::PrepareStop(prepare) => Event::StopPrepared { id: prepare.id },
            Action::TearDownVolumes => {
                self.assert_nothing_runs("volumes go");
                Event::TornDown(self.outcome())
            }
            Action::DeleteFromApi => {
                assert!(self.runtime.containers.is_empty(), "deleted before it is gone\n{}", self.log.join("\n"));
                let outcome = self.outcome();
                if outcome == Outcome::Done {
                    self.api = None;
                }
                Event::Deleted(outcome)
            }
            action => self.at_runtime(action),
        };
        self.tell(event);
    }

    fn assert_nothing_runs(&self, what: &str) {
        let running = self.runtime.containers.iter().find(|c| c.state == State::Running);
        assert!(running.is_none(), "{what} while {running:?} runs\n{}", self.log.join("\n"));
    }

    fn at_runtime(&mut self, action: Action) -> Event {
        match action {
            Action::CreateSandbox { attempt } => {
                let outcome = self.outcome();
                if outcome == Outcome::Done || self.dice.one_in(2) {
                    self.counter += 1;
                    let id = format!("s{}", self.counter);
                    let (ready, ips) = (outcome == Outcome::Done, vec!["10.1.0.2".into()]);
                    self.runtime.sandboxes.insert(0, Sandbox { id, attempt, ready, ips, ..Default::default() });
                }
                Event::SandboxCreated(outcome)
            }
            Action::StopSandbox { id } => {
                let outcome = self.outcome();
                if outcome == Outcome::Done {
                    self.lose_sandbox(&id);
                }
                Event::SandboxStopped { id, outcome }
            }
            Action::Start(start) => {
                let container = start.container.clone();
                Event::Started { container, result: self.start(&start) }
            }
            Action::Update(update) => {
                let runs = self.runtime.containers.iter().any(|c| c.id == update.id && c.state == State::Running);
                let result = if !runs || self.fails() { Err("no".to_owned()) } else { Ok(()) };
                if result.is_ok() {
                    self.told.insert(update.id.clone(), update.to);
                }
                Event::Updated { update, result }
            }
            Action::Kill(Kill { id, .. }) => {
                let outcome = self.outcome();
                if outcome == Outcome::Done {
                    self.exit(&id, 137);
                }
                Event::Killed { id, outcome }
            }
            Action::Remove { id } => {
                let outcome = self.outcome();
                let runs = self.runtime.containers.iter().any(|c| c.id == id && c.state == State::Running);
                assert!(!runs, "a running container is removed\n{}", self.log.join("\n"));
                if outcome == Outcome::Done {
                    self.runtime.containers.retain(|c| c.id != id);
                }
                Event::Removed { id, outcome }
            }
            Action::CleanUp => {
                self.assert_nothing_runs("a pod is removed");
                let outcome = self.outcome();
                if outcome == Outcome::Done {
                    self.runtime = Observed::default();
                }
                Event::CleanedUp(outcome)
            }
            other => panic!("{other} is no action at the runtime"),
        }
    }

    fn start(&mut self, start: &Start) -> Result<String, Failed> {
        let failed = |reason| Failed { reason, message: String::new(), image: None };
        let ready = self.runtime.sandboxes.iter().any(|s| s.id == start.sandbox && s.ready);
        if !ready || self.fails() {
            return Err(failed(WaitingReason::CreateContainerError));
        }
        let kind = containers(self.state.pod.spec.as_ref().unwrap()).find(|(_, c)| c.name == start.container).unwrap().0;
        let runs = self.runtime.containers.iter().any(|c| c.name == start.container && c.state == State::Running);
        assert!(!runs, "{} runs twice\n{}", start.container, self.log.join("\n"));
        let here = |name: &str| self.runtime.containers.iter().filter(|c| c.name == name && c.sandbox == start.sandbox).collect::<Vec<_>>();
        let initialized = here("i").iter().any(|c| c.state == State::Exited && c.exit_code == 0);
        assert!(kind == Kind::Init || initialized, "{} starts before the init container\n{}", start.container, self.log.join("\n"));
        let taken = self.starts.get(&(start.container.clone(), start.restarts)).cloned();
        let there = taken.filter(|id| self.runtime.containers.iter().any(|c| c.id == *id));
        assert!(there.is_none(), "restart {} of {} is there already\n{}", start.restarts, start.container, self.log.join("\n"));
        self.counter += 1;
        let id = format!("{}-{}", start.container, self.counter);
        self.starts.insert((start.container.clone(), start.restarts), id.clone());
        let broken = self.fails();
        let container = Container {
            id: id.clone(),
            sandbox: start.sandbox.clone(),
            name: start.container.clone(),
            state: if broken { State::Created } else { State::Running },
            restarts: start.restarts,
            hash: container_hash(&self.state.spec_of(&start.container).unwrap()),
            started_at: (!broken).then(|| t(self.now)),
            ..Default::default()
        };
        self.runtime.containers.insert(0, container);
        self.told.insert(id.clone(), Amounts::of(&resources(&self.state.pod)[&start.container]));
        if broken { Err(failed(WaitingReason::RunContainerError)) } else { Ok(id) }
    }

    fn exit(&mut self, id: &str, code: i32) {
        let now = t(self.now);
        for c in self.runtime.containers.iter_mut().filter(|c| c.id == id && c.state == State::Running) {
            (c.state, c.exit_code, c.finished_at) = (State::Exited, code, Some(now));
        }
        self.unseen = true;
    }

    fn lose_sandbox(&mut self, id: &str) {
        self.runtime.sandboxes.iter_mut().filter(|s| s.id == id).for_each(|s| s.ready = false);
        let inside: Vec<String> = self.runtime.containers.iter().filter(|c| c.sandbox == id).map(|c| c.id.clone()).collect();
        inside.iter().for_each(|id| self.exit(id, 137));
        self.unseen = true;
    }

    /// The agent ends. What it had begun has happened, or not.
    fn crash(&mut self) {
        self.log.push(format!("{}: crash", self.now));
        for begun in std::mem::take(&mut self.under_way) {
            let at_runtime = !matches!(
                begun.action,
                Action::Observe
                    | Action::Admit
                    | Action::DecideResize { .. }
                    | Action::MountVolumes
                    | Action::RefreshVolumes
                    | Action::EnsureImage { .. }
                    | Action::PostStart { .. }
                    | Action::PrepareStop(_)
                    | Action::TearDownVolumes
                    | Action::DeleteFromApi
            );
            if at_runtime && self.dice.one_in(2) {
                let _ = self.at_runtime(begun.action);
            }
        }
        // A pod that the API has no more is ended by another part of the agent, by its sandbox.
        let Some(api) = self.api.clone() else {
            self.finished = true;
            return;
        };
        self.state = PodState::new(Arc::new(api), node(), SignedDuration::from_secs(10), self.disk.clone());
        self.tell(Event::Tick);
    }

    /// Something happens that nobody asked for.
    fn surprise(&mut self) {
        let pick = |dice: &mut Dice, ids: Vec<String>| (!ids.is_empty()).then(|| ids[dice.roll(ids.len())].clone());
        match self.dice.roll(13) {
            0..=2 => {
                let running = self.runtime.containers.iter().filter(|c| c.state == State::Running).map(|c| c.id.clone()).collect();
                if let Some(id) = pick(&mut self.dice, running) {
                    let code = i32::from(self.dice.one_in(3));
                    self.log.push(format!("{}: {id} ends with {code}", self.now));
                    self.exit(&id, code);
                }
            }
            3 if self.dice.one_in(4) => {
                let all = self.runtime.sandboxes.iter().map(|s| s.id.clone()).collect();
                if let Some(id) = pick(&mut self.dice, all) {
                    self.log.push(format!("{}: {id} is lost", self.now));
                    self.lose_sandbox(&id);
                }
            }
            4 => self.tell(Event::SourcesChanged),
            5 => self.tell(Event::Resync),
            6 if self.dice.one_in(6) => self.crash(),
            7 if self.dice.one_in(10) => {
                if let Some(api) = &mut self.api {
                    api.metadata.deletion_timestamp = Some(Time(t(self.now)));
                    api.metadata.deletion_grace_period_seconds = Some(3);
                }
                self.echo();
            }
            8 => self.echo(),
            10 if self.dice.one_in(4) => {
                let cpu = format!("{}m", 10 + self.dice.roll(3));
                let memory = format!("{}M", 10 + self.dice.roll(3));
                if let Some(api) = &mut self.api {
                    api.metadata.generation = api.metadata.generation.map(|g| g + 1);
                    let requests = json!({"requests": {"cpu": cpu, "memory": memory}});
                    api.spec.as_mut().unwrap().containers[1].resources = serde_json::from_value(requests).unwrap();
                }
                self.echo();
            }
            9 => self.notice(),
            _ => {
                self.now += self.dice.roll(8) as i64;
                self.tell(Event::Tick);
            }
        }
    }

    /// The watch brings the pod as the API has it.
    fn echo(&mut self) {
        match &self.api {
            Some(pod) => self.tell(Event::Pod(Arc::new(pod.clone()))),
            None => self.tell(Event::Gone),
        }
    }

    fn notice(&mut self) {
        if std::mem::take(&mut self.unseen) {
            self.tell(Event::RuntimeChanged);
        }
    }

    /// From now on everything succeeds: runs until nothing is left to do.
    fn settle(&mut self) {
        self.calm = true;
        self.echo();
        for _ in 0..2000 {
            if self.finished {
                return;
            }
            self.notice();
            let init = self.runtime.containers.iter().find(|c| c.name == "i" && c.state == State::Running).map(|c| c.id.clone());
            if let Some(id) = init {
                self.exit(&id, 0);
            } else if !self.under_way.is_empty() {
                self.complete();
            } else if matches!(self.state.memory.resize.work, crate::pod::resize::Work::Pending { .. }) {
                let wanted = resources(&self.state.asked);
                self.tell(Event::ResizeDecided { wanted, verdict: Ok(()) });
            } else if let Some(at) = self.wake {
                self.now = self.now.max(at.duration_since(t(0)).as_secs() + 1);
                self.tell(Event::Tick);
            } else {
                return;
            }
        }
        panic!("the machine does not come to rest\n{}", self.log.join("\n"));
    }

    fn assert_settled(&self) {
        let log = || self.log.join("\n");
        if self.api.as_ref().is_none_or(is_deleted) {
            assert!(self.finished && self.runtime == Observed::default(), "something is left of a deleted pod: {:?}\n{}", self.runtime, log());
            return;
        }
        let api = self.api.as_ref().unwrap();
        let phase = api.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let spec = api.spec.as_ref().unwrap();
        let policy = spec.restart_policy.as_deref();
        if matches!(phase, "Succeeded" | "Failed") {
            assert_ne!(policy, Some("Always"), "a pod that restarts always ended\n{}", log());
            self.assert_nothing_runs("the pod has ended");
            return;
        }
        let running = |name: &str| self.runtime.containers.iter().any(|c| c.name == name && c.state == State::Running);
        // A pod that must not restart stays as it is when its sandbox is lost; others come up again.
        if policy == Some("Always") {
            assert!(running("a") && running("b") && running("s"), "not all containers run: {:?}\n{}", self.runtime, log());
            let ready = api.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == "Ready" && c.status == "True");
            assert!(ready, "the pod is not Ready\n{}", log());
            let b = self.runtime.containers.iter().find(|c| c.name == "b" && c.state == State::Running).unwrap();
            assert_eq!(self.told[&b.id], Amounts::of(&resources(api)["b"]), "b does not have what it asks for\n{}", log());
            let conditions = api.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let resize: Vec<_> = conditions.filter(|c| c.type_.starts_with("PodResize")).collect();
            assert!(resize.is_empty(), "the resize does not end: {resize:?}\n{}", log());
        }
    }
}

fn node() -> NodeInfo {
    NodeInfo { network_ready: true, host_ips: vec!["10.0.0.1".into()], runtime: "sim".into(), dead_kept: Some(1), recursive: vec![], resizes: true }
}

#[test]
fn a_pod_reaches_its_end_whatever_happens_on_the_way() {
    let (mut deleted, mut ended, mut running) = (0, 0, 0);
    for seed in 0..1500 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            if world.finished {
                break;
            }
            if world.under_way.is_empty() || world.dice.one_in(3) {
                world.surprise();
            } else {
                world.complete();
            }
        }
        world.settle();
        world.assert_settled();
        match &world.api {
            None => deleted += 1,
            Some(pod) if pod.status.as_ref().is_some_and(|s| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed"))) => ended += 1,
            Some(_) => running += 1,
        }
    }
    assert!(deleted > 100 && ended > 100 && running > 100, "{deleted} deleted, {ended} ended, {running} running: the dice favour one way");
}
