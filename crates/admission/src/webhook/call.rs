//! Where a webhook is, and what its HTTP answer means (apiserver/pkg/util/webhook/client.go, client-go/rest/request.go).

use crate::value::{lookup, text};
use serde_json::Value;
use std::future::Future;
use std::time::Duration;

/// An answer has at most so many bytes. Callers stop reading there.
pub const MAX_ANSWER: usize = 3 * 1024 * 1024;

const DEFAULT_TIMEOUT: u64 = 10;

/// A Service that answers for a webhook. Callers choose one of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// As errors show it, with path and query.
    pub url: String,
    /// Host of the URL, and the name that the certificate must have.
    pub host: String,
    pub port: u16,
    /// Path and query of the request.
    pub path: String,
    /// The Service that stands behind the host, when the configuration names one.
    pub service: Option<Service>,
    /// PEM; empty for the roots of the system.
    pub ca_bundle: Vec<u8>,
    /// After so long a call fails.
    pub timeout: Duration,
}

/// An answer over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: u16,
    /// At most [`MAX_ANSWER`] bytes.
    pub body: Vec<u8>,
}

/// Makes the HTTP requests.
pub trait Caller: Sync {
    /// Posts JSON over TLS and HTTP/1.1. The error is the reason alone, such as `dial tcp 10.96.0.7:443: connect: connection refused`.
    fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> impl Future<Output = Result<Answer, String>> + Send;
}

/// A path without empty segments, as Go's path.Join makes it.
fn clean(path: &str) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            other => kept.push(other),
        }
    }
    format!("/{}", kept.join("/"))
}

impl Endpoint {
    /// Where a webhook's `clientConfig` points.
    pub fn of(hook: &Value) -> Result<Self, String> {
        use base64::Engine;
        let seconds = lookup(hook, &["timeoutSeconds"]).and_then(Value::as_u64).unwrap_or(DEFAULT_TIMEOUT);
        let ca_bundle = base64::engine::general_purpose::STANDARD
            .decode(text(hook, &["clientConfig", "caBundle"]))
            .map_err(|_| "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block".to_owned())?;
        let timeout = Duration::from_secs(seconds);
        if let Some(service) = lookup(hook, &["clientConfig", "service"]) {
            let port = lookup(service, &["port"]).and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
            let service = Service { namespace: text(service, &["namespace"]).into(), name: text(service, &["name"]).into(), port };
            let host = format!("{}.{}.svc", service.name, service.namespace);
            let path = format!("{}?timeout={seconds}s", clean(text(hook, &["clientConfig", "service", "path"])));
            let url = format!("https://{host}:{port}{path}");
            return Ok(Self { url, host, port, path, service: Some(service), ca_bundle, timeout });
        }
        let url = text(hook, &["clientConfig", "url"]);
        let Some(rest) = url.strip_prefix("https://") else {
            return Err("could not get REST client: webhook configuration must have either service or URL".into());
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| format!("could not get REST client: invalid port {port:?} after host"))?)
            }
            _ => (authority, 443),
        };
        let path = format!("{}?timeout={seconds}s", clean(path));
        let host = host.trim_matches(['[', ']']).to_owned();
        Ok(Self { url: format!("https://{authority}{path}"), host, port, path, service: None, ca_bundle, timeout })
    }

    /// An error as Go words it.
    pub(super) fn failure(&self, why: &str) -> String {
        format!("failed to call webhook: {}", self.unanswered(why))
    }

    /// Why there is no answer, as Go's HTTP client words it.
    pub fn unanswered(&self, why: &str) -> String {
        format!("Post \"{}\": {why}", self.url)
    }
}

impl Answer {
    /// The body of a success, else client-go's words about the code.
    pub(super) fn success(self) -> Result<Vec<u8>, String> {
        self.accepted().map_err(|why| format!("failed to call webhook: {why}"))
    }

    /// The body of a success, else client-go's words about the code alone.
    pub fn accepted(self) -> Result<Vec<u8>, String> {
        if (200..=206).contains(&self.code) { Ok(self.body) } else { Err(self.words()) }
    }

    fn words(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        if let Ok(status) = serde_json::from_slice::<Value>(&self.body)
            && text(&status, &["kind"]) == "Status"
            && !text(&status, &["message"]).is_empty()
        {
            return text(&status, &["message"]).to_owned();
        }
        let given = body.trim();
        let given = if given.is_empty() { "unknown" } else { given };
        match self.code {
            409 => "the server reported a conflict",
            404 => "the server could not find the requested resource",
            400 => "the server rejected our request for an unknown reason",
            401 => "the server has asked for the client to provide credentials",
            403 | 415 => given,
            406 if given == "unknown" => "the server was unable to respond with a content type that the client supports",
            406 => given,
            405 => "the server does not allow this method on the requested resource",
            422 => "the server rejected our request due to an error in our request",
            503 => "the server is currently unable to handle the request",
            504 => "the server was unable to return a response in the time allotted, but may still be processing the request",
            429 => "the server has received too many requests and has asked us to try again later",
            code if code >= 500 => return format!("an error on the server ({given:?}) has prevented the request from succeeding"),
            code => return format!("the server responded with the status code {code} but did not return more information"),
        }
        .to_owned()
    }
}
