//! Deletes Jobs that ended `ttlSecondsAfterFinished` ago.
//!
//! Inputs: Jobs. Outputs: deletions, pods first. Mirrors `pkg/controller/ttlafterfinished`.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{Client, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use tokio_util::sync::CancellationToken;

use crate::{
    job::JobRow,
    runner::{Next, Queue},
    view::Views,
};

struct Context {
    client: Client,
    jobs: Informer<JobRow>,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let jobs = Informer::start(Api::<Job>::all(client.clone()), Selection::all().of(&views.api), |job| Some(JobRow::new(job)));
    tokio::select! {
        () = jobs.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    jobs.subscribe(move |change| {
        if change.new.is_some_and(|job| left(job, Timestamp::now()).is_some()) {
            keys.add(change.key.clone());
        }
    });
    let context = Arc::new(Context { client, jobs });
    queue.run("ttl-after-finished", 2, shutdown, |key| sync(context.clone(), key)).await;
}

/// How long the Job has left, if it has ended and does not stay for good.
fn left(job: &JobRow, now: Timestamp) -> Option<Duration> {
    let expires = job.expires().filter(|_| !job.deleting)?;
    Some(Duration::try_from(expires.duration_since(now)).unwrap_or_default())
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let Some(row) = context.jobs.get(&key) else { return Ok(Next::Change) };
    match left(&row, Timestamp::now()) {
        None => return Ok(Next::Change),
        Some(left) if !left.is_zero() => return Ok(Next::Within(left)),
        Some(_) => {}
    }
    // The time may have been changed a moment ago.
    let api: Api<Job> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(job) = api.get_opt(&key.name).await? else { return Ok(Next::Change) };
    let row = JobRow::new(&job);
    match left(&row, Timestamp::now()) {
        Some(left) if left.is_zero() => {}
        later => return Ok(later.map_or(Next::Change, Next::Within)),
    }
    let preconditions = Some(Preconditions { uid: Some(row.uid), resource_version: None });
    match api.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::foreground() }).await {
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Next::Change),
        other => other.map(|_| Next::Change).context("deleting a Job that ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Ended;

    #[test]
    fn only_jobs_that_ended_and_say_so_expire() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ended = |second| Some(Ended { complete: true, at: Some(at(second)) });
        let seconds = |count| Some(Duration::from_secs(count));
        for (what, ended, ttl, deleting, expected) in [
            ("it runs", None, Some(10), false, None),
            ("it stays", ended(100), None, false, None),
            ("not yet", ended(100), Some(10), false, seconds(5)),
            ("now", ended(100), Some(5), false, seconds(0)),
            ("long ago", ended(50), Some(0), false, seconds(0)),
            ("it goes already", ended(100), Some(5), true, None),
            ("clocks differ", ended(200), Some(5), false, seconds(100)),
        ] {
            let mut row = JobRow::new(&Job::default());
            (row.ended, row.ttl, row.deleting) = (ended, ttl, deleting);
            assert_eq!(left(&row, at(105)), expected, "{what}");
        }
    }
}
