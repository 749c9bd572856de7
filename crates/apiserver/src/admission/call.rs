//! HTTP requests to webhooks: a connection each, over TLS with the authorities that the configuration names.

use crate::backends::backends;
use crate::kind::Cluster;
use crate::object;
use ::admission::webhook::{Answer, Caller, Endpoint, MAX_ANSWER};
use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use thiserror_ext::AsReport as _;
use tokio::net::TcpStream;

/// Calls webhooks from this server. Services are reached at their endpoints, because the control plane has no service proxy.
pub struct Http<'a>(pub &'a Cluster);

impl Caller for Http<'_> {
    async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<Answer, String> {
        let stream = match &endpoint.service {
            Some(_) => dial(self.backend(endpoint)?).await?,
            None => dial((endpoint.host.as_str(), endpoint.port)).await?,
        };
        let name = ServerName::try_from(endpoint.host.clone()).map_err(|error| error.to_string())?;
        let stream = tls(&endpoint.ca_bundle)?.connect(name, stream).await.map_err(|error| tls_error(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_report_string())?;
        let exchange = async move {
            let request = Request::post(&endpoint.path)
                .header(HOST, format!("{}:{}", endpoint.host, endpoint.port))
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json, */*")
                .body(Full::new(Bytes::from(body)))
                .map_err(|error| error.to_string())?;
            let answer = sender.send_request(request).await.map_err(|error| error.to_report_string())?;
            let code = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|error| error.to_string())?;
            Ok(Answer { code, body: body.to_bytes().to_vec() })
        };
        // The connection runs beside the exchange, and ends with it.
        tokio::pin!(exchange, connection);
        tokio::select! {
            answer = &mut exchange => answer,
            _ = &mut connection => exchange.await,
        }
    }
}

impl Http<'_> {
    /// A ready endpoint of a Service's port.
    fn backend(&self, endpoint: &Endpoint) -> Result<(IpAddr, u16), String> {
        let Some(wanted) = &endpoint.service else { return Err("no service is named".to_string()) };
        let store = &self.0.store;
        let service = store.get(&format!("core/services/{}/{}", wanted.namespace, wanted.name)).map(|entry| entry.value());
        let service = service.ok_or_else(|| format!("service {:?} not found", wanted.name))?;
        let ports = object::list(&service, &["spec", "ports"]);
        let port = ports.iter().find(|port| object::integer(port, &["port"]) == Some(i64::from(wanted.port)));
        let port = port.ok_or_else(|| format!("no service port {} found for service {:?}", wanted.port, wanted.name))?;
        let (_, rows) = store.list(&format!("discovery.k8s.io/endpointslices/{}/", wanted.namespace));
        let slices: Vec<Value> = rows.into_iter().map(|(_, entry)| entry.value()).collect();
        let mut found = backends(&slices, &wanted.name, object::name_of(port));
        if found.is_empty() {
            return Err(format!("no endpoints available for service {:?}", wanted.name));
        }
        Ok(found.swap_remove(rand::random_range(0..found.len())))
    }
}

async fn dial(to: impl tokio::net::ToSocketAddrs + std::fmt::Debug) -> Result<TcpStream, String> {
    let shown = format!("{to:?}").replace(['(', ')', '"', ' '], "").replace(',', ":");
    TcpStream::connect(to).await.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => format!("dial tcp {shown}: connect: connection refused"),
        _ => format!("dial tcp {shown}: {error}"),
    })
}

fn tls(ca_bundle: &[u8]) -> Result<tokio_rustls::TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    let authorities = pki::certificate_der(&String::from_utf8_lossy(ca_bundle)).unwrap_or_default();
    roots.add_parsable_certificates(authorities);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config).into())
}

/// Go's words for what is most often wrong.
fn tls_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.contains("UnknownIssuer") {
        true => "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_string(),
        false => format!("tls: {text}"),
    }
}
