//! Everything that is not a resource: health, version, discovery, OpenAPI, the token issuer's documents.

use super::call::Call;
use super::negotiate::{self, Encoding, Transform};
use super::respond::{self, Body};
use crate::authn::token::ISSUER;
use crate::health;
use crate::kind::Set;
use crate::schema;
use crate::server::Api;
use crate::status::ApiError;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response};
use serde_json::json;
use std::collections::BTreeSet;

/// Answers a request that is not for a resource.
pub fn serve(api: &Api, call: &Call) -> Result<Response<Body>, ApiError> {
    let path = call.info.path.trim_end_matches('/');
    if !matches!(call.info.verb, "get" | "head") {
        return Ok(respond::not_found());
    }
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", check @ ..] => Ok(health(api, call, parts[0], check)),
        ["version"] => Ok(respond::document(Encoding::Json, 200, &api.version())),
        ["api" | "apis", ..] => discovery(api, call, &parts),
        ["openapi", "v2"] => Ok(openapi_v2(api, call)),
        ["openapi", "v3"] => Ok(openapi_index(api)),
        ["openapi", "v3", "api", version] => openapi(api, call, "", version),
        ["openapi", "v3", "apis", group, version] => openapi(api, call, group, version),
        ["openid", "v1", "jwks"] => Ok(respond::bytes(200, "application/jwk-set+json", api.tokens.key_set().to_string())),
        [".well-known", "openid-configuration"] => Ok(respond::document(Encoding::Json, 200, &issuer())),
        [""] => Ok(respond::document(Encoding::Json, 200, &json!({"paths": index(&api.registry.kinds.now())}))),
        _ => Ok(respond::not_found()),
    }
}

fn issuer() -> serde_json::Value {
    json!({
        "issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The checks' text is for people: nothing may take it for a page.
fn health(api: &Api, call: &Call, endpoint: &str, check: &[&str]) -> Response<Body> {
    let answer = match check {
        [] => Some(health::whole(endpoint, api.health(), call.query.all("exclude"), call.query.get("verbose").is_some())),
        names => health::one(endpoint, api.health(), &names.join("/")),
    };
    let Some((code, text)) = answer else { return respond::not_found() };
    let mut response = respond::text(code, text);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The paths that upstream's index lists: of what is served without a name.
fn index(kinds: &Set) -> Vec<String> {
    const OTHERS: [&str; 9] =
        ["/.well-known/openid-configuration", "/api", "/apis", "/apis/", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/openid/v1/jwks", "/version"];
    let mut paths: BTreeSet<String> = OTHERS.map(str::to_owned).into_iter().chain(health::paths()).collect();
    for kind in kinds.all() {
        if kind.group.is_empty() {
            paths.insert(format!("/api/{}", kind.version));
        } else {
            paths.extend([format!("/apis/{}", kind.group), format!("/apis/{}/{}", kind.group, kind.version)]);
        }
    }
    paths.into_iter().collect()
}

fn discovery(api: &Api, call: &Call, parts: &[&str]) -> Result<Response<Body>, ApiError> {
    let kinds = &api.registry.kinds.now();
    let accepted = negotiate::accept(&call.headers)?;
    let aggregated = accepted.transform == Transform::AggregatedDiscovery;
    let document = match parts {
        ["api"] if aggregated => Some(schema::discovery_aggregated(kinds, true)),
        ["apis"] if aggregated => Some(schema::discovery_aggregated(kinds, false)),
        ["api"] => Some(schema::discovery_api_versions(&api.server_address())),
        ["apis"] => Some(schema::discovery_group_list(kinds)),
        ["api", version] => schema::discovery_resource_list(kinds, "", version),
        ["apis", group] => schema::discovery_group(kinds, group),
        ["apis", group, version] => schema::discovery_resource_list(kinds, group, version),
        _ => None,
    };
    let Some(document) = document else { return Ok(respond::not_found()) };
    let mut response = respond::document(accepted.encoding, 200, &document);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    if aggregated && parts.len() == 1 {
        let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    Ok(response)
}

fn openapi_index(api: &Api) -> Response<Body> {
    respond::document(Encoding::Json, 200, &schema::openapi_v3_index(&api.registry.kinds.now()))
}

/// The document of all kinds. Clients that ask for protobuf get an empty one: kubectl looks a kind up there after version 3 did not have it,
/// and must find nothing rather than fail.
fn openapi_v2(api: &Api, call: &Call) -> Response<Body> {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let accept = call.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.contains("protobuf") {
        return respond::bytes(200, PROTOBUF, "");
    }
    let kinds = &api.registry.kinds.now();
    let tag = format!("\"{}\"", schema::openapi_hash(kinds));
    let known = call.headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag.as_str());
    let mut response = if known { respond::text(304, "") } else { respond::bytes(200, "application/json", schema::openapi_v2(kinds)) };
    response.headers_mut().insert(ETAG, header(&tag));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

/// One document. The index names it by its hash; what was fetched by the present hash never changes
/// (kube-openapi/pkg/handler3).
fn openapi(api: &Api, call: &Call, group: &str, version: &str) -> Result<Response<Body>, ApiError> {
    let kinds = &api.registry.kinds.now();
    let hash = schema::openapi_hash(kinds);
    let asked = call.query.get("hash").unwrap_or_default();
    if !schema::openapi_v3_index(kinds)["paths"]
        .as_object()
        .is_some_and(|paths| paths.contains_key(call.info.path.trim_start_matches("/openapi/v3/")))
    {
        return Ok(respond::not_found());
    }
    if !asked.is_empty() && asked != hash {
        let mut response = respond::text(301, "");
        response.headers_mut().insert(LOCATION, header(&format!("{}?hash={hash}", call.info.path)));
        return Ok(response);
    }
    let tag = format!("\"{hash}\"");
    let known = call.headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag.as_str());
    let mut response = if known {
        respond::text(304, "")
    } else {
        let Some(document) = schema::openapi_v3(kinds, group, version) else { return Ok(respond::not_found()) };
        respond::bytes(200, "application/json", document)
    };
    let headers = response.headers_mut();
    headers.insert(ETAG, header(&tag));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if asked.is_empty() {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    } else {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let in_a_year = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(365 * 24);
        headers.insert(EXPIRES, header(&in_a_year.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()));
    }
    Ok(response)
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
