//! Tests of LimitRanger and ResourceQuota on stored objects.

use super::Chain;
use crate::alloc::Allocators;
use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::kind::{Cluster, Kinds, Part, WriteContext};
use crate::kinds::builtin;
use crate::object;
use crate::registry::Registry;
use crate::registry::update::Target;
use crate::status::ApiError;
use crate::store::{Expect, Store};
use serde_json::{Value, json};
use std::sync::Arc;

struct Server {
    registry: Registry,
    _dir: tempfile::TempDir,
}

impl Server {
    /// With the Namespace `default`, its ServiceAccount, and these objects by key.
    async fn with(objects: &[(&str, Value)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let cluster = Cluster {
            allocators: Allocators::new("10.96.0.0/12".parse().unwrap(), 30000..=32767),
            authorizer: Arc::new(Authorizer::new(Arc::clone(&store))),
            store: Arc::clone(&store),
            kinds: Kinds::new(builtin().all().cloned()),
            webhooks: Default::default(),
        };
        let basics = [
            ("core/namespaces//default", json!({})),
            ("core/serviceaccounts/default/default", json!({"metadata": {"name": "default"}})),
            ("networking.k8s.io/servicecidrs//kubernetes", json!({"spec": {"cidrs": ["10.96.0.0/12"]}})),
        ];
        for (key, object) in basics.iter().chain(objects) {
            store.put(key, Expect::Absent, object.clone()).await.unwrap();
        }
        Self { registry: Registry { cluster, admission: Chain::default() }, _dir: dir }
    }

    async fn create(&self, plural: &str, object: Value, dry_run: bool) -> Result<Value, ApiError> {
        let kind = self.registry.kinds.find("", "v1", plural).unwrap();
        let context = WriteContext::new(UserInfo::new("jane", &[]), dry_run);
        self.registry.create(&context, &kind, "default", object).await
    }

    fn used(&self) -> Value {
        self.registry.store.get("core/resourcequotas/default/q").unwrap().value()["status"]["used"].clone()
    }
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

fn quota(hard: Value, used: Value) -> (&'static str, Value) {
    (
        "core/resourcequotas/default/q",
        json!({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}),
    )
}

#[tokio::test]
async fn limit_ranges_fill_in_and_refuse() {
    let limit = json!({"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}});
    let range = ("core/limitranges/default/l", json!({"metadata": {"name": "l"}, "spec": {"limits": [limit]}}));
    let server = Server::with(&[range]).await;
    let created = server.create("pods", pod("p", json!({})), false).await.unwrap();
    let container = &created["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}));
    let annotation = object::text(&created, &["metadata", "annotations", "kubernetes.io/limit-ranger"]);
    assert_eq!(annotation, "LimitRanger plugin set: cpu request for container c; cpu limit for container c");
    assert_eq!(created["status"]["qosClass"], "Burstable", "the class follows from what was filled in");
    let error = server.create("pods", pod("q", json!({"limits": {"cpu": "2"}})), false).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (403, r#"pods "q" is forbidden: maximum cpu usage per Container is 1, but limit is 2"#));
}

#[tokio::test]
async fn quotas_are_charged_once_and_not_exceeded() {
    let server = Server::with(&[quota(
        json!({"pods": "1", "services": "1", "services.nodeports": "1"}),
        json!({"pods": "0", "services": "0", "services.nodeports": "0"}),
    )])
    .await;
    server.create("pods", pod("dry", json!({})), true).await.unwrap();
    assert_eq!(server.used()["pods"], "0", "a rehearsal takes nothing");
    server.create("pods", pod("a", json!({})), false).await.unwrap();
    assert_eq!(server.used()["pods"], "1");
    let error = server.create("pods", pod("b", json!({})), false).await.unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (403, r#"pods "b" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#)
    );
    let error = server.create("pods", pod("a", json!({})), false).await.unwrap_err();
    assert_eq!(error.reason, "AlreadyExists", "what exists is not charged again");
    let service = |ports: Value| json!({"metadata": {"name": "s"}, "spec": {"type": "ClusterIP", "ports": ports}});
    server.create("services", service(json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}])), false).await.unwrap();
    let kind = server.registry.kinds.find("", "v1", "services").unwrap();
    let context = WriteContext::new(UserInfo::new("jane", &[]), false);
    let target = Target { kind: &kind, namespace: "default", name: "s", part: Part::Main };
    let open = |current: &Value| {
        let mut service = current.clone();
        service["spec"]["type"] = "NodePort".into();
        Ok(service)
    };
    let error = server.registry.update(&context, target, true, open).await.unwrap_err();
    let expected =
        r#"services "s" is forbidden: exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1"#;
    assert_eq!(error.message, expected);
}

#[tokio::test]
async fn quotas_hold_against_many_at_once() {
    let server = Server::with(&[quota(json!({"count/configmaps": "7"}), json!({"count/configmaps": "0"}))]).await;
    let creations = (0..30).map(|index| server.create("configmaps", json!({"metadata": {"name": format!("m{index}")}}), false));
    let results = futures::future::join_all(creations).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 7);
    assert!(results.iter().all(|result| result.as_ref().map_or_else(|error| error.code == 403, |_| true)), "nobody loses a race");
    assert_eq!(server.used()["count/configmaps"], "7");
}
