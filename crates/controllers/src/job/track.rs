//! Counts the ends of pods exactly once (upstream: `trackJobStatusAndRemoveFinalizers`): first their uids are written into the status, then
//! their finalizers go, then the uids become numbers.

use std::{collections::BTreeSet, sync::Arc};

use cluster::EventType;
use k8s_openapi::api::batch::v1::JobCondition;

use super::{
    plan::{Work, count, ensure, new_condition, nonzero},
    policy,
    rows::JobPod,
};

/// The most pods counted in one pass, which keeps the status small.
const MOST_UNCOUNTED: usize = 500;

fn is_success(finish: Option<&JobCondition>) -> bool {
    finish.is_some_and(|one| one.type_ == "SuccessCriteriaMet")
}

impl Work<'_> {
    /// Notes which pods ended; answers with those whose finalizer may go once the status is written.
    pub fn track(&mut self) -> Vec<Arc<JobPod>> {
        self.dirty |= self.count_released();
        let job = self.input.job;
        let mut pods: Vec<&Arc<JobPod>> = self.input.pods.iter().filter(|pod| self.held.contains(&pod.uid)).collect();
        if job.is_indexed() {
            pods.sort_by_key(|pod| pod.index);
        }
        let uncounted = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let (mut succeeded, mut failed) = (uncounted.succeeded.unwrap_or_default(), uncounted.failed.unwrap_or_default());
        let (mut indexes, mut release, mut new) = (BTreeSet::new(), Vec::new(), false);
        for pod in pods {
            if !self.may_release(pod) {
                continue;
            }
            release.push(pod.clone());
            let (index, known_failed) = (job.index_of(pod), failed.contains(&pod.uid));
            if pod.phase == "Succeeded" && !known_failed {
                if job.is_indexed() {
                    new |= index.is_some_and(|index| !self.counted.has(index) && indexes.insert(index));
                } else if !succeeded.contains(&pod.uid) {
                    succeeded.push(pod.uid.clone());
                    new = true;
                }
            } else if (job.has_failed(pod) || (self.finish.is_some() && !is_success(self.finish.as_ref())))
                && !known_failed
                && (!job.is_indexed() || index.is_some())
                && policy::counts(job, pod)
            {
                failed.push(pod.uid.clone());
                new = true;
            }
            if indexes.len() + succeeded.len() + failed.len() >= MOST_UNCOUNTED {
                self.truncated = true;
                break;
            }
        }
        self.dirty |= new;
        let some = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        (uncounted.succeeded, uncounted.failed) = (some(succeeded), some(failed));
        if job.is_indexed() {
            self.note_indexes();
        }
        self.note_end();
        release
    }

    /// Whether the pod's end is certain (upstream: `canRemoveFinalizer`).
    fn may_release(&self, pod: &JobPod) -> bool {
        let job = self.input.job;
        if job.deleting || self.finish.is_some() || pod.phase == "Succeeded" {
            return true;
        }
        let is_kept = || job.index_of(pod).and_then(|index| self.kept.get(&index)).is_some_and(|kept| kept.uid == pod.uid);
        job.has_failed(pod) && !is_kept()
    }

    fn note_indexes(&mut self) {
        let done = self.done.to_string();
        let failed = self.failed_indexes.as_ref().map(ToString::to_string);
        self.dirty |= done != self.status.completed_indexes.as_deref().unwrap_or_default() || failed != self.status.failed_indexes;
        self.status.succeeded = nonzero(self.done.total());
        self.status.completed_indexes = (!done.is_empty()).then_some(done);
        self.status.failed_indexes = failed;
    }

    /// Writes down that the Job is about to end, and prepares the condition of its end.
    fn note_end(&mut self) {
        let Some(finish) = self.finish.take() else { return };
        let last = match finish.type_.as_str() {
            "FailureTarget" => "Failed",
            "SuccessCriteriaMet" => "Complete",
            _ => {
                self.finish = Some(finish);
                return;
            }
        };
        let conditions = self.status.conditions.get_or_insert_default();
        if !conditions.iter().any(|one| one.type_ == finish.type_ && one.status == "True") {
            conditions.push(finish.clone());
            self.dirty = true;
        }
        let (reason, message) = (finish.reason.unwrap_or_default(), finish.message.unwrap_or_default());
        self.finish = Some(new_condition(last, "True", &reason, &message, self.input.now));
    }

    /// Turns uids of pods without finalizer into numbers; answers whether there were any.
    fn count_released(&mut self) -> bool {
        let held = &self.held;
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        let split = |uids: &mut Option<Vec<String>>| {
            let (left, gone): (Vec<String>, Vec<String>) = uids.take().into_iter().flatten().partition(|uid| held.contains(uid));
            *uids = (!left.is_empty()).then_some(left);
            count(gone)
        };
        let (succeeded, failed) = (split(&mut uncounted.succeeded), split(&mut uncounted.failed));
        self.status.succeeded = nonzero(self.status.succeeded.unwrap_or_default() + succeeded);
        self.status.failed = nonzero(self.status.failed.unwrap_or_default() + failed);
        succeeded + failed > 0
    }

    /// Counts the pods that were released now, and ends the Job if all is counted; answers whether it ended.
    pub fn settle(&mut self, released: &BTreeSet<String>) -> bool {
        self.held.retain(|uid| !released.contains(uid));
        self.dirty |= self.count_released();
        let uncounted = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        if self.truncated || uncounted.succeeded.is_some() || uncounted.failed.is_some() || self.terminating > 0 {
            return false;
        }
        let Some(finish) = self.finish.take() else { return false };
        self.report(&finish);
        if finish.type_ == "Complete" {
            self.status.completion_time = finish.last_transition_time.clone();
        }
        ensure(self.status.conditions.get_or_insert_default(), finish);
        self.dirty = true;
        true
    }

    fn report(&mut self, finish: &JobCondition) {
        let mut event = |type_, reason: &str, message: &str| self.events.push((type_, reason.to_owned(), message.to_owned()));
        if finish.type_ != "Complete" {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            event(EventType::Warning, &text(&finish.reason), &text(&finish.message));
            return;
        }
        if self.input.job.spec.completions.is_some_and(|completions| self.status.succeeded.unwrap_or_default() > completions) {
            event(EventType::Warning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached");
        }
        event(EventType::Normal, "Completed", "Job completed");
    }
}
