//! HTTP requests to webhooks, over TLS with the authorities that the configuration names, else those of the system. Connections are kept
//! between calls.

use crate::backends::backends;
use crate::kind::Cluster;
use crate::object;
use crate::outgoing::{Connection, Peer, Unanswered};
use ::admission::webhook::{Answer, Caller, Endpoint, MAX_ANSWER, Service};
use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, Limited};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};
use thiserror_ext::AsReport as _;
use tokio::net::TcpStream;

/// Calls webhooks from this server. Services are reached at their endpoints, because the control plane has no service proxy.
pub struct Http<'a>(pub &'a Cluster);

impl Caller for Http<'_> {
    async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<Answer, String> {
        let address = match &endpoint.service {
            Some(service) => self.backend(service)?,
            None => (endpoint.host.clone(), endpoint.port),
        };
        let peer = Peer::new(&endpoint.host, address, &endpoint.ca_bundle);
        let body = Bytes::from(body);
        // Those that the webhook has closed meanwhile have sent nothing.
        while let Some(connection) = self.0.webhooks.take(&peer) {
            match self.exchange(&peer, connection, endpoint, &body).await {
                Err(Unanswered::Unsent) => {}
                Err(Unanswered::Failed(why)) => return Err(why),
                Ok(answer) => return Ok(answer),
            }
        }
        let stream = dial(&peer.address).await?;
        let name = ServerName::try_from(endpoint.host.clone()).map_err(|error| error.to_string())?;
        let stream = tls(&endpoint.ca_bundle)?.connect(name, stream).await.map_err(|error| tls_error(&error))?;
        let connection = Connection::over(stream).await?;
        self.exchange(&peer, connection, endpoint, &body).await.map_err(|unanswered| match unanswered {
            Unanswered::Unsent => "EOF".to_string(),
            Unanswered::Failed(why) => why,
        })
    }
}

impl Http<'_> {
    /// One request and its answer; the connection is kept for the next.
    async fn exchange(&self, peer: &Peer, mut connection: Connection, endpoint: &Endpoint, body: &Bytes) -> Result<Answer, Unanswered> {
        let failed = |why: &dyn std::fmt::Display| Unanswered::Failed(why.to_string());
        let request = Request::post(&endpoint.path)
            .header(HOST, format!("{}:{}", endpoint.host, endpoint.port))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .body(Full::new(body.clone()))
            .map_err(|error| failed(&error))?;
        let answer = connection.send(request).await?;
        let code = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|error| failed(&error))?;
        self.0.webhooks.keep(peer.clone(), connection);
        Ok(Answer { code, body: body.to_bytes().to_vec() })
    }

    /// Where a Service's port leads: to the host of an ExternalName, else to a ready endpoint. Upstream asks for the ClusterIP unless it is told
    /// `--enable-aggregator-routing`, and so knows no way to a Service without one (apiserver/pkg/util/proxy `ResolveCluster`).
    fn backend(&self, wanted: &Service) -> Result<(String, u16), String> {
        let store = &self.0.store;
        let service = store.get(&format!("core/services/{}/{}", wanted.namespace, wanted.name)).map(|entry| entry.value());
        let service = service.ok_or_else(|| format!("service {:?} not found", wanted.name))?;
        if object::text(&service, &["spec", "type"]) == "ExternalName" {
            return Ok((object::text(&service, &["spec", "externalName"]).to_owned(), wanted.port));
        }
        if object::text(&service, &["spec", "clusterIP"]) == "None" {
            return Err("cannot route to service with ClusterIP \"None\"".into());
        }
        let ports = object::list(&service, &["spec", "ports"]);
        let port = ports.iter().find(|port| object::integer(port, &["port"]) == Some(i64::from(wanted.port)));
        let port = port.ok_or_else(|| format!("no service port {} found for service {:?}", wanted.port, wanted.name))?;
        let (_, rows) = store.list(&format!("discovery.k8s.io/endpointslices/{}/", wanted.namespace));
        let slices: Vec<Value> = rows.into_iter().map(|(_, entry)| entry.value()).collect();
        let mut found = backends(&slices, &wanted.name, object::name_of(port));
        if found.is_empty() {
            return Err(format!("no endpoints available for service {:?}", wanted.name));
        }
        let (address, port) = found.swap_remove(rand::random_range(0..found.len()));
        Ok((address.to_string(), port))
    }
}

async fn dial((host, port): &(String, u16)) -> Result<TcpStream, String> {
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    TcpStream::connect((host.as_str(), *port)).await.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => format!("dial tcp {shown}: connect: connection refused"),
        _ => format!("dial tcp {shown}: {error}"),
    })
}

fn tls(ca_bundle: &[u8]) -> Result<tokio_rustls::TlsConnector, String> {
    let roots = if ca_bundle.is_empty() { system_roots() } else { Arc::new(roots_in(ca_bundle)) };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config).into())
}

fn roots_in(ca_bundle: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(pki::certificate_der(&String::from_utf8_lossy(ca_bundle)).unwrap_or_default());
    roots
}

/// The authorities that this machine trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), read when they are first wanted, as in Go.
fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let found = rustls_native_certs::load_native_certs();
        for error in found.errors {
            tracing::warn!(error = %error.as_report(), "authorities of this machine cannot be read: webhooks that need them are not trusted");
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        Arc::new(roots)
    };
    Arc::clone(ROOTS.get_or_init(read))
}

/// Go's words for what is most often wrong.
fn tls_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.contains("UnknownIssuer") || text.contains("BadSignature") {
        true => "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_string(),
        false => format!("tls: {text}"),
    }
}
