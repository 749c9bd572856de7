//! Responses: objects, lists, tables, metadata only, errors.

use super::negotiate::{Accepted, Encoding, Transform};
use crate::kind::Kind;
use crate::object;
use crate::registry::read::Page;
use crate::status::ApiError;
use crate::store::Entry;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WARNING};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of every response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is there as a whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn bytes(code: u16, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// A response of plain text.
pub fn text(code: u16, body: impl Into<String>) -> Response<Body> {
    bytes(code, "text/plain; charset=utf-8", body.into())
}

/// A JSON (or YAML) document as it is.
pub fn document(encoding: Encoding, code: u16, value: &Value) -> Response<Body> {
    match encoding {
        Encoding::Json => bytes(code, "application/json", serde_json::to_vec(value).unwrap_or_default()),
        Encoding::Yaml => bytes(code, "application/yaml", serde_yaml_ng::to_string(value).unwrap_or_default()),
    }
}

pub fn error(encoding: Encoding, error: &ApiError) -> Response<Body> {
    let mut response = document(encoding, error.code, &error.to_value());
    let retry = error.details.as_ref().and_then(|details| details.get("retryAfterSeconds")).and_then(Value::as_i64);
    if let Some(seconds) = retry {
        response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
    }
    response
}

/// What upstream answers for a path that nobody serves.
pub fn not_found() -> Response<Body> {
    text(404, "404 page not found\n")
}

/// One object, transformed as asked.
pub fn object(accepted: Accepted, kind: &Kind, code: u16, include: &str, value: Value) -> Response<Body> {
    let value = if accepted.transform == Transform::None { kind.outgoing(value) } else { value };
    let is_status = value.get("kind").is_some_and(|kind| kind == "Status");
    match accepted.transform {
        Transform::Table if !is_status => {
            let metadata = json!({"resourceVersion": object::resource_version(&value)});
            document(accepted.encoding, code, &table(kind, &[value], include, metadata))
        }
        Transform::Metadata if !is_status => document(accepted.encoding, code, &partial(&value)),
        _ => document(accepted.encoding, code, &value),
    }
}

/// One stored object: its bytes as they are when nothing is to be done to them.
pub fn entry(accepted: Accepted, kind: &Kind, include: &str, entry: &Entry) -> Response<Body> {
    if accepted.transform == Transform::None && accepted.encoding == Encoding::Json && !kind.is_view() {
        return bytes(200, "application/json", Bytes::from_owner(std::sync::Arc::clone(&entry.bytes)));
    }
    object(accepted, kind, 200, include, entry.value())
}

pub fn list(accepted: Accepted, kind: &Kind, include: &str, page: &Page) -> Response<Body> {
    let metadata = page.metadata();
    match (accepted.transform, accepted.encoding) {
        (Transform::Table, encoding) => {
            let items: Vec<Value> = page.entries.iter().map(Entry::value).collect();
            document(encoding, 200, &table(kind, &items, include, metadata))
        }
        (Transform::Metadata, encoding) => {
            let items: Vec<Value> = page.entries.iter().map(|entry| partial(&entry.value())).collect();
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items});
            document(encoding, 200, &list)
        }
        (_, Encoding::Json) if !kind.is_view() => bytes(200, "application/json", joined(kind, &metadata, &page.entries)),
        (_, encoding) => {
            let items: Vec<Value> = page.entries.iter().map(|entry| kind.outgoing(entry.value())).collect();
            document(encoding, 200, &list_value(kind, &metadata, items))
        }
    }
}

/// A list of objects that are computed.
pub fn values(accepted: Accepted, kind: &Kind, include: &str, metadata: &Value, items: Vec<Value>) -> Response<Body> {
    match accepted.transform {
        Transform::Table => document(accepted.encoding, 200, &table(kind, &items, include, metadata.clone())),
        Transform::Metadata => {
            let items: Vec<Value> = items.iter().map(partial).collect();
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items});
            document(accepted.encoding, 200, &list)
        }
        _ => document(accepted.encoding, 200, &list_value(kind, metadata, items)),
    }
}

/// A list of objects that are at hand.
pub fn list_value(kind: &Kind, metadata: &Value, items: Vec<Value>) -> Value {
    json!({"kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": metadata, "items": items})
}

/// A list put together from stored bytes, without decoding any.
fn joined(kind: &Kind, metadata: &Value, entries: &[Entry]) -> Vec<u8> {
    let head = format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[", kind.list_kind, kind.api_version());
    let mut body = Vec::with_capacity(head.len() + 2 + entries.iter().map(|entry| entry.bytes.len() + 1).sum::<usize>());
    body.extend_from_slice(head.as_bytes());
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&entry.bytes);
    }
    body.extend_from_slice(b"]}");
    body
}

/// `meta.k8s.io/v1` PartialObjectMetadata of an object.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata").cloned().unwrap_or_default()})
}

/// `meta.k8s.io/v1` Table of objects; `include` is `includeObject`: Metadata (the default), Object or None.
pub fn table(kind: &Kind, items: &[Value], include: &str, metadata: Value) -> Value {
    let mut table = crate::table::render(kind, &kind.printer, items, jiff::Timestamp::now());
    table["kind"] = "Table".into();
    table["apiVersion"] = "meta.k8s.io/v1".into();
    table["metadata"] = metadata;
    if let Some(Value::Array(rows)) = table.get_mut("rows") {
        for (row, item) in rows.iter_mut().zip(items) {
            row["object"] = match include {
                "Object" => kind.outgoing(item.clone()),
                "None" => Value::Null,
                _ => partial(item),
            };
        }
    }
    table
}

/// Adds Warning headers (RFC 7234, code 299), as apiserver/pkg/warning does.
pub fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let clean: String = warning.chars().filter(|character| !character.is_control()).collect();
        let quoted = clean.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}
