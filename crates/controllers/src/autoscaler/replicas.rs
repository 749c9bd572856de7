//! How many replicas the usage of pods calls for (upstream: `podautoscaler/replica_calculator.go`). Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_rules::{Amounts, Quantity, readiness, requests};

/// Usage this far from the target is left alone (upstream: `--horizontal-pod-autoscaler-tolerance`).
const TOLERANCE: f64 = 0.1;
/// How long a pod's processor usage may be that of its start (`--horizontal-pod-autoscaler-cpu-initialization-period`).
pub(super) const CPU_INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// Within this time of its start a pod's first change of readiness counts as part of it
/// (`--horizontal-pod-autoscaler-initial-readiness-delay`).
pub(super) const INITIAL_READINESS: SignedDuration = SignedDuration::from_secs(30);

/// Which part of the target's usage is near enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Default for Tolerances {
    fn default() -> Self {
        Self { down: TOLERANCE, up: TOLERANCE }
    }
}

impl Tolerances {
    fn hold(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// A measured value of one pod, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub value: i64,
    pub at: Timestamp,
    /// The time that it covers.
    pub window: SignedDuration,
}

/// Samples by the pod's name.
pub(super) type Samples = BTreeMap<String, Sample>;

/// What a metric calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposal {
    pub replicas: i32,
    /// Percent of the request, where the target is one.
    pub utilization: Option<i32>,
    /// Thousandths, the mean of the pods.
    pub usage: i64,
}

/// What pods should use.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal<'a> {
    /// Percent of what they request; of this container alone, where it has a name.
    Utilization { percent: i32, container: &'a str },
    /// Thousandths each.
    Average(i64),
}

/// The workload that is scaled, and the moment.
pub(super) struct Workload<'a> {
    pub current: i32,
    pub pods: &'a [Pod],
    pub tolerances: Tolerances,
    pub now: Timestamp,
}

struct Ratio {
    ratio: f64,
    utilization: Option<i32>,
    usage: i64,
}

fn clamped(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn ratio(goal: Goal<'_>, samples: &Samples, requests: &BTreeMap<&str, i64>) -> Result<Ratio, String> {
    match goal {
        Goal::Average(target) => {
            let total: i128 = samples.values().map(|sample| i128::from(sample.value)).sum();
            let usage = clamped(total / samples.len().max(1) as i128);
            Ok(Ratio { ratio: usage as f64 / target as f64, utilization: None, usage })
        }
        Goal::Utilization { percent, .. } => {
            // A sample of a pod without a request is of a pod that is not there.
            let known = samples.iter().filter_map(|(pod, sample)| Some((sample.value, *requests.get(pod.as_str())?)));
            let (mut used, mut requested, mut count) = (0i128, 0i128, 0i128);
            for (value, request) in known {
                (used, requested, count) = (used + i128::from(value), requested + i128::from(request), count + 1);
            }
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let utilization = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
            let ratio = f64::from(utilization) / f64::from(percent);
            Ok(Ratio { ratio, utilization: Some(utilization), usage: clamped(used / count) })
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Groups<'a> {
    ready: usize,
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
    ignored: BTreeSet<&'a str>,
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Sorts pods by what is known of them.
fn group<'a>(pods: &'a [Pod], samples: &Samples, resource: &str, now: Timestamp) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in pods {
        if pod.metadata.deletion_timestamp.is_some() || phase(pod) == "Failed" {
            groups.ignored.insert(name(pod));
        } else if phase(pod) == "Pending" {
            groups.unready.insert(name(pod));
        } else if let Some(sample) = samples.get(name(pod)) {
            if resource == "cpu" && is_starting(pod, sample, now) {
                groups.unready.insert(name(pod));
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name(pod));
        }
    }
    groups
}

/// Whether a pod's processor usage says nothing yet: it is that of its start.
fn is_starting(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let status = pod.status.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let ready = readiness::find(status.into_iter().flat_map(|status| status.conditions.iter().flatten()), "Ready");
    let (Some(started), Some(ready)) = (started, ready) else { return true };
    let changed = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let is_unready = ready.status == "False";
    if later(started, CPU_INITIALIZATION) > now {
        is_unready || sample.at < later(changed, sample.window)
    } else {
        is_unready && later(started, INITIAL_READINESS) > changed
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// What each pod requests of a resource, in thousandths.
fn requested<'a>(pods: &'a [Pod], container: &str, resource: &str) -> Result<BTreeMap<&'a str, i64>, String> {
    pods.iter().map(|pod| Ok((name(pod), request(pod, container, resource)?))).collect()
}

fn request(pod: &Pod, container: &str, resource: &str) -> Result<i64, String> {
    let Some(spec) = &pod.spec else { return Ok(0) };
    let pod_level = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let is_pod_level = |name: &String| name == "cpu" || name == "memory" || name.starts_with("hugepages-");
    if container.is_empty() && pod_level.is_some_and(|requests| requests.keys().any(is_pod_level)) {
        let whole = requests::pod_requests(spec).get(resource).copied();
        return whole.map(Quantity::milli_value).ok_or_else(|| format!("missing pod-level request for {resource} in Pod {}", name(pod)));
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|one| one.restart_policy.as_deref() == Some("Always"));
    let mut total = 0i64;
    let mut found = false;
    for one in spec.containers.iter().chain(sidecars).filter(|one| container.is_empty() || one.name == container) {
        let own: Amounts = one.resources.as_ref().and_then(|resources| resources.requests.as_ref()).map(requests::amounts).unwrap_or_default();
        let own = own.get(resource).ok_or_else(|| format!("missing request for {resource} in container {} of Pod {}", one.name, name(pod)))?;
        total = total.saturating_add(own.milli_value());
        found = true;
    }
    if !found && !container.is_empty() {
        return Err(format!("container {container} not found in Pod {}", name(pod)));
    }
    Ok(total)
}

/// The replicas that bring the usage of a resource or of a metric of pods (`resource` is empty) to the goal.
pub(super) fn of_pods(workload: &Workload<'_>, goal: Goal<'_>, resource: &str, mut samples: Samples) -> Result<Proposal, String> {
    let Workload { current, pods, tolerances, now } = *workload;
    if pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let groups = group(pods, &samples, resource, now);
    samples.retain(|pod, _| !groups.ignored.contains(pod.as_str()) && !groups.unready.contains(pod.as_str()));
    if samples.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match goal {
        Goal::Utilization { container, .. } => requested(pods, container, resource)?,
        Goal::Average(_) => BTreeMap::new(),
    };
    let first = ratio(goal, &samples, &requests)?;
    let propose = |replicas| Proposal { replicas, utilization: first.utilization, usage: first.usage };
    let up_with_unready = !groups.unready.is_empty() && first.ratio > 1.0;
    if !up_with_unready && groups.missing.is_empty() {
        let replicas = if tolerances.hold(first.ratio) { current } else { (first.ratio * groups.ready as f64).ceil() as i32 };
        return Ok(propose(replicas));
    }
    let filler = |value| Sample { value, at: now, window: SignedDuration::ZERO };
    if first.ratio != 1.0 {
        for pod in &groups.missing {
            // Whoever says nothing counts against the change: it uses its target when there would be fewer, nothing when there would be more.
            let value = match goal {
                _ if first.ratio > 1.0 => 0,
                Goal::Utilization { percent, .. } => {
                    clamped(i128::from(requests.get(pod).copied().unwrap_or_default()) * i128::from(percent.max(100)) / 100)
                }
                Goal::Average(target) => target,
            };
            samples.insert((*pod).to_owned(), filler(value));
        }
    }
    if up_with_unready {
        samples.extend(groups.unready.iter().map(|pod| ((*pod).to_owned(), filler(0))));
    }
    let second = ratio(goal, &samples, &requests)?.ratio;
    let turned = (first.ratio < 1.0 && second > 1.0) || (first.ratio > 1.0 && second < 1.0);
    if tolerances.hold(second) || turned {
        return Ok(propose(current));
    }
    let replicas = (second * samples.len() as f64).ceil() as i32;
    let wrong_way = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
    Ok(propose(if wrong_way { current } else { replicas }))
}

/// The replicas that bring a value which all pods share to its target.
pub(super) fn of_value(workload: &Workload<'_>, usage: i64, target: i64) -> Result<Proposal, String> {
    let ratio = usage as f64 / target as f64;
    let propose = |replicas| Ok(Proposal { replicas, utilization: None, usage });
    if workload.current == 0 {
        return propose(ratio.ceil() as i32);
    }
    if workload.tolerances.hold(ratio) {
        return propose(workload.current);
    }
    if workload.pods.is_empty() {
        return Err("unable to calculate ready pods: no pods returned by selector while calculating replica count".to_owned());
    }
    let ready = workload.pods.iter().filter(|pod| phase(pod) == "Running" && readiness::is_pod_ready(pod)).count();
    propose((ratio * ready as f64).ceil() as i32)
}

/// The replicas that bring each one's part of a value to its target; `replicas` are there.
pub(super) fn of_value_per_pod(replicas: i32, tolerances: Tolerances, usage: i64, target: i64) -> Proposal {
    let ratio = usage as f64 / (target as f64 * f64::from(replicas));
    let wanted = if tolerances.hold(ratio) { replicas } else { (usage as f64 / target as f64).ceil() as i32 };
    let each = if usage == i64::MAX { usage } else { (usage as f64 / f64::from(replicas)).ceil() as i64 };
    Proposal { replicas: wanted, utilization: None, usage: each }
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
