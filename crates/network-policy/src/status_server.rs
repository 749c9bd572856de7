//! Health, metrics and status of the policies of a node over HTTP: `/metrics`, `/readyz`, `/status`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exposition::Format;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use listen::Limits;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::run::Status;

/// Where it listens by default.
pub const BIND_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10261);

const LIMITS: Limits = Limits { first_request: Duration::from_secs(10), ..Limits::new(64, 32) };

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at}: end what does, or choose another address")]
pub struct ListenError {
    at: SocketAddr,
    source: std::io::Error,
}

/// Serves at `at` until the program ends.
///
/// # Errors
/// [`ListenError`].
pub async fn serve(at: SocketAddr, status: watch::Receiver<Status>, metrics: Metrics) -> Result<(), ListenError> {
    let listener = TcpListener::bind(at).await.map_err(|source| ListenError { at, source })?;
    let source = Arc::new((status, metrics));
    let service = move |request: Request<Incoming>| {
        let (code, kind, text) = answer(&source.0.borrow(), &source.1, request.uri().path(), Format::accepted(request.headers()));
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = code;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        async move { response }
    };
    tokio::spawn(listen::serve_http(listener, LIMITS, service));
    Ok(())
}

fn answer(status: &Status, metrics: &Metrics, path: &str, format: Format) -> (StatusCode, &'static str, String) {
    const JSON: &str = "application/json";
    match path {
        "/metrics" => (StatusCode::OK, format.content_type(), metrics.encode(format)),
        "/status" => (StatusCode::OK, JSON, document(status).to_string()),
        "/readyz" if status.ready => (StatusCode::OK, JSON, document(status).to_string()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, JSON, document(status).to_string()),
        _ => (StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
    }
}

/// The status as `/status` has it.
pub fn document(status: &Status) -> Value {
    let time = |at: SystemTime| jiff::Timestamp::try_from(at).map_or_else(|error| error.to_string(), |at| at.to_string());
    let policies = status.policies.iter().map(|(id, state)| {
        json!({
            "policy": id.to_string(),
            "effectiveSince": time(state.effective),
            "effectiveAfterSeconds": state.took.as_secs_f64(),
            "endpoints": state.endpoints,
        })
    });
    json!({
        "ready": status.ready,
        "endpoints": status.endpoints,
        "isolatedEndpoints": status.isolated,
        "policies": policies.collect::<Vec<_>>(),
        "problems": status.problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyId;
    use crate::run::PolicyStatus;

    #[test]
    fn status_says_since_when_a_policy_is_in_effect() {
        let mut status = Status { ready: true, endpoints: 3, isolated: 1, ..Status::default() };
        let state = PolicyStatus { effective: SystemTime::UNIX_EPOCH, took: Duration::from_millis(3), endpoints: 1 };
        status.policies.insert(PolicyId::Cluster("admin".into()), state);
        let (code, _, text) = answer(&status, &Metrics::default(), "/status", Format::Text);
        let expected = json!({"ready": true, "endpoints": 3, "isolatedEndpoints": 1, "problems": [], "policies": [{"policy": "ClusterNetworkPolicy admin",
            "effectiveSince": "1970-01-01T00:00:00Z", "effectiveAfterSeconds": 0.003, "endpoints": 1}]});
        assert_eq!((code, serde_json::from_str::<Value>(&text).unwrap()), (StatusCode::OK, expected));
        assert_eq!(answer(&Status::default(), &Metrics::default(), "/readyz", Format::Text).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer(&status, &Metrics::default(), "/", Format::Text).0, StatusCode::NOT_FOUND);
    }
}
