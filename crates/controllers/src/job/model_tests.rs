//! Whatever happens to pods, and wherever the controller is stopped, each end of a pod is counted exactly once.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    batch::v1::{JobSpec, JobStatus},
    core::v1::Pod,
};
use proptest::prelude::*;

use super::{
    plan::{Input, NewPod, Work},
    record::Record,
    rows::{JobPod, JobView, ended},
};

const COMPLETIONS: i32 = 5;

/// A place at which the controller may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Nowhere,
    AfterSteps,
    AfterFirstWrite,
    AmidReleases,
    BeforeLastWrite,
}

#[derive(Debug, Clone)]
enum Happening {
    Ends { which: usize, well: bool },
    IsDeleted { which: usize },
    Pass(Stop),
}

fn happening() -> impl Strategy<Value = Happening> {
    let stop =
        prop_oneof![Just(Stop::Nowhere), Just(Stop::AfterSteps), Just(Stop::AfterFirstWrite), Just(Stop::AmidReleases), Just(Stop::BeforeLastWrite)];
    prop_oneof![
        (any::<usize>(), any::<bool>()).prop_map(|(which, well)| Happening::Ends { which, well }),
        any::<usize>().prop_map(|which| Happening::IsDeleted { which }),
        stop.prop_map(Happening::Pass),
    ]
}

/// The API server and the nodes, as far as one Job goes.
struct World {
    job: JobView,
    pods: Vec<Arc<JobPod>>,
    created: usize,
    succeeded: i32,
    failed: i32,
    now: Timestamp,
}

impl World {
    fn new(indexed: bool) -> Self {
        let spec = JobSpec {
            parallelism: Some(3),
            completions: Some(COMPLETIONS),
            backoff_limit: Some(1000),
            completion_mode: indexed.then(|| "Indexed".to_owned()),
            ..Default::default()
        };
        let job = JobView { ns: "a".into(), deleting: false, spec, status: JobStatus::default() };
        Self { job, pods: Vec::new(), created: 0, succeeded: 0, failed: 0, now: Timestamp::from_second(1000).unwrap() }
    }

    fn change(&mut self, uid: &str, change: impl Fn(&mut JobPod)) {
        for pod in &mut self.pods {
            if pod.uid == uid {
                change(Arc::make_mut(pod));
            }
        }
        // Nothing holds a deleted pod without finalizer.
        self.pods.retain(|pod| pod.tracked || !pod.deleting);
    }

    fn active(&self, which: usize) -> Option<String> {
        let active: Vec<&Arc<JobPod>> = self.pods.iter().filter(|pod| pod.is_active()).collect();
        (!active.is_empty()).then(|| active[which % active.len()].uid.clone())
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Pass(stop) => self.pass(*stop),
            Happening::Ends { which, well } => {
                let Some(uid) = self.active(*which) else { return };
                let now = self.now;
                self.change(&uid, |pod| (pod.phase, pod.ended) = (if *well { "Succeeded" } else { "Failed" }.to_owned(), now));
                *(if *well { &mut self.succeeded } else { &mut self.failed }) += 1;
            }
            Happening::IsDeleted { which } => {
                let Some(uid) = self.active(*which) else { return };
                let now = self.now;
                self.change(&uid, |pod| (pod.deleting, pod.ended) = (true, now));
                self.failed += 1;
            }
        }
    }

    fn create(&mut self, new: &NewPod) {
        let mut pod = JobPod::new(&Pod::default()).unwrap();
        self.created += 1;
        (pod.uid, pod.phase, pod.tracked, pod.index) = (self.created.to_string(), "Running".to_owned(), true, new.index);
        self.pods.push(Arc::new(pod));
    }

    /// One pass of the controller.
    fn pass(&mut self, stop: Stop) {
        self.now = self.now.checked_add(SignedDuration::from_secs(1000)).unwrap();
        if ended(&self.job.status).is_some() {
            return;
        }
        let (job, pods) = (self.job.clone(), self.pods.clone());
        let none = BTreeSet::new();
        let input = Input { job: &job, pods: &pods, released: &none, coming: 0, settled: true, record: Record::default(), now: self.now };
        let mut work = Work::begin(&input);
        let steps = work.steps();
        assert!(steps.remove.is_empty() && steps.kill.is_empty(), "nothing is too many: {steps}");
        steps.create.iter().for_each(|new| self.create(new));
        if stop == Stop::AfterSteps {
            return;
        }
        work.carried_out(&steps, true);
        let release = work.track();
        if work.dirty {
            self.job.status = work.status.clone();
            work.dirty = false;
        }
        if stop == Stop::AfterFirstWrite {
            return;
        }
        let some = if stop == Stop::AmidReleases { release.len() / 2 } else { release.len() };
        let gone: BTreeSet<String> = release.iter().take(some).map(|pod| pod.uid.clone()).collect();
        gone.iter().for_each(|uid| self.change(uid, |pod| pod.tracked = false));
        if matches!(stop, Stop::AmidReleases | Stop::BeforeLastWrite) {
            return;
        }
        work.settle(&gone);
        if work.dirty {
            self.job.status = work.status.clone();
        }
    }
}

proptest! {
    #[test]
    fn each_end_is_counted_once(indexed: bool, happenings in prop::collection::vec(happening(), 0..60)) {
        let mut world = World::new(indexed);
        for one in &happenings {
            world.happen(one);
            let status = &world.job.status;
            prop_assert!(status.succeeded.unwrap_or_default() <= world.succeeded && status.failed.unwrap_or_default() <= world.failed);
        }
        // From now on all goes well.
        for _ in 0..20 {
            world.pass(Stop::Nowhere);
            while world.active(0).is_some() {
                world.happen(&Happening::Ends { which: 0, well: true });
            }
        }
        let status = &world.job.status;
        prop_assert!(ended(status).is_some_and(|end| end.complete), "{status:?}");
        prop_assert_eq!(status.failed.unwrap_or_default(), world.failed);
        // An index succeeds once, and so does each pod.
        prop_assert_eq!(status.succeeded, Some(world.succeeded));
        prop_assert_eq!(world.succeeded, COMPLETIONS);
        prop_assert!(world.pods.iter().all(|pod| !pod.tracked), "no pod is held back");
        if indexed {
            prop_assert_eq!(status.completed_indexes.as_deref(), Some("0-4"));
        }
    }
}
