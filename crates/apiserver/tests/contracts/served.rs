//! What discovery lists, and raw requests through crate `kube`'s client.

use kube::Client;
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;
use std::collections::BTreeMap;

/// A resource as discovery lists it, with its subresources.
#[derive(Clone, Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    /// Verbs by the subresource's name.
    pub parts: BTreeMap<String, Vec<String>>,
}

impl Resource {
    /// `deployments.apps`, or `pods`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The path of the collection in a namespace; "" is the whole cluster.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let place = if namespace.is_empty() || !self.namespaced { String::new() } else { format!("/namespaces/{namespace}") };
        format!("{root}/{}{place}/{}", self.api_version(), self.plural)
    }

    pub fn has(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| own == verb)
    }

    /// Whether objects are kept: reviews are answered at once, and metrics are computed.
    pub fn is_stored(&self) -> bool {
        self.has("create") && self.has("get")
    }

    /// Crate `kube`'s interface of the kind.
    pub fn api(&self, client: &Client, namespace: &str) -> kube::Api<DynamicObject> {
        let resource = ApiResource {
            group: self.group.clone(),
            version: self.version.clone(),
            api_version: self.api_version(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        };
        if self.namespaced {
            kube::Api::namespaced_with(client.clone(), namespace, &resource)
        } else {
            kube::Api::all_with(client.clone(), &resource)
        }
    }

    /// An object of the kind.
    pub fn object(&self, namespace: &str, number: usize) -> Value {
        let mut object = super::objects::object(&self.group, &self.plural, if self.namespaced { namespace } else { "" }, number);
        object["apiVersion"] = self.api_version().into();
        object["kind"] = self.kind.as_str().into();
        object
    }
}

/// Every resource of every version that discovery lists.
pub async fn served(client: &Client) -> Vec<Resource> {
    let mut lists = vec![client.list_core_api_resources("v1").await.unwrap()];
    for group in client.list_api_groups().await.unwrap().groups {
        for version in group.versions {
            lists.push(client.list_api_group_resources(&version.group_version).await.unwrap());
        }
    }
    let mut found: Vec<Resource> = Vec::new();
    for list in lists {
        let (group, version) = list.group_version.split_once('/').unwrap_or(("", &list.group_version));
        for resource in list.resources.iter().filter(|resource| !resource.name.contains('/')) {
            let below = |name: &str| name.strip_prefix(&format!("{}/", resource.name)).map(str::to_string);
            found.push(Resource {
                group: group.into(),
                version: version.into(),
                plural: resource.name.clone(),
                kind: resource.kind.clone(),
                namespaced: resource.namespaced,
                verbs: resource.verbs.clone(),
                parts: list.resources.iter().filter_map(|part| Some((below(&part.name)?, part.verbs.clone()))).collect(),
            });
        }
    }
    assert!(found.len() > 60, "discovery lists {} resources", found.len());
    found
}

/// An answer: its code, and its body (null where it is no JSON).
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub text: String,
}

impl Answer {
    /// `status.message` of a failure.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

/// Sends a request as it is.
pub async fn ask(client: &Client, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Answer {
    let builder = headers.iter().fold(http::Request::builder().method(method).uri(path), |builder, (name, value)| builder.header(*name, *value));
    let response = client.send(builder.body(Body::from(body.into())).unwrap()).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    let (parts, body) = response.into_parts();
    let bytes = body.collect_bytes().await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Answer { code: parts.status.as_u16(), body: serde_json::from_str(&text).unwrap_or_default(), text }
}

/// Sends JSON.
pub async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Answer {
    let content = if body.is_null() { String::new() } else { body.to_string() };
    ask(client, method, path, &[("content-type", "application/json")], content).await
}
