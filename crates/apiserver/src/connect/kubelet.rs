//! Connections to kubelets: TLS with the API server's own client certificate, to the address in the Node's status.
//!
//! A node says where it is, and may lie: only addresses where nodes are expected are dialled, and who answers must prove with the cluster's
//! authority that it is that node.

use crate::authn::NODE_USER;
use crate::object;
use crate::status::ApiError;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use pki::CertKey;
use rustls_pki_types::ServerName;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror_ext::AsReport as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const CONNECT: Duration = Duration::from_secs(10);
const LARGEST_DOCUMENT: usize = 8 << 20;
const DEFAULT_PORT: u16 = 10250;

/// Why the client for kubelets could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate shown to kubelets cannot be used")]
pub struct KubeletError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Where nodes are. Their kubelets are dialled at no other address, whatever the Node objects say.
#[derive(Clone, Debug, Default)]
pub struct NodeNetworks {
    /// The networks that nodes' addresses lie in.
    pub within: Vec<IpNet>,
    /// Addresses in them that are no node's: the control plane's own.
    pub except: Vec<IpAddr>,
}

impl NodeNetworks {
    fn allow(&self, address: &IpAddr) -> bool {
        !self.except.contains(address) && self.within.iter().any(|network| network.contains(address))
    }
}

/// Where a node's kubelet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub node: String,
    pub address: IpAddr,
    /// The kubelet's port.
    pub port: u16,
}

/// The way to kubelets.
#[derive(Clone)]
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

    /// A fresh connection to the kubelet of `location`'s node.
    pub(super) async fn connect(&self, location: &Location) -> Result<TlsStream<TcpStream>, String> {
        let Location { node, address, port } = location;
        let (address, port) = (*address, *port);
        let connect = async {
            let stream = TcpStream::connect((address, port)).await.map_err(|error| format!("dial tcp {address}:{port}: {error}"))?;
            // Key strokes are small, and wait for nothing.
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let tls = self.0.connect(ServerName::IpAddress(address.into()), stream).await;
            let tls = tls.map_err(|error| format!("tls to {address}:{port}: {error}"))?;
            let certificate = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            if !certificate.is_some_and(|certificate| names(certificate, node)) {
                return Err(format!("tls to {address}:{port}: the kubelet's serving certificate does not name node {node:?}"));
            }
            Ok(tls)
        };
        tokio::time::timeout(CONNECT, connect).await.map_err(|_| format!("dial tcp {address}:{port}: i/o timeout"))?
    }

    /// Asks, and answers with the response's head; its body may go on.
    pub(super) async fn get(&self, location: &Location, target: &str) -> Result<Response<hyper::body::Incoming>, String> {
        let stream = self.connect(location).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Ends with the response's body, or with the request that asked for it.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error.as_report(), "connection to a kubelet ended");
            }
        });
        let request = Request::builder()
            .method(Method::GET)
            .uri(target)
            .header("host", super::authority(location.address, location.port))
            .body(Full::<Bytes>::default());
        sender.send_request(request.map_err(|error| error.to_string())?).await.map_err(|error| error.to_string())
    }
}

/// Whether a serving certificate is the node's: by its subject, as kubelets ask for it, or by a name.
fn names(certificate: &[u8], node: &str) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let user = format!("{NODE_USER}{node}");
    let subject = certificate.subject().iter_common_name().any(|name| name.as_str().is_ok_and(|name| name == user));
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let is_node = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(name) if name.eq_ignore_ascii_case(node));
    subject || alternative.is_some_and(|names| names.value.general_names.iter().any(is_node))
}

impl Location {
    /// Where the kubelet of a node is, by its Node object.
    pub fn of(node: &Value, networks: &NodeNetworks) -> Result<Self, ApiError> {
        let addresses = object::list(node, &["status", "addresses"]);
        let address = addresses
            .iter()
            .filter(|address| object::text(address, &["type"]) == "InternalIP")
            .find_map(|address| object::text(address, &["address"]).parse().ok());
        let port = object::integer(node, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(|port| u16::try_from(port).ok());
        let address = address.ok_or_else(|| ApiError::internal(format!("no preferred addresses found; known addresses: {addresses:?}")))?;
        let name = object::name(node);
        if !networks.allow(&address) {
            tracing::warn!(node = name, %address, "a node's address is outside of the networks of nodes: its kubelet is not dialled");
            return Err(ApiError::bad_request("address not allowed"));
        }
        Ok(Self { node: name.to_string(), address, port: port.filter(|port| *port != 0).unwrap_or(DEFAULT_PORT) })
    }
}

impl KubeletClient {
    /// A document of a kubelet, as a whole.
    pub async fn read(&self, location: &Location, target: &str) -> Result<Bytes, ApiError> {
        let failed = |error: String| ApiError::new(503, "ServiceUnavailable", format!("reading {target} of node {}: {error}", location.node));
        let ask = async {
            let answer = self.get(location, target).await?;
            let status = answer.status();
            let body =
                http_body_util::Limited::new(answer.into_body(), LARGEST_DOCUMENT).collect().await.map_err(|error| error.to_string())?.to_bytes();
            if status.is_success() { Ok(body) } else { Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim())) }
        };
        tokio::time::timeout(CONNECT, ask).await.map_err(|_| failed("timed out".into()))?.map_err(failed)
    }
}
