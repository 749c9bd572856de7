//! Jobs against the real API server.

use k8s_openapi::api::{
    batch::v1::{Job, JobCondition},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use test_lab::until_async;

use crate::common::{Cluster, create, object};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// A Job of Windows containers with these fields beside its template.
fn job(name: &str, fields: Value) -> Job {
    let mut spec = json!({
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/os": "windows"},
                "containers": [{"name": "work", "image": "nanoserver"}],
            },
        },
    });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

async fn cluster() -> Cluster {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    cluster
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Running pods of a Job, by name.
async fn running(cluster: &Cluster, name: &str) -> Vec<Pod> {
    let found = cluster.api::<Pod>().list(&ListParams::default().labels(&format!("app={name}"))).await.unwrap().items;
    found.into_iter().filter(|pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()).collect()
}

async fn wait_running(cluster: &Cluster, name: &str, count: usize) -> Vec<Pod> {
    until_async(&format!("{count} pods of {name} run"), async || Some(running(cluster, name).await).filter(|pods| pods.len() == count)).await
}

/// Ends a pod as its node would.
async fn end(cluster: &Cluster, pod: &Pod, code: i32) {
    let now = jiff::Timestamp::now().to_string();
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let container = json!({"name": "work", "image": "nanoserver", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "finishedAt": now}}});
    let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": now});
    let status = json!({"status": {"phase": phase, "containerStatuses": [container], "conditions": [ready]}});
    cluster.api::<Pod>().patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

fn condition(job: &Job, type_: &str) -> Option<JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == type_ && one.status == "True").cloned()
}

async fn wait_condition(cluster: &Cluster, name: &str, type_: &str) -> Job {
    until_async(&format!("{name} is {type_}"), async || {
        let found = cluster.api::<Job>().get(name).await.unwrap();
        condition(&found, type_).is_some().then_some(found)
    })
    .await
}

async fn no_finalizer_is_left(cluster: &Cluster, name: &str) {
    until_async("no pod is held back", async || {
        let found = cluster.api::<Pod>().list(&ListParams::default().labels(&format!("app={name}"))).await.unwrap().items;
        found.iter().all(|pod| !pod.finalizers().iter().any(|one| one == FINALIZER))
    })
    .await;
}

#[tokio::test]
async fn a_job_runs_pods_until_enough_succeeded_and_goes_when_its_time_is_up() {
    let cluster = cluster().await;
    create(&cluster.api(), &job("sum", json!({"completions": 3, "parallelism": 2}))).await;
    let first = wait_running(&cluster, "sum", 2).await;
    assert!(first.iter().all(|pod| pod.finalizers() == [FINALIZER] && pod.name_any().starts_with("sum-")));
    for pod in &first {
        end(&cluster, pod, 0).await;
    }
    let last = wait_running(&cluster, "sum", 1).await;
    end(&cluster, &last[0], 0).await;
    let done = wait_condition(&cluster, "sum", "Complete").await;
    let status = done.status.clone().unwrap();
    assert_eq!((status.succeeded, status.active, status.failed, status.ready, status.terminating), (Some(3), None, None, Some(0), Some(0)));
    assert_eq!(condition(&done, "Complete").unwrap().reason.as_deref(), Some("CompletionsReached"));
    assert!(condition(&done, "SuccessCriteriaMet").is_some() && status.completion_time.is_some() && status.start_time.is_some());
    assert_eq!(status.uncounted_terminated_pods, Some(Default::default()));
    no_finalizer_is_left(&cluster, "sum").await;
    until_async("an event says so", async || cluster.events("default", "sum").await.contains(&"Completed: Job completed".to_owned())).await;

    let ttl = Patch::Merge(json!({"spec": {"ttlSecondsAfterFinished": 0}}));
    cluster.api::<Job>().patch("sum", &PatchParams::default(), &ttl).await.unwrap();
    until_async("the Job is gone", async || cluster.api::<Job>().get_opt("sum").await.unwrap().is_none()).await;
    until_async("its pods too", async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn too_many_failures_end_a_job_and_its_other_pods() {
    let cluster = cluster().await;
    create(&cluster.api(), &job("fail", json!({"completions": 3, "parallelism": 3, "backoffLimit": 0}))).await;
    let pods = wait_running(&cluster, "fail", 3).await;
    end(&cluster, &pods[0], 1).await;
    let failed = wait_condition(&cluster, "fail", "Failed").await;
    let why = condition(&failed, "Failed").unwrap();
    let expected = ("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    assert_eq!((why.reason.as_deref().unwrap(), why.message.as_deref().unwrap()), expected);
    assert!(condition(&failed, "FailureTarget").is_some());
    assert_eq!(failed.status.unwrap().failed, Some(3));
    assert!(running(&cluster, "fail").await.is_empty());
    no_finalizer_is_left(&cluster, "fail").await;
    cluster.stop().await;
}

#[tokio::test]
async fn each_index_runs_once_and_policies_judge_its_failures() {
    let cluster = cluster().await;
    let rule = json!({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}});
    let fields =
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [rule]}});
    create(&cluster.api(), &job("table", fields)).await;
    let pods = wait_running(&cluster, "table", 3).await;
    let index = |pod: &Pod| pod.annotations()["batch.kubernetes.io/job-completion-index"].clone();
    let mut indexes: Vec<String> = pods.iter().map(index).collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1", "2"]);
    for pod in &pods {
        let name = format!("table-{}", index(pod));
        assert_eq!(pod.spec.as_ref().unwrap().hostname.as_ref(), Some(&name));
        assert_eq!(pod.labels()["batch.kubernetes.io/job-completion-index"], index(pod));
        assert!(pod.name_any().starts_with(&format!("{name}-")));
        end(&cluster, pod, if index(pod) == "1" { 42 } else { 0 }).await;
    }
    let failed = wait_condition(&cluster, "table", "Failed").await;
    assert_eq!(condition(&failed, "Failed").unwrap().reason.as_deref(), Some("FailedIndexes"));
    let status = failed.status.unwrap();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("0,2"), Some("1")));
    assert_eq!((status.succeeded, status.failed), (Some(2), Some(1)));
    cluster.stop().await;
}

#[tokio::test]
async fn a_suspended_job_has_no_pods() {
    let cluster = cluster().await;
    create(&cluster.api(), &job("pause", json!({"completions": 2, "parallelism": 2, "suspend": true}))).await;
    let suspended = wait_condition(&cluster, "pause", "Suspended").await;
    assert_eq!(suspended.status.unwrap().start_time, None);
    let suspend = async |suspend: bool| {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        cluster.api::<Job>().patch("pause", &PatchParams::default(), &patch).await.unwrap();
    };
    suspend(false).await;
    wait_running(&cluster, "pause", 2).await;
    suspend(true).await;
    wait_condition(&cluster, "pause", "Suspended").await;
    until_async("its pods are gone", async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    let resumed = "Resumed: Job resumed".to_owned();
    until_async("an event of the resumption", async || cluster.events("default", "pause").await.contains(&resumed)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn pods_of_a_deleted_job_are_let_go() {
    let cluster = cluster().await;
    let jobs: Api<Job> = cluster.api();
    for (name, how) in [("gone", DeleteParams::background()), ("first", DeleteParams::foreground())] {
        create(&jobs, &job(name, json!({"parallelism": 2}))).await;
        wait_running(&cluster, name, 2).await;
        jobs.delete(name, &how).await.unwrap();
        until_async("the pods are gone", async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty()).await;
        until_async("the Job is gone", async || jobs.get_opt(name).await.unwrap().is_none()).await;
    }
    create(&jobs, &job("left", json!({"parallelism": 2}))).await;
    wait_running(&cluster, "left", 2).await;
    jobs.delete("left", &DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..Default::default() }).await.unwrap();
    no_finalizer_is_left(&cluster, "left").await;
    assert_eq!(running(&cluster, "left").await.len(), 2, "orphans stay");
    cluster.stop().await;
}

#[tokio::test]
async fn orphans_are_adopted_and_strangers_released() {
    let cluster = cluster().await;
    create(&cluster.api(), &job("own", json!({"parallelism": 1, "completions": 2}))).await;
    let name = wait_running(&cluster, "own", 1).await[0].name_any();
    let pods = cluster.api::<Pod>();
    let merge = async |patch: Value| pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    merge(json!({"metadata": {"ownerReferences": null}})).await;
    until_async("it is adopted, and its end will count", async || {
        let pod = pods.get(&name).await.unwrap();
        pod.owner_references().len() == 1 && pod.finalizers() == [FINALIZER]
    })
    .await;
    merge(json!({"metadata": {"labels": null}})).await;
    until_async("it is released", async || {
        let pod = pods.get(&name).await.unwrap();
        pod.owner_references().is_empty() && pod.finalizers().is_empty()
    })
    .await;
    let other = wait_running(&cluster, "own", 1).await;
    assert_ne!(other[0].name_any(), name, "and replaced");
    cluster.stop().await;
}

#[tokio::test]
async fn another_controllers_job_is_left_alone() {
    let cluster = cluster().await;
    create(&cluster.api(), &job("theirs", json!({"managedBy": "example.com/queue"}))).await;
    create(&cluster.api(), &job("ours", json!({"parallelism": 1}))).await;
    wait_running(&cluster, "ours", 1).await;
    assert!(running(&cluster, "theirs").await.is_empty());
    assert_eq!(cluster.api::<Job>().get("theirs").await.unwrap().status.and_then(|status| status.start_time), None);
    cluster.stop().await;
}
