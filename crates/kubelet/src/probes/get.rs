//! HTTP requests of probes and hooks (upstream pkg/probe/http).

use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use tokio::net::TcpStream;
use url::{Host, Url};

use super::run::{Target, port};
use super::{GetError, ProbeError, Verdict};

/// Body bytes that are read at most.
const BODY: usize = 10 << 10;
/// Requests that one try makes at most; all but the first follow a redirect (Go's net/http).
const REQUESTS: usize = 10;

/// What a request is for: the server sees it in `User-Agent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Probe,
    Hook,
    /// A hook whose server does not speak HTTPS: over HTTP, and without credentials.
    HookAgain,
}

impl Purpose {
    fn agent(self) -> &'static str {
        match self {
            Purpose::Probe => "kube-probe/1.36",
            Purpose::Hook | Purpose::HookAgain => "kube-lifecycle/1.36",
        }
    }
}

/// Runs a hook (upstream pkg/kubelet/lifecycle). Returns the server, as `host:port`, where it was asked by HTTPS but speaks HTTP.
pub(super) async fn hook(action: &HTTPGetAction, target: &Target) -> Result<Option<String>, ProbeError> {
    match done(get(action, target, Purpose::Hook).await) {
        Err(error @ ProbeError::Get { source: GetError::SpeaksHttp, .. }) => {
            let Some(port) = port(&action.port, target) else { return Err(error) };
            // The first failure counts where the second try fails too.
            done(get(action, target, Purpose::HookAgain).await).map_or(Err(error), |()| Ok(Some(server(action, &target.pod_ip, port))))
        }
        outcome => outcome.map(|()| None),
    }
}

/// Any answer to a hook will do.
fn done(verdict: Verdict) -> Result<(), ProbeError> {
    match verdict {
        Verdict::Success | Verdict::Warning(_) | Verdict::Failure(ProbeError::HttpStatus(_)) => Ok(()),
        Verdict::Failure(error) | Verdict::Unknown(error) => Err(error),
    }
}

/// Where a request goes.
struct Hop {
    url: Url,
    /// As messages write it.
    shown: String,
    /// Of the `Host` header.
    authority: String,
}

struct Answer {
    status: u16,
    /// Of a redirect that names a place.
    location: Option<String>,
    body: String,
}

impl Answer {
    fn verdict(self) -> Verdict {
        match self.status {
            200..300 => Verdict::Success,
            300..400 => Verdict::Warning(format!("Probe terminated redirects, Response body: {}", self.body)),
            status => Verdict::Failure(ProbeError::HttpStatus(status)),
        }
    }
}

/// Follows redirects to the same host name, with any port. One to another host is not followed: it ends the try with a warning.
pub(super) async fn get(action: &HTTPGetAction, target: &Target, purpose: Purpose) -> Verdict {
    let Some(port) = port(&action.port, target) else {
        return Verdict::Unknown(ProbeError::NoPort);
    };
    let mut hop = match first(action, &target.pod_ip, port, purpose) {
        Ok(hop) => hop,
        Err(error) => return Verdict::Unknown(ProbeError::BadUrl(error)),
    };
    let host = hop.url.host().map(|host| host.to_owned());
    for _ in 0..REQUESTS {
        let request = match request(action, &hop, purpose) {
            Ok(request) => request,
            Err(error) => return Verdict::Unknown(ProbeError::BadRequest(error)),
        };
        let failed = |source| Verdict::Failure(ProbeError::Get { url: hop.shown.clone(), source });
        let answer = match ask(&hop.url, request).await {
            Ok(answer) => answer,
            Err(error) => return failed(error),
        };
        let Some(location) = &answer.location else {
            return answer.verdict();
        };
        match follow(&hop, location) {
            Ok(next) if next.url.host().map(|host| host.to_owned()) == host => hop = next,
            Ok(_) => return answer.verdict(),
            Err(source) => return failed(GetError::Location { location: location.clone(), source }),
        }
    }
    Verdict::Failure(ProbeError::Get { url: hop.shown, source: GetError::Redirects(REQUESTS) })
}

/// The server of the first request, as `host:port`.
fn server(action: &HTTPGetAction, pod_ip: &str, port: u16) -> String {
    let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn first(action: &HTTPGetAction, pod_ip: &str, port: u16, purpose: Purpose) -> Result<Hop, url::ParseError> {
    let named = |name: &str| {
        let mut headers = action.http_headers.iter().flatten();
        headers.find(|h| h.name.eq_ignore_ascii_case(name) && !h.value.is_empty()).map(|h| h.value.clone())
    };
    let authority = server(action, pod_ip, port);
    let path = action.path.as_deref().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let scheme = if action.scheme.as_deref() == Some("HTTPS") && purpose != Purpose::HookAgain { "https" } else { "http" };
    let shown = format!("{scheme}://{authority}{slash}{path}");
    Ok(Hop { url: Url::parse(&shown)?, shown, authority: named("host").unwrap_or(authority) })
}

/// A `Host` header of the probe's own holds for places on the same server alone (Go's net/http).
fn follow(hop: &Hop, location: &str) -> Result<Hop, url::ParseError> {
    let url = hop.url.join(location)?;
    if url.host().is_none() || !matches!(url.scheme(), "http" | "https") {
        return Err(url::ParseError::EmptyHost);
    }
    let authority = match Url::parse(location) {
        Err(url::ParseError::RelativeUrlWithoutBase) if !location.starts_with("//") => hop.authority.clone(),
        _ => url[url::Position::BeforeHost..url::Position::AfterPort].to_owned(),
    };
    Ok(Hop { shown: url.to_string(), url, authority })
}

fn request(action: &HTTPGetAction, hop: &Hop, purpose: Purpose) -> Result<http::Request<Empty<bytes::Bytes>>, http::Error> {
    let path = &hop.url[url::Position::BeforePath..url::Position::AfterQuery];
    let mut request = http::Request::builder().uri(path).header("Connection", "close").header("Host", &hop.authority);
    let headers = action.http_headers.iter().flatten();
    let named = |n: &str| headers.clone().find(|h| h.name.eq_ignore_ascii_case(n));
    if named("user-agent").is_none() {
        request = request.header("User-Agent", purpose.agent());
    }
    let accepts = named("accept");
    if accepts.is_none() {
        request = request.header("Accept", "*/*");
    }
    // An empty one asks for none at all, as upstream.
    let says_nothing = accepts.is_some_and(|h| h.value.is_empty());
    let is_left_away = |name: &str| {
        name.eq_ignore_ascii_case("host")
            || (says_nothing && name.eq_ignore_ascii_case("accept"))
            || (purpose == Purpose::HookAgain && name.eq_ignore_ascii_case("authorization"))
    };
    for h in headers.clone().filter(|h| !is_left_away(&h.name)) {
        request = request.header(&h.name, &h.value);
    }
    request.body(Empty::new())
}

async fn ask(url: &Url, request: http::Request<Empty<bytes::Bytes>>) -> Result<Answer, GetError> {
    let host = match url.host() {
        Some(Host::Ipv6(address)) => address.to_string(),
        Some(host) => host.to_string(),
        None => String::new(),
    };
    let stream = TcpStream::connect((host.as_str(), url.port_or_known_default().unwrap_or_default())).await?;
    if url.scheme() == "https" {
        let tls = crate::tls::connect_unverified(stream, &host).await.map_err(|failed| match failed.speaks_http {
            true => GetError::SpeaksHttp,
            false => GetError::Io(failed.error),
        })?;
        return Ok(send(TokioIo::new(tls), request).await?);
    }
    Ok(send(TokioIo::new(stream), request).await?)
}

async fn send<T>(io: T, request: http::Request<Empty<bytes::Bytes>>) -> Result<Answer, hyper::Error>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request).await;
    let out = match answer {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let place = answer.headers().get(http::header::LOCATION).map(|place| String::from_utf8_lossy(place.as_bytes()).into_owned());
            let location = place.filter(|place| !place.is_empty() && matches!(status, 301 | 302 | 303 | 307 | 308));
            // Read a bounded part, so that the server is not cut off in mid-answer.
            let body = read(answer.into_body()).await;
            Ok(Answer { status, location, body })
        }
        Err(e) => Err(e),
    };
    driver.abort();
    out
}

/// The first bytes of a body.
async fn read(body: hyper::body::Incoming) -> String {
    let mut body = Limited::new(body, BODY);
    let mut out = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        out.extend(frame.into_data().unwrap_or_default());
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hop(action: &serde_json::Value) -> Hop {
        first(&serde_json::from_value(action.clone()).unwrap(), "10.0.0.7", 8080, Purpose::Probe).unwrap()
    }

    #[test]
    fn first_request_goes_to_the_pod_or_the_host_of_the_probe() {
        for (action, url, authority) in [
            (json!({"port": 8080}), "http://10.0.0.7:8080/", "10.0.0.7:8080"),
            (json!({"port": 8080, "path": "ready?a=b c", "scheme": "HTTPS"}), "https://10.0.0.7:8080/ready?a=b%20c", "10.0.0.7:8080"),
            (json!({"port": 8080, "host": "fd00::1", "path": "/x"}), "http://[fd00::1]:8080/x", "[fd00::1]:8080"),
            (json!({"port": 8080, "httpHeaders": [{"name": "Host", "value": "shop"}]}), "http://10.0.0.7:8080/", "shop"),
        ] {
            let hop = hop(&action);
            assert_eq!((hop.url.as_str(), hop.authority.as_str()), (url, authority));
        }
    }

    #[test]
    fn a_second_try_of_a_hook_has_no_credentials() {
        let headers = json!([{"name": "Authorization", "value": "Bearer x"}, {"name": "X-Own", "value": "1"}]);
        let action: HTTPGetAction =
            serde_json::from_value(json!({"port": 8080, "host": "fd00::1", "scheme": "HTTPS", "httpHeaders": headers})).unwrap();
        for (purpose, url, credentials) in [(Purpose::Hook, "https://[fd00::1]:8080/", true), (Purpose::HookAgain, "http://[fd00::1]:8080/", false)] {
            let hop = first(&action, "10.0.0.7", 8080, purpose).unwrap();
            let request = request(&action, &hop, purpose).unwrap();
            let has = |name: &str| request.headers().contains_key(name);
            assert_eq!((hop.url.as_str(), has("authorization"), has("x-own")), (url, credentials, true), "{purpose:?}");
        }
        assert_eq!(server(&action, "10.0.0.7", 443), "[fd00::1]:443", "the port is named though it is the usual one");
    }

    #[test]
    fn own_host_header_holds_for_places_on_the_same_server() {
        let shop = hop(&json!({"port": 8080, "path": "/a/b", "httpHeaders": [{"name": "Host", "value": "shop"}]}));
        for (location, url, authority) in [
            ("c", "http://10.0.0.7:8080/a/c", "shop"),
            ("/c?d", "http://10.0.0.7:8080/c?d", "shop"),
            ("//10.0.0.7:81/c", "http://10.0.0.7:81/c", "10.0.0.7:81"),
            ("https://10.0.0.7/c", "https://10.0.0.7/c", "10.0.0.7"),
        ] {
            let next = follow(&shop, location).unwrap();
            assert_eq!((next.url.as_str(), next.authority.as_str()), (url, authority), "{location}");
        }
        for bad in ["http://", "ftp://10.0.0.7/", "http://10.0.0.7:99999/"] {
            assert!(follow(&shop, bad).is_err(), "{bad}");
        }
    }
}
