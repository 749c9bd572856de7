//! CronJobs: creates a Job at each time of a schedule.
//!
//! Inputs: CronJobs (read anew each time), Jobs. Outputs: Jobs, their deletion, status, Events. Mirrors `pkg/controller/cronjob`.
//! Guarantees: never two Jobs for one time, since the time is in the Job's name. Schedules without a zone are in UTC.

mod plan;
mod schedule;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, Job},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, PostParams},
};
use kube_rules::cron::{Schedule, time_zone};
use tokio_util::sync::CancellationToken;

use crate::{
    job::JobRow,
    runner::{Next, Queue},
    view::{Views, controller_of, controller_reference},
};
use plan::{CronView, Step};

/// When a Job was due, as its annotation says.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Row of a CronJob; the work itself reads the newest object.
#[derive(Debug, Clone, PartialEq)]
struct CronRow {
    version: String,
    /// The schedule with its zone, and the time until it is due next.
    schedule: String,
    since: schedule::Since,
}

impl CronRow {
    fn new(cron: &CronJob) -> Self {
        let view = CronView::new(cron);
        Self { version: cron.metadata.resource_version.clone().unwrap_or_default(), schedule: view.schedule(), since: view.since() }
    }

    /// How long until the next time, if the schedule can be read.
    fn wait(&self) -> Option<Duration> {
        schedule::wait(&self.since, Timestamp::now(), &Schedule::parse(&self.schedule).ok()?)
    }
}

struct Context {
    client: Client,
    jobs: Informer<JobRow>,
    events: EventRecorder,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let crons = Informer::start(Api::<CronJob>::all(client.clone()), Selection::all().of(&views.api), |cron| Some(CronRow::new(cron)));
    let jobs = Informer::start(Api::<Job>::all(client.clone()), Selection::all().of(&views.api), |job| Some(JobRow::new(job)));
    tokio::select! {
        () = async { tokio::join!(crons.synced(), jobs.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    watch(&crons, &jobs, &queue);
    let events = EventRecorder::new(client.clone(), "cronjob-controller", "");
    let context = Arc::new(Context { client, jobs, events });
    queue.run("cronjob", 4, shutdown, |key| sync(context.clone(), key)).await;
}

fn watch(crons: &Informer<CronRow>, jobs: &Informer<JobRow>, queue: &Queue<Key>) {
    let keys = queue.clone();
    crons.subscribe(move |change| match (change.old, change.new) {
        // Times of a new schedule that have passed are not made up for.
        (Some(old), Some(new)) if old.schedule != new.schedule && new.wait().is_some() => {
            keys.add_after(change.key.clone(), new.wait().unwrap_or_default());
        }
        _ => keys.add(change.key.clone()),
    });
    let keys = queue.clone();
    jobs.subscribe(move |change| {
        for job in [change.old, change.new].into_iter().flatten() {
            keys.extend(Views::controller_key(job.controller.as_ref(), "CronJob", &change.key.ns));
        }
    });
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let api: Api<CronJob> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(mut cron) = api.get_opt(&key.name).await? else { return Ok(Next::Change) };
    let (mut view, object) = (CronView::new(&cron), cron.object_ref(&()));
    let uid = object.uid.clone().unwrap_or_default();
    let mine = |job: &JobRow| job.controller.as_ref().is_some_and(|owner| owner.uid == uid);
    let mut jobs: Vec<_> = context.jobs.in_namespace(&key.ns).into_iter().map(|(key, job)| (key.name, job)).collect();
    jobs.retain(|(_, job)| mine(job));
    for (name, job) in plan::surplus(&view.spec, &jobs).iter().filter(|(_, job)| !job.deleting) {
        delete(&context, &key, &object, &mut view, name, &job.uid).await;
    }
    let result = run_once(&context, &key, &object, &mut view, &jobs).await;
    if cron.status.as_ref() != Some(&view.status) {
        cron.status = Some(view.status);
        match api.replace_status(&key.name, &PostParams::default(), &cron).await {
            Err(error) if is_not_found(&error) => {}
            other => other.map(|_| ()).context("writing the CronJob's status")?,
        }
    }
    result
}

/// Brings the status up to date and starts what is due.
async fn run_once(
    context: &Context,
    key: &Key,
    object: &ObjectReference,
    view: &mut CronView,
    jobs: &[(String, Arc<JobRow>)],
) -> anyhow::Result<Next> {
    let (events, missing) = plan::review(view, jobs);
    report(context, object, events);
    let api: Api<Job> = Api::namespaced(context.client.clone(), &key.ns);
    for one in missing {
        let name = one.name.unwrap_or_default();
        // The row may only be late.
        if api.get_opt(&name).await?.is_none() {
            context.events.event(object, EventType::Normal, "MissingJob", None, format!("Active job went missing: {name}"));
            view.drop_active(one.uid.as_deref().unwrap_or_default());
        }
    }
    let (step, events) = plan::next(view, Timestamp::now());
    tracing::debug!(cronjob = %key, ?step);
    report(context, object, events);
    match step {
        Step::Rest => Ok(Next::Change),
        Step::Wait(time) => Ok(Next::Within(time)),
        Step::Start { due, replace } => {
            if replace {
                replace_active(context, key, object, view).await?;
            }
            start(context, key, object, view, due).await?;
            let next = Schedule::parse(&view.schedule()).ok().and_then(|schedule| schedule::wait(&view.since(), Timestamp::now(), &schedule));
            Ok(next.map_or(Next::Change, Next::Within))
        }
    }
}

fn report(context: &Context, object: &ObjectReference, events: Vec<plan::Event>) {
    for (type_, reason, message) in events {
        context.events.event(object, type_, reason, None, message);
    }
}

/// Deletes a Job and its pods; answers whether that went well.
async fn delete(context: &Context, key: &Key, object: &ObjectReference, view: &mut CronView, name: &str, uid: &str) -> bool {
    let api: Api<Job> = Api::namespaced(context.client.clone(), &key.ns);
    match api.delete(name, &DeleteParams::background()).await {
        Ok(_) => {
            view.drop_active(uid);
            context.events.event(object, EventType::Normal, "SuccessfulDelete", None, format!("Deleted job {name}"));
            true
        }
        Err(error) => {
            let message = format!("Deleted job: {}", crate::refusal(&error));
            context.events.event(object, EventType::Warning, "FailedDelete", None, message);
            false
        }
    }
}

/// Deletes all active Jobs, whose place another one takes.
async fn replace_active(context: &Context, key: &Key, object: &ObjectReference, view: &mut CronView) -> anyhow::Result<()> {
    let api: Api<Job> = Api::namespaced(context.client.clone(), &key.ns);
    for one in view.status.active.clone().into_iter().flatten() {
        let name = one.name.unwrap_or_default();
        if let Err(error) = api.get(&name).await {
            let message = format!("Get job: {}", crate::refusal(&error));
            context.events.event(object, EventType::Warning, "FailedGet", None, message);
            return Err(error).context("reading a Job that is to be replaced");
        }
        let gone = delete(context, key, object, view, &name, one.uid.as_deref().unwrap_or_default()).await;
        anyhow::ensure!(gone, "could not replace job {}/{name}", key.ns);
    }
    Ok(())
}

/// Creates the Job of this time and notes it in the status.
async fn start(context: &Context, key: &Key, object: &ObjectReference, view: &mut CronView, due: Timestamp) -> anyhow::Result<()> {
    let api: Api<Job> = Api::namespaced(context.client.clone(), &key.ns);
    let wanted = new_job(view, key, object, due);
    let name = view.job_name(due);
    let job = match api.create(&PostParams::default(), &wanted).await {
        Ok(job) => {
            context.events.event(object, EventType::Normal, "SuccessfulCreate", None, format!("Created job {name}"));
            job
        }
        Err(error) if is_conflict(&error) => {
            // Ours from an attempt whose status could not be written, or someone else's.
            let job = api.get(&name).await?;
            if controller_of(&job.metadata).is_none_or(|owner| Some(&owner.uid) != object.uid.as_ref()) {
                return Ok(());
            }
            if view.is_active(job.metadata.uid.as_deref().unwrap_or_default()) {
                return Ok(());
            }
            job
        }
        Err(error) => {
            if !crate::is_namespace_terminating(&error) {
                let message = format!("Error creating job: {}", crate::refusal(&error));
                context.events.event(object, EventType::Warning, "FailedCreate", None, message);
            }
            return Err(error).context("creating a Job");
        }
    };
    view.status.active.get_or_insert_default().push(job.object_ref(&()));
    view.status.last_schedule_time = Some(Time(due));
    Ok(())
}

fn new_job(view: &CronView, key: &Key, object: &ObjectReference, due: Timestamp) -> Job {
    let template = view.spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), shown(due, view.spec.time_zone.as_deref().unwrap_or_default()));
    Job {
        metadata: ObjectMeta {
            name: Some(view.job_name(due)),
            namespace: Some(key.ns.clone()),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference("batch/v1", "CronJob", &key.name, object.uid.as_deref().unwrap_or_default())]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// A time as clocks of the zone show it.
fn shown(time: Timestamp, zone: &str) -> String {
    let shown = time.to_zoned(time_zone(zone).unwrap_or(jiff::tz::TimeZone::UTC));
    let offset = if shown.offset().is_zero() { "Z".to_owned() } else { shown.strftime("%:z").to_string() };
    format!("{}{offset}", shown.strftime("%Y-%m-%dT%H:%M:%S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_annotation_shows_the_time_in_its_zone() {
        let time: Timestamp = "2026-07-01T10:00:00Z".parse().unwrap();
        for (zone, expected) in [("", "2026-07-01T10:00:00Z"), ("Europe/Berlin", "2026-07-01T12:00:00+02:00")] {
            assert_eq!(shown(time, zone), expected);
        }
    }
}
