//! Each verb of each kind, by crate `kube`.

mod changes;
mod ends;
mod reads;

use crate::common::TestServer;
use crate::objects;
use crate::served::{self, Resource, send, served};
use futures::{FutureExt, StreamExt, TryStreamExt};
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use test_lab::until_async;

/// Kinds that are tested at a time.
const AT_ONCE: usize = 8;

/// One kind under test, in a namespace of its own.
struct Contract {
    client: Client,
    resource: Resource,
    namespace: String,
    api: Api<DynamicObject>,
    custom: bool,
}

/// What a watch showed: type, name and version of each event.
type Seen = Arc<Mutex<Vec<(&'static str, String, u64)>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_served_kind_keeps_the_contract_of_each_verb() {
    let server = TestServer::start().await;
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &objects::definition()).await.unwrap();
    let client = server.tls_client("admin", "system:masters").await;
    let kinds = served(&client).await;
    assert!(kinds.iter().any(|kind| kind.group == "contract.example.com"), "the custom kind is discovered");
    let broken: Vec<String> = futures::stream::iter(kinds.into_iter().enumerate())
        .map(|(number, resource)| {
            let (client, name) = (client.clone(), format!("{}/{}", resource.api_version(), resource.plural));
            async move {
                let held = async { Contract::new(client, resource, number).await.hold().await };
                AssertUnwindSafe(held).catch_unwind().await.err().map(|panic| format!("{name}: {}", reason(&*panic)))
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|broken| async { broken })
        .collect()
        .await;
    assert!(broken.is_empty(), "{} kinds break the contract:\n{}", broken.len(), broken.join("\n"));
    server.stop().await;
}

fn reason(panic: &(dyn Any + Send)) -> String {
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

impl Contract {
    async fn new(client: Client, resource: Resource, number: usize) -> Self {
        let namespace = format!("place-{number}");
        let made = send(&client, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
        assert_eq!(made.code, 201, "{}", made.text);
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        assert_eq!(send(&client, "POST", &accounts, &json!({"metadata": {"name": "default"}})).await.code, 201);
        let (api, custom) = (resource.api(&client, &namespace), resource.group == "contract.example.com");
        Self { client, resource, namespace, api, custom }
    }

    async fn hold(self) {
        if !self.resource.is_stored() {
            return self.answers_without_keeping().await;
        }
        let seen = self.watch().await;
        self.unknown_objects_are_not_found().await;
        self.creates().await;
        self.reads().await;
        self.updates().await;
        self.patches().await;
        self.applies().await;
        self.writes_status().await;
        self.scales().await;
        self.deletes().await;
        self.deletes_collections().await;
        self.has_seen(&seen).await;
    }

    /// The whole object of a number, as a client writes it.
    fn value(&self, number: usize) -> Value {
        self.resource.object(&self.namespace, number)
    }

    fn object(&self, number: usize) -> DynamicObject {
        serde_json::from_value(self.value(number)).unwrap()
    }

    fn name(&self, number: usize) -> String {
        self.value(number)["metadata"]["name"].as_str().unwrap().into()
    }

    fn collection(&self) -> String {
        self.resource.collection(&self.namespace)
    }

    fn path(&self, number: usize) -> String {
        format!("{}/{}", self.collection(), self.name(number))
    }

    /// The object as the server shows it, with all its members. The server itself writes the status of a policy after each change of its
    /// generation: that is waited for.
    async fn found(&self, number: usize) -> Value {
        until_async("the server has written the object's status", async || {
            let answer = send(&self.client, "GET", &self.path(number), &Value::Null).await;
            assert_eq!(answer.code, 200, "get: {}", answer.text);
            let is_settled = self.resource.plural != "validatingadmissionpolicies"
                || answer.body["status"]["observedGeneration"] == answer.body["metadata"]["generation"];
            is_settled.then_some(answer.body)
        })
        .await
    }

    async fn is_there(&self, number: usize) -> bool {
        self.api.get_opt(&self.name(number)).await.unwrap().is_some()
    }

    /// A failure is upstream's Status.
    fn refused(&self, answer: &served::Answer, code: u16, reason: &str, message: &str) {
        assert_eq!(answer.code, code, "{message}: {}", answer.text);
        let status = &answer.body;
        let shape = (&status["kind"], &status["apiVersion"], &status["status"], &status["code"], &status["reason"]);
        assert_eq!(shape, (&json!("Status"), &json!("v1"), &json!("Failure"), &json!(code), &json!(reason)), "{}", answer.text);
        assert!(answer.message().contains(message), "{message:?} is not in {}", answer.text);
    }

    /// Of a failure that concerns one object.
    fn names_object(&self, answer: &served::Answer, name: &str) {
        let mut details = json!({"name": name, "kind": self.resource.plural});
        if !self.resource.group.is_empty() {
            details["group"] = self.resource.group.as_str().into();
        }
        assert_eq!(answer.body["details"], details, "{}", answer.text);
    }

    /// Watches the kind's objects of this test from now on.
    async fn watch(&self) -> Seen {
        let list = send(&self.client, "GET", &self.collection(), &Value::Null).await.body;
        let from = list["metadata"]["resourceVersion"].as_str().unwrap().to_string();
        let (api, seen) = (self.api.clone(), Seen::default());
        let events = Arc::clone(&seen);
        let mut stream = api.watch(&WatchParams::default().labels("contract=yes"), &from).await.unwrap().boxed();
        tokio::spawn(async move {
            while let Some(event) = stream.try_next().await.unwrap() {
                let (kind, object) = match event {
                    WatchEvent::Added(object) => ("ADDED", object),
                    WatchEvent::Modified(object) => ("MODIFIED", object),
                    WatchEvent::Deleted(object) => ("DELETED", object),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(status) => panic!("the watch failed: {status:?}"),
                };
                let version = object.metadata.resource_version.unwrap().parse().unwrap();
                events.lock().unwrap().push((kind, object.metadata.name.unwrap(), version));
            }
        });
        seen
    }

    /// Every object was added once, modified, and deleted; versions only rise.
    async fn has_seen(&self, seen: &Seen) {
        let ended = |seen: &Seen| {
            let seen = seen.lock().unwrap();
            let count = |kind: &str| seen.iter().filter(|event| event.0 == kind).count();
            if count("DELETED") == ends::OBJECTS { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        until_async("deletions in the watch", async || ended(seen)).await;
        let seen = seen.lock().unwrap();
        assert!(seen.is_sorted_by(|one, other| one.2 < other.2), "versions rise: {seen:?}");
        let mut lives: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        seen.iter().for_each(|(kind, name, _)| lives.entry(name).or_default().push(kind));
        for (name, life) in &lives {
            let (first, last) = (life[0], life[life.len() - 1]);
            assert!(first == "ADDED" && last == "DELETED" && life[1..life.len() - 1].iter().all(|kind| *kind == "MODIFIED"), "{name}: {life:?}");
        }
        assert_eq!(lives.len(), ends::OBJECTS);
    }

    /// Reviews are answered, and metrics computed; no such object is kept.
    async fn answers_without_keeping(self) {
        if self.resource.has("create") {
            let path = format!("{}?fieldValidation=Strict", self.collection());
            if self.resource.plural == "bindings" {
                let mut pod = objects::object("", "pods", &self.namespace, 0);
                pod["kind"] = "Pod".into();
                let pods = format!("/api/v1/namespaces/{}/pods", self.namespace);
                assert_eq!(send(&self.client, "POST", &pods, &pod).await.code, 201);
            }
            let answer = send(&self.client, "POST", &path, &self.value(0)).await;
            assert_eq!(answer.code, 201, "{}", answer.text);
            let kind = if self.resource.plural == "bindings" { "Status" } else { &self.resource.kind };
            assert_eq!(answer.body["kind"], kind);
            let mut unknown = self.value(1);
            unknown["unknownField"] = 1.into();
            let answer = send(&self.client, "POST", &path, &unknown).await;
            self.refused(&answer, 400, "BadRequest", "strict decoding error: unknown field \"unknownField\"");
        } else {
            let answer = send(&self.client, "POST", &self.collection(), &json!({"metadata": {"name": "a"}})).await;
            self.refused(&answer, 405, "MethodNotAllowed", "");
        }
        let list = send(&self.client, "GET", &self.collection(), &Value::Null).await;
        if self.resource.has("list") {
            assert_eq!((list.code, &list.body["kind"]), (200, &json!(format!("{}List", self.resource.kind))), "{}", list.text);
        } else {
            self.refused(&list, 405, "MethodNotAllowed", "");
        }
    }

    /// Creates what later steps use.
    async fn create(&self, number: usize) -> DynamicObject {
        self.api.create(&PostParams::default(), &self.object(number)).await.unwrap_or_else(|error| panic!("create: {error}"))
    }
}
