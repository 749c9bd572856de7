//! The API server as kube's client sees it, in process and over TLS.

mod common;

use common::{TestServer, pod};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

#[tokio::test]
async fn the_slice_works_in_process() {
    let server = TestServer::start().await;
    let client = server.admin();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let names: Vec<String> = namespaces.list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|item| item.metadata.name).collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).unwrap();
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    let patched = maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "w"}}))).await.unwrap();
    assert_eq!(patched.data.unwrap()["k"], "w");
    let stale = maps.replace("a", &PostParams::default(), &created).await.unwrap_err();
    assert!(stale.to_string().contains("Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"), "{stale}");
    let again = maps.create(&PostParams::default(), &map).await.unwrap_err();
    assert!(again.to_string().contains("configmaps \"a\" already exists"), "{again}");
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let gone = maps.get("a").await.unwrap_err();
    assert!(gone.to_string().contains("configmaps \"a\" not found"), "{gone}");
    server.stop().await;
}

#[tokio::test]
async fn a_watch_sees_objects_enter_and_leave_its_selection() {
    let server = TestServer::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    let map = |label: &str| serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": "a", "labels": {"on": label}}})).unwrap();
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default().labels("on=yes"), &start).await.unwrap().boxed();
    let mut next = async || match events.try_next().await.unwrap().unwrap() {
        WatchEvent::Added(object) => format!("ADDED {}", object.metadata.name.unwrap()),
        WatchEvent::Modified(object) => format!("MODIFIED {}", object.metadata.name.unwrap()),
        WatchEvent::Deleted(object) => format!("DELETED {}", object.metadata.name.unwrap()),
        other => format!("{other:?}"),
    };
    maps.create(&PostParams::default(), &map("no")).await.unwrap();
    maps.replace("a", &PostParams::default(), &map("yes")).await.unwrap();
    maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "v"}}))).await.unwrap();
    maps.replace("a", &PostParams::default(), &map("no")).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &map("yes")).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    for expected in ["ADDED a", "MODIFIED a", "DELETED a", "ADDED a", "DELETED a"] {
        assert_eq!(next().await, expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn versions_of_the_past_are_gone() {
    let server = TestServer::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    let mut events = maps.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    // Revision 1 is from before the bootstrap, which the window still holds: no error.
    let first = tokio::time::timeout(std::time::Duration::from_millis(100), events.try_next()).await;
    assert!(first.is_err(), "{first:?}");
    let server = server.restart().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    let mut events = maps.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    match events.try_next().await.unwrap().unwrap() {
        WatchEvent::Error(status) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        other => panic!("{other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_are_of_one_moment() {
    let server = TestServer::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "default");
    for name in ["a", "b", "c", "d", "e"] {
        let map = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    maps.delete("d", &DeleteParams::default()).await.unwrap();
    let mut names = Vec::new();
    let mut token = first.metadata.continue_.clone();
    while let Some(next) = token {
        let page = maps.list(&ListParams::default().limit(2).continue_token(&next)).await.unwrap();
        assert_eq!(page.metadata.resource_version, first.metadata.resource_version);
        names.extend(page.items.into_iter().filter_map(|item| item.metadata.name));
        token = page.metadata.continue_.filter(|token| !token.is_empty());
    }
    assert_eq!(names, ["c", "d", "e"]);
    server.stop().await;
}

#[tokio::test]
async fn a_pod_gets_its_token_volume_and_goes_gracefully() {
    let server = TestServer::start().await;
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    let created = pods.create(&PostParams::default(), &pod("web")).await.unwrap();
    let spec = created.spec.unwrap();
    assert_eq!(spec.service_account_name.as_deref(), Some("default"));
    assert!(spec.volumes.unwrap()[0].name.starts_with("kube-api-access-"));
    assert_eq!(spec.tolerations.unwrap().len(), 2);
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));

    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}, "target": {"kind": "Node", "name": "win01"}});
    let bind = |client: kube::Client| {
        let request = http::Request::post("/api/v1/namespaces/default/pods/web/binding")
            .header("content-type", "application/json")
            .body(binding.to_string().into_bytes())
            .unwrap();
        async move { client.request_text(request).await }
    };
    bind(server.admin()).await.unwrap();
    let twice = bind(server.admin()).await.unwrap_err();
    assert!(twice.to_string().contains("Operation cannot be fulfilled on pods \"web\": pod web is already assigned to node \"win01\""), "{twice}");

    let pending = pods.delete("web", &DeleteParams::default()).await.unwrap().left().expect("the pod is still there");
    assert_eq!(pending.metadata.deletion_grace_period_seconds, Some(30));
    assert!(pods.get("web").await.is_ok());
    pods.delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(pods.get_opt("web").await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn services_get_addresses_and_ports_and_give_them_back() {
    let server = TestServer::start().await;
    let services: Api<Service> = Api::namespaced(server.admin(), "default");
    let service = |name: &str, port: u16| {
        serde_json::from_value::<Service>(
            json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80, "nodePort": port}]}}),
        )
        .unwrap()
    };
    let first = services.create(&PostParams::default(), &service("a", 30080)).await.unwrap();
    assert!(first.spec.unwrap().cluster_ip.unwrap().starts_with("10."));
    let taken = services.create(&PostParams::default(), &service("b", 30080)).await.unwrap_err();
    assert!(
        taken.to_string().contains("Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"),
        "{taken}"
    );
    let server = server.restart().await;
    let services: Api<Service> = Api::namespaced(server.admin(), "default");
    assert!(services.create(&PostParams::default(), &service("b", 30080)).await.is_err(), "the port is forgotten after a restart");
    services.delete("a", &DeleteParams::default()).await.unwrap();
    services.create(&PostParams::default(), &service("b", 30080)).await.unwrap();
    let outside = services.create(&PostParams::default(), &service("c", 80)).await.unwrap_err();
    assert!(outside.to_string().contains("provided port is not in the valid range. The range of valid ports is 30000-32767"), "{outside}");
    let kubernetes: Api<Service> = Api::namespaced(server.admin(), "default");
    assert_eq!(kubernetes.get("kubernetes").await.unwrap().spec.unwrap().cluster_ip.as_deref(), Some("10.96.0.1"));
    server.stop().await;
}

#[tokio::test]
async fn identities_are_kept_apart() {
    let server = TestServer::start().await;
    let nobody: Api<Pod> = Api::namespaced(server.client("nobody", &[]), "default");
    let refused = nobody.list(&ListParams::default()).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("pods is forbidden: User \"nobody\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""),
        "{refused}"
    );
    let node: Api<Pod> = Api::all(server.client("system:node:win01", &["system:nodes"]));
    node.list(&ListParams::default().fields("spec.nodeName=win01")).await.unwrap();
    assert!(node.list(&ListParams::default()).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn tls_clients_are_who_their_certificates_say() {
    let server = TestServer::start().await;
    let admin: Api<Namespace> = Api::all(server.tls_client("kubernetes-admin", "system:masters").await);
    admin.get("default").await.unwrap();
    let client = server.tls_client("bob", "people").await;
    let review = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews").header("content-type", "application/json");
    let answer: Value = client.request(review.body(b"{}".to_vec()).unwrap()).await.unwrap();
    let proof = answer["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap_or_default().to_owned();
    let digest = proof.strip_prefix("X509SHA256=").expect("the certificate is named");
    assert!(digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{proof}");
    let bob: Api<Namespace> = Api::all(client);
    let refused = bob.get("default").await.unwrap_err();
    assert!(refused.to_string().contains("namespaces \"default\" is forbidden: User \"bob\" cannot get resource \"namespaces\""), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn tokens_authenticate_until_their_pod_goes() {
    let server = TestServer::start().await;
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    let created = pods.create(&PostParams::default(), &pod("web")).await.unwrap();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3607,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": created.metadata.uid}}});
    let answer = server.post("/api/v1/namespaces/default/serviceaccounts/default/token", &request).await.unwrap();
    let token = answer["status"]["token"].as_str().unwrap().to_string();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let answer = server.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.unwrap();
    assert_eq!(answer["status"]["user"]["username"], "system:serviceaccount:default:default");
    pods.delete("web", &DeleteParams::default()).await.unwrap();
    let answer = server.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.unwrap();
    assert_ne!(answer["status"]["authenticated"], true);
    server.stop().await;
}

#[tokio::test]
async fn namespaces_end_in_two_steps() {
    let server = TestServer::start().await;
    let namespaces: Api<Namespace> = Api::all(server.admin());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let ending = namespaces.delete("x", &DeleteParams::default()).await.unwrap().left().expect("still there");
    assert_eq!(ending.status.unwrap().phase.as_deref(), Some("Terminating"));
    let maps: Api<ConfigMap> = Api::namespaced(server.admin(), "x");
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let refused = maps.create(&PostParams::default(), &map).await.unwrap_err();
    assert!(refused.to_string().contains("unable to create new content in namespace x because it is being terminated"), "{refused}");
    let finalize = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}, "spec": {"finalizers": []}});
    server.put("/api/v1/namespaces/x/finalize", &finalize).await.unwrap();
    assert!(namespaces.get_opt("x").await.unwrap().is_none());
    let immortal = namespaces.delete("default", &DeleteParams::default()).await.unwrap_err();
    assert!(immortal.to_string().contains("namespaces \"default\" is forbidden: this namespace may not be deleted"), "{immortal}");
    server.stop().await;
}
