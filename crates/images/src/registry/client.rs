//! Client of one repository of a registry: HTTP, redirects, tokens (`distribution-spec`, and docker's token
//! authentication).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use thiserror::Error;
use thiserror_ext::AsReport as _;

use super::settings::{Credentials, Endpoint};

/// How long a registry may take to be connected to, and to begin an answer.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(60);
/// Redirects that are followed: storage behind registries needs one or two.
const REDIRECTS: usize = 5;
/// Largest answer of a token server.
const MAX_TOKEN: usize = 1 << 20;

/// Why a registry gave no usable answer. Worded as containerd's resolver words it.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// It has no such image.
    #[error("{0}: not found")]
    NotFound(String),
    /// It asks for credentials, or refused those that it got.
    #[error("pull access denied, repository does not exist or may require authorization: server message: {0}")]
    Denied(String),
    /// No token to be had.
    #[error("failed to authorize: failed to fetch {kind} token: {reason}")]
    Token {
        /// `anonymous` or `oauth`.
        kind: &'static str,
        reason: String,
    },
    /// Another answer than was to be expected.
    #[error("unexpected status from {method} request to {url}: {status}")]
    Status {
        /// `HEAD` or `GET`.
        method: Method,
        url: String,
        status: StatusCode,
    },
    /// No answer.
    #[error("failed to do request: {} {url:?}: {reason}", verb(.method))]
    Unreachable {
        /// `HEAD` or `GET`.
        method: Method,
        url: String,
        reason: String,
    },
    /// Not what it should be.
    #[error("{0}")]
    Content(String),
}

/// As Go's client writes a method.
fn verb(method: &Method) -> &'static str {
    if *method == Method::HEAD { "Head" } else { "Get" }
}

/// A way to ask one registry for one repository.
#[derive(Debug)]
pub(super) struct Client {
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    endpoint: Endpoint,
    repository: String,
    credentials: Credentials,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// For `repository` (without the registry's name) at an endpoint.
    pub(super) fn new(endpoint: Endpoint, repository: &str, credentials: &Credentials) -> Result<Self, RegistryError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.enforce_http(false);
        // Registries without TLS send to storage with TLS too; without any authority they do without.
        let builder = match HttpsConnectorBuilder::new().with_provider_and_native_roots(rustls::crypto::ring::default_provider()) {
            Ok(builder) => builder,
            Err(_) if endpoint.url.starts_with("http://") => HttpsConnectorBuilder::new().with_tls_config(no_roots()?),
            Err(error) => return Err(RegistryError::Content(format!("this machine has no certificate authorities: {error}"))),
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(connector);
        let http = HttpClient::builder(TokioExecutor::new()).build(connector);
        // A mirror does not receive the credentials of the registry.
        let credentials = if endpoint.origin { credentials.clone() } else { Credentials::Anonymous };
        let authorization = match &credentials {
            Credentials::Bearer(token) => Some(header(&format!("Bearer {token}"))?),
            _ => None,
        };
        Ok(Self { http, endpoint, repository: repository.to_owned(), credentials, authorization })
    }

    /// Asks for `manifests/TAG` or `blobs/DIGEST`; gets a token when the registry asks for one.
    pub(super) async fn ask(&mut self, method: Method, path: &str, extra: &[(HeaderName, &str)]) -> Result<Response<Incoming>, RegistryError> {
        let url = format!("{}/v2/{}/{path}", self.endpoint.url, self.repository);
        let response = self.send(&method, &url, extra).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        self.authorize(response.headers()).await?;
        let response = self.send(&method, &url, extra).await?;
        if response.status() == StatusCode::UNAUTHORIZED || response.status() == StatusCode::FORBIDDEN {
            return Err(RegistryError::Denied("insufficient_scope: authorization failed".to_owned()));
        }
        Ok(response)
    }

    /// What an answer with a wrong status means for `what`.
    pub(super) fn refuse(&self, method: Method, path: &str, status: StatusCode, what: &str) -> RegistryError {
        match status {
            StatusCode::NOT_FOUND => RegistryError::NotFound(what.to_owned()),
            StatusCode::FORBIDDEN => RegistryError::Denied("forbidden".to_owned()),
            status => RegistryError::Status { method, url: format!("{}/v2/{}/{path}", self.endpoint.url, self.repository), status },
        }
    }

    /// One request, and the redirects it leads to.
    async fn send(&self, method: &Method, url: &str, extra: &[(HeaderName, &str)]) -> Result<Response<Incoming>, RegistryError> {
        let wrong = |reason: String| RegistryError::Unreachable { method: method.clone(), url: url.to_owned(), reason };
        let mut uri: Uri = url.parse().map_err(|error| wrong(format!("{error}")))?;
        let home = uri.authority().cloned();
        for _ in 0..=REDIRECTS {
            let mut request = Request::builder().method(method).uri(&uri).header("User-Agent", concat!("mullion/", env!("CARGO_PKG_VERSION")));
            for (name, value) in extra {
                request = request.header(name, *value);
            }
            // Storage elsewhere is none of the token's business.
            if let Some(authorization) = self.authorization.as_ref().filter(|_| uri.authority() == home.as_ref()) {
                request = request.header(AUTHORIZATION, authorization);
            }
            let request = request.body(Full::default()).map_err(|error| wrong(error.to_string()))?;
            let response = self.exchange(request).await.map_err(&wrong)?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok()).unwrap_or_default();
            uri = redirected(&uri, location).ok_or_else(|| wrong(format!("redirected to {location:?}, which is not followed")))?;
        }
        Err(wrong(format!("stopped after {REDIRECTS} redirects")))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        match tokio::time::timeout(ANSWER, self.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(error.to_report_string()),
            Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
        }
    }

    async fn authorize(&mut self, headers: &HeaderMap) -> Result<(), RegistryError> {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let mut challenges: Vec<Challenge> = challenges.filter_map(Challenge::parse).collect();
        challenges.sort_by_key(|challenge| !challenge.bearer);
        let Some(challenge) = challenges.first() else {
            return Err(RegistryError::Denied("the registry does not say how to authorize".to_owned()));
        };
        if challenge.bearer {
            let token = self.token(challenge).await?;
            self.authorization = Some(header(&format!("Bearer {token}"))?);
            return Ok(());
        }
        match &self.credentials {
            Credentials::Password { user, password } => {
                self.authorization = Some(basic(user, password)?);
                Ok(())
            }
            _ => Err(RegistryError::Denied("no basic auth credentials".to_owned())),
        }
    }

    async fn token(&self, challenge: &Challenge) -> Result<String, RegistryError> {
        let kind = if self.credentials == Credentials::Anonymous { "anonymous" } else { "oauth" };
        let refuse = |reason: String| RegistryError::Token { kind, reason };
        let realm: Uri = challenge.realm.parse().map_err(|_| refuse(format!("{:?} is not a URL", challenge.realm)))?;
        if realm.scheme_str() != Some("https") && !self.endpoint.url.starts_with("http://") {
            return Err(refuse(format!("{realm} is not asked: a registry with TLS must have a token server with TLS")));
        }
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let scope = if challenge.scope.is_empty() { format!("repository:{}:pull", self.repository) } else { challenge.scope.clone() };
        let query = format!("service={}&scope={}", encode(&challenge.service), encode(&scope));
        let request = match &self.credentials {
            Credentials::Identity(token) => {
                let form = format!("grant_type=refresh_token&client_id=mullion&refresh_token={}&{query}", encode(token));
                Request::post(realm.clone()).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(Full::from(form))
            }
            credentials => {
                let mark = if realm.query().is_some() { '&' } else { '?' };
                let request = Request::get(format!("{realm}{mark}{query}"));
                let request = match credentials {
                    Credentials::Password { user, password } => request.header(AUTHORIZATION, basic(user, password)?),
                    _ => request,
                };
                request.body(Full::default())
            }
        };
        let request = request.map_err(|error| refuse(error.to_string()))?;
        let (method, url) = (request.method().clone(), realm.to_string());
        let response = self.exchange(request).await.map_err(&refuse)?;
        if !response.status().is_success() {
            return Err(refuse(format!("unexpected status from {method} request to {url}: {}", response.status())));
        }
        let body = Limited::new(response.into_body(), MAX_TOKEN).collect().await.map_err(|error| refuse(error.to_string()))?;
        let answer: Token =
            serde_json::from_slice(&body.to_bytes()).map_err(|_| refuse(format!("{url} answers with something else than a token")))?;
        let token = Some(answer.token).filter(|token| !token.is_empty()).unwrap_or(answer.access_token);
        if token.is_empty() { Err(refuse(format!("{url} answers without a token"))) } else { Ok(token) }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Token {
    token: String,
    access_token: String,
}

fn no_roots() -> Result<rustls::ClientConfig, RegistryError> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| RegistryError::Content(error.to_string()))?;
    Ok(config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

fn header(text: &str) -> Result<HeaderValue, RegistryError> {
    let mut value =
        HeaderValue::from_str(text).map_err(|_| RegistryError::Denied("the credentials hold characters that no header can".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn basic(user: &str, password: &str) -> Result<HeaderValue, RegistryError> {
    header(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

/// Where a redirect leads: never from TLS to none.
fn redirected(from: &Uri, location: &str) -> Option<Uri> {
    let to: Uri = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}://{}{location}", from.scheme_str()?, from.authority()?).parse().ok()?
    } else {
        location.parse().ok()?
    };
    let same = to.scheme() == from.scheme() || to.scheme_str() == Some("https");
    (same && to.authority().is_some()).then_some(to)
}

/// How a registry wants to be convinced.
#[derive(Debug, Default, PartialEq, Eq)]
struct Challenge {
    bearer: bool,
    realm: String,
    service: String,
    scope: String,
}

impl Challenge {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let mut challenge = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => Self { bearer: true, ..Self::default() },
            "basic" => Self::default(),
            _ => return None,
        };
        while let Some((name, value)) = rest.split_once('=') {
            let (value, after) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => value.split_once(',').map_or((value, ""), |(value, after)| (value, after)),
            };
            match name.trim().to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = value.to_owned(),
                "service" => challenge.service = value.to_owned(),
                "scope" => challenge.scope = value.to_owned(),
                _ => {}
            }
            rest = after.trim_start_matches([',', ' ']);
        }
        (!challenge.bearer || !challenge.realm.is_empty()).then_some(challenge)
    }
}

/// Header of requests for manifests.
pub(super) const MANIFESTS: (HeaderName, &str) = (
    ACCEPT,
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, */*",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let text = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push",error=x"#;
        let challenge = Challenge::parse(text).unwrap();
        assert_eq!((challenge.realm.as_str(), challenge.service.as_str()), ("https://auth.docker.io/token", "registry.docker.io"));
        assert_eq!(challenge.scope, "repository:a/b:pull,push");
        assert_eq!(Challenge::parse("Basic realm=\"x\"").map(|challenge| challenge.bearer), Some(false));
        assert_eq!(Challenge::parse("Bearer scope=\"x\""), None);
        assert_eq!(Challenge::parse("Negotiate"), None);
    }

    #[test]
    fn redirects_keep_tls() {
        let to = |from: &str, location: &str| redirected(&from.parse().unwrap(), location).map(|uri| uri.to_string());
        assert_eq!(to("https://a/x", "/y?z").as_deref(), Some("https://a/y?z"));
        assert_eq!(to("http://a/x", "https://b/y").as_deref(), Some("https://b/y"));
        assert_eq!(to("https://a/x", "http://b/y"), None);
        assert_eq!(to("https://a/x", ""), None);
    }
}
