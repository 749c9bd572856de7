//! Conversion between versions (upstream: pkg/apiserver/conversion): strategy `None`, and the requests and answers of conversion webhooks.

use crate::field::{Errors, invalid, too_long};
use kube_cel::formats;
use serde_json::{Map, Value, json};

/// Objects that one review may hold.
const MOST_OBJECTS: usize = 256;
/// Bytes of objects after which a review ends: answers have the same order of size, and are read up to a bound.
const MOST_BYTES: usize = 1 << 20;
/// The greatest sum of an object's annotations, keys included.
const MOST_ANNOTATIONS: usize = 256 << 10;

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

/// How many of the first objects go into one review: at least one, where there is one.
pub fn batch(objects: &[Value]) -> usize {
    let mut bytes = 0;
    let fits = |object: &&Value| {
        let before = bytes;
        bytes += object.to_string().len();
        before == 0 || bytes <= MOST_BYTES
    };
    objects.iter().take(MOST_OBJECTS).take_while(fits).count()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

/// `GROUP/VERSION, Kind=KIND`, as errors name what an object is.
pub fn printed_kind(object: &Value) -> String {
    format!("{}, Kind={}", text(object, "apiVersion"), text(object, "kind"))
}

/// The converted objects of an answer, or why it cannot be used, as it follows `conversion webhook for KIND `. `sent` are the objects of the
/// request.
pub fn response(answer: &Value, version: &str, uid: &str, desired: &str, sent: &[Value]) -> Result<Vec<Value>, String> {
    let objects = objects(answer, version, uid).map_err(|reason| format!("failed: {reason}"))?;
    if objects.len() != sent.len() {
        return Err(format!("returned {} objects, expected {}", objects.len(), sent.len()));
    }
    let pairs = objects.into_iter().zip(sent).enumerate();
    pairs.map(|(index, (object, sent))| checked(index, object, sent, desired)).collect()
}

fn objects(answer: &Value, version: &str, uid: &str) -> Result<Vec<Value>, String> {
    let api_version = format!("apiextensions.k8s.io/{version}");
    // Servers of v1beta1 were never asked to name themselves, nor the request.
    if version == "v1" && (answer["apiVersion"] != api_version.as_str() || answer["kind"] != "ConversionReview") {
        return Err(format!("expected webhook response of {api_version}, Kind=ConversionReview, got {}", printed_kind(answer)));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("no response provided".into());
    }
    if version == "v1" && response["uid"] != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text(response, "uid")));
    }
    let result = &response["result"];
    match (text(result, "status"), text(result, "message")) {
        ("Success", _) => Ok(response["convertedObjects"].as_array().cloned().unwrap_or_default()),
        (status, "") => Err(format!("response.result.status was '{status}', not 'Success'")),
        (_, message) => Err(message.to_owned()),
    }
}

/// The converted object with the metadata that a webhook may not change.
fn checked(index: usize, mut object: Value, sent: &Value, desired: &str) -> Result<Value, String> {
    let at_index = |what: String| format!("returned invalid object at index {index}: {what}");
    let found = text(&object, "apiVersion");
    if found != desired {
        return Err(at_index(format!("invalid groupVersion (expected {desired}, received {found})")));
    }
    if object["kind"] != sent["kind"] {
        return Err(at_index(format!("invalid kind (expected {}, received {})", text(sent, "kind"), text(&object, "kind"))));
    }
    for (member, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (before, after) = (text(&sent["metadata"], member), text(&object["metadata"], member));
        if before != after {
            return Err(format!("returned invalid object: must have the same {shown}: {before} != {after}"));
        }
    }
    let metadata = restored(sent, &object).map_err(|reason| format!("returned invalid metadata: {reason}"))?;
    object["metadata"] = metadata;
    Ok(object)
}

/// The metadata that was sent, with labels and annotations of the answer.
fn restored(sent: &Value, converted: &Value) -> Result<Value, String> {
    let Some(converted) = converted.get("metadata") else { return Err("missing metadata in converted object".into()) };
    let Some(converted) = converted.as_object() else { return Err(format!("invalid metadata of type {} in converted object", go_type(converted))) };
    let mut metadata = sent["metadata"].as_object().cloned().unwrap_or_default();
    for name in ["labels", "annotations"] {
        match converted.get(name) {
            None | Some(Value::Null) => drop(metadata.remove(name)),
            Some(Value::Object(found)) => {
                check_texts(name, found, metadata.get(name))?;
                metadata.insert(name.to_owned(), Value::Object(found.clone()));
            }
            Some(other) => return Err(format!("invalid metadata.{name} of type {} in converted object", go_type(other))),
        }
    }
    Ok(Value::Object(metadata))
}

/// Changed labels and annotations must be such.
fn check_texts(name: &str, found: &Map<String, Value>, before: Option<&Value>) -> Result<(), String> {
    if let Some((key, value)) = found.iter().find(|(_, value)| !value.is_string()) {
        return Err(format!("metadata.{name}[{key}] must be a string, but is {} in converted object", go_type(value)));
    }
    if before.and_then(Value::as_object) == Some(found) {
        return Ok(());
    }
    let errors = if name == "labels" { label_errors(found) } else { annotation_errors(found) };
    match errors.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice() {
        [] => Ok(()),
        [error] => Err(error.clone()),
        errors => Err(format!("[{}]", errors.join(", "))),
    }
}

fn label_errors(labels: &Map<String, Value>) -> Errors {
    let key = |key: &str| formats::qualified_name(key).into_iter().map(|reason| invalid("metadata.labels", key, reason)).collect::<Errors>();
    let value = |value: &str| formats::label_value(value).into_iter().map(|reason| invalid("metadata.labels", value, reason)).collect::<Errors>();
    labels.iter().flat_map(|(name, text)| key(name).into_iter().chain(value(text.as_str().unwrap_or_default()))).collect()
}

fn annotation_errors(annotations: &Map<String, Value>) -> Errors {
    let key = |key: &String| {
        let reasons = formats::qualified_name(&key.to_lowercase()).into_iter();
        reasons.map(|reason| invalid("metadata.annotation", key.as_str(), reason)).collect::<Errors>()
    };
    let mut errors: Errors = annotations.keys().flat_map(key).collect();
    let size: usize = annotations.iter().map(|(name, text)| name.len() + text.as_str().map_or(0, str::len)).sum();
    if size > MOST_ANNOTATIONS {
        errors.push(too_long("metadata.annotation", MOST_ANNOTATIONS as u64));
    }
    errors
}

/// What Go holds for a JSON value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
