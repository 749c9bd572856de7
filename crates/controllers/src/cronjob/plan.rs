//! Plan for one CronJob: pure. First its list of active Jobs and its history are put in order, then the next Job is looked for.

use std::{sync::Arc, time::Duration};

use cluster::EventType;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, CronJobSpec, CronJobStatus},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube_rules::cron::{Schedule, time_zone};

use super::schedule::{self, Since};
use crate::job::{Ended, JobRow};

/// A Job and its name.
type NamedJob = (String, Arc<JobRow>);
/// Type, reason and message.
pub(super) type Event = (EventType, &'static str, String);

/// A CronJob as the plan sees it.
#[derive(Debug, Clone)]
pub(super) struct CronView {
    pub name: String,
    pub deleting: bool,
    pub created: Timestamp,
    pub spec: CronJobSpec,
    pub status: CronJobStatus,
}

impl CronView {
    pub fn new(cron: &CronJob) -> Self {
        Self {
            name: cron.metadata.name.clone().unwrap_or_default(),
            deleting: cron.metadata.deletion_timestamp.is_some(),
            created: cron.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            spec: cron.spec.clone(),
            status: cron.status.clone().unwrap_or_default(),
        }
    }

    pub fn since(&self) -> Since {
        let last = self.status.last_schedule_time.as_ref().map(|time| time.0);
        Since { created: self.created, last, deadline: self.spec.starting_deadline_seconds }
    }

    /// The name of the Job that is due then.
    pub fn job_name(&self, due: Timestamp) -> String {
        format!("{}-{}", self.name, due.as_second().div_euclid(60))
    }

    fn active(&self) -> impl Iterator<Item = &ObjectReference> {
        self.status.active.iter().flatten()
    }

    /// Whether a Job is in the list of active ones.
    pub fn is_active(&self, uid: &str) -> bool {
        self.active().any(|one| one.uid.as_deref() == Some(uid))
    }

    /// Removes a Job from the list of active ones.
    pub fn drop_active(&mut self, uid: &str) {
        let active = self.status.active.take().into_iter().flatten();
        let left: Vec<ObjectReference> = active.filter(|one| one.uid.as_deref() != Some(uid)).collect();
        self.status.active = (!left.is_empty()).then_some(left);
    }

    /// The schedule with the CronJob's time zone in front.
    pub fn schedule(&self) -> String {
        let text = &self.spec.schedule;
        match &self.spec.time_zone {
            Some(zone) if !text.contains("TZ") && time_zone(zone).is_ok() => format!("TZ={zone} {text}"),
            _ => text.clone(),
        }
    }
}

/// Jobs that ended and are beyond the limits of the history, the oldest first.
pub(super) fn surplus(spec: &CronJobSpec, jobs: &[NamedJob]) -> Vec<NamedJob> {
    let oldest = |complete: bool, limit: Option<i32>| {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { return Vec::new() };
        let of_kind = |job: &JobRow| job.ended.as_ref().is_some_and(|ended| ended.complete == complete);
        let mut ended: Vec<NamedJob> = jobs.iter().filter(|(_, job)| of_kind(job)).cloned().collect();
        ended.sort_by(|(one, first), (two, second)| {
            // Those that never began come last.
            let key = |job: &JobRow| (job.started.is_none(), job.started);
            key(first).cmp(&key(second)).then_with(|| one.cmp(two))
        });
        ended.truncate(ended.len().saturating_sub(limit));
        ended
    };
    let mut all = oldest(true, spec.successful_jobs_history_limit);
    all.extend(oldest(false, spec.failed_jobs_history_limit));
    all
}

/// Brings the status up to what the Jobs show. Answers with the Events of that and the active Jobs that are not among `jobs`.
pub(super) fn review(cron: &mut CronView, jobs: &[NamedJob]) -> (Vec<Event>, Vec<ObjectReference>) {
    let mut events = Vec::new();
    for (name, job) in jobs {
        let active = cron.is_active(&job.uid);
        match &job.ended {
            None if !active => {
                let message = format!("Saw a job that the controller did not create or forgot: {name}");
                events.push((EventType::Warning, "UnexpectedJob", message));
            }
            None => {}
            Some(Ended { complete, .. }) => {
                if active {
                    cron.drop_active(&job.uid);
                    let condition = if *complete { "Complete" } else { "Failed" };
                    events.push((EventType::Normal, "SawCompletedJob", format!("Saw completed job: {name}, condition: {condition}")));
                }
                let last = cron.status.last_successful_time.as_ref().map(|time| time.0);
                if let Some(completed) = job.completed.filter(|time| *complete && last.is_none_or(|last| *time > last)) {
                    cron.status.last_successful_time = Some(Time(completed));
                }
            }
        }
    }
    let shown = |one: &ObjectReference| jobs.iter().any(|(_, job)| one.uid.as_deref() == Some(job.uid.as_str()));
    let missing = cron.active().filter(|one| !shown(one)).cloned().collect();
    (events, missing)
}

/// What to do about the next Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until the CronJob changes.
    Rest,
    /// Nothing, for so long.
    Wait(Duration),
    /// The Job of this time is created; if so, after the active ones are deleted.
    Start { due: Timestamp, replace: bool },
}

/// Looks for the next Job.
pub(super) fn next(cron: &CronView, now: Timestamp) -> (Step, Vec<Event>) {
    let spec = &cron.spec;
    let warning = |reason, message: String| (EventType::Warning, reason, message);
    if cron.deleting {
        return (Step::Rest, Vec::new());
    }
    if let Some(zone) = &spec.time_zone
        && let Err(error) = time_zone(zone)
    {
        return (Step::Rest, vec![warning("UnknownTimeZone", format!("invalid timeZone: {zone:?}: {error}"))]);
    }
    if spec.suspend == Some(true) {
        return (Step::Rest, Vec::new());
    }
    let mut events = Vec::new();
    if spec.schedule.contains("TZ") {
        let message = format!(
            "CRON_TZ or TZ used in schedule {:?} is not officially supported, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
            spec.schedule
        );
        events.push(warning("UnsupportedSchedule", message));
    }
    let schedule = match Schedule::parse(&cron.schedule()) {
        Ok(schedule) => schedule,
        Err(error) => {
            events.push(warning("UnparseableSchedule", format!("unparseable schedule: {:?} : {error}", spec.schedule)));
            return (Step::Rest, events);
        }
    };
    let step = step(cron, now, &schedule, &mut events);
    (step, events)
}

fn step(cron: &CronView, now: Timestamp, schedule: &Schedule, events: &mut Vec<Event>) -> Step {
    let (spec, since) = (&cron.spec, cron.since());
    let later = schedule::wait(&since, now, schedule).map_or(Step::Rest, Step::Wait);
    let due = match schedule::due(&since, now, schedule) {
        Ok(Some(due)) => due,
        Ok(None) => return later,
        Err(why) => {
            events.push((EventType::Warning, "InvalidSchedule", format!("invalid schedule: {} : {why}", spec.schedule)));
            return Step::Rest;
        }
    };
    if due.many {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        events.push((EventType::Warning, "TooManyMissedTimes", message.to_owned()));
    }
    let late = now.duration_since(due.at);
    if spec.starting_deadline_seconds.is_some_and(|deadline| late > jiff::SignedDuration::from_secs(deadline)) {
        let time = due.at.strftime("%a, %d %b %Y %H:%M:%S +0000");
        events.push((EventType::Warning, "MissSchedule", format!("Missed scheduled time to start a job: {time}")));
        return later;
    }
    let name = cron.job_name(due.at);
    if since.last == Some(due.at) || cron.active().any(|one| one.name.as_ref() == Some(&name)) {
        return later;
    }
    let busy = cron.active().next().is_some();
    if busy && spec.concurrency_policy.as_deref() == Some("Forbid") {
        let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
        events.push((EventType::Normal, "JobAlreadyActive", message.to_owned()));
        return later;
    }
    Step::Start { due: due.at, replace: busy && spec.concurrency_policy.as_deref() == Some("Replace") }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
