//! Random rollouts over random nodes: the controller never takes more availability than the strategy allows, and every rollout ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
        core::v1::Node,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use proptest::{
    prelude::{Just, TestCaseError},
    prop_assert, prop_assert_eq, prop_oneof, proptest,
    strategy::Strategy as _,
};

use super::*;
use crate::{revisions::HASH_LABEL, testing::pod};

/// Changes around the controller.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The pods on a node become ready.
    Ready(u8),
    /// They stop being ready.
    Unready(u8),
    /// One fails for good.
    Fail(u8),
    /// Those being deleted on a node are gone.
    Gone(u8),
    /// A new template.
    Update,
    Pass,
}

fn actions() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        3 => (0u8..6).prop_map(Step::Ready),
        1 => (0u8..6).prop_map(Step::Unready),
        1 => (0u8..6).prop_map(Step::Fail),
        3 => (0u8..6).prop_map(Step::Gone),
        1 => Just(Step::Update),
        6 => Just(Step::Pass),
    ];
    proptest::collection::vec(action, 1..60)
}

struct Model {
    view: DaemonView,
    nodes: Vec<(String, Arc<NodeRow>)>,
    pods: BTreeMap<String, PodRow>,
    template: u32,
    born: i64,
}

impl Model {
    fn new(nodes: u8, unavailable: i32, surge: i32) -> Self {
        let numbers = RollingUpdateDaemonSet { max_unavailable: Some(IntOrString::Int(unavailable)), max_surge: Some(IntOrString::Int(surge)) };
        let strategy = DaemonSetUpdateStrategy { type_: None, rolling_update: Some(numbers) };
        let spec = DaemonSetSpec { update_strategy: Some(strategy), ..Default::default() };
        let node = |index: u8| (format!("n{index}"), Arc::new(NodeRow::new(&Node::default())));
        let view = DaemonView::new(&DaemonSet::default(), &spec);
        Self { view, nodes: (0..nodes).map(node).collect(), pods: BTreeMap::new(), template: 0, born: 0 }
    }

    fn on(&mut self, node: u8) -> impl Iterator<Item = &mut PodRow> {
        self.pods.values_mut().filter(move |pod| pod.node == format!("n{node}"))
    }

    fn act(&mut self, action: Step) -> Result<(), TestCaseError> {
        match action {
            Step::Ready(node) => self.on(node).filter(|pod| !pod.is_finished()).for_each(|pod| pod.ready = Some(Timestamp::UNIX_EPOCH)),
            Step::Unready(node) => self.on(node).for_each(|pod| pod.ready = None),
            Step::Fail(node) => {
                if let Some(pod) = self.on(node).next() {
                    pod.ready = None;
                    "Failed".clone_into(&mut pod.phase);
                }
            }
            Step::Gone(node) => self.pods.retain(|_, pod| !(pod.deleting && pod.node == format!("n{node}"))),
            Step::Update => self.template += 1,
            Step::Pass => return self.pass().map(|_| ()),
        }
        Ok(())
    }

    /// How many nodes have an available pod that is not being deleted.
    fn served(&self) -> usize {
        let available = self.pods.values().filter(|pod| pod.ready.is_some() && !pod.deleting);
        available.map(|pod| pod.node.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// One pass; says whether it did anything.
    fn pass(&mut self) -> Result<bool, TestCaseError> {
        let hash = format!("t{}", self.template);
        let pods: Vec<_> = self.pods.iter().map(|(name, row)| (name.clone(), Arc::new(row.clone()))).collect();
        let (observed, resting) = (Observed::default(), BTreeSet::new());
        let now = Timestamp::from_second(1_000_000).unwrap();
        let input = Input { view: &self.view, hash: &hash, nodes: &self.nodes, pods: &pods, observed: &observed, resting: &resting, now };
        let plan = plan(&input);
        let before = self.served();
        for name in &plan.delete {
            self.pods.get_mut(name).unwrap().deleting = true;
        }
        let after = self.served();
        let (unavailable, surge) = self.view.strategy.limits(self.nodes.len());
        if after < before {
            prop_assert_eq!(surge, 0, "with a surge nothing available goes before its successor is: {}", &plan);
            // Old pods that do not work are replaced besides, as upstream has it.
            prop_assert!(before - after <= unavailable, "{} of {} taken: {}", before - after, before, &plan);
        }
        for node in &plan.create {
            self.born += 1;
            let born = self.born;
            let (name, row) = pod(&format!("p{born}"), |row| {
                row.node.clone_from(node);
                row.created = Timestamp::from_second(born).ok();
                row.labels.insert(HASH_LABEL.into(), hash.clone());
            });
            self.pods.insert(name, (*row).clone());
        }
        let mut alive: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| !pod.deleting && !pod.is_finished()) {
            *alive.entry(&pod.node).or_default() += 1;
        }
        let doubled = alive.values().filter(|count| **count > 1).count();
        prop_assert!(alive.values().all(|count| *count <= 2), "three on a node: {}", &plan);
        prop_assert!(surge > 0 || doubled == 0, "two on a node without a surge: {}", &plan);
        Ok(!plan.create.is_empty() || !plan.delete.is_empty())
    }
}

proptest! {
    #[test]
    fn every_rollout_keeps_its_promise_and_ends(nodes in 1u8..6, unavailable in 0i32..4, surge in 0i32..4, actions in actions()) {
        let mut model = Model::new(nodes, unavailable, if unavailable == 0 { surge } else { 0 });
        for action in actions {
            model.act(action)?;
        }
        // From here on everything works.
        let mut rounds = 0;
        let mut busy = true;
        while busy {
            for node in 0..nodes {
                model.act(Step::Gone(node))?;
                model.act(Step::Ready(node))?;
            }
            busy = model.pass()?;
            rounds += 1;
            prop_assert!(rounds < 60, "it does not end");
        }
        let hash = format!("t{}", model.template);
        prop_assert_eq!(model.pods.len(), usize::from(nodes));
        prop_assert!(model.pods.values().all(|pod| pod.labels[HASH_LABEL] == hash && pod.ready.is_some()));
    }
}
