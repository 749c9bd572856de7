//! Tests of the chain: order, phases, and what a plug-in is told.

use super::*;
use crate::alloc::Allocators;
use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::kind::{Cluster, Kind, Kinds, Operation, Part, WriteContext};
use crate::registry::Registry;
use crate::registry::create::Owner;
use crate::registry::delete::DeleteOptions;
use crate::registry::update::Target;
use crate::store::Store;
use serde_json::json;
use std::sync::{Arc, Mutex};

type Seen = Arc<Mutex<Vec<String>>>;

/// Writes down what it sees; the first one refuses to go on when an object says so.
struct Witness(&'static str, Seen);

fn say(name: &str, phase: &str, attributes: &Attributes<'_>, object: &Value) -> String {
    let old = attributes.old.map_or("", |_| " old");
    format!("{name} {phase} {:?} {}{old} {}", attributes.operation, attributes.subresource, object["spec"])
}

impl Plugin for Witness {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Connect
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.1.lock().unwrap().push(say(self.0, "mutate", attributes, object));
            if object["spec"] == json!("bad") {
                return Err(ApiError::forbidden(attributes.kind, attributes.name, "it is bad"));
            }
            if object.is_object() {
                object["spec"] = format!("{}{}", object["spec"].as_str().unwrap_or_default(), self.0).into();
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        self.1.lock().unwrap().push(say(self.0, "validate", attributes, object));
        Box::pin(std::future::ready(Ok(())))
    }
}

fn registry(dir: &std::path::Path, seen: &Seen) -> Registry {
    let store = Arc::new(Store::open(dir).unwrap());
    let cluster = Cluster {
        allocators: Allocators::new("10.96.0.0/12".parse().unwrap(), 30000..=32767),
        authorizer: Arc::new(Authorizer::new(Arc::clone(&store))),
        store,
        kinds: Kinds::new([]),
        webhooks: Default::default(),
    };
    let witness = |name| Box::new(Witness(name, Arc::clone(seen))) as Box<dyn Plugin>;
    Registry { cluster, admission: Chain::new(vec![witness("a"), witness("b")]) }
}

#[tokio::test]
async fn plug_ins_see_every_write_in_their_order() {
    let (dir, seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let registry = registry(dir.path(), &seen);
    let kind = Arc::new(Kind::open("example.com", "v1", "Thing", "things").cluster().status());
    let context = WriteContext::new(UserInfo::anonymous(), false);
    let take = || std::mem::take(&mut *seen.lock().unwrap());

    let made = registry.create(&context, &kind, "", json!({"metadata": {"name": "x"}, "spec": ""})).await.unwrap();
    assert_eq!(made["spec"], "ab");
    assert_eq!(take(), ["a mutate Create  \"\"", "b mutate Create  \"a\"", "a validate Create  \"ab\"", "b validate Create  \"ab\""]);

    let target = Target { kind: &kind, namespace: "", name: "x", part: Part::Status };
    registry.update(&context, target, false, |old| Ok(old.clone())).await.unwrap();
    assert_eq!(take()[0], "a mutate Update status old \"ab\"");

    registry.edit(&context, &kind, ("", "x"), Owner::Unchanged, |_| Ok(())).await.unwrap();
    assert!(take().is_empty(), "the server's own writes are not admitted");

    let options = DeleteOptions::from_value(&Value::Null).unwrap();
    registry.delete(&context, &kind, "", "x", &options).await.unwrap();
    assert_eq!(take(), ["a mutate Delete  old null", "b mutate Delete  old null", "a validate Delete  old null", "b validate Delete  old null"]);
}

#[tokio::test]
async fn the_first_refusal_ends_the_request() {
    let (dir, seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let registry = registry(dir.path(), &seen);
    let kind = Arc::new(Kind::open("example.com", "v1", "Thing", "things").cluster());
    let context = WriteContext::new(UserInfo::anonymous(), true);
    let error = registry.create(&context, &kind, "", json!({"metadata": {"name": "x"}, "spec": "bad"})).await.unwrap_err();
    assert_eq!(error.message, "things.example.com \"x\" is forbidden: it is bad");
    assert_eq!(seen.lock().unwrap().len(), 1);
    assert!(registry.store.get(&kind.key("", "x")).is_none());
}
