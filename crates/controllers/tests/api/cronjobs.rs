//! CronJobs against the real API server.

use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use test_lab::until_async;

use crate::common::{Cluster, create, object};

/// A CronJob that was due at the beginning of the year, and is not again before the next.
async fn due(cluster: &Cluster, name: &str, fields: Value) {
    let template = json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "work", "image": "nanoserver"}]},
    });
    let mut spec = json!({"schedule": "0 0 1 1 *", "timeZone": "Etc/UTC", "suspend": true, "jobTemplate": {"spec": {"template": template}}});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let crons: Api<CronJob> = cluster.api();
    create(&crons, &object::<CronJob>(json!({"metadata": {"name": name}, "spec": spec}))).await;
    let long_ago = json!({"status": {"lastScheduleTime": format!("{}-06-01T00:00:00Z", year() - 1)}});
    crons.patch_status(name, &PatchParams::default(), &Patch::Merge(long_ago)).await.unwrap();
    crons.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"suspend": false}}))).await.unwrap();
}

fn year() -> i16 {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year()
}

async fn the_job(cluster: &Cluster, cron: &str) -> Job {
    until_async(&format!("{cron} has a Job"), async || {
        let jobs = cluster.api::<Job>().list(&ListParams::default()).await.unwrap().items;
        jobs.into_iter().find(|job| job.owner_references().iter().any(|owner| owner.name == cron))
    })
    .await
}

#[tokio::test]
async fn a_job_is_created_when_it_is_due_and_only_once() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    due(&cluster, "tidy", json!({"successfulJobsHistoryLimit": 1})).await;
    let job = the_job(&cluster, "tidy").await;
    let time: jiff::Timestamp = format!("{}-01-01T00:00:00Z", year()).parse().unwrap();
    assert_eq!(job.name_any(), format!("tidy-{}", time.as_second() / 60));
    assert_eq!(job.annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"], time.to_string());
    let cron = until_async("the status names the Job", async || {
        let cron = cluster.api::<CronJob>().get("tidy").await.unwrap();
        cron.status.as_ref().is_some_and(|status| status.active.is_some()).then_some(cron)
    })
    .await;
    let status = cron.status.unwrap();
    assert_eq!(status.active.unwrap()[0].name.as_deref(), Some(job.name_any().as_str()));
    assert_eq!(status.last_schedule_time.unwrap().0, time);

    let pod = until_async("its pod runs", async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default().labels("app=tidy")).await.unwrap().items;
        pods.into_iter().find(|pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()))
    })
    .await;
    let end = json!({"status": {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}});
    cluster.api::<Pod>().patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(end)).await.unwrap();
    until_async("the success is noted", async || {
        let status = cluster.api::<CronJob>().get("tidy").await.unwrap().status.unwrap_or_default();
        status.active.is_none() && status.last_successful_time.is_some()
    })
    .await;
    let completed = format!("SawCompletedJob: Saw completed job: {}, condition: Complete", job.name_any());
    until_async("an event says so", async || cluster.events("default", "tidy").await.contains(&completed)).await;
    assert_eq!(cluster.api::<Job>().list(&ListParams::default()).await.unwrap().items.len(), 1, "the history keeps it");

    let none = Patch::Merge(json!({"spec": {"successfulJobsHistoryLimit": 0}}));
    cluster.api::<CronJob>().patch("tidy", &PatchParams::default(), &none).await.unwrap();
    until_async("the history is cut", async || cluster.api::<Job>().list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    let deleted = format!("SuccessfulDelete: Deleted job {}", job.name_any());
    until_async("an event says that too", async || cluster.events("default", "tidy").await.contains(&deleted)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_that_is_too_late_is_missed() {
    let cluster = Cluster::start().await;
    due(&cluster, "late", json!({"startingDeadlineSeconds": 10})).await;
    due(&cluster, "due", json!({})).await;
    the_job(&cluster, "due").await;
    let jobs = cluster.api::<Job>().list(&ListParams::default()).await.unwrap().items;
    assert!(jobs.iter().all(|job| !job.name_any().starts_with("late-")));
    cluster.stop().await;
}
