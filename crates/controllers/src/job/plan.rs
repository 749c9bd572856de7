//! Plan for one Job: pure. Its parts come in the order of upstream's `syncJob`: what happened ([`Work::begin`]), what to do about pods
//! ([`Work::steps`]), what that makes of the status ([`Work::carried_out`]), and how ends of pods are counted ([`Work::track`],
//! [`Work::settle`] in `track.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use cluster::EventType;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::batch::v1::{JobCondition, JobStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    intervals::Intervals,
    policy::{self, Failure},
    record::Record,
    removal::first_to_go,
    rows::{JobPod, JobView, condition},
};

/// All that the plan is made from.
pub(super) struct Input<'a> {
    pub job: &'a JobView,
    /// The Job's own pods.
    pub pods: &'a [Arc<JobPod>],
    /// Pods whose finalizer is gone, though their rows still show it.
    pub released: &'a BTreeSet<String>,
    /// How many created pods are not shown yet.
    pub coming: usize,
    /// Whether all that was created and deleted is shown.
    pub settled: bool,
    /// Failures before these pods.
    pub record: Record,
    pub now: Timestamp,
}

/// A pod to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewPod {
    pub index: Option<i32>,
    /// How often its index failed, and how often without that counting; only where each index has a limit.
    pub failures: Option<(i32, i32)>,
}

/// What to do about pods.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Steps {
    /// Deleted because the Job ends; their ends are still counted.
    pub kill: Vec<Arc<JobPod>>,
    /// Deleted as surplus, without being counted.
    pub remove: Vec<Arc<JobPod>>,
    pub create: Vec<NewPod>,
    /// When to look again though nothing has changed.
    pub recheck: Option<Duration>,
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pods: &[Arc<JobPod>]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>().join(" ");
        let mut parts = Vec::new();
        if !self.kill.is_empty() {
            parts.push(format!("kill {}", names(&self.kill)));
        }
        if !self.remove.is_empty() {
            parts.push(format!("remove {}", names(&self.remove)));
        }
        let indexes: Vec<String> = self.create.iter().filter_map(|pod| Some(pod.index?.to_string())).collect();
        match self.create.len() {
            0 => {}
            count if indexes.is_empty() => parts.push(format!("create {count}")),
            _ => parts.push(format!("create {}", indexes.join(","))),
        }
        if let Some(recheck) = self.recheck {
            parts.push(format!("look again in {recheck:?}"));
        }
        write!(f, "{}", if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") })
    }
}

/// The most pods created or deleted in one pass.
const BURST: usize = 500;

/// A Job while it is worked on.
pub(super) struct Work<'a> {
    pub(super) input: &'a Input<'a>,
    active_pods: Vec<&'a Arc<JobPod>>,
    succeeded: i32,
    failed: i32,
    /// Indexes that the status counts as succeeded already.
    pub(super) counted: Intervals,
    /// Those, and the ones that succeeded since.
    pub(super) done: Intervals,
    /// Only where each index has a limit.
    pub(super) failed_indexes: Option<Intervals>,
    /// Failed pods that are kept until the next pod of their index has noted how often it failed.
    pub(super) kept: BTreeMap<i32, &'a JobPod>,
    /// The condition that ends the Job.
    pub(super) finish: Option<JobCondition>,
    pub record: Record,
    pub status: JobStatus,
    /// Whether the status differs from the one that is written.
    pub dirty: bool,
    pub events: Vec<(EventType, String, String)>,
    active: i32,
    ready: i32,
    pub(super) terminating: i32,
    /// Pods whose finalizer is there.
    pub(super) held: BTreeSet<String>,
    /// Pods were left for the next pass.
    pub(super) truncated: bool,
}

pub(super) fn count<T>(items: impl IntoIterator<Item = T>) -> i32 {
    i32::try_from(items.into_iter().count()).unwrap_or(i32::MAX)
}

/// A number as the API shows it: zero is left out.
pub(super) fn nonzero(number: i32) -> Option<i32> {
    (number != 0).then_some(number)
}

/// A condition that has begun now.
pub(super) fn new_condition(type_: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    let now = Some(stamp(now));
    JobCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: now.clone(),
        last_transition_time: now,
    }
}

/// The second that a time is in, as the API keeps it.
fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

impl<'a> Work<'a> {
    /// Counts the pods and decides whether the Job ends.
    pub fn begin(input: &'a Input<'a>) -> Self {
        let job = input.job;
        let mut status = job.status.clone();
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let set = |uids: &Option<Vec<String>>| uids.iter().flatten().cloned().collect::<BTreeSet<_>>();
        let (before_succeeded, before_failed) = (set(&uncounted.succeeded), set(&uncounted.failed));
        let fresh = |pod: &JobPod, before: &BTreeSet<String>| {
            pod.tracked && !before.contains(&pod.uid) && !input.released.contains(&pod.uid) && (!job.is_indexed() || job.index_of(pod).is_some())
        };
        let pods = || input.pods.iter().map(Arc::as_ref);
        let succeeded: Vec<&JobPod> = pods().filter(|pod| pod.phase == "Succeeded" && fresh(pod, &before_succeeded)).collect();
        let failed: Vec<&JobPod> = pods().filter(|pod| job.has_failed(pod) && fresh(pod, &before_failed)).collect();
        let active_pods: Vec<&Arc<JobPod>> = input.pods.iter().filter(|pod| pod.is_active()).collect();
        if status.start_time.is_none() && !job.is_suspended() {
            status.start_time = Some(stamp(input.now));
        }
        let failures = count(failed.iter().filter(|pod| policy::counts(job, pod)));
        let mut work = Self {
            succeeded: status.succeeded.unwrap_or_default() + count(&succeeded) + count(&before_succeeded),
            failed: status.failed.unwrap_or_default() + failures + count(&before_failed),
            counted: Intervals::default(),
            done: Intervals::default(),
            failed_indexes: None,
            kept: BTreeMap::new(),
            finish: None,
            record: input.record.with(&succeeded, &failed),
            dirty: false,
            events: Vec::new(),
            active: count(&active_pods) + i32::try_from(input.coming).unwrap_or(i32::MAX),
            ready: count(active_pods.iter().filter(|pod| pod.ready.is_some())),
            terminating: count(pods().filter(|pod| pod.is_terminating())),
            held: pods().filter(|pod| pod.tracked && !input.released.contains(&pod.uid)).map(|pod| pod.uid.clone()).collect(),
            truncated: false,
            active_pods,
            status,
            input,
        };
        work.finish = work.known_end().or_else(|| work.exceeded());
        if job.is_indexed() {
            work.count_indexes();
        }
        work
    }

    fn end(&self, type_: &str, reason: &str, message: &str) -> JobCondition {
        new_condition(type_, "True", reason, message, self.input.now)
    }

    /// An end that was decided before, or by a rule about failed pods.
    fn known_end(&self) -> Option<JobCondition> {
        let earlier = |type_: &str| condition(&self.status, type_).filter(|one| one.status == "True");
        if let Some(success) = earlier("SuccessCriteriaMet") {
            return Some(success.clone());
        }
        if let Some(target) = earlier("FailureTarget") {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            return Some(self.end("Failed", &text(&target.reason), &text(&target.message)));
        }
        let job = self.input.job;
        let mut failed = self.input.pods.iter().filter(|pod| job.has_failed(pod));
        failed.find_map(|pod| match policy::judge(job, pod) {
            Failure::FailJob(message) => Some(self.end("FailureTarget", "PodFailurePolicy", &message)),
            _ => None,
        })
    }

    /// An end because of too many failures or too much time.
    fn exceeded(&self) -> Option<JobCondition> {
        if self.failed > self.input.job.backoff_limit() || self.restarts_exceed() {
            return Some(self.end("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"));
        }
        let over = self.time_left().is_some_and(|left| left.is_zero());
        over.then(|| self.end("FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"))
    }

    /// How long the Job may still be active, if that is limited.
    fn time_left(&self) -> Option<Duration> {
        let job = self.input.job;
        let limit = job.spec.active_deadline_seconds.filter(|_| !job.is_suspended())?;
        let deadline = self.status.start_time.as_ref()?.0.checked_add(SignedDuration::from_secs(limit)).ok()?;
        Some(Duration::try_from(deadline.duration_since(self.input.now)).unwrap_or_default())
    }

    /// Restarts count where containers are restarted in their pod (upstream: `pastBackoffLimitOnFailure`).
    fn restarts_exceed(&self) -> bool {
        let job = self.input.job;
        if job.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let live = self.input.pods.iter().filter(|pod| matches!(pod.phase.as_str(), "Running" | "Pending"));
        let restarts: i32 = live.map(|pod| pod.restarts).sum();
        if job.backoff_limit() == 0 { restarts > 0 } else { restarts >= job.backoff_limit() }
    }

    /// The pods' own indexes among these, in order.
    fn indexes(&self, which: impl Fn(&JobPod) -> bool) -> BTreeSet<i32> {
        self.input.pods.iter().filter(|pod| which(pod)).filter_map(|pod| self.input.job.index_of(pod)).collect()
    }

    fn count_indexes(&mut self) {
        let job = self.input.job;
        self.counted = Intervals::parse(self.status.completed_indexes.as_deref().unwrap_or_default(), job.indexes());
        self.done = self.counted.with(self.indexes(|pod| pod.tracked && pod.phase == "Succeeded"));
        self.succeeded = self.done.total();
        if let Some(limit) = job.spec.backoff_limit_per_index {
            self.count_failed_indexes(limit);
        }
        if self.finish.is_none()
            && let Some(message) = policy::succeeds(job, &self.done)
        {
            self.finish = Some(self.end("SuccessCriteriaMet", "SuccessPolicy", &message));
        }
    }

    fn count_failed_indexes(&mut self, limit: i32) {
        let job = self.input.job;
        let before = Intervals::parse(self.status.failed_indexes.as_deref().unwrap_or_default(), job.indexes());
        let failed = before.with(self.indexes(|pod| {
            pod.tracked
                && job.has_failed(pod)
                && match policy::judge(job, pod) {
                    Failure::FailIndex => true,
                    Failure::Ignore => false,
                    Failure::Count | Failure::FailJob(_) => pod.failures >= limit,
                }
        }));
        if self.finish.is_none() {
            let completions = job.spec.completions.unwrap_or_default();
            if job.spec.max_failed_indexes.is_some_and(|most| failed.total() > most) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                self.finish = Some(self.end("FailureTarget", "MaxFailedIndexesExceeded", message));
            } else if failed.total() > 0 && failed.total() + self.done.total() >= completions {
                self.finish = Some(self.end("FailureTarget", "FailedIndexes", "Job has failed indexes"));
            }
        }
        let replaced = self.indexes(JobPod::is_active);
        for pod in self.input.pods {
            let Some(index) = job.index_of(pod).filter(|_| pod.tracked && !self.input.released.contains(&pod.uid)) else { continue };
            if !job.has_failed(pod) || self.done.has(index) || failed.has(index) || replaced.contains(&index) {
                continue;
            }
            let order = |pod: &JobPod| (pod.failures.saturating_add(pod.ignored_failures), pod.ended);
            if self.kept.get(&index).is_none_or(|other| order(other) <= order(pod)) {
                self.kept.insert(index, pod);
            }
        }
        self.failed_indexes = Some(failed);
    }

    /// Whether pods may be created and removed now.
    fn manages(&self) -> bool {
        self.finish.is_none() && self.input.settled && !self.input.job.deleting
    }

    /// What to do about pods.
    pub fn steps(&self) -> Steps {
        let mut steps = Steps { recheck: self.time_left().filter(|_| self.finish.is_none()), ..Steps::default() };
        if self.finish.is_some() {
            steps.kill = self.active_pods.iter().map(|pod| (*pod).clone()).collect();
        } else if self.manages() {
            self.manage(&mut steps);
        }
        steps
    }

    /// How many pods should be active (upstream: `manageJob`).
    fn wanted(&self) -> i32 {
        let job = self.input.job;
        match job.spec.completions {
            _ if job.is_suspended() => 0,
            // One success is enough: those that still run may go on.
            None if self.succeeded > 0 => self.active,
            None => job.parallelism(),
            Some(completions) => (completions - self.succeeded).min(job.parallelism()).max(0),
        }
    }

    fn manage(&self, steps: &mut Steps) {
        let job = self.input.job;
        let wanted = self.wanted();
        let surplus = usize::try_from(self.active - wanted).unwrap_or_default();
        steps.remove = first_to_go(job, &self.active_pods, surplus);
        if !job.is_suspended() {
            steps.remove.truncate(BURST);
        }
        if !steps.remove.is_empty() || job.is_suspended() {
            return;
        }
        let ending = if job.replaces_only_failed() { self.terminating } else { 0 };
        let missing = usize::try_from(wanted - ending - self.active).unwrap_or_default().min(BURST);
        if missing == 0 {
            return;
        }
        let mut pauses: Vec<Duration> = steps.recheck.into_iter().collect();
        if job.spec.backoff_limit_per_index.is_none()
            && let Some(pause) = self.record.pause(self.input.now)
        {
            pauses.push(pause);
        } else if job.is_indexed() {
            self.create_indexes(missing, steps, &mut pauses);
        } else {
            steps.create = vec![NewPod { index: None, failures: None }; missing];
        }
        steps.recheck = pauses.into_iter().min();
    }

    fn create_indexes(&self, missing: usize, steps: &mut Steps, pauses: &mut Vec<Duration>) {
        let job = self.input.job;
        let mut taken = self.done.with(self.indexes(JobPod::is_active));
        if job.replaces_only_failed() {
            taken = taken.with(self.indexes(JobPod::is_terminating));
        }
        if let Some(failed) = &self.failed_indexes {
            taken = taken.merged(failed);
        }
        for index in taken.missing(missing, job.indexes()) {
            let replaced = self.kept.get(&index);
            if let Some(pause) = replaced.and_then(|failed| super::record::pause_of_index(failed, self.input.now)) {
                pauses.push(pause);
                continue;
            }
            let failures = replaced.map_or((0, 0), |failed| match policy::counts(job, failed) {
                true => (failed.failures.saturating_add(1), failed.ignored_failures),
                false => (failed.failures, failed.ignored_failures.saturating_add(1)),
            });
            steps.create.push(NewPod { index: Some(index), failures: job.spec.backoff_limit_per_index.map(|_| failures) });
        }
    }

    /// What the steps, of which all or not all went well, make of the Job.
    pub fn carried_out(&mut self, steps: &Steps, all: bool) {
        if all {
            let gone = || steps.kill.iter().chain(&steps.remove);
            self.active += count(&steps.create) - count(gone());
            self.terminating += count(gone());
            self.ready -= count(gone().filter(|pod| pod.ready.is_some()));
        }
        let mut changed = false;
        if self.finish.is_some() {
            // While pods may still appear the Job cannot be declared finished.
            if !all || !self.input.settled {
                self.finish = None;
            }
        } else {
            let managed = self.manages();
            let complete = match self.input.job.spec.completions {
                None => self.succeeded > 0 && self.active == 0,
                Some(completions) => self.succeeded >= completions && self.active == 0,
            };
            if complete {
                self.finish = Some(self.end("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"));
            } else if managed {
                changed = self.note_suspension();
            }
        }
        let status = &mut self.status;
        changed |= status.active.unwrap_or_default() != self.active || status.ready != Some(self.ready);
        changed |= status.terminating != Some(self.terminating);
        (status.active, status.ready, status.terminating) = (nonzero(self.active), Some(self.ready), Some(self.terminating));
        self.dirty |= changed;
    }

    /// Says whether the Job is suspended; answers whether that is new.
    fn note_suspension(&mut self) -> bool {
        let now = self.input.now;
        let suspended = self.input.job.is_suspended();
        let (status, reason, message) = if suspended { ("True", "JobSuspended", "Job suspended") } else { ("False", "JobResumed", "Job resumed") };
        let conditions = self.status.conditions.get_or_insert_default();
        let changed = ensure(conditions, new_condition("Suspended", status, reason, message, now));
        if changed {
            let event = if suspended { "Suspended" } else { "Resumed" };
            self.events.push((EventType::Normal, event.to_owned(), message.to_owned()));
            // The time that a Job may be active begins anew.
            self.status.start_time = (!suspended).then(|| stamp(now));
        }
        changed
    }
}

/// Puts a condition into the list; answers whether the list says anything new. One that is not there need not be denied.
pub(super) fn ensure(conditions: &mut Vec<JobCondition>, wanted: JobCondition) -> bool {
    match conditions.iter_mut().find(|one| one.type_ == wanted.type_) {
        Some(one) if (&one.status, &one.reason, &one.message) == (&wanted.status, &wanted.reason, &wanted.message) => false,
        Some(one) => {
            *one = wanted;
            true
        }
        None if wanted.status == "False" => false,
        None => {
            conditions.push(wanted);
            true
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
