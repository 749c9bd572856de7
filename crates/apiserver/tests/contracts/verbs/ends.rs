//! delete and deletecollection.

use super::Contract;
use crate::served::{ask, send};
use kube::api::{DeleteParams, ListParams, Preconditions};
use serde_json::{Value, json};
use test_lab::until_async;

/// How many objects of a kind are created in all.
pub(super) const OBJECTS: usize = 6;

impl Contract {
    pub(super) async fn deletes(&self) {
        let (name, before) = (self.name(0), self.found(0).await);
        self.api.delete(&name, &DeleteParams { dry_run: true, ..DeleteParams::background() }).await.unwrap();
        assert_eq!(self.found(0).await, before, "a dry run deletes nothing");
        let preconditions = Preconditions { uid: Some("another".into()), ..Preconditions::default() };
        let refused = self.api.delete(&name, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("the UID is another: {refused:?}") };
        assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
        let why = format!("Precondition failed: UID in precondition: another, UID in object meta: {}", before["metadata"]["uid"].as_str().unwrap());
        assert!(status.message.ends_with(&why), "{}", status.message);
        assert_eq!(self.found(0).await, before, "what is refused deletes nothing");
        self.api.delete(&name, &DeleteParams::background()).await.unwrap();
        self.is_gone(0).await;
        let again = send(&self.client, "DELETE", &self.path(0), &Value::Null).await;
        self.refused(&again, 404, "NotFound", &format!("{} \"{name}\" not found", self.resource.qualified()));
    }

    pub(super) async fn deletes_collections(&self) {
        self.create(4).await;
        self.create(5).await;
        let ours = ListParams::default().labels("contract=yes");
        let count = async || self.api.list(&ours).await.unwrap().items.len();
        if self.resource.has("deletecollection") {
            self.api.delete_collection(&DeleteParams { dry_run: true, ..DeleteParams::background() }, &ours).await.unwrap();
            assert_eq!(count().await, OBJECTS - 1, "a dry run deletes nothing");
            let four = ours.clone().fields(&format!("metadata.name={}", self.name(4)));
            self.api.delete_collection(&DeleteParams::background(), &four).await.unwrap();
            self.is_gone(4).await;
            assert_eq!(count().await, OBJECTS - 2, "selectors hold");
            self.api.delete_collection(&DeleteParams::background(), &ours).await.unwrap();
        } else {
            let refused = send(&self.client, "DELETE", &self.collection(), &Value::Null).await;
            self.refused(&refused, 405, "MethodNotAllowed", "");
            for number in 1..OBJECTS {
                self.api.delete(&self.name(number), &DeleteParams::background()).await.unwrap();
            }
        }
        for number in 1..OBJECTS {
            self.is_gone(number).await;
        }
        assert_eq!(count().await, 0);
    }

    /// A deleted object is gone as soon as no finalizer holds it: no controller runs here.
    async fn is_gone(&self, number: usize) {
        until_async("the end of a deleted object", async || {
            let answer = send(&self.client, "GET", &self.path(number), &Value::Null).await;
            if answer.code == 404 {
                return Ok(());
            }
            assert!(answer.body["metadata"]["deletionTimestamp"].is_string(), "it is being deleted: {}", answer.text);
            let merge = [("content-type", "application/merge-patch+json")];
            ask(&self.client, "PATCH", &self.path(number), &merge, json!({"metadata": {"finalizers": null}}).to_string()).await;
            if self.resource.qualified() == "namespaces" {
                let mut namespace = answer.body.clone();
                namespace["spec"]["finalizers"] = json!([]);
                send(&self.client, "PUT", &format!("{}/finalize", self.path(number)), &namespace).await;
            }
            Err(answer.text)
        })
        .await;
    }
}
