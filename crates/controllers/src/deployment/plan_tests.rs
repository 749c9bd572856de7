use super::*;
use crate::{deployment::status::condition, testing::replica_set};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn deployment(change: impl FnOnce(&mut DeploymentView)) -> DeploymentView {
    let mut view = DeploymentView {
        name: "web".into(),
        uid: "d".into(),
        generation: 1,
        annotations: Labels::new(),
        deleting: false,
        replicas: 3,
        strategy: Strategy::Rolling { surge: 1, unavailable: 0 },
        paused: false,
        min_ready_seconds: 0,
        history_limit: Some(10),
        deadline_seconds: Some(600),
        template: "one".into(),
        status: DeploymentStatus::default(),
    };
    change(&mut view);
    view
}

/// A small cluster: ReplicaSets that reach their desired scale at once.
struct World {
    view: DeploymentView,
    sets: Vec<RsRow>,
    clock: i64,
}

impl World {
    fn new(view: DeploymentView) -> Self {
        Self { view, sets: Vec::new(), clock: 0 }
    }

    /// One pass; pods of each ReplicaSet exist at once and `ready` says how many of them are available.
    fn step(&mut self, ready: impl Fn(&RsRow) -> i32) -> String {
        self.clock += 1;
        let plan = plan(&self.view, self.sets.clone(), 0, at(self.clock));
        for action in &plan.actions {
            match action {
                Action::Create { set, replicas, annotations, .. } => self.sets.push(replica_set(set, |row| {
                    row.template = self.view.template.clone();
                    row.replicas = *replicas;
                    row.annotations = annotations.clone();
                    row.created = Some(at(self.clock));
                })),
                Action::Scale { set, to, annotations, .. } => {
                    let row = self.sets.iter_mut().find(|row| row.name == *set).unwrap();
                    row.replicas = *to;
                    row.annotations.extend(annotations.clone());
                }
                Action::Refresh { set, annotations, min_ready_seconds } => {
                    let row = self.sets.iter_mut().find(|row| row.name == *set).unwrap();
                    row.annotations = annotations.clone();
                    row.min_ready_seconds = *min_ready_seconds;
                }
                Action::Revision(revision) => {
                    self.view.annotations.insert(REVISION.into(), revision.clone());
                }
                Action::Delete { set } => self.sets.retain(|row| row.name != *set),
            }
        }
        self.view.status = plan.status.clone();
        for row in &mut self.sets {
            row.actual = row.replicas;
            row.available = ready(row).min(row.replicas);
            row.ready = row.available;
        }
        plan.actions.iter().map(|action| format!("{action}\n")).collect()
    }

    /// Steps with all pods available until nothing is left to do.
    fn settle(&mut self) -> String {
        let mut log = String::new();
        for _ in 0..50 {
            let before = self.view.status.clone();
            let step = self.step(|row| row.replicas);
            if step.is_empty() && before == self.view.status {
                return log;
            }
            log += &step;
        }
        panic!("does not settle:\n{log}");
    }

    fn reason(&self, type_: &str) -> String {
        let one = condition(&self.view.status, type_).unwrap();
        format!("{}/{}", one.status, one.reason.as_deref().unwrap())
    }
}

#[test]
fn a_first_rollout() {
    let mut world = World::new(deployment(|_| {}));
    assert_eq!(world.step(|_| 0), "create web-one with 3 replicas as revision 1\nnote revision 1\n");
    assert_eq!(world.reason("Available"), "False/MinimumReplicasUnavailable");
    assert_eq!(world.reason("Progressing"), "True/NewReplicaSetCreated");
    assert_eq!(world.step(|_| 2), "");
    assert_eq!(world.reason("Progressing"), "True/ReplicaSetUpdated");
    assert_eq!(world.settle(), "");
    assert_eq!(world.reason("Available"), "True/MinimumReplicasAvailable");
    assert_eq!(world.reason("Progressing"), "True/NewReplicaSetAvailable");
    assert_eq!(world.view.status.unavailable_replicas, None);
}

#[test]
fn rolling_update_never_misses_a_pod() {
    let mut world = World::new(deployment(|_| {}));
    world.settle();
    world.view.template = "two".into();
    world.view.generation = 2;
    let log = world.settle();
    assert_eq!(
        log,
        "create web-two with 1 replicas as revision 2\nnote revision 2\n\
         scale web-one from 3 to 2\nscale web-two from 1 to 2\n\
         scale web-one from 2 to 1\nscale web-two from 2 to 3\n\
         scale web-one from 1 to 0\n"
    );
    assert_eq!(world.reason("Progressing"), "True/NewReplicaSetAvailable");
}

#[test]
fn pods_that_never_work_are_replaced_first() {
    let mut world = World::new(deployment(|view| view.strategy = Strategy::Rolling { surge: 1, unavailable: 1 }));
    world.settle();
    world.view.template = "broken".into();
    let ready = |row: &RsRow| if row.template == "one" { row.replicas } else { 0 };
    let log: String = (0..6).map(|_| world.step(ready)).collect();
    assert_eq!(log, "create web-broken with 1 replicas as revision 2\nnote revision 2\nscale web-one from 3 to 2\nscale web-broken from 1 to 2\n");
    world.view.template = "fixed".into();
    let ready = |row: &RsRow| if row.template == "broken" { 0 } else { row.replicas };
    let log: String = (0..8).map(|_| world.step(ready)).collect();
    assert!(log.contains("scale web-broken from 2 to 0\n"), "{log}");
    assert_eq!(world.sets.iter().map(|row| row.replicas).collect::<Vec<_>>(), [0, 0, 3], "{log}");
}

#[test]
fn going_back_reuses_the_old_replica_set() {
    let mut world = World::new(deployment(|_| {}));
    world.settle();
    world.view.template = "two".into();
    world.settle();
    world.view.template = "one".into();
    let log = world.settle();
    assert!(log.starts_with("refresh the annotations of web-one\nnote revision 3\nscale web-one from 0 to 1\n"), "{log}");
    let row = world.sets.iter().find(|row| row.name == "web-one").unwrap();
    assert_eq!(row.annotations[REVISION_HISTORY], "1");
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let mut world = World::new(deployment(|view| view.strategy = Strategy::Recreate));
    world.settle();
    world.view.template = "two".into();
    assert_eq!(world.step(|row| row.replicas), "scale web-one from 3 to 0\n");
    let waiting = plan(&world.view, world.sets.clone(), 1, at(100));
    assert_eq!(waiting.actions, [], "a pod is still there");
    assert_eq!(world.settle(), "create web-two with 3 replicas as revision 2\nnote revision 2\n");
}

#[test]
fn a_changed_number_amidst_a_rollout_is_spread() {
    let mut world = World::new(deployment(|view| {
        view.replicas = 10;
        view.strategy = Strategy::Rolling { surge: 3, unavailable: 2 };
    }));
    world.settle();
    world.view.template = "two".into();
    world.step(|row| if row.template == "one" { row.replicas } else { 0 });
    assert_eq!(world.sets.iter().map(|row| row.replicas).collect::<Vec<_>>(), [8, 3]);
    world.view.replicas = 20;
    let log = world.step(|row| if row.template == "one" { row.replicas } else { 0 });
    assert_eq!(log, "scale web-one from 8 to 18\nscale web-two from 3 to 5\n");
    world.settle();
    assert_eq!(world.sets.iter().map(|row| row.replicas).collect::<Vec<_>>(), [0, 20]);
    world.view.replicas = 0;
    world.settle();
    assert_eq!(world.sets.iter().map(|row| row.replicas).collect::<Vec<_>>(), [0, 0]);
    world.view.replicas = 5;
    assert_eq!(world.settle(), "scale web-two from 0 to 5\n");
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut world = World::new(deployment(|_| {}));
    world.settle();
    world.view.paused = true;
    world.view.template = "two".into();
    world.view.replicas = 4;
    assert_eq!(world.settle(), "scale web-one from 3 to 4\n");
    assert_eq!(world.reason("Progressing"), "Unknown/DeploymentPaused");
    world.view.paused = false;
    let log = world.step(|row| row.replicas);
    assert_eq!(log, "create web-two with 1 replicas as revision 2\nnote revision 2\n");
}

#[test]
fn history_beyond_the_limit_is_deleted() {
    let mut world = World::new(deployment(|view| view.history_limit = Some(1)));
    for template in ["one", "two", "three"] {
        world.view.template = template.into();
        world.settle();
    }
    assert_eq!(world.sets.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["web-two", "web-three"]);
}

#[test]
fn a_rollout_without_progress_times_out() {
    let mut world = World::new(deployment(|_| {}));
    world.step(|_| 0);
    world.step(|_| 0);
    let plan_now = plan(&world.view, world.sets.clone(), 0, at(10));
    let recheck = plan_now.recheck.expect("the deadline is watched");
    assert!((590..=601).contains(&recheck.as_secs()), "{recheck:?}");
    world.clock = 700;
    world.step(|_| 0);
    assert_eq!(world.reason("Progressing"), "False/ProgressDeadlineExceeded");
    world.step(|row| row.replicas);
    world.settle();
    assert_eq!(world.reason("Progressing"), "True/NewReplicaSetAvailable");
}

#[test]
fn a_failing_replica_set_shows_on_its_deployment() {
    let mut world = World::new(deployment(|_| {}));
    world.step(|_| 0);
    world.sets[0].conditions = vec![k8s_openapi::api::apps::v1::ReplicaSetCondition {
        type_: "ReplicaFailure".into(),
        status: "True".into(),
        reason: Some("FailedCreate".into()),
        ..Default::default()
    }];
    world.step(|_| 0);
    assert_eq!(world.reason("ReplicaFailure"), "True/FailedCreate");
    world.sets[0].conditions.clear();
    world.settle();
    assert!(condition(&world.view.status, "ReplicaFailure").is_none());
}
