//! What is special about single kinds: events with two faces, storage, classes, disruption budgets, ephemeral containers.

mod common;

use common::TestServer;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

struct Answer {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

async fn ask(server: &TestServer, method: &str, path: &str, content_type: &str, body: String) -> Answer {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    let warnings = parts.headers.get_all("warning").iter().map(|value| value.to_str().unwrap().to_string()).collect();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { code: parts.status.as_u16(), warnings, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

async fn send(server: &TestServer, method: &str, path: &str, body: &Value) -> Answer {
    ask(server, method, path, "application/json", body.to_string()).await
}

async fn get(server: &TestServer, path: &str) -> Value {
    ask(server, "GET", path, "", String::new()).await.body
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"serviceAccountName": "default", "nodeName": "n1",
        "containers": [{"name": "c", "image": "i"}]}})
}

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Every kind's least object is accepted, and comes back by GET and in a list.
#[tokio::test]
async fn every_new_kind_is_served() {
    let server = TestServer::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let selector = json!({"matchLabels": {"a": "b"}});
    let kinds = [
        ("/apis/apps/v1/namespaces/default/daemonsets", json!({"spec": {"selector": selector, "template": template}})),
        ("/apis/apps/v1/namespaces/default/controllerrevisions", json!({"data": {"spec": {"any": [1]}}, "revision": 1})),
        (
            "/api/v1/persistentvolumes",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "D:/"}}}),
        ),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        ),
        ("/apis/storage.k8s.io/v1/storageclasses", json!({"provisioner": "mullion.io/local"})),
        ("/apis/node.k8s.io/v1/runtimeclasses", json!({"handler": "runhcs-wcow-hypervisor"})),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", json!({"value": 1000})),
        ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", json!({"spec": {"minAvailable": 1, "selector": selector}})),
    ];
    for (path, mut object) in kinds {
        object["metadata"] = json!({"name": "x"});
        let made = send(&server, "POST", &format!("{path}?fieldValidation=Strict"), &object).await;
        assert_eq!(made.code, 201, "{path}: {}", made.body["message"]);
        let found = get(&server, &format!("{path}/x")).await;
        assert_eq!(found, made.body, "{path}");
        assert_eq!(get(&server, path).await["items"].as_array().unwrap().iter().filter(|item| item["metadata"]["name"] == "x").count(), 1, "{path}");
        let again = ask(&server, "PATCH", &format!("{path}/x"), "application/strategic-merge-patch+json", "{}".into()).await;
        assert_eq!((again.code, &again.body), (200, &found), "an empty patch of {path} changes nothing");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_event_has_two_faces() {
    let server = TestServer::start().await;
    let core = "/api/v1/namespaces/default/events";
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "x.io/c",
        "reportingInstance": "c-1", "action": "Bind", "reason": "Bound", "type": "Normal", "note": "hello",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let made = send(&server, "POST", new, &event).await;
    assert_eq!((made.code, &made.body["apiVersion"], &made.body["note"]), (201, &json!("events.k8s.io/v1"), &json!("hello")), "{}", made.body);
    let stored = get(&server, &format!("{core}/e")).await;
    assert_eq!((&stored["apiVersion"], &stored["message"], &stored["involvedObject"]["name"]), (&json!("v1"), &json!("hello"), &json!("p")));
    let patch = r#"{"note": "again", "series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}"#;
    let patched = ask(&server, "PATCH", &format!("{new}/e"), "application/strategic-merge-patch+json", patch.into()).await;
    assert_eq!((patched.code, &patched.body["note"]), (200, &json!("again")), "{}", patched.body);
    let list = get(&server, &format!("{new}?fieldSelector=regarding.kind%3DPod")).await;
    assert_eq!((&list["kind"], &list["items"][0]["series"]["count"]), (&json!("EventList"), &json!(2)));
    assert_eq!(list["apiVersion"], "events.k8s.io/v1");
    let events: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::namespaced(server.admin(), "default");
    let mut watch = events.watch(&kube::api::WatchParams::default(), "0").await.unwrap().boxed();
    let Some(Ok(kube::api::WatchEvent::Added(seen))) = watch.next().await else { panic!("no event") };
    assert_eq!((seen.note.as_deref(), seen.regarding.unwrap().name.as_deref()), (Some("again"), Some("p")));
    let old = json!({"metadata": {"name": "o"}, "involvedObject": {"namespace": "default"}, "message": "m", "count": 3});
    assert_eq!(send(&server, "POST", core, &old).await.code, 201);
    assert_eq!(get(&server, &format!("{new}/o")).await["deprecatedCount"], 3);
    let bad = send(&server, "POST", new, &json!({"metadata": {"name": "b"}, "note": "m"})).await;
    assert!(bad.body["message"].as_str().unwrap().contains("reportingController: Required value"), "{}", bad.body);
    server.stop().await;
}

#[tokio::test]
async fn ephemeral_containers_come_by_their_own_door() {
    let server = TestServer::start().await;
    assert_eq!(send(&server, "POST", PODS, &pod("p")).await.code, 201);
    let patch = r#"{"spec": {"ephemeralContainers": [{"name": "debugger", "image": "busybox", "targetContainerName": "c"}]}}"#;
    let strategic = "application/strategic-merge-patch+json";
    let main = ask(&server, "PATCH", &format!("{PODS}/p"), strategic, patch.into()).await;
    assert_eq!(main.code, 422, "not by the pod itself: {}", main.body);
    let door = format!("{PODS}/p/ephemeralcontainers");
    let added = ask(&server, "PATCH", &door, strategic, patch.into()).await;
    assert_eq!(added.code, 200, "{}", added.body);
    assert_eq!(added.body["spec"]["ephemeralContainers"][0]["terminationMessagePolicy"], "File");
    assert_eq!(added.body["metadata"]["generation"], 2);
    let changed = ask(&server, "PATCH", &door, strategic, patch.replace("busybox", "other")).await;
    assert!(changed.body["message"].as_str().unwrap().contains("existing ephemeral containers \"debugger\" may not be changed"), "{}", changed.body);
    let ported = ask(
        &server,
        "PATCH",
        &door,
        strategic,
        patch.replace("debugger", "d2").replace("\"image\"", "\"tty\": true, \"ports\": [{\"containerPort\": 80}], \"image\""),
    )
    .await;
    assert!(ported.body["message"].as_str().unwrap().contains("ports: Forbidden: cannot be set for an Ephemeral Container"), "{}", ported.body);
    server.stop().await;
}

#[tokio::test]
async fn budgets_forbid_evictions() {
    let server = TestServer::start().await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    for name in ["one", "two"] {
        send(&server, "POST", PODS, &pod(name)).await;
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        ask(&server, "PATCH", &format!("{PODS}/{name}/status"), "application/merge-patch+json", ready.to_string()).await;
    }
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    assert_eq!(send(&server, "POST", budgets, &budget).await.code, 201);
    let evict = |name: &'static str, query: &'static str| {
        let (path, body) = (format!("{PODS}/{name}/eviction{query}"), json!({"metadata": {"name": name}}));
        let server = &server;
        async move { send(server, "POST", &path, &body).await }
    };
    let unseen = evict("one", "").await;
    assert_eq!((unseen.code, &unseen.body["details"]["retryAfterSeconds"]), (429, &json!(10)), "{}", unseen.body);
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    ask(&server, "PATCH", &format!("{budgets}/b/status"), "application/merge-patch+json", status.to_string()).await;
    assert_eq!(evict("one", "?dryRun=All").await.code, 201);
    let conditions = |pod: &Value| pod["status"]["conditions"].as_array().unwrap().iter().map(|one| one["type"].clone()).collect::<Vec<_>>();
    let one = get(&server, &format!("{PODS}/one")).await;
    assert!(one["metadata"].get("deletionTimestamp").is_none(), "only a rehearsal");
    assert_eq!(conditions(&one), ["Ready"]);
    assert_eq!(evict("one", "").await.code, 201);
    let one = get(&server, &format!("{PODS}/one")).await;
    assert!(one["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(conditions(&one), ["Ready", "DisruptionTarget"]);
    let refused = evict("two", "").await;
    assert_eq!(refused.body["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    let why = &refused.body["details"]["causes"][0];
    assert_eq!(why["message"], "The disruption budget b needs 1 healthy pods and has 2 currently");
    server.stop().await;
}

#[tokio::test]
async fn claims_get_the_default_class_and_protection() {
    let server = TestServer::start().await;
    let class = json!({"metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "mullion.io/local", "volumeBindingMode": "WaitForFirstConsumer"});
    assert_eq!(send(&server, "POST", "/apis/storage.k8s.io/v1/storageclasses", &class).await.code, 201);
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = send(&server, "POST", claims, &json!({"metadata": {"name": "a"}, "spec": spec, "status": {"phase": "Bound"}})).await.body;
    assert_eq!((&claim["spec"]["storageClassName"], &claim["status"]), (&json!("local"), &json!({"phase": "Pending"})));
    assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let without = send(
        &server,
        "POST",
        claims,
        &json!({"metadata": {"name": "b"}, "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}),
    )
    .await
    .body;
    assert_eq!(without["spec"]["storageClassName"], "");
    let bind = ask(&server, "PATCH", &format!("{claims}/a"), "application/merge-patch+json", r#"{"spec": {"volumeName": "pv"}}"#.into()).await;
    assert_eq!(bind.code, 200, "{}", bind.body);
    let other = ask(&server, "PATCH", &format!("{claims}/a"), "application/merge-patch+json", r#"{"spec": {"volumeName": "pv2"}}"#.into()).await;
    assert!(other.body["message"].as_str().unwrap().contains("spec is immutable after creation"), "{}", other.body);
    let grown = r#"{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}"#;
    assert_eq!(ask(&server, "PATCH", &format!("{claims}/a"), "application/merge-patch+json", grown.into()).await.code, 403);
    server.stop().await;
}

#[tokio::test]
async fn classes_decide_priority_and_runtime() {
    let server = TestServer::start().await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let default = json!({"metadata": {"name": "usual"}, "value": 7, "globalDefault": true, "preemptionPolicy": "Never"});
    assert_eq!(send(&server, "POST", classes, &default).await.code, 201);
    let second = send(&server, "POST", classes, &json!({"metadata": {"name": "other"}, "value": 8, "globalDefault": true})).await;
    assert_eq!(second.code, 403);
    assert!(second.body["message"].as_str().unwrap().ends_with("PriorityClass usual is already marked as default. Only one default can exist"));
    assert_eq!(send(&server, "DELETE", &format!("{classes}/system-node-critical"), &json!({})).await.code, 403);
    let made = send(&server, "POST", PODS, &pod("p")).await.body;
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["preemptionPolicy"], &made["spec"]["priorityClassName"]),
        (&json!(7), &json!("Never"), &json!("usual"))
    );
    let mut strange = pod("q");
    strange["spec"]["runtimeClassName"] = "gone".into();
    let refused = send(&server, "POST", PODS, &strange).await.body;
    assert_eq!(refused["message"], "pods \"q\" is forbidden: pod rejected: RuntimeClass \"gone\" not found");
    server.stop().await;
}

#[tokio::test]
async fn the_handbook_s_daemon_set_hears_each_fault() {
    let server = TestServer::start().await;
    let path = "/apis/apps/v1/namespaces/default/daemonsets";
    let mut set = json!({"metadata": {"name": "my-DaemonSet"}, "spec": {"template": {"metadata": {"labels": {"app": "foo"}}, "spec": {
        "containers": [{"name": "foo", "image": "microsoft/windowsservercore:1709"}], "nodeSelector": {"beta.kubernetes.io/os": "windows"}}}}});
    let refused = send(&server, "POST", path, &set).await;
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("metadata.name: Invalid value: \"my-DaemonSet\": a lowercase RFC 1123 subdomain"), "{message}");
    assert!(
        message.contains("spec.template.metadata.labels: Invalid value: {\"app\":\"foo\"}: `selector` does not match template `labels`"),
        "{message}"
    );
    set["metadata"]["name"] = "foo".into();
    set["spec"]["selector"] = json!({"matchLabels": {"app": "foo"}});
    let made = send(&server, "POST", path, &set).await;
    assert_eq!(made.code, 201);
    let warning = "299 - \"spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \\\"kubernetes.io/os\\\" instead\"";
    assert_eq!(made.warnings, [warning]);
    let old = send(&server, "POST", "/apis/extensions/v1beta1/namespaces/default/daemonsets", &set).await;
    assert_eq!(old.code, 404);
    server.stop().await;
}

#[tokio::test]
async fn repeated_members_and_rehearsed_deletions_are_noticed() {
    let server = TestServer::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let twice = r#"{"metadata": {"name": "a"}, "data": {"k": "1"}, "data": {"k": "2"}, "dada": {}, "immutable": false}"#;
    let strict = ask(&server, "POST", &format!("{maps}?fieldValidation=Strict"), "application/json", twice.into()).await;
    assert!(
        strict.body["message"].as_str().unwrap().ends_with("strict decoding error: duplicate field \"data\", unknown field \"dada\""),
        "{}",
        strict.body
    );
    let lax = ask(&server, "POST", maps, "application/json", twice.into()).await;
    assert_eq!((lax.code, lax.warnings.len()), (201, 2));
    let wrong = ask(&server, "POST", maps, "application/json", r#"{"metadata": {"name": "A"}, "dada": {}}"#.into()).await;
    assert_eq!((wrong.code, wrong.warnings.len()), (422, 1), "warnings come with errors too");
    assert_eq!(send(&server, "DELETE", &format!("{maps}/a"), &json!({"dryRun": ["All"]})).await.code, 200);
    assert_eq!(get(&server, &format!("{maps}/a")).await["kind"], "ConfigMap");
    server.stop().await;
}

/// Whoever wrote them.
#[tokio::test]
async fn endpoints_go_with_their_service() {
    let server = TestServer::start().await;
    let (services, endpoints) = ("/api/v1/namespaces/default/services", "/api/v1/namespaces/default/endpoints");
    for finalizers in [json!([]), json!(["example.org/wait"])] {
        let service = json!({"metadata": {"name": "db", "finalizers": finalizers}, "spec": {"ports": [{"port": 1433}]}});
        assert_eq!(send(&server, "POST", services, &service).await.code, 201);
        for name in ["db", "other"] {
            send(&server, "POST", endpoints, &json!({"metadata": {"name": name}, "subsets": []})).await;
        }
        let service = format!("{services}/db");
        let found = async |name: &str| get(&server, &format!("{endpoints}/{name}")).await;
        assert_eq!(send(&server, "DELETE", &format!("{service}?dryRun=All"), &Value::Null).await.code, 200);
        assert_eq!(found("db").await["kind"], "Endpoints", "a dry run deletes nothing");
        assert_eq!(send(&server, "DELETE", &service, &Value::Null).await.code, 200);
        if finalizers != json!([]) {
            assert_eq!(found("db").await["kind"], "Endpoints", "the Service is still there");
            let patch = json!({"metadata": {"finalizers": null}}).to_string();
            assert_eq!(ask(&server, "PATCH", &service, "application/merge-patch+json", patch).await.code, 200);
        }
        assert_eq!((found("db").await["code"].clone(), found("other").await["kind"].clone()), (json!(404), json!("Endpoints")));
    }
}
