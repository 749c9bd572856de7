//! The cluster's objects, without what is secret in them.

use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use thiserror_ext::AsReport as _;

use super::Bundle;
use super::redact::{self, REDACTED, Secrets};

/// What is asked for, and the file it goes to.
const LISTS: &[(&str, &str)] = &[
    ("nodes", "/api/v1/nodes"),
    ("pods", "/api/v1/pods"),
    ("events", "/api/v1/events"),
    ("services", "/api/v1/services"),
    ("endpointslices", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("namespaces", "/api/v1/namespaces"),
    ("configmaps", "/api/v1/configmaps"),
    ("secrets", "/api/v1/secrets"),
    ("persistentvolumes", "/api/v1/persistentvolumes"),
    ("persistentvolumeclaims", "/api/v1/persistentvolumeclaims"),
    ("storageclasses", "/apis/storage.k8s.io/v1/storageclasses"),
    ("runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses"),
    ("deployments", "/apis/apps/v1/deployments"),
    ("replicasets", "/apis/apps/v1/replicasets"),
    ("daemonsets", "/apis/apps/v1/daemonsets"),
    ("leases", "/apis/coordination.k8s.io/v1/leases"),
];

/// Takes every list there is. Whether all values of Secrets are known now.
pub fn collect(bundle: &mut Bundle, kubeconfig: &Path) -> bool {
    let lists = match ask(kubeconfig) {
        Ok(lists) => lists,
        Err(error) => {
            bundle.add_missing("objects", error.to_report_string());
            return false;
        }
    };
    let mut secrets_known = false;
    for (name, list) in lists {
        match list {
            Ok(mut list) => {
                secrets_known |= name == "secrets";
                for item in list["items"].as_array_mut().into_iter().flatten() {
                    clean(name, item, &mut bundle.secrets);
                }
                bundle.add_json(format!("objects/{name}.json"), &list);
            }
            Err(error) => bundle.add_missing(&format!("objects of kind {name}"), error.to_report_string()),
        }
    }
    secrets_known
}

type Lists = Vec<(&'static str, Result<Value>)>;

fn ask(kubeconfig: &Path) -> Result<Lists> {
    crate::agent_runtime()?.block_on(async {
        cluster::install_crypto_provider();
        let client = cluster::client_from_kubeconfig(kubeconfig).await?;
        let mut lists = Vec::new();
        for (name, path) in LISTS {
            let request = http::Request::get(*path).body(Vec::new()).context("making a request failed")?;
            lists.push((*name, client.request::<Value>(request).await.with_context(|| format!("GET {path} failed"))));
        }
        Ok(lists)
    })
}

/// Takes out of an object what is secret or only noise; values of Secrets are remembered, so that they go everywhere else too.
fn clean(kind: &str, object: &mut Value, secrets: &mut Secrets) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.shift_remove("managedFields");
        if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
            annotations.shift_remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    match kind {
        "secrets" => {
            for value in object["data"].as_object().into_iter().flat_map(Map::values).filter_map(Value::as_str) {
                secrets.know(value);
                secrets.know(&String::from_utf8_lossy(&STANDARD.decode(value).unwrap_or_default()));
            }
            sizes(object, "data");
        }
        "configmaps" => ["data", "binaryData"].iter().for_each(|key| sizes(object, key)),
        _ => environments(object, secrets),
    }
}

/// Keys stay, values become their length.
fn sizes(object: &mut Value, key: &str) {
    for value in object[key].as_object_mut().into_iter().flat_map(Map::values_mut) {
        *value = json!(format!("{} characters", value.as_str().map_or(0, str::len)));
    }
}

/// Variables that are written down in a pod: those whose names say so lose their values, and containers may print these.
fn environments(value: &mut Value, secrets: &mut Secrets) {
    match value {
        Value::Object(map) => {
            let secret = map.get("name").and_then(Value::as_str).is_some_and(redact::is_secret_name);
            if let Some(Value::String(text)) = map.get_mut("value").filter(|_| secret) {
                secrets.know(text);
                *text = REDACTED.to_owned();
            }
            map.values_mut().for_each(|value| environments(value, secrets));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| environments(value, secrets)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_keep_their_keys_and_are_known_afterwards() {
        let mut secrets = Secrets::default();
        let mut secret = json!({"metadata": {"name": "a", "managedFields": []}, "data": {"user": "aHVudGVyMg=="}});
        clean("secrets", &mut secret, &mut secrets);
        assert_eq!(secret, json!({"metadata": {"name": "a"}, "data": {"user": "12 characters"}}));
        assert_eq!(secrets.redact("hunter2 and aHVudGVyMg=="), "REDACTED and REDACTED");
        let mut pod = json!({"spec": {"containers": [{"env": [{"name": "DB_PASSWORD", "value": "written down"}, {"name": "A", "value": "y"}]}]}});
        clean("pods", &mut pod, &mut secrets);
        assert_eq!(pod["spec"]["containers"][0]["env"], json!([{"name": "DB_PASSWORD", "value": "REDACTED"}, {"name": "A", "value": "y"}]));
        assert_eq!(secrets.redact("it is written down"), "it is REDACTED", "a container may print it");
    }
}
