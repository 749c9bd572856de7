//! Which pods make room for a critical pod that the node has too little left for (upstream pkg/kubelet/preemption); pure.
//!
//! Best-effort pods go before burstable ones, and those before guaranteed ones; of one class as few as possible, and of as many the ones that
//! request least.

use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_rules::Refusal;
use kube_rules::requests::{self, Shortage};
use kube_rules::{pod_requests, qos_class};

use crate::eviction::is_critical;

/// What events and statuses of pods say that made room.
pub(crate) const MESSAGE: &str = "Preempted in order to admit critical pod";
/// What their condition DisruptionTarget says.
pub(crate) const DISRUPTION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// A pod of the node.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub uid: String,
    pub pod: Arc<Pod>,
    pub is_static: bool,
}

/// What is still missing of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lack {
    name: String,
    amount: i64,
}

fn priority(pod: &Pod) -> Option<i32> {
    pod.spec.as_ref()?.priority
}

/// Whether `pod` may take the place of `other`.
fn may_preempt(pod: &Pod, is_static: bool, other: &Candidate) -> bool {
    if is_critical(pod, is_static) && !is_critical(&other.pod, other.is_static) {
        return true;
    }
    priority(pod).zip(priority(&other.pod)).is_some_and(|(own, other)| own > other)
}

/// What a pod would give back of a resource. Each counts as one pod.
fn request(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    let all = pod.spec.as_ref().map(|spec| requests::counts(&pod_requests(spec))).unwrap_or_default();
    all.get(resource).copied().unwrap_or(0)
}

/// What is missing once these pods are gone.
fn without<'a>(lacks: &[Lack], pods: impl Iterator<Item = &'a Candidate> + Clone) -> Vec<Lack> {
    let left = |lack: &Lack| {
        let freed = pods.clone().map(|c| request(&c.pod, &lack.name)).fold(0, i64::saturating_add);
        Lack { name: lack.name.clone(), amount: lack.amount.saturating_sub(freed) }
    };
    lacks.iter().map(left).filter(|lack| lack.amount > 0).collect()
}

/// How much would be missing after a pod is gone, each resource by its share.
fn distance(lacks: &[Lack], pod: &Pod) -> f64 {
    let share = |lack: &Lack| (lack.amount.saturating_sub(request(pod, &lack.name)).max(0) as f64 / lack.amount as f64).powi(2);
    lacks.iter().map(share).sum()
}

fn is_smaller(a: &Pod, b: &Pod) -> bool {
    let size = |pod: &Pod| (request(pod, "memory"), request(pod, "cpu"));
    size(a) <= size(b)
}

fn refused(lacks: &[Lack]) -> Refusal {
    let list = lacks.iter().fold(String::new(), |mut list, lack| {
        // Writing to a text does not fail.
        let _ = write!(list, "(res: {}, q: {}), ", lack.name, lack.amount);
        list
    });
    let message = format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: \
         no set of running pods found to reclaim resources: [{list}]"
    );
    Refusal { reason: "UnexpectedAdmissionError".into(), message }
}

/// Of pods of one class, those that give back what is missing.
fn nearest(mut pods: Vec<Candidate>, mut lacks: Vec<Lack>) -> Result<Vec<Candidate>, Refusal> {
    let mut chosen = Vec::new();
    while !lacks.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (i, candidate) in pods.iter().enumerate() {
            let far = distance(&lacks, &candidate.pod);
            let better = best.is_none_or(|(at, least)| far < least || (far == least && is_smaller(&candidate.pod, &pods[at].pod)));
            if better {
                best = Some((i, far));
            }
        }
        let Some((at, _)) = best else { return Err(refused(&lacks)) };
        let pod = pods.swap_remove(at);
        lacks = without(&lacks, std::iter::once(&pod));
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The pods that end so that the node has what a critical pod is short of.
///
/// # Errors
/// When all pods that may end do not have it.
pub(crate) fn choose(pod: &Pod, is_static: bool, shortages: &[Shortage], others: &[Candidate]) -> Result<Vec<Candidate>, Refusal> {
    let lack = |s: &Shortage| Lack { name: s.name.clone(), amount: s.requested.saturating_sub(s.allocatable.saturating_sub(s.used)) };
    let lacks: Vec<Lack> = shortages.iter().map(lack).collect();
    let of = |class: &str| -> Vec<Candidate> {
        let is = |c: &&Candidate| c.pod.spec.as_ref().is_some_and(|spec| qos_class(spec) == class);
        others.iter().filter(|c| may_preempt(pod, is_static, c)).filter(is).cloned().collect()
    };
    let (best_effort, burstable, guaranteed) = (of("BestEffort"), of("Burstable"), of("Guaranteed"));
    let never = without(&lacks, best_effort.iter().chain(&burstable).chain(&guaranteed));
    if !never.is_empty() {
        return Err(refused(&never));
    }
    let last = nearest(guaranteed, without(&lacks, best_effort.iter().chain(&burstable)))?;
    let next = nearest(burstable, without(&lacks, best_effort.iter().chain(&last)))?;
    let mut first = nearest(best_effort, without(&lacks, next.iter().chain(&last)))?;
    first.extend(next);
    first.extend(last);
    Ok(first)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CRITICAL: i32 = 2_000_000_000;

    fn pod(name: &str, priority: i32, resources: Value) -> Candidate {
        let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": resources}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        Candidate { uid: name.to_owned(), pod: Arc::new(pod), is_static: false }
    }

    fn burstable(name: &str, cpu: &str, memory: &str) -> Candidate {
        pod(name, 0, json!({"requests": {"cpu": cpu, "memory": memory}}))
    }

    fn guaranteed(name: &str, cpu: &str, memory: &str) -> Candidate {
        let amounts = json!({"cpu": cpu, "memory": memory});
        pod(name, 0, json!({"requests": amounts, "limits": amounts}))
    }

    /// Names of the pods that end for a critical pod that is short of these amounts.
    fn chosen(lacks: &[(&str, i64)], others: &[Candidate]) -> Result<Vec<String>, String> {
        let critical = pod("critical", CRITICAL, json!({}));
        let short = |(name, amount): &(&str, i64)| Shortage { name: (*name).to_owned(), requested: *amount + 5, used: 100, allocatable: 105 };
        let shortages: Vec<_> = lacks.iter().map(short).collect();
        let chosen = choose(&critical.pod, false, &shortages, others).map_err(|refusal| format!("{}: {}", refusal.reason, refusal.message))?;
        Ok(chosen.into_iter().map(|c| c.uid).collect())
    }

    #[test]
    fn lesser_classes_go_first_and_as_few_pods_as_possible() {
        let all = [
            pod("free", 0, json!({})),
            burstable("small", "100m", "100Mi"),
            burstable("big", "500m", "300Mi"),
            guaranteed("sure", "100m", "100Mi"),
            guaranteed("surest", "800m", "800Mi"),
        ];
        type Case = (&'static [(&'static str, i64)], &'static [&'static str]);
        const MIB: i64 = 1 << 20;
        let cases: [Case; 8] = [
            (&[], &[]),
            (&[("pods", 1)], &["free"]),
            (&[("pods", 2)], &["free", "small"]),
            (&[("cpu", 100)], &["small"]),
            (&[("cpu", 101)], &["big"]),
            (&[("memory", 100 * MIB), ("cpu", 200)], &["big"]),
            (&[("memory", 350 * MIB)], &["big", "small"]),
            (&[("cpu", 601)], &["big", "small", "sure"]),
        ];
        for (lacks, names) in cases {
            assert_eq!(chosen(lacks, &all).unwrap(), names, "{lacks:?}");
        }
    }

    #[test]
    fn critical_pods_end_only_for_more_important_ones() {
        let equal = pod("equal", CRITICAL, json!({"requests": {"cpu": "1"}}));
        let mut static_pod = burstable("static", "1", "1Mi");
        static_pod.is_static = true;
        static_pod.pod = pod("static", CRITICAL + 5, json!({"requests": {"cpu": "1"}})).pod;
        let refused = chosen(&[("cpu", 200)], &[equal.clone(), static_pod]).unwrap_err();
        assert_eq!(
            refused,
            "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
             pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 200), ]"
        );
        let node_critical = pod("node", CRITICAL + 1000, json!({}));
        let short = Shortage { name: "cpu".into(), requested: 1, used: 1, allocatable: 1 };
        let ended = choose(&node_critical.pod, false, std::slice::from_ref(&short), std::slice::from_ref(&equal)).unwrap();
        assert_eq!(ended.len(), 1, "the more important of two critical pods wins");
        let none = Candidate { pod: Arc::new(Pod::default()), ..equal };
        assert!(choose(&none.pod, true, &[short], &[pod("other", 0, json!({"requests": {"cpu": "1"}}))]).is_ok(), "a static pod is critical");
    }

    #[test]
    fn of_pods_that_fit_alike_the_smaller_one_ends() {
        let all = [burstable("more", "500m", "200Mi"), burstable("less", "500m", "100Mi"), burstable("not", "400m", "1Mi")];
        assert_eq!(chosen(&[("cpu", 450)], &all).unwrap(), ["less"]);
    }
}
