//! Allowed disruptions of one budget: pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    apimachinery::pkg::{
        apis::meta::v1::{Condition, Time},
        util::intstr::IntOrString,
    },
};

use crate::{deployment::scaled, view::PodRow};
use kube_rules::Selector;

/// How long an evicted pod may take until its deletion shows (upstream: `DeletionTimeout`).
const DELETION: SignedDuration = SignedDuration::from_secs(120);
/// The condition that says whether a pod may go.
const ALLOWED: &str = "DisruptionAllowed";

/// How many pods a budget demands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Demand {
    AtLeast(IntOrString),
    MissingAtMost(IntOrString),
    Nothing,
}

/// Row of a PodDisruptionBudget.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BudgetRow {
    pub uid: String,
    pub generation: i64,
    pub selector: Selector,
    pub demand: Demand,
    pub status: PodDisruptionBudgetStatus,
}

impl BudgetRow {
    pub fn new(budget: &PodDisruptionBudget) -> Self {
        let spec = budget.spec.clone().unwrap_or_default();
        Self {
            uid: budget.metadata.uid.clone().unwrap_or_default(),
            generation: budget.metadata.generation.unwrap_or_default(),
            // No selector matches nothing, the empty one everything.
            selector: spec.selector.as_ref().map_or_else(Selector::nothing, Selector::new),
            demand: match (spec.max_unavailable, spec.min_available) {
                (Some(most), _) => Demand::MissingAtMost(most),
                (None, Some(least)) => Demand::AtLeast(least),
                (None, None) => Demand::Nothing,
            },
            status: budget.status.clone().unwrap_or_default(),
        }
    }

    /// Whether the number of pods that there should be matters, which only their controllers know.
    pub fn needs_scale(&self) -> bool {
        matches!(self.demand, Demand::MissingAtMost(_) | Demand::AtLeast(IntOrString::String(_)))
    }
}

/// Input of a plan.
pub(super) struct Input<'a> {
    pub budget: &'a BudgetRow,
    /// The pods that the budget selects, by name.
    pub pods: &'a [(String, Arc<PodRow>)],
    /// How many pods their controllers want, or why that is not known.
    pub scale: &'a Result<i32, String>,
    pub now: Timestamp,
}

/// Status to write, and when to process the budget again without a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub status: PodDisruptionBudgetStatus,
    pub recheck: Option<Duration>,
    /// Evicted pods that did not go.
    pub stayed: Vec<String>,
}

/// Counts (upstream: `pkg/controller/disruption` `trySync`).
pub(super) fn plan(input: &Input<'_>) -> Plan {
    let Input { budget, pods, scale, now } = *input;
    let (disrupted, recheck, stayed) = disrupted(input);
    let healthy = pods.iter().filter(|(name, pod)| pod.ready.is_some() && !pod.deleting && !disrupted.contains_key(name)).count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let counted = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    let (expected, desired) = match (&budget.demand, scale) {
        (Demand::AtLeast(IntOrString::Int(least)), _) => (counted, *least),
        (Demand::Nothing, _) => (0, 0),
        (_, Err(why)) => return Plan { status: failed(budget, why, now), recheck, stayed },
        (Demand::AtLeast(least), Ok(scale)) => (*scale, scaled(least, *scale, true)),
        (Demand::MissingAtMost(most), Ok(scale)) => (*scale, (*scale - scaled(most, *scale, true)).max(0)),
    };
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let reason = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let status = PodDisruptionBudgetStatus {
        conditions: Some(conditions(budget, reason, "", now)),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: Some(budget.generation),
    };
    Plan { status, recheck, stayed }
}

/// Evicted pods whose deletion does not show yet; after a while they count as not deleted.
fn disrupted(input: &Input<'_>) -> (BTreeMap<String, Time>, Option<Duration>, Vec<String>) {
    let (mut kept, mut recheck, mut stayed) = (BTreeMap::new(), None::<Duration>, Vec::new());
    for (name, since) in input.budget.status.disrupted_pods.iter().flatten() {
        if !input.pods.iter().any(|(pod, row)| pod == name && !row.deleting) {
            continue;
        }
        let left = (since.0 + DELETION).duration_since(input.now);
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => {
                kept.insert(name.clone(), since.clone());
                recheck = Some(recheck.map_or(left, |other| other.min(left)));
            }
            _ => stayed.push(name.clone()),
        }
    }
    (kept, recheck, stayed)
}

/// Nobody may go while the numbers are unknown.
fn failed(budget: &BudgetRow, why: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    PodDisruptionBudgetStatus {
        conditions: Some(conditions(budget, ("False", "SyncFailed"), why, now)),
        disruptions_allowed: Some(0),
        ..budget.status.clone()
    }
}

fn conditions(budget: &BudgetRow, (status, reason): (&str, &str), message: &str, now: Timestamp) -> Vec<Condition> {
    let mut all = budget.status.conditions.clone().unwrap_or_default();
    let since = all.iter().find(|one| one.type_ == ALLOWED && one.status == status).map(|one| one.last_transition_time.clone());
    let present = all.iter().position(|one| one.type_ == ALLOWED);
    let condition = Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: Some(budget.generation),
        last_transition_time: since.unwrap_or_else(|| Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
    };
    match present {
        Some(index) => all[index] = condition,
        None => all.push(condition),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn budget(demand: Demand) -> BudgetRow {
        BudgetRow { demand, ..BudgetRow::new(&PodDisruptionBudget::default()) }
    }

    fn pods(ready: usize, waiting: usize) -> Vec<(String, Arc<PodRow>)> {
        let one = |index: usize| pod(&format!("web-{index}"), |row| row.ready = (index < ready).then(|| at(0)));
        (0..ready + waiting).map(one).collect()
    }

    fn percent(text: &str) -> IntOrString {
        IntOrString::String(text.into())
    }

    #[test]
    fn disruptions_allowed_by_budget() {
        let none = Err("found no controllers".to_owned());
        for (what, demand, pods, scale, expected) in [
            ("two must stay", Demand::AtLeast(IntOrString::Int(2)), pods(3, 0), &none, (3, 2, 1, 3)),
            ("too few are healthy", Demand::AtLeast(IntOrString::Int(2)), pods(1, 2), &none, (1, 2, 0, 3)),
            ("half must stay", Demand::AtLeast(percent("50%")), pods(5, 0), &Ok(5), (5, 3, 2, 5)),
            ("one may be missing", Demand::MissingAtMost(IntOrString::Int(1)), pods(4, 0), &Ok(4), (4, 3, 1, 4)),
            ("one is missing already", Demand::MissingAtMost(IntOrString::Int(1)), pods(3, 1), &Ok(4), (3, 3, 0, 4)),
            ("a share of them may be missing", Demand::MissingAtMost(percent("50%")), pods(3, 0), &Ok(3), (3, 1, 2, 3)),
            ("there are none", Demand::MissingAtMost(IntOrString::Int(1)), pods(0, 0), &Ok(0), (0, 0, 0, 0)),
        ] {
            let status = plan(&Input { budget: &budget(demand), pods: &pods, scale, now: at(100) }).status;
            let numbers = (status.current_healthy, status.desired_healthy, status.disruptions_allowed, status.expected_pods);
            let (healthy, desired, allowed, total) = expected;
            assert_eq!(numbers, (Some(healthy), Some(desired), Some(allowed), Some(total)), "{what}");
            let condition = &status.conditions.unwrap()[0];
            assert_eq!(condition.reason, if allowed > 0 { "SufficientPods" } else { "InsufficientPods" }, "{what}");
        }
    }

    #[test]
    fn no_disruption_is_allowed_while_counts_are_unknown() {
        let demand = Demand::MissingAtMost(IntOrString::Int(1));
        let why = "daemonsets does not implement the scale subresource";
        let status = plan(&Input { budget: &budget(demand), pods: &pods(2, 0), scale: &Err(why.to_owned()), now: at(100) }).status;
        let condition = &status.conditions.unwrap()[0];
        assert_eq!(status.disruptions_allowed, Some(0));
        assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("SyncFailed", why));
    }

    #[test]
    fn evicted_pod_is_unhealthy_until_it_is_deleted_or_times_out() {
        let mut row = budget(Demand::AtLeast(IntOrString::Int(1)));
        row.status.disrupted_pods = Some([("web-0".to_owned(), Time(at(50))), ("gone".to_owned(), Time(at(50)))].into());
        let soon = plan(&Input { budget: &row, pods: &pods(2, 0), scale: &Ok(2), now: at(100) });
        assert_eq!((soon.status.current_healthy, soon.status.disruptions_allowed), (Some(1), Some(0)));
        assert_eq!(soon.status.disrupted_pods.unwrap().len(), 1, "what is gone is forgotten");
        assert_eq!(soon.recheck, Some(Duration::from_secs(70)));
        let late = plan(&Input { budget: &row, pods: &pods(2, 0), scale: &Ok(2), now: at(200) });
        assert_eq!((late.status.current_healthy, late.stayed), (Some(2), vec!["web-0".to_owned()]));
    }
}
