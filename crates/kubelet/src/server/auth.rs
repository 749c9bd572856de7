//! Authentication and authorization: client certificates, TokenReview, SubjectAccessReview.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use http::{HeaderMap, Method};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};

use crate::config::Access;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Entries a cache holds at most; a full one starts over.
const ENTRIES: usize = 1024;

/// SHA-256 of a token.
type Digested = [u8; 32];
/// User, verb, subresource.
type Right = (User, String, String);

/// Answers of the API, remembered for a while.
pub(crate) struct Auth {
    client: kube::Client,
    access: Access,
    tokens: Mutex<HashMap<Digested, (Option<User>, Instant)>>,
    rights: Mutex<HashMap<Right, (bool, Instant)>>,
}

/// CN and O of the client certificate, which TLS has verified.
pub(crate) fn user_of_certificate(chain: Option<&[rustls::pki_types::CertificateDer<'_>]>) -> Option<User> {
    let (_, cert) = x509_parser::parse_x509_certificate(chain?.first()?).ok()?;
    let subject = cert.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organisations = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned));
    let groups = organisations.chain(["system:authenticated".to_owned()]).collect();
    Some(User { name, groups, ..Default::default() })
}

/// The verb, and the subresources of `nodes` any of which suffices, fine-grained first.
pub(crate) fn attributes(method: &Method, path: &str) -> (&'static str, Vec<&'static str>) {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    if matches!(first, "exec" | "attach" | "portForward") {
        return ("create", vec!["proxy"]);
    }
    let subresources = match first {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        _ => vec!["proxy"],
    };
    (verb, subresources)
}

/// The token of the header `Authorization`, as upstream's bearertoken.go finds it; None of other schemes and of empty tokens.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    let header = String::from_utf8_lossy(headers.get(http::header::AUTHORIZATION)?.as_bytes()).into_owned();
    let mut parts = header.trim().splitn(3, ' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.to_owned())
}

impl Auth {
    pub(crate) fn new(client: kube::Client, access: Access) -> Self {
        Auth { client, access, tokens: Mutex::default(), rights: Mutex::default() }
    }

    /// The user of a request that has no client certificate. Returns `None` when the request must be refused as unauthenticated.
    ///
    /// As upstream (`DelegatingAuthenticatorConfig.New`): an invalid bearer token is refused. A request without a bearer token, or with one
    /// that is not looked at, is anonymous where anonymous requests are allowed.
    pub(crate) async fn user_of_headers(&self, headers: &HeaderMap) -> kube::Result<Option<User>> {
        if let Some(token) = bearer_token(headers).filter(|_| self.access.tokens) {
            return self.user_of_token(&token).await;
        }
        let anonymous = || User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..User::default() };
        Ok(self.access.anonymous.then(anonymous))
    }

    /// The user of a bearer token; None of an invalid one.
    async fn user_of_token(&self, token: &str) -> kube::Result<Option<User>> {
        // The digest, so that no token stays in memory longer than its request.
        let key: Digested = Sha256::digest(token).into();
        if let Some((user, at)) = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(&key)
            && at.elapsed() < self.access.token
        {
            return Ok(user.clone());
        }
        let review = TokenReview { spec: TokenReviewSpec { token: token.to_owned(), audiences: None }, ..Default::default() };
        let answer = Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|u| User {
            name: u.username.unwrap_or_default(),
            uid: u.uid.unwrap_or_default(),
            groups: u.groups.unwrap_or_default(),
            extra: u.extra.unwrap_or_default(),
        });
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= ENTRIES {
            tokens.clear();
        }
        tokens.insert(key, (user.clone(), Instant::now()));
        Ok(user)
    }

    /// Whether the user may do this to the node.
    pub(crate) async fn allowed(&self, user: &User, method: &Method, path: &str, node: &str) -> kube::Result<bool> {
        if self.access.everything {
            return Ok(true);
        }
        let (verb, subresources) = attributes(method, path);
        for subresource in subresources {
            if self.may(user, verb, subresource, node).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn may(&self, user: &User, verb: &str, subresource: &str, node: &str) -> kube::Result<bool> {
        let key = (user.clone(), verb.to_owned(), subresource.to_owned());
        if let Some((allowed, at)) = self.rights.lock().unwrap_or_else(PoisonError::into_inner).get(&key)
            && at.elapsed() < if *allowed { self.access.allowed } else { self.access.denied }
        {
            return Ok(*allowed);
        }
        let text = |s: &str| Some(s.to_owned());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: text(&user.name),
                uid: text(&user.uid).filter(|u| !u.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|e| !e.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: text(verb),
                    version: text("v1"),
                    resource: text("nodes"),
                    subresource: text(subresource),
                    name: text(node),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let allowed = answer.status.is_some_and(|s| s.allowed);
        let mut rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        if rights.len() >= ENTRIES {
            rights.clear();
        }
        rights.insert(key, (allowed, Instant::now()));
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn paths_become_subresources() {
        for (method, path, want) in [
            (Method::GET, "/pods", ("get", vec!["pods", "proxy"])),
            (Method::GET, "/healthz/ping", ("get", vec!["healthz", "proxy"])),
            (Method::GET, "/stats/summary", ("get", vec!["stats"])),
            (Method::GET, "/logs/syslog", ("get", vec!["log"])),
            (Method::POST, "/checkpoint/a/b/c", ("create", vec!["checkpoint"])),
            (Method::GET, "/metrics/resource", ("get", vec!["metrics"])),
            (Method::POST, "/containerLogs/a/b/c", ("create", vec!["proxy"])),
            (Method::GET, "/anything", ("get", vec!["proxy"])),
            (Method::GET, "/exec/a/b/c", ("create", vec!["proxy"])),
            (Method::POST, "/portForward/a/b", ("create", vec!["proxy"])),
        ] {
            assert_eq!(attributes(&method, path), want, "{path}");
        }
    }

    #[tokio::test]
    async fn bearer_tokens_are_checked_and_other_requests_are_anonymous_or_refused() {
        // An API server that knows one token.
        let answer = |request: http::Request<kube::client::Body>| async move {
            let review = http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes();
            let mut review: serde_json::Value = serde_json::from_slice(&review).unwrap();
            let is_known = review["spec"]["token"] == "good";
            review["status"] = serde_json::json!({"authenticated": is_known, "user": {"username": "somebody"}});
            http::Response::builder().body(kube::client::Body::from(review.to_string().into_bytes()))
        };
        let (anonymous, somebody) = (Some("system:anonymous"), Some("somebody"));
        for (header, with_anonymous, without) in [
            (None, anonymous, None),
            (Some("Basic dTpw"), anonymous, None),
            (Some("Bearer"), anonymous, None),
            (Some("Bearer "), anonymous, None),
            (Some("Bearer  good"), anonymous, None),
            (Some("Bearer good"), somebody, somebody),
            (Some("bearer good more"), somebody, somebody),
            (Some("Bearer bad"), None, None),
        ] {
            let headers: HeaderMap = header.map(|header| (http::header::AUTHORIZATION, header.parse().unwrap())).into_iter().collect();
            for (allows, wanted) in [(true, with_anonymous), (false, without)] {
                let client = || kube::Client::new(tower::service_fn(answer), "ns");
                let auth = Auth::new(client(), Access { anonymous: allows, ..Access::default() });
                let user = auth.user_of_headers(&headers).await.unwrap();
                assert_eq!(user.map(|user| user.name).as_deref(), wanted, "{header:?}, anonymous: {allows}");
                // Without the webhook no token is looked at.
                let auth = Auth::new(client(), Access { anonymous: allows, tokens: false, ..Access::default() });
                let user = auth.user_of_headers(&headers).await.unwrap();
                assert_eq!(user.map(|user| user.name).as_deref(), anonymous.filter(|_| allows), "{header:?} without the webhook");
            }
        }
    }

    #[test]
    fn certificates_name_users() {
        let day = Duration::from_secs(86_400);
        let ca = pki::Ca::generate("ca", day).unwrap();
        let pair = ca
            .issue(&pki::CertRequest {
                cn: "kube-apiserver-kubelet-client".into(),
                orgs: vec!["system:masters".into()],
                client: true,
                days: 1,
                ..Default::default()
            })
            .unwrap();
        use rustls::pki_types::pem::PemObject;
        let der = rustls::pki_types::CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap();
        let user = user_of_certificate(Some(&[der])).unwrap();
        assert_eq!(user.name, "kube-apiserver-kubelet-client");
        assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
        assert_eq!(user_of_certificate(None), None);
    }
}
