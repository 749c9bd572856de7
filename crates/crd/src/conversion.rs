//! Conversion between versions: strategy `None`, and the requests and answers of conversion webhooks.

use serde_json::{Value, json};

/// What every answer of a webhook must keep.
const FIXED: [&str; 5] = ["name", "namespace", "uid", "generateName", "creationTimestamp"];

/// Strategy `None`: only `apiVersion` changes.
pub fn rename(object: &mut Value, api_version: &str) {
    if let Some(version) = object.get_mut("apiVersion") {
        *version = json!(api_version);
    }
}

/// The review that is posted to a webhook. `version` is the first of `conversionReviewVersions` that we know.
pub fn request(version: &str, uid: &str, desired: &str, objects: &[Value]) -> Value {
    json!({
        "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "kind": "ConversionReview",
        "request": {"uid": uid, "desiredAPIVersion": desired, "objects": objects},
    })
}

/// The version of the review to speak; none when the webhook names none that we know.
pub fn review_version(versions: &[String]) -> Option<&str> {
    versions.iter().map(String::as_str).find(|version| matches!(*version, "v1" | "v1beta1"))
}

/// The converted objects of an answer, or why it cannot be used. `sent` are the objects of the request.
pub fn response(answer: &Value, version: &str, uid: &str, desired: &str, sent: &[Value]) -> Result<Vec<Value>, String> {
    let api_version = format!("apiextensions.k8s.io/{version}");
    if answer["apiVersion"] != api_version.as_str() || answer["kind"] != "ConversionReview" {
        return Err(format!(
            "expected webhook response of {api_version}, Kind=ConversionReview, got {}, Kind={}",
            answer["apiVersion"].as_str().unwrap_or_default(),
            answer["kind"].as_str().unwrap_or_default()
        ));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("no response provided".into());
    }
    if version == "v1" && response["uid"] != uid {
        let found = response["uid"].as_str().unwrap_or_default();
        return Err(format!("expected response.uid={uid:?}, got {found:?}"));
    }
    let result = &response["result"];
    if result["status"] != "Success" {
        let message = result["message"].as_str().filter(|message| !message.is_empty());
        let status = result["status"].as_str().filter(|status| !status.is_empty());
        return Err(match (message, status) {
            (Some(message), _) => message.to_owned(),
            (None, Some(status)) => format!("response.result.status was '{status}', not 'Success'"),
            (None, None) => "response.result.status was '', not 'Success'".into(),
        });
    }
    let objects = response["convertedObjects"].as_array().cloned().unwrap_or_default();
    if objects.len() != sent.len() {
        return Err(format!("webhook returned {} objects, expected {}", objects.len(), sent.len()));
    }
    objects
        .into_iter()
        .zip(sent)
        .enumerate()
        .map(|(index, (object, sent))| {
            checked(object, sent, desired).map_err(|reason| format!("webhook returned invalid converted object at index {index}: {reason}"))
        })
        .collect()
}

/// The converted object with the metadata that a webhook may not change.
fn checked(mut object: Value, sent: &Value, desired: &str) -> Result<Value, String> {
    let found = object["apiVersion"].as_str().unwrap_or_default();
    if found != desired {
        return Err(format!("invalid groupVersion (expected {desired}, received {found})"));
    }
    if object["kind"] != sent["kind"] {
        let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
        return Err(format!("invalid kind (expected {}, received {})", kind(sent), kind(&object)));
    }
    let converted = object["metadata"].take();
    if !converted.is_object() {
        return Err("invalid metadata of type <nil> in converted object".into());
    }
    for name in FIXED {
        if converted[name] != sent["metadata"][name] {
            return Err(format!("metadata.{name} changed: a webhook must not change it"));
        }
    }
    // Only labels and annotations come from the webhook.
    let mut metadata = sent["metadata"].clone();
    if let Some(map) = metadata.as_object_mut() {
        for name in ["labels", "annotations"] {
            match converted.get(name) {
                Some(value) if !value.is_null() => map.insert(name.to_owned(), value.clone()),
                _ => map.remove(name),
            };
        }
    }
    object["metadata"] = metadata;
    Ok(object)
}
