//! Conversion of custom resources between the versions of their definition: by name, or by a webhook
//! (apiextensions-apiserver, pkg/apiserver/conversion).

use crate::admission::call::Http;
use crate::kind::{Cluster, CustomSchema, Versions};
use crate::object;
use ::admission::webhook::{Caller, Endpoint};
use crd::conversion::{batch, printed_kind, rename, request, response, review_version};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::Arc;

/// How long a webhook may take, in seconds: the time-out of upstream's clients.
const TIMEOUT: u64 = 30;

/// The versions of a definition.
pub(super) struct Conversion {
    group: String,
    /// The `apiVersion` of what is written.
    stored: String,
    versions: Vec<Arc<CustomSchema>>,
    /// Absent: versions differ by their name alone.
    webhook: Option<Webhook>,
}

struct Webhook {
    /// Where it is, or why it cannot be called.
    endpoint: Result<Endpoint, String>,
    review_versions: Vec<String>,
}

impl Conversion {
    /// Of a definition; none when no version is stored.
    pub(super) fn new(definition: &Value, versions: &[Arc<CustomSchema>]) -> Option<Self> {
        let group = object::text(definition, &["spec", "group"]).to_string();
        let stored = &versions.iter().find(|schema| schema.version.storage)?.version;
        let conversion = &definition["spec"]["conversion"];
        let webhook = (conversion["strategy"] == "Webhook").then(|| Webhook::new(&conversion["webhook"]));
        Some(Self { stored: format!("{group}/{}", stored.name), group, versions: versions.to_vec(), webhook })
    }

    fn version(&self, object: &Value) -> Option<&CustomSchema> {
        let (group, name) = object::text(object, &["apiVersion"]).split_once('/')?;
        self.versions.iter().find(|schema| group == self.group && schema.version.name == name).map(|schema| &**schema)
    }

    async fn converted(&self, cluster: &Cluster, mut objects: Vec<Value>, to: &str) -> Result<Vec<Value>, String> {
        let others: Vec<usize> = (0..objects.len()).filter(|index| object::text(&objects[*index], &["apiVersion"]) != to).collect();
        if let Some(unknown) = others.iter().map(|index| &objects[*index]).find(|object| self.version(object).is_none()) {
            return Err(format!("request to convert CR from an invalid group/version: {}", object::text(unknown, &["apiVersion"])));
        }
        match &self.webhook {
            None => others.iter().for_each(|index| rename(&mut objects[*index], to)),
            Some(webhook) => {
                let mut sent: Vec<Value> = others.iter().map(|index| objects[*index].take()).collect();
                let mut places = others.iter();
                while !sent.is_empty() {
                    let rest = sent.split_off(batch(&sent));
                    for (object, place) in webhook.convert(cluster, &sent, to).await?.into_iter().zip(places.by_ref()) {
                        objects[*place] = object;
                    }
                    sent = rest;
                }
            }
        }
        for index in others {
            if let Some(schema) = self.version(&objects[index]) {
                schema.compiled().prune(&mut objects[index]);
            }
        }
        Ok(objects)
    }
}

impl Versions for Conversion {
    fn stored(&self) -> &str {
        &self.stored
    }

    fn complete(&self, object: &mut Value) {
        if let Some(schema) = self.version(object) {
            schema.compiled().decode(object);
        }
    }

    fn convert<'a>(&'a self, cluster: &'a Cluster, objects: Vec<Value>, to: &'a str) -> BoxFuture<'a, Result<Vec<Value>, String>> {
        Box::pin(self.converted(cluster, objects, to))
    }
}

impl Webhook {
    fn new(webhook: &Value) -> Self {
        let texts = object::list(webhook, &["conversionReviewVersions"]).iter().filter_map(Value::as_str);
        let endpoint = Endpoint::of(&json!({"clientConfig": webhook["clientConfig"], "timeoutSeconds": TIMEOUT}));
        Self { endpoint, review_versions: texts.map(str::to_string).collect() }
    }

    /// Objects of one review in another version.
    async fn convert(&self, cluster: &Cluster, objects: &[Value], to: &str) -> Result<Vec<Value>, String> {
        let Some(first) = objects.first() else { return Ok(Vec::new()) };
        let about = |what: String| format!("conversion webhook for {} {what}", printed_kind(first));
        let version = review_version(&self.review_versions).ok_or("no supported conversion review versions")?;
        let endpoint = self.endpoint.as_ref().map_err(|why| about(format!("failed: {why}")))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = request(version, &uid, to, objects).to_string().into_bytes();
        let answer = match tokio::time::timeout(endpoint.timeout, Http(cluster).post(endpoint, review)).await {
            Ok(answer) => answer.map_err(|why| endpoint.unanswered(&why)),
            Err(_) => Err(endpoint.unanswered("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")),
        };
        let body = answer.and_then(|answer| answer.accepted());
        let body = body.and_then(|body| serde_json::from_slice::<Value>(&body).map_err(|error| error.to_string()));
        let answer = body.map_err(|why| about(format!("failed: {why}")))?;
        response(&answer, version, &uid, to, objects).map_err(about)
    }
}
