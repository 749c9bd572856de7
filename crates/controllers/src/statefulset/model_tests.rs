//! Random rollouts: pods come and go in order, no update takes more of them than it may, and every rollout ends.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use proptest::prelude::*;

use super::{
    plan::{Input, Plan, Step, plan},
    rows::{NAME_LABEL, SetPod, SetView, Strategy as Update},
};
use crate::revisions::HASH_LABEL;

/// Changes around the controller.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Ready(i32),
    Unready(i32),
    Fail(i32),
    /// A pod that is being deleted is gone.
    Gone(i32),
    Scale(i32),
    NewTemplate,
    Pass,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0..5).prop_map(Happening::Ready),
        1 => (0..5).prop_map(Happening::Unready),
        1 => (0..5).prop_map(Happening::Fail),
        3 => (0..5).prop_map(Happening::Gone),
        1 => (0..5).prop_map(Happening::Scale),
        1 => Just(Happening::NewTemplate),
        6 => Just(Happening::Pass),
    ]
}

struct World {
    view: SetView,
    pods: BTreeMap<i32, SetPod>,
    template: u32,
    born: u32,
}

impl World {
    fn new(parallel: bool, partition: i32, unavailable: Option<i32>) -> Self {
        let mut view = SetView::new(&StatefulSet::default(), &Default::default());
        (view.name, view.replicas, view.parallel) = ("web".into(), 3, parallel);
        view.strategy = Update::Rolling { partition, unavailable };
        Self { view, pods: BTreeMap::new(), template: 1, born: 0 }
    }

    fn change(&mut self, ordinal: i32, change: impl Fn(&mut SetPod)) {
        if let Some(pod) = self.pods.get_mut(&ordinal) {
            change(pod);
        }
    }

    fn happen(&mut self, happening: Happening) -> Option<Plan> {
        match happening {
            Happening::Ready(ordinal) => self.change(ordinal, |pod| {
                if !pod.is_finished() {
                    (pod.phase, pod.ready) = ("Running".into(), Some(Timestamp::UNIX_EPOCH));
                }
            }),
            Happening::Unready(ordinal) => self.change(ordinal, |pod| pod.ready = None),
            Happening::Fail(ordinal) => self.change(ordinal, |pod| (pod.phase, pod.ready) = ("Failed".into(), None)),
            Happening::Gone(ordinal) => self.pods.retain(|key, pod| *key != ordinal || !pod.deleting),
            Happening::Scale(replicas) => self.view.replicas = replicas,
            Happening::NewTemplate => self.template += 1,
            Happening::Pass => return Some(self.pass()),
        }
        None
    }

    fn pass(&mut self) -> Plan {
        let update = format!("web-{}", self.template);
        let current = self.view.status.current_revision.clone().unwrap_or_else(|| update.clone());
        let pods: Vec<Arc<SetPod>> = self.pods.values().cloned().map(Arc::new).collect();
        let input = Input {
            view: &self.view,
            pods: &pods,
            claims: &BTreeMap::new(),
            current: &current,
            update: &update,
            collisions: None,
            settled: true,
            now: Timestamp::UNIX_EPOCH,
        };
        let plan = plan(&input);
        for step in &plan.steps {
            match step {
                Step::Create { ordinal, revision } => self.create(*ordinal, revision),
                Step::Delete { ordinal } => self.change(*ordinal, |pod| pod.deleting = true),
                other => panic!("without claims there is nothing to mend: {other}"),
            }
        }
        self.view.status = plan.status.clone();
        plan
    }

    fn create(&mut self, ordinal: i32, revision: &str) {
        let mut pod = SetPod::new(&Pod::default()).unwrap();
        self.born += 1;
        (pod.name, pod.uid, pod.phase) = (format!("web-{ordinal}"), self.born.to_string(), "Pending".into());
        pod.labels = [(HASH_LABEL.to_owned(), revision.to_owned()), (NAME_LABEL.to_owned(), pod.name.clone())].into();
        assert!(self.pods.insert(ordinal, pod).is_none(), "two pods of ordinal {ordinal}");
    }

    /// How many wanted pods are missing or not ready.
    fn unavailable(&self) -> usize {
        let bad = |ordinal: &i32| self.pods.get(ordinal).is_none_or(|pod| pod.deleting || !pod.is_ready());
        (0..self.view.replicas).filter(bad).count()
    }
}

proptest! {
    #[test]
    fn pods_move_in_order_and_every_rollout_ends(
        parallel: bool,
        partition in 0..3,
        unavailable in prop_oneof![Just(None), (1..3).prop_map(Some)],
        happenings in prop::collection::vec(happening(), 0..80),
    ) {
        let mut world = World::new(parallel, partition, unavailable);
        for one in happenings {
            let before = world.unavailable();
            let ready_before = |world: &World, ordinal: i32| (0..ordinal).all(|lower| world.pods.get(&lower).is_some_and(SetPod::is_ready));
            let failed: Vec<i32> = world.pods.iter().filter(|(_, pod)| pod.is_finished()).map(|(ordinal, _)| *ordinal).collect();
            let Some(plan) = world.happen(one) else { continue };
            let allowed = usize::try_from(unavailable.unwrap_or(1)).unwrap();
            let rolled = plan.steps.iter().filter(|step| matches!(step, Step::Delete { ordinal } if world.view.wants(*ordinal) && !failed.contains(ordinal)));
            // As upstream's, an update of parallel pods without a limit looks at those behind it only.
            let blind = parallel && unavailable.is_none();
            prop_assert!(rolled.clone().count() == 0 || world.unavailable() <= allowed.max(before) + usize::from(blind), "{plan}");
            let below = rolled.clone().any(|step| matches!(step, Step::Delete { ordinal } if *ordinal < partition));
            prop_assert!(!below, "nothing below the partition is updated: {plan}");
            if !parallel {
                prop_assert!(plan.steps.len() <= if unavailable.is_some() { allowed } else { 1 }, "one after the other: {plan}");
                for step in &plan.steps {
                    if let Step::Create { ordinal, .. } = step {
                        prop_assert!(ready_before(&world, *ordinal), "those before it are ready: {plan}");
                    }
                }
            }
        }
        // From now on all goes well. Somebody deletes failed pods that are not wanted any more: two of them stop an ordered
        // scaling down, in upstream too (`processCondemned` in stateful_set_control.go).
        for _ in 0..60 {
            world.pass();
            let view = &world.view;
            world.pods.retain(|ordinal, pod| !pod.deleting && (view.wants(*ordinal) || !pod.is_finished()));
            (0..5).for_each(|ordinal| { world.happen(Happening::Ready(ordinal)); });
        }
        prop_assert_eq!(world.pass().to_string(), "nothing");
        prop_assert_eq!(world.pods.keys().copied().collect::<Vec<_>>(), (0..world.view.replicas).collect::<Vec<_>>());
        let newest = format!("web-{}", world.template);
        prop_assert!(world.pods.range(partition..).all(|(_, pod)| pod.revision() == newest));
    }
}
