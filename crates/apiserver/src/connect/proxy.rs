//! nodes/proxy, pods/proxy and services/proxy: HTTP through the API server, upgrades included
//! (pkg/registry/core/{node,pod,service}/…, apimachinery/pkg/util/proxy). Redirects and links in pages lead through the proxy again.

mod page;

use super::{Target, Transport};
use crate::backends::{backends, is_global};
use crate::http::call::Call;
use crate::http::respond::{self, Body};
use crate::kind::Kind;
use crate::kinds;
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER};
use http::header::{TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use streaming::upgrade;
use thiserror_ext::AsReport as _;

/// What belongs to one connection, and credentials that are ours to check.
const NOT_PASSED_ON: [HeaderName; 11] = [
    AUTHORIZATION,
    CONNECTION,
    HOST,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Answers such a request.
pub(super) async fn serve(api: &Api, call: &Call, kind: &Arc<Kind>, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let (prefix, rest) = split(request.uri().path(), kind.namespaced);
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    let upgrades = upgrade::requested(request.headers()).is_some();
    if rest.is_empty() && !upgrades && matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = respond::text(StatusCode::MOVED_PERMANENTLY.as_u16(), "");
        if let Ok(value) = HeaderValue::try_from(format!("{prefix}/{query}")) {
            response.headers_mut().insert(LOCATION, value);
        }
        return Ok(response);
    }
    let path = format!("{}{query}", if rest.is_empty() { "/" } else { &rest });
    let target = match kind.plural.as_str() {
        "nodes" => node(api, &call.info.name, path)?,
        "pods" => pod(api, call, path)?,
        _ => service(api, call, path)?,
    };
    if upgrades {
        return super::pass_through(api, call, &mut request, &target).await;
    }
    forward(api, request, &target, &prefix).await
}

/// The path up to `proxy`, and what follows it.
fn split(path: &str, namespaced: bool) -> (String, String) {
    // /api/v1/nodes/NAME/proxy, /api/v1/namespaces/NS/pods/NAME/proxy; the first segment is empty.
    let segments = if namespaced { 8 } else { 6 };
    let end = path.match_indices('/').nth(segments - 1).map_or(path.len(), |(at, _)| at);
    let (prefix, rest) = path.split_at(end);
    (prefix.to_owned(), rest.to_owned())
}

/// `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT` (apimachinery `SplitSchemeNamePort`).
#[derive(Debug, PartialEq, Eq)]
struct Id<'a> {
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

impl<'a> Id<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let id = match parts.as_slice() {
            [name] => Id { scheme: "", name, port: "" },
            [name, port] => Id { scheme: "", name, port },
            [scheme @ ("http" | "https" | ""), name, port] => Id { scheme, name, port },
            _ => return None,
        };
        (!id.name.is_empty()).then_some(id)
    }

    fn of(text: &'a str, what: &str) -> Result<Self, ApiError> {
        Self::parse(text).ok_or_else(|| ApiError::bad_request(format!("invalid {what} request {text:?}")))
    }

    /// How a pod is reached that the request names.
    fn transport(&self) -> Transport {
        if self.scheme == "https" { Transport::Unverified } else { Transport::Plain }
    }
}

fn node(api: &Api, name: &str, path: String) -> Result<Target, ApiError> {
    let id = Id::of(name, "node")?;
    let location = api.kubelet_location(id.name)?;
    match id.port.parse::<u16>() {
        Err(_) => Ok(Target::kubelet(location, path)),
        Ok(own) if own == location.port => Ok(Target::kubelet(location, path)),
        Ok(port) if allowed(api, &location.address) => Ok(Target { transport: Transport::Plain, address: location.address, port, path }),
        Ok(_) => Err(ApiError::bad_request("address not allowed")),
    }
}

fn pod(api: &Api, call: &Call, path: String) -> Result<Target, ApiError> {
    let id = Id::of(&call.info.name, "pod")?;
    let kind = kinds::by_resource("", "v1", "pods").ok_or_else(ApiError::no_such_resource)?;
    let pod = api.registry.get(kind, &call.info.namespace, id.name)?.value();
    let first = || {
        object::list(&pod, &["spec", "containers"])
            .iter()
            .find_map(|container| object::list(container, &["ports"]).first().and_then(|port| object::integer(port, &["containerPort"])))
    };
    let port = if id.port.is_empty() { Some(first().unwrap_or(80)) } else { id.port.parse().ok() };
    let port =
        port.and_then(|port| u16::try_from(port).ok()).ok_or_else(|| ApiError::bad_request(format!("invalid pod request {:?}", call.info.name)))?;
    let address = object::text(&pod, &["status", "podIP"]).parse().ok().filter(|address| allowed(api, address));
    let address = address.ok_or_else(|| ApiError::bad_request("address not allowed"))?;
    Ok(Target { transport: id.transport(), address, port, path })
}

/// Addresses of pods and nodes (`IsProxyableIP`); not the control plane's own.
fn allowed(api: &Api, address: &IpAddr) -> bool {
    is_global(address) && !api.node_networks.except.contains(address)
}

fn service(api: &Api, call: &Call, path: String) -> Result<Target, ApiError> {
    let id = Id::of(&call.info.name, "service")?;
    let unavailable = |message: String| ApiError::new(503, "ServiceUnavailable", message);
    let kind = kinds::by_resource("", "v1", "services").ok_or_else(ApiError::no_such_resource)?;
    let service = api.registry.get(kind, &call.info.namespace, id.name)?.value();
    let ports = object::list(&service, &["spec", "ports"]);
    let name = match id.port.parse::<i64>() {
        Ok(number) => {
            let found = ports.iter().find(|port| object::integer(port, &["port"]) == Some(number));
            object::name_of(found.ok_or_else(|| unavailable(format!("no service port {number} found for service {:?}", id.name)))?)
        }
        Err(_) => id.port,
    };
    let slices = kinds::by_resource("discovery.k8s.io", "v1", "endpointslices").ok_or_else(ApiError::no_such_resource)?;
    let (_, rows) = api.registry.store.list(&slices.prefix(&call.info.namespace));
    let slices: Vec<Value> = rows.into_iter().map(|(_, entry)| entry.value()).collect();
    let mut backends = backends(&slices, id.name, name);
    backends.retain(|(address, _)| allowed(api, address));
    if backends.is_empty() {
        return Err(unavailable(format!("no endpoints available for service {:?}", call.info.name)));
    }
    let (address, port) = backends.swap_remove(rand::random_range(0..backends.len()));
    Ok(Target { transport: id.transport(), address, port, path })
}

async fn forward(api: &Api, request: Request<Body>, target: &Target, prefix: &str) -> Result<Response<Body>, ApiError> {
    let unreachable = |error: String| ApiError::new(503, "ServiceUnavailable", format!("error trying to reach service: {error}"));
    let stream = super::dial(&api.kubelet, target).await.map_err(unreachable)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(error.to_string()))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %error.as_report(), "a proxied connection ended");
        }
    });
    let (parts, body) = request.into_parts();
    let host = parts.headers.get(HOST).cloned().or_else(|| HeaderValue::try_from(parts.uri.authority()?.as_str()).ok());
    let has_page = parts.method != Method::HEAD;
    let mut passed = Request::builder().method(parts.method).uri(&target.path).header(HOST, target.authority());
    if let Some(headers) = passed.headers_mut() {
        copy(&parts.headers, headers);
        drop_identity(headers);
        if let Ok(uri) = HeaderValue::try_from(format!("{prefix}{}", target.path.split('?').next().unwrap_or_default())) {
            headers.insert("x-forwarded-uri", uri);
        }
        if let Some(host) = &host {
            headers.insert("x-forwarded-host", host.clone());
        }
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
    }
    let passed = passed.body(body).map_err(ApiError::internal)?;
    let (parts, body) = sender.send_request(passed).await.map_err(|error| unreachable(error.to_string()))?.into_parts();
    let mut response = Response::new(body.map_err(Into::into).boxed_unsync());
    *response.status_mut() = parts.status;
    copy(&parts.headers, response.headers_mut());
    let hosts = [target.authority(), host.and_then(|host| host.to_str().map(str::to_owned).ok()).unwrap_or_default()];
    if let Some(location) = response.headers().get(LOCATION) {
        let through = location.to_str().ok().and_then(|location| page::through(location, &hosts, prefix));
        if let Some(through) = through.and_then(|through| HeaderValue::try_from(through).ok()) {
            response.headers_mut().insert(LOCATION, through);
        }
        return Ok(response);
    }
    if has_page { page::rewrite(response, hosts, prefix.to_owned()).await } else { Ok(response) }
}

/// Authentication and impersonation end at this server: a backend that trusts it as a front proxy, or answers with its own rights, must not
/// see these headers.
fn drop_identity(headers: &mut HeaderMap) {
    let claims = |name: &&HeaderName| ["impersonate-", "x-remote-"].iter().any(|prefix| name.as_str().starts_with(prefix));
    let names: Vec<HeaderName> = headers.keys().filter(claims).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn copy(from: &HeaderMap, to: &mut HeaderMap) {
    // `Connection` names further headers of this connection alone (RFC 9110, 7.6.1).
    let of_connection = upgrade::values(from, &CONNECTION);
    let passed = |name: &HeaderName| !NOT_PASSED_ON.contains(name) && !of_connection.iter().any(|own| own.eq_ignore_ascii_case(name.as_str()));
    for (name, value) in from.iter().filter(|(name, _)| passed(name)) {
        to.append(name, value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_split_at_proxy() {
        let path = "/api/v1/namespaces/a/pods/http:b:80/proxy";
        assert_eq!(split(path, true), (path.to_owned(), String::new()));
        assert_eq!(split(&format!("{path}/x//y%20z/"), true), (path.to_owned(), "/x//y%20z/".to_owned()));
        assert_eq!(split("/api/v1/nodes/n/proxy/logs/", false), ("/api/v1/nodes/n/proxy".to_owned(), "/logs/".to_owned()));
    }

    #[test]
    fn ids_are_read_as_upstream() {
        assert_eq!(Id::parse("a"), Some(Id { scheme: "", name: "a", port: "" }));
        assert_eq!(Id::parse("a:web"), Some(Id { scheme: "", name: "a", port: "web" }));
        assert_eq!(Id::parse("http:a:"), Some(Id { scheme: "http", name: "a", port: "" }));
        for wrong in ["", ":80", "ftp:a:1", "a:b:c:d"] {
            assert_eq!(Id::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Id::of("https:a:1", "pod").unwrap().transport(), Transport::Unverified);
        assert_eq!(Id::of("http:a:1", "pod").unwrap().transport(), Transport::Plain);
        assert_eq!(Id::of("ftp:a:1", "pod").unwrap_err().code, 400);
    }

    #[test]
    fn only_ready_backends_of_the_port_count() {
        let slice = |service: &str, name: &str| {
            json!({
                "metadata": {"labels": {"kubernetes.io/service-name": service}}, "ports": [{"name": name, "port": 8080}],
                "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}, {"addresses": ["127.0.0.1"]}],
            })
        };
        let slices = [slice("a", "web"), slice("a", "other"), slice("b", "web")];
        assert_eq!(backends(&slices, "a", "web"), [("10.0.0.1".parse().unwrap(), 8080)]);
        assert!(backends(&slices, "c", "web").is_empty());
    }

    #[test]
    fn a_backend_hears_nothing_of_who_asks() {
        let mut from = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("impersonate-user", "admin"),
            ("impersonate-extra-scopes", "x"),
            ("x-remote-user", "admin"),
            ("x-remote-group", "system:masters"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("accept", "text/html"),
        ] {
            from.append(name, value.parse().unwrap());
        }
        let mut to = HeaderMap::new();
        copy(&from, &mut to);
        drop_identity(&mut to);
        assert_eq!(to.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
