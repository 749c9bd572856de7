//! pods/log and nodes/proxy: forwarded to the node's kubelet over TLS, with the API server's own client certificate
//! (pkg/registry/core/pod/strategy.go `LogLocation`, pkg/registry/core/node/strategy.go).

use crate::http::Call;
use crate::http::respond::{self, Body};
use crate::kinds::{self, KindInfo};
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use pki::CertKey;
use rustls_pki_types::ServerName;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const CONNECT: Duration = Duration::from_secs(10);
const LARGEST_DOCUMENT: usize = 8 << 20;
const DEFAULT_PORT: u16 = 10250;
const LOG_OPTIONS: [&str; 7] = ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes"];

/// Why the client for kubelets could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate shown to kubelets cannot be used")]
pub struct KubeletError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The way to kubelets.
pub struct KubeletClient(TlsConnector);

impl KubeletClient {
    /// Trusts serving certificates of `ca_pem`, shows `client`.
    pub fn new(ca_pem: &str, client: &CertKey) -> Result<Self, KubeletError> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in pki::certificate_der(ca_pem).map_err(|error| KubeletError(error.into()))? {
            roots.add(certificate).map_err(|error| KubeletError(error.into()))?;
        }
        let chain = pki::certificate_der(&client.cert_pem).map_err(|error| KubeletError(error.into()))?;
        let key = pki::private_key_der(&client.key_pem).map_err(|error| KubeletError(error.into()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| KubeletError(error.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| KubeletError(error.into()))?;
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    async fn request(
        &self,
        address: IpAddr,
        port: u16,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<Response<hyper::body::Incoming>, String> {
        let connect = async {
            let stream = TcpStream::connect((address, port)).await.map_err(|error| format!("dial tcp {address}:{port}: {error}"))?;
            self.0.connect(ServerName::IpAddress(address.into()), stream).await.map_err(|error| format!("tls to {address}:{port}: {error}"))
        };
        let stream = tokio::time::timeout(CONNECT, connect).await.map_err(|_| format!("dial tcp {address}:{port}: i/o timeout"))??;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Ends with the response's body, or with the request that asked for it.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a kubelet ended");
            }
        });
        let request = Request::builder().method(method).uri(target).header("host", format!("{address}:{port}")).body(Full::new(body));
        sender.send_request(request.map_err(|error| error.to_string())?).await.map_err(|error| error.to_string())
    }
}

/// Address and port of a node's kubelet.
fn location(api: &Api, node: &str) -> Result<(IpAddr, u16), ApiError> {
    let nodes = kinds::by_resource("", "v1", "nodes").ok_or_else(ApiError::no_such_resource)?;
    let node_object = api.registry.get(nodes, "", node)?.value();
    let addresses = object::list(&node_object, &["status", "addresses"]);
    let address = addresses
        .iter()
        .filter(|address| object::text(address, &["type"]) == "InternalIP")
        .find_map(|address| object::text(address, &["address"]).parse().ok());
    let port = object::integer(&node_object, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(|port| u16::try_from(port).ok());
    let address = address.ok_or_else(|| ApiError::internal(format!("no preferred addresses found; known addresses: {addresses:?}")))?;
    Ok((address, port.filter(|port| *port != 0).unwrap_or(DEFAULT_PORT)))
}

/// `kubectl logs`.
pub(super) async fn log(api: &Api, call: &Call, kind: &'static KindInfo) -> Result<Response<Body>, ApiError> {
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    let pod = api.registry.get(kind, namespace, name)?.value();
    let container = container(&pod, name, call.query.get("container").unwrap_or_default())?;
    let node = object::text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return Ok(respond::text(200, ""));
    }
    let options: Vec<String> =
        LOG_OPTIONS.iter().filter_map(|option| call.query.get(option).map(|value| format!("{option}={}", encode(value)))).collect();
    let target = format!("/containerLogs/{namespace}/{name}/{container}?{}", options.join("&"));
    forward(api, node, Method::GET, &target, Bytes::new()).await
}

/// The container that is meant.
fn container(pod: &Value, name: &str, asked: &str) -> Result<String, ApiError> {
    let names =
        |list: &str| -> Vec<String> { object::list(pod, &["spec", list]).iter().map(|container| object::name_of(container).to_string()).collect() };
    let (containers, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if !asked.is_empty() {
        let known = containers.iter().chain(&init).chain(&ephemeral).any(|own| own == asked);
        return if known { Ok(asked.to_string()) } else { Err(ApiError::bad_request(format!("container {asked} is not valid for pod {name}"))) };
    }
    match containers.as_slice() {
        [only] if init.is_empty() && ephemeral.is_empty() => Ok(only.clone()),
        [] => Err(ApiError::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => {
            let mut message = format!("a container name must be specified for pod {name}, choose one of: [{}]", containers.join(" "));
            if !init.is_empty() {
                message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            if !ephemeral.is_empty() {
                message.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
            }
            Err(ApiError::bad_request(message))
        }
    }
}

/// `kubectl get --raw /api/v1/nodes/NODE/proxy/…`.
pub(super) async fn proxy(api: &Api, call: &Call, body: Bytes) -> Result<Response<Body>, ApiError> {
    let method = match call.info.verb {
        "create" => Method::POST,
        "update" => Method::PUT,
        "delete" => Method::DELETE,
        _ => Method::GET,
    };
    let target = format!("/{}", call.info.rest);
    forward(api, &call.info.name, method, &target, body).await
}

async fn forward(api: &Api, node: &str, method: Method, target: &str, body: Bytes) -> Result<Response<Body>, ApiError> {
    let (address, port) = location(api, node)?;
    let answer = api.kubelet.request(address, port, method.clone(), target, body).await;
    let answer = answer.map_err(|error| ApiError::internal(format!("{method} \"https://{address}:{port}{target}\": {error}")))?;
    let (parts, body) = answer.into_parts();
    if parts.status.is_success() {
        let mut response = respond::text(parts.status.as_u16(), "");
        if let Some(content_type) = parts.headers.get(http::header::CONTENT_TYPE) {
            response.headers_mut().insert(http::header::CONTENT_TYPE, content_type.clone());
        }
        *response.body_mut() = body.map_err(Into::into).boxed_unsync();
        return Ok(response);
    }
    let bytes = body.collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).trim().to_string();
    Err(match parts.status.as_u16() {
        400 => ApiError::bad_request(text),
        404 => ApiError::new(404, "NotFound", format!("the server could not find the requested resource ({text})")),
        500 => ApiError::internal(text),
        code => ApiError::new(code, "", text),
    })
}

/// A document of a node's kubelet, as a whole.
pub async fn read(api: &Api, node: &str, target: &str) -> Result<Bytes, ApiError> {
    let failed = |error: String| ApiError::new(503, "ServiceUnavailable", format!("reading {target} of node {node}: {error}"));
    let (address, port) = location(api, node)?;
    let ask = async {
        let answer = api.kubelet.request(address, port, Method::GET, target, Bytes::new()).await?;
        let status = answer.status();
        let body = http_body_util::Limited::new(answer.into_body(), LARGEST_DOCUMENT).collect().await.map_err(|error| error.to_string())?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim())) }
    };
    tokio::time::timeout(CONNECT, ask).await.map_err(|_| failed("timed out".into()))?.map_err(failed)
}

fn encode(value: &str) -> String {
    percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_container_must_be_clear() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(
            container(&pod, "p", "").unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
        assert_eq!(container(&pod, "p", "i").unwrap(), "i");
        assert_eq!(container(&pod, "p", "x").unwrap_err().message, "container x is not valid for pod p");
        assert_eq!(container(&json!({"spec": {"containers": [{"name": "a"}]}}), "p", "").unwrap(), "a");
    }
}
