//! update, the four patches, status and scale.

use super::Contract;
use crate::served::{ask, send};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

impl Contract {
    fn is_stale(&self, answer: &crate::served::Answer, number: usize) {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        let message = format!("Operation cannot be fulfilled on {} \"{}\": {why}", self.resource.qualified(), self.name(number));
        self.refused(answer, 409, "Conflict", &message);
        self.names_object(answer, &self.name(number));
    }

    pub(super) async fn updates(&self) {
        let before = self.found(0).await;
        let mut changed = before.clone();
        changed["metadata"]["labels"]["updated"] = "yes".into();
        let put = async |query: &str, object: &Value| send(&self.client, "PUT", &format!("{}?{query}", self.path(0)), object).await;
        let rehearsed = put("dryRun=All", &changed).await;
        assert_eq!((rehearsed.code, &rehearsed.body["metadata"]["labels"]["updated"]), (200, &json!("yes")), "{}", rehearsed.text);
        assert_eq!(self.found(0).await, before, "a dry run updates nothing");
        let mut stale = changed.clone();
        stale["metadata"]["resourceVersion"] = "1".into();
        self.is_stale(&put("", &stale).await, 0);
        let mut unknown = changed.clone();
        unknown["unknownField"] = 1.into();
        let strict = put("fieldValidation=Strict", &unknown).await;
        self.refused(&strict, 400, "BadRequest", "strict decoding error: unknown field \"unknownField\"");
        let mut renamed = changed.clone();
        renamed["metadata"]["name"] = self.name(1).into();
        let answer = put("", &renamed).await;
        self.refused(
            &answer,
            400,
            "BadRequest",
            &format!("the name of the object ({}) does not match the name on the URL ({})", self.name(1), self.name(0)),
        );
        assert_eq!(self.found(0).await, before, "what is refused changes nothing");
        let name = self.name(0);
        let object = serde_json::from_value(changed).unwrap();
        self.api.replace(&name, &PostParams::default(), &object).await.unwrap_or_else(|error| panic!("update: {error}"));
        let after = self.found(0).await;
        assert_eq!(after["metadata"]["labels"]["updated"], "yes");
        assert!(version(&after) > version(&before) && after["metadata"]["uid"] == before["metadata"]["uid"]);
        assert_eq!(put("", &after).await.body, after, "an update with the same changes nothing");
    }

    pub(super) async fn patches(&self) {
        let name = self.name(0);
        for kind in ["json", "merge", "strategic"] {
            let labels = json!({"metadata": {"labels": {"patched": kind}}});
            let patch = match kind {
                "json" => {
                    Patch::Json::<Value>(serde_json::from_value(json!([{"op": "add", "path": "/metadata/labels/patched", "value": kind}])).unwrap())
                }
                "merge" => Patch::Merge(labels),
                _ => Patch::Strategic(labels),
            };
            let before = self.found(0).await;
            let rehearsed = self.api.patch(&name, &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await;
            if kind == "strategic" && self.custom {
                let Err(kube::Error::Api(status)) = rehearsed else { panic!("custom resources have no strategic merge patch: {rehearsed:?}") };
                assert_eq!((status.code, status.reason.as_str()), (415, "UnsupportedMediaType"));
                continue;
            }
            assert_eq!(rehearsed.unwrap_or_else(|error| panic!("{kind}: {error}")).metadata.labels.unwrap()["patched"], kind);
            assert_eq!(self.found(0).await, before, "a dry run of a {kind} patch writes nothing");
            self.api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            let after = self.found(0).await;
            assert!(after["metadata"]["labels"]["patched"] == kind && version(&after) > version(&before), "{after}");
            self.api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            assert_eq!(self.found(0).await, after, "the same {kind} patch again changes nothing");
        }
        self.refuses_patches().await;
    }

    async fn refuses_patches(&self) {
        let before = self.found(0).await;
        let patch = async |content: &str, query: &str, body: Value| {
            ask(&self.client, "PATCH", &format!("{}?{query}", self.path(0)), &[("content-type", content)], body.to_string()).await
        };
        let (json_patch, merge) = ("application/json-patch+json", "application/merge-patch+json");
        self.is_stale(&patch(merge, "", json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}})).await, 0);
        let strict = patch(merge, "fieldValidation=Strict", json!({"unknownField": 1})).await;
        self.refused(&strict, 422, "Invalid", "strict decoding error: unknown field \"unknownField\"");
        let failed = patch(json_patch, "", json!([{"op": "test", "path": "/metadata/name", "value": "other"}])).await;
        self.refused(&failed, 422, "Invalid", "the server rejected our request due to an error in our request");
        let malformed = patch(json_patch, "", json!({"metadata": {}})).await;
        self.refused(&malformed, 400, "BadRequest", "");
        let unknown = patch("text/plain", "", json!({})).await;
        self.refused(&unknown, 415, "UnsupportedMediaType", "the body of the request was in an unknown format");
        assert_eq!(self.found(0).await, before, "what is refused changes nothing");
    }

    pub(super) async fn applies(&self) {
        let name = self.name(3);
        let config = |value: &str| {
            let mut config = self.value(3);
            config["metadata"]["labels"]["applied"] = value.into();
            Patch::Apply(config)
        };
        let params = PatchParams::apply("contract");
        let apply = [("content-type", "application/apply-patch+yaml")];
        let nameless = ask(&self.client, "PATCH", &self.path(3), &apply, self.value(3).to_string()).await;
        self.refused(&nameless, 422, "Invalid", "fieldManager: Required value: is required for apply patch");
        self.api.patch(&name, &PatchParams { dry_run: true, ..params.clone() }, &config("one")).await.unwrap();
        assert!(!self.is_there(3).await, "a dry run applies nothing");
        self.api.patch(&name, &params, &config("one")).await.unwrap_or_else(|error| panic!("apply: {error}"));
        let once = self.found(3).await;
        let owns =
            |entry: &Value| entry["manager"] == "contract" && entry["operation"] == "Apply" && entry["apiVersion"] == self.resource.api_version();
        assert!(once["metadata"]["managedFields"].as_array().unwrap().iter().any(owns), "{once}");
        self.api.patch(&name, &params, &config("one")).await.unwrap();
        assert_eq!(self.found(3).await, once, "applying twice is applying once");
        let other = PatchParams::apply("other");
        let label = json!({"apiVersion": self.resource.api_version(), "kind": self.resource.kind, "metadata": {"labels": {"applied": "two"}}});
        let label = Patch::Apply(label);
        let refused = self.api.patch(&name, &other, &label).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("a field of another manager is a conflict: {refused:?}") };
        assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
        assert!(status.message.contains("conflict with \"contract\": .metadata.labels.applied"), "{}", status.message);
        assert_eq!(self.found(3).await, once, "a conflict changes nothing");
        let forced = self.api.patch(&name, &other.clone().force(), &label).await.unwrap();
        assert_eq!(forced.metadata.labels.unwrap()["applied"], "two");
    }

    /// The status is read and written apart: nothing else changes with it.
    pub(super) async fn writes_status(&self) {
        let Some(verbs) = self.resource.parts.get("status") else { return };
        let path = format!("{}/status", self.path(0));
        let before = self.found(0).await;
        if verbs.iter().any(|verb| verb == "get") {
            assert_eq!(send(&self.client, "GET", &path, &Value::Null).await.body, before);
        }
        if verbs.iter().any(|verb| verb == "patch") {
            let spec = json!({"spec": null});
            let merge = [("content-type", "application/merge-patch+json")];
            let answer = ask(&self.client, "PATCH", &path, &merge, spec.to_string()).await;
            assert_eq!((answer.code, &answer.body["spec"]), (200, &before["spec"]), "a status leaves the rest: {}", answer.text);
        }
        if verbs.iter().any(|verb| verb == "update") {
            let mut stale = before.clone();
            stale["metadata"]["resourceVersion"] = "1".into();
            self.is_stale(&send(&self.client, "PUT", &path, &stale).await, 0);
            let same = send(&self.client, "PUT", &path, &self.found(0).await).await;
            assert_eq!((same.code, same.body), (200, before), "the same status changes nothing");
        }
    }

    pub(super) async fn scales(&self) {
        if !self.resource.parts.contains_key("scale") {
            return;
        }
        let name = self.name(0);
        let scale = self.api.get_scale(&name).await.unwrap();
        assert_eq!(scale.spec.unwrap().replicas, Some(1));
        let path = format!("{}/scale", self.path(0));
        let shown = send(&self.client, "GET", &path, &Value::Null).await.body;
        assert_eq!((&shown["kind"], &shown["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
        let three = Patch::Merge(json!({"spec": {"replicas": 3}}));
        let rehearsed = self.api.patch_scale(&name, &PatchParams { dry_run: true, ..PatchParams::default() }, &three).await.unwrap();
        assert_eq!(rehearsed.spec.unwrap().replicas, Some(3));
        assert_eq!(self.found(0).await["spec"]["replicas"], 1, "a dry run scales nothing");
        self.api.patch_scale(&name, &PatchParams::default(), &three).await.unwrap();
        assert_eq!(self.found(0).await["spec"]["replicas"], 3);
        let mut stale = shown;
        stale["metadata"]["resourceVersion"] = "1".into();
        let refused = send(&self.client, "PUT", &path, &stale).await;
        self.refused(&refused, 409, "Conflict", "the object has been modified");
    }
}
