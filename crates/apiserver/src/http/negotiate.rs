//! Content negotiation: what the client accepts, and what it sends
//! (apiserver/pkg/endpoints/handlers/negotiation).

use super::json;
use crate::protobuf;
use crate::status::ApiError;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use serde_json::Value;

/// How an object is laid out on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// application/json
    Json,
    /// application/yaml
    Yaml,
}

/// What is made of an object before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// The object itself.
    None,
    /// `meta.k8s.io/v1` Table.
    Table,
    /// `meta.k8s.io/v1` PartialObjectMetadata(List).
    Metadata,
    /// `apidiscovery.k8s.io/v2` APIGroupDiscoveryList.
    AggregatedDiscovery,
}

/// The outcome of reading an Accept header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Wire form.
    pub encoding: Encoding,
    pub transform: Transform,
}

/// What is served, as errors name it.
pub const MEDIA_TYPES: [&str; 2] = ["application/json", "application/yaml"];

/// Chooses among what the client accepts; the first clause that can be served wins, as upstream.
pub fn accept(headers: &HeaderMap) -> Result<Accepted, ApiError> {
    let header: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let header = header.join(",");
    if header.trim().is_empty() {
        return Ok(Accepted { encoding: Encoding::Json, transform: Transform::None });
    }
    header.split(',').find_map(clause).ok_or_else(|| ApiError::not_acceptable(&MEDIA_TYPES))
}

fn clause(clause: &str) -> Option<Accepted> {
    let mut parts = clause.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "*/*" | "application/*" => Encoding::Json,
        "application/yaml" | "application/x-yaml" => Encoding::Yaml,
        _ => return None,
    };
    let (mut kind, mut group, mut version) = ("", "", "");
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    let transform = match (kind, group, version) {
        ("", _, _) => Transform::None,
        ("Table", "meta.k8s.io", "v1") => Transform::Table,
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => Transform::Metadata,
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Transform::AggregatedDiscovery,
        _ => return None,
    };
    Some(Accepted { encoding, transform })
}

/// The media type of the request's body, without parameters ("" when absent).
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Decodes an object's body: JSON, YAML or protobuf.
pub fn decode(content_type: &str, body: &[u8]) -> Result<Value, ApiError> {
    decode_strictly(content_type, body).map(|(value, _)| value)
}

/// The same; the second part names JSON members that stand twice.
pub fn decode_strictly(content_type: &str, body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    match content_type {
        "" | "application/json" | "*/*" => decode_json(body),
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            let malformed = |error: serde_yaml_ng::Error| ApiError::bad_request(format!("error converting YAML to JSON: {error}"));
            json::read_yaml(body).map_err(malformed)
        }
        protobuf::MEDIA_TYPE => protobuf::decode(body).map(|value| (value, Vec::new())).map_err(|error| ApiError::bad_request(error.to_string())),
        _ => Err(ApiError::unsupported_media_type(&MEDIA_TYPES)),
    }
}

/// Decodes JSON with the message of upstream's decoder in front.
fn decode_json(body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let malformed = |error: serde_json::Error| ApiError::bad_request(format!("couldn't get version/kind; json parse error: {error}"));
    json::read(body).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(value: &str) -> Result<Accepted, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, value.parse().unwrap());
        accept(&headers)
    }

    #[test]
    fn kubectl_s_headers_are_understood() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(accepted(table).unwrap().transform, Transform::Table);
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(accepted(discovery).unwrap().transform, Transform::AggregatedDiscovery);
        let protobuf = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(accepted(protobuf).unwrap(), Accepted { encoding: Encoding::Json, transform: Transform::None });
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(accepted(metadata).unwrap().transform, Transform::Metadata);
        assert_eq!(accepted("application/yaml").unwrap().encoding, Encoding::Yaml);
        assert_eq!(accepted("application/json;as=Table;v=v9;g=meta.k8s.io, */*").unwrap().transform, Transform::None);
        assert_eq!(accepted("image/png").unwrap_err().code, 406);
        assert_eq!(accept(&HeaderMap::new()).unwrap().encoding, Encoding::Json);
    }

    #[test]
    fn bodies_are_json_yaml_or_protobuf() {
        assert_eq!(decode("application/yaml", b"a: {b: 1}").unwrap()["a"]["b"], 1);
        assert_eq!(decode("application/json", b"{}").unwrap(), serde_json::json!({}));
        assert_eq!(decode("application/vnd.kubernetes.protobuf", b"{}").unwrap_err().code, 400);
        assert_eq!(decode("application/cbor", b"").unwrap_err().code, 415);
        assert_eq!(decode("", b"{").unwrap_err().code, 400);
    }
}
