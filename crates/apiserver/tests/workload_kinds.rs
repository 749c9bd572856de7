//! Kinds that workloads are made of, over HTTP: creation with defaults, status, scale, updates, deletion, tables.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

const MERGE: &str = "application/merge-patch+json";

async fn ask(server: &TestServer, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    (parts.status.as_u16(), serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default())
}

async fn made(server: &TestServer, path: &str, object: Value) -> Value {
    let (code, made) = ask(server, "POST", &format!("{path}?fieldValidation=Strict"), "application/json", &object).await;
    assert_eq!(code, 201, "{path}: {}", made["message"]);
    made
}

async fn get(server: &TestServer, path: &str) -> Value {
    ask(server, "GET", path, "", &Value::Null).await.1
}

fn template(policy: &str) -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i:1"}]}})
}

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
const CONTROLLERS: &str = "/api/v1/namespaces/default/replicationcontrollers";
const AUTOSCALERS: [&str; 2] =
    ["/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"];

/// Every kind's least object comes back by GET, and an empty patch changes nothing.
#[tokio::test]
async fn least_objects_are_accepted_and_kept() {
    let server = TestServer::start().await;
    let selector = json!({"matchLabels": {"a": "b"}});
    let target = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x"});
    let kinds = [
        (SETS, json!({"spec": {"selector": selector, "template": template("Always"), "serviceName": "web"}})),
        (JOBS, json!({"spec": {"template": template("Never")}})),
        (CRON_JOBS, json!({"spec": {"schedule": "@hourly", "jobTemplate": {"spec": {"template": template("Never")}}}})),
        (CONTROLLERS, json!({"spec": {"template": template("Always")}})),
        ("/api/v1/namespaces/default/podtemplates", json!({"template": template("Always")})),
        ("/api/v1/namespaces/default/resourcequotas", json!({"spec": {"hard": {"pods": "10", "count/jobs.batch": "2"}}})),
        ("/api/v1/namespaces/default/limitranges", json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}})),
        (AUTOSCALERS[1], json!({"spec": {"scaleTargetRef": target, "maxReplicas": 3}})),
    ];
    for (path, mut object) in kinds {
        object["metadata"] = json!({"name": "x"});
        let made = made(&server, path, object).await;
        let found = get(&server, &format!("{path}/x")).await;
        assert_eq!(found, made, "{path}");
        let again = ask(&server, "PATCH", &format!("{path}/x"), "application/strategic-merge-patch+json", &json!({})).await;
        assert_eq!(again, (200, found.clone()), "an empty patch of {path} changes nothing");
        let put = ask(&server, "PUT", &format!("{path}/x"), "application/json", &found).await;
        assert_eq!(put, (200, found), "a PUT of the same to {path} changes nothing");
    }
    server.stop().await;
}

#[tokio::test]
async fn stateful_sets_scale_and_keep_what_never_changes() {
    let server = TestServer::start().await;
    let claim = json!({"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let spec =
        json!({"selector": {"matchLabels": {"a": "b"}}, "template": template("Always"), "serviceName": "web", "volumeClaimTemplates": [claim]});
    let set = made(&server, SETS, json!({"metadata": {"name": "s"}, "spec": spec, "status": {"replicas": 7}})).await;
    assert_eq!((&set["metadata"]["generation"], &set["status"]), (&json!(1), &json!({"replicas": 0, "availableReplicas": 0})));
    assert_eq!(set["spec"]["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
    assert_eq!(set["spec"]["volumeClaimTemplates"][0]["kind"], "PersistentVolumeClaim");
    let (code, scale) = ask(&server, "PATCH", &format!("{SETS}/s/scale"), MERGE, &json!({"spec": {"replicas": 3}})).await;
    assert_eq!((code, &scale["spec"]["replicas"], &scale["status"]["selector"]), (200, &json!(3), &json!("a=b")));
    let set = get(&server, &format!("{SETS}/s")).await;
    assert_eq!((&set["spec"]["replicas"], &set["metadata"]["generation"]), (&json!(3), &json!(2)));
    let (code, refused) = ask(&server, "PATCH", &format!("{SETS}/s"), MERGE, &json!({"spec": {"serviceName": "other"}})).await;
    let message = refused["message"].as_str().unwrap();
    assert!(code == 422 && message.contains("updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template'"), "{message}");
    let status = json!({"status": {"replicas": 3, "readyReplicas": 4}, "spec": {"replicas": 9}});
    let (code, refused) = ask(&server, "PATCH", &format!("{SETS}/s/status"), MERGE, &status).await;
    assert_eq!(code, 422, "{refused}");
    let status = json!({"status": {"replicas": 3, "readyReplicas": 2, "availableReplicas": 2}, "spec": {"replicas": 9}});
    let (code, set) = ask(&server, "PATCH", &format!("{SETS}/s/status"), MERGE, &status).await;
    assert_eq!((code, &set["spec"]["replicas"], &set["metadata"]["generation"]), (200, &json!(3), &json!(2)), "a status is not a spec");
    server.stop().await;
}

#[tokio::test]
async fn jobs_select_their_own_pods() {
    let server = TestServer::start().await;
    let job = made(&server, JOBS, json!({"metadata": {"generateName": "j-"}, "spec": {"template": template("Never")}})).await;
    let (name, uid) = (job["metadata"]["name"].as_str().unwrap(), &job["metadata"]["uid"]);
    assert_eq!(job["spec"]["selector"]["matchLabels"], json!({"batch.kubernetes.io/controller-uid": uid}));
    assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], name);
    let done = json!({"status": {"succeeded": 1, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:09Z",
        "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]}});
    let (code, finished) = ask(&server, "PATCH", &format!("{JOBS}/{name}/status"), MERGE, &done).await;
    assert_eq!((code, &finished["status"]["succeeded"]), (200, &json!(1)), "{finished}");
    let undone = json!({"status": {"conditions": []}});
    let (code, refused) = ask(&server, "PATCH", &format!("{JOBS}/{name}/status"), MERGE, &undone).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("cannot disable the terminal Complete=True condition"), "{refused}");
    let found = get(&server, &format!("{JOBS}?fieldSelector=status.successful%3D1")).await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    let (code, refused) =
        ask(&server, "POST", JOBS, "application/json", &json!({"metadata": {"name": "k"}, "spec": {"template": template("Always")}})).await;
    assert_eq!(code, 422);
    let message = "Job.batch \"k\" is invalid: spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"";
    assert_eq!(refused["message"], message);
    server.stop().await;
}

#[tokio::test]
async fn jobs_and_controllers_leave_their_pods_unless_told() {
    let server = TestServer::start().await;
    made(&server, JOBS, json!({"metadata": {"name": "j"}, "spec": {"template": template("Never")}})).await;
    made(&server, CONTROLLERS, json!({"metadata": {"name": "r"}, "spec": {"template": template("Always")}})).await;
    for path in [format!("{JOBS}/j"), format!("{CONTROLLERS}/r")] {
        let (code, held) = ask(&server, "DELETE", &path, "application/json", &Value::Null).await;
        assert_eq!((code, &held["metadata"]["finalizers"]), (200, &json!(["orphan"])), "{path}");
    }
    let again = json!({"metadata": {"name": "k"}, "spec": {"template": template("Never")}});
    made(&server, JOBS, again).await;
    let (code, gone) = ask(&server, "DELETE", &format!("{JOBS}/k"), "application/json", &json!({"propagationPolicy": "Background"})).await;
    assert_eq!((code, &gone["status"]), (200, &json!("Success")));
    server.stop().await;
}

#[tokio::test]
async fn a_deleted_job_s_pods_are_spoken_of() {
    let server = TestServer::start().await;
    for (query, warned) in [("", true), ("?propagationPolicy=Orphan", false), ("?propagationPolicy=Background", false)] {
        made(&server, JOBS, json!({"metadata": {"name": "j", "finalizers": ["a.io/b"]}, "spec": {"template": template("Never")}})).await;
        let request = Request::builder().method("DELETE").uri(format!("{JOBS}/j{query}")).body(Full::new(bytes::Bytes::new())).unwrap();
        let (parts, _) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
        let warning = parts.headers.get("warning").map(|warning| warning.to_str().unwrap().to_string()).unwrap_or_default();
        assert_eq!(warning.contains("child pods are preserved by default when jobs are deleted"), warned, "{query}: {warning}");
        let (code, _) = ask(&server, "PATCH", &format!("{JOBS}/j"), MERGE, &json!({"metadata": {"finalizers": null}})).await;
        assert_eq!(code, 200);
    }
    server.stop().await;
}

/// Upstream's strategies keep the specification back, and little else.
#[tokio::test]
async fn statuses_bring_annotations_along() {
    let server = TestServer::start().await;
    let selector = json!({"matchLabels": {"a": "b"}});
    let workload = json!({"spec": {"selector": selector, "template": template("Always"), "serviceName": "web"}});
    let replicated = json!({"spec": {"selector": selector, "template": template("Always")}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let kinds = [
        (SETS, workload, true),
        (JOBS, json!({"spec": {"template": template("Never")}}), true),
        (CRON_JOBS, json!({"spec": {"schedule": "@hourly", "jobTemplate": {"spec": {"template": template("Never")}}}}), true),
        (CONTROLLERS, json!({"spec": {"template": template("Always")}}), true),
        ("/apis/apps/v1/namespaces/default/daemonsets", replicated.clone(), true),
        ("/apis/apps/v1/namespaces/default/replicasets", replicated.clone(), true),
        (deployments, replicated, false),
    ];
    for (path, mut object, labels) in kinds {
        object["metadata"] = json!({"name": "x"});
        made(&server, path, object).await;
        let change = json!({"metadata": {"annotations": {"patched": "yes"}, "labels": {"patched": "yes"}}, "spec": {"minReadySeconds": 7}});
        let (code, patched) = ask(&server, "PATCH", &format!("{path}/x/status"), MERGE, &change).await;
        let metadata = &patched["metadata"];
        assert_eq!((code, &metadata["annotations"]["patched"]), (200, &json!("yes")), "{path}: {patched}");
        assert_eq!(metadata["labels"]["patched"] == "yes", labels, "{path}");
        assert_eq!(metadata["generation"], 1, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn controllers_scale_by_their_labels() {
    let server = TestServer::start().await;
    made(&server, CONTROLLERS, json!({"metadata": {"name": "r"}, "spec": {"template": template("Always")}})).await;
    let scale = get(&server, &format!("{CONTROLLERS}/r/scale")).await;
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("a=b")));
    server.stop().await;
}

#[tokio::test]
async fn an_autoscaler_has_two_versions() {
    let server = TestServer::start().await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let old = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 60}});
    let old = made(&server, AUTOSCALERS[0], old).await;
    assert_eq!((&old["apiVersion"], &old["spec"]["targetCPUUtilizationPercentage"]), (&json!("autoscaling/v1"), &json!(60)));
    let new = get(&server, &format!("{}/h", AUTOSCALERS[1])).await;
    assert_eq!(new["apiVersion"], "autoscaling/v2");
    assert_eq!(new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
    let change = json!({"spec": {"metrics": [memory]}});
    let (code, new) = ask(&server, "PATCH", &format!("{}/h", AUTOSCALERS[1]), MERGE, &change).await;
    assert_eq!((code, &new["spec"]["metrics"]), (200, &json!([memory])), "{new}");
    let old = get(&server, &format!("{}/h", AUTOSCALERS[0])).await;
    assert!(old["spec"].get("targetCPUUtilizationPercentage").is_none());
    assert!(old["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"].as_str().unwrap().contains("\"memory\""));
    let (code, kept) = ask(&server, "PATCH", &format!("{}/h", AUTOSCALERS[0]), MERGE, &json!({"spec": {"maxReplicas": 9}})).await;
    assert_eq!((code, &kept["spec"]["maxReplicas"]), (200, &json!(9)), "{kept}");
    assert_eq!(get(&server, &format!("{}/h", AUTOSCALERS[1])).await["spec"]["metrics"], json!([memory]), "version 1 loses nothing");
    server.stop().await;
}
