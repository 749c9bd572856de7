//! Pulling from a registry of the test's own, on 127.0.0.1.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_RANGE, LOCATION, RANGE, WWW_AUTHENTICATE};
use http::{Request, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube_rules::NodeOs;
use serde_json::{Value, json};
use thiserror_ext::AsReport as _;
use tokio::net::TcpListener;

use super::*;
use crate::tests::{Fixture, config, gzip, tarball_of};
use crate::{PullOptions, platform::Fit};

/// What the registry does besides answering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mood {
    token: bool,
    password: bool,
    redirect: bool,
    /// Layers break off in the middle, once each.
    breaks: bool,
    lies: bool,
    fails: bool,
}

#[derive(Default)]
struct Content {
    /// `manifests/TAG`, `blobs/DIGEST` → media type, bytes.
    paths: HashMap<String, (String, Vec<u8>)>,
    asked: Vec<String>,
    broken: Vec<String>,
}

impl Content {
    fn blob(&mut self, data: Vec<u8>) -> Value {
        let (digest, size) = (digest_of(&data), data.len());
        self.paths.insert(format!("blobs/{digest}"), ("application/octet-stream".to_owned(), data));
        json!({ "digest": digest, "size": size })
    }

    fn document(&mut self, kind: &str, value: &Value, tag: Option<&str>) -> Value {
        let data = serde_json::to_vec(value).unwrap();
        let (digest, size) = (digest_of(&data), data.len());
        for name in [Some(digest.as_str()), tag].into_iter().flatten() {
            self.paths.insert(format!("manifests/{name}"), (kind.to_owned(), data.clone()));
        }
        json!({ "digest": digest, "size": size, "mediaType": kind })
    }

    fn image(&mut self, os: &str, version: Option<&str>, text: &[u8], tag: Option<&str>) -> Value {
        let layer = tarball_of(&[("Files/which", text), ("which", text), ("Files/padding", &[7; 50_000])]);
        let config = self.blob(config(os, version, &[digest_of(&layer)]));
        let layer = self.blob(gzip(&layer));
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
        let mut descriptor = self.document("application/vnd.oci.image.manifest.v1+json", &manifest, tag);
        descriptor["platform"] = json!({ "os": os, "architecture": platform::host_architecture(), "os.version": version });
        descriptor
    }
}

struct Registry {
    host: String,
    content: Arc<Mutex<Content>>,
}

impl Registry {
    async fn start(content: Content, mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let content = Arc::new(Mutex::new(content));
        let (shared, name) = (content.clone(), host.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (content, host) = (shared.clone(), name.clone());
                let service = service_fn(move |request| {
                    let answer = answer(&mut content.lock().unwrap(), mood, &host, &request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { host, content }
    }

    fn asked(&self, part: &str) -> usize {
        self.content.lock().unwrap().asked.iter().filter(|path| path.contains(part)).count()
    }
}

fn status(code: u16) -> Response<Full<Bytes>> {
    Response::builder().status(code).body(Full::default()).unwrap()
}

fn answer(content: &mut Content, mood: Mood, host: &str, request: &Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    content.asked.push(format!("{} {path}", request.method()));
    let authorization = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    if path == "/token" {
        assert!(request.uri().query().unwrap().contains("scope=repository%3Ateam%2Fdemo%3Apull"), "{:?}", request.uri());
        return match (mood.password, authorization.as_deref()) {
            // user:secret
            (true, Some("Basic dXNlcjpzZWNyZXQ=")) | (false, None) => Response::new(Full::from(r#"{"token":"let-me-in"}"#)),
            _ => status(401),
        };
    }
    if mood.fails {
        return status(503);
    }
    if let Some(rest) = path.strip_prefix("/storage/") {
        assert!(authorization.is_none() || !mood.redirect || host.starts_with("127.0.0.1"));
        return blob(content, mood, rest, request);
    }
    if mood.token && authorization.as_deref() != Some("Bearer let-me-in") {
        let challenge = format!(r#"Bearer realm="http://{host}/token",service="test",scope="repository:team/demo:pull""#);
        return Response::builder().status(401).header(WWW_AUTHENTICATE, challenge).body(Full::default()).unwrap();
    }
    let Some(path) = path.strip_prefix("/v2/team/demo/").map(str::to_owned) else { return status(404) };
    if mood.redirect && path.starts_with("blobs/") {
        return Response::builder().status(307).header(LOCATION, format!("http://{host}/storage/{path}")).body(Full::default()).unwrap();
    }
    blob(content, mood, &path, request)
}

fn blob(content: &mut Content, mood: Mood, path: &str, request: &Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let Some((kind, data)) = content.paths.get(path).cloned() else { return status(404) };
    let mut data = data;
    if mood.lies && path.starts_with("blobs/") {
        data[0] ^= 1;
    }
    let builder = Response::builder().header("Content-Type", kind);
    if let Some(range) = request.headers().get(RANGE).and_then(|range| range.to_str().ok()) {
        let from: usize = range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
        let range = format!("bytes {from}-{}/{}", data.len() - 1, data.len());
        return builder.status(206).header(CONTENT_RANGE, range).body(Full::from(data.split_off(from))).unwrap();
    }
    if mood.breaks && data.starts_with(&[0x1f, 0x8b]) && !content.broken.contains(&path.to_owned()) {
        content.broken.push(path.to_owned());
        data.truncate(data.len() / 2);
    }
    builder.body(Full::from(data)).unwrap()
}

async fn pull(fixture: &Fixture, name: &str, credentials: &Credentials, registries: &Registries) -> Result<Image, String> {
    let os = fixture.store.os();
    let fit: Fit<'_> = &|platform| platform.fit(os);
    let seen = Mutex::new(Vec::new());
    let progress = |progress: Progress| seen.lock().unwrap().push(progress);
    let fetch = FetchOptions { registries, credentials, fit, limits: Limits::default(), progress: &progress };
    let result = fixture.store.pull(name, &PullOptions { stand_ins: true, fetch }).await.map_err(|error| error.to_report_string());
    if result.is_ok() {
        let seen = seen.into_inner().unwrap();
        assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done) && seen.iter().all(|progress| progress.done <= progress.total), "{seen:?}");
    }
    result
}

const NODE: NodeOs = NodeOs::Windows { build: 20348 };

fn list() -> Content {
    let mut content = Content::default();
    let manifests = [("linux", None), ("windows", Some("10.0.17763.1")), ("windows", Some("10.0.20348.1"))]
        .map(|(os, version)| content.image(os, version, version.unwrap_or(os).as_bytes(), None));
    let attestation = json!({ "digest": digest_of(b"none"), "size": 1, "platform": { "os": "unknown", "architecture": "unknown" } });
    let manifests: Vec<Value> = manifests.into_iter().chain([attestation]).collect();
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    content.document("application/vnd.oci.image.index.v1+json", &index, Some("1"));
    content
}

#[tokio::test]
async fn the_variant_is_pulled_through_tokens_redirects_and_breaks() {
    let moods = [
        Mood::default(),
        Mood { token: true, ..Mood::default() },
        Mood { redirect: true, token: true, ..Mood::default() },
        Mood { breaks: true, ..Mood::default() },
    ];
    for mood in moods {
        let registry = Registry::start(list(), mood).await;
        let name = format!("{}/team/demo:1", registry.host);
        for (os, which) in [(NODE, "10.0.20348.1"), (NodeOs::Linux, "linux")] {
            let fixture = Fixture::new(os);
            let image = pull(&fixture, &name, &Credentials::Anonymous, &Registries::default()).await.unwrap();
            let file = if os == NODE { "drive_c/which" } else { "which" };
            assert_eq!(std::fs::read_to_string(fixture.layer(&image.layers[0]).join(file)).unwrap(), which, "{mood:?}");
            assert_eq!(image.tags, std::slice::from_ref(&name));
            assert!(fixture.store.find(&image.digests[0]).unwrap().is_some());
            assert_eq!(std::fs::read_dir(fixture.dir.path().join("cache/ingest")).unwrap().count(), 0, "nothing is left of the transfer");
        }
        if mood.breaks {
            assert_eq!(registry.asked("GET /v2/team/demo/blobs"), 2 * 2 + 2, "each layer was continued once");
        }
    }
}

#[tokio::test]
async fn present_image_is_fetched_again_only_when_its_tag_moved() {
    let registry = Registry::start(list(), Mood::default()).await;
    let name = format!("{}/team/demo:1", registry.host);
    let fixture = Fixture::new(NODE);
    let first = pull(&fixture, &name, &Credentials::Anonymous, &Registries::default()).await.unwrap();
    let layers = registry.asked("blobs");
    pull(&fixture, &name, &Credentials::Anonymous, &Registries::default()).await.unwrap();
    assert_eq!(registry.asked("blobs"), layers + 1, "only the configuration");
    registry.content.lock().unwrap().image("windows", Some("10.0.20348.9"), b"new", Some("1"));
    let second = pull(&fixture, &name, &Credentials::Anonymous, &Registries::default()).await.unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(fixture.store.find(&name).unwrap().unwrap().id, second.id);
    // The registry is gone: what is here has to do.
    let gone = Registries { insecure: vec!["127.0.0.1:1".into()], ..Registries::default() };
    fixture.store.tag(&name, "127.0.0.1:1/team/demo:1").unwrap().unwrap();
    assert_eq!(pull(&fixture, "127.0.0.1:1/team/demo:1", &Credentials::Anonymous, &gone).await.unwrap().id, second.id);
}

#[tokio::test]
async fn refusals_have_containerds_messages() {
    let registry = Registry::start(list(), Mood { token: true, password: true, ..Mood::default() }).await;
    let name = |tag: &str| format!("{}/team/demo:{tag}", registry.host);
    let fixture = Fixture::new(NODE);
    let user = Credentials::Password { user: "user".into(), password: "secret".into() };
    let none = Registries::default();
    let error = pull(&fixture, &name("1"), &Credentials::Anonymous, &none).await.unwrap_err();
    let begin = format!("failed to pull and unpack image \"{0}\": failed to resolve reference \"{0}\": ", name("1"));
    assert!(error.starts_with(&format!("{begin}failed to authorize: failed to fetch anonymous token")), "{error}");
    let wrong = Credentials::Password { user: "user".into(), password: "wrong".into() };
    let error = pull(&fixture, &name("1"), &wrong, &none).await.unwrap_err();
    assert!(error.contains("failed to fetch oauth token") && error.contains("401") && !error.contains("wrong"), "{error}");
    assert!(pull(&fixture, &name("1"), &user, &none).await.is_ok());
    let error = pull(&fixture, &name("2"), &user, &none).await.unwrap_err();
    assert!(error.ends_with(&format!("failed to resolve reference \"{0}\": {0}: not found", name("2"))), "{error}");
    let error = pull(&Fixture::new(NodeOs::Windows { build: 14393 }), &name("1"), &user, &none).await.unwrap_err();
    assert!(error.contains("no match for platform") && error.contains("10.0.17763.1"), "{error}");
    let failing = Registry::start(list(), Mood { fails: true, ..Mood::default() }).await;
    let error = pull(&fixture, &format!("{}/team/demo:1", failing.host), &user, &none).await.unwrap_err();
    assert!(error.contains("unexpected status from HEAD request to") && error.contains("503"), "{error}");
    let error = pull(&fixture, "127.0.0.1:1/team/demo", &user, &none).await.unwrap_err();
    assert!(error.contains("failed to do request: Head \"http://127.0.0.1:1/v2/team/demo/manifests/latest\""), "{error}");
    let lying = Registry::start(list(), Mood { lies: true, ..Mood::default() }).await;
    let error = pull(&fixture, &format!("{}/team/demo:1", lying.host), &user, &none).await.unwrap_err();
    assert!(error.contains("changes content"), "{error}");
}

#[tokio::test]
async fn mirrors_come_first_and_receive_no_credentials() {
    let mirror = Registry::start(list(), Mood { token: true, ..Mood::default() }).await;
    let registries = Registries { mirrors: vec![format!("example.com=http://{}", mirror.host).parse().unwrap()], insecure: Vec::new() };
    let fixture = Fixture::new(NODE);
    let user = Credentials::Password { user: "user".into(), password: "secret".into() };
    // The token server of this mood refuses whoever comes with a password.
    let image = pull(&fixture, "example.com/team/demo:1", &user, &registries).await.unwrap();
    assert_eq!(image.tags, ["example.com/team/demo:1"]);
}
