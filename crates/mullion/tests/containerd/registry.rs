//! Images behind a password: a registry of the test's own, and who may pull from it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::cluster::{Cluster, container};
use crate::image::{self, MANIFEST};
use crate::servers::serve;

/// Where the agent looks for credential providers, and for their programs.
pub const PROVIDERS: &str = "/run/providers/providers.yaml";
pub const PROGRAMS: &str = "/run/providers/programs";
/// Loopback's registries are plain HTTP for containerd. The first is for secrets, the second for the provider.
const SECRETS: &str = "127.0.0.1:5001";
const PROVIDED: &str = "127.0.0.1:5002";

/// A provider that writes down what it is asked.
const PROGRAM: &str = "#!/bin/sh\nd=$(dirname \"$0\")\ncat >> \"$d/asked\"\ncat \"$d/answer\"\n";

/// Installs a provider for the second registry.
pub fn install_provider() {
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let provider = json!({"name": "tests", "matchImages": [PROVIDED], "defaultCacheDuration": "0s", "apiVersion": version});
    let config = json!({"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]});
    let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": version, "cacheKeyType": "Image",
        "auth": {PROVIDED: {"username": "cloud", "password": "t0ken"}}});
    std::fs::create_dir_all(PROGRAMS).unwrap();
    std::fs::write(PROVIDERS, config.to_string()).unwrap();
    std::fs::write(format!("{PROGRAMS}/answer"), answer.to_string()).unwrap();
    let program = format!("{PROGRAMS}/tests");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// What a client sends that has a password.
fn login(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

struct Registry {
    login: String,
    /// Logins that were tried, as they came.
    tried: Mutex<BTreeSet<String>>,
    manifest: Vec<u8>,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Registry {
    /// Serves one image to those who know the name and the password.
    async fn start(at: &'static str, name: &str, password: &str) -> Arc<Self> {
        let (manifest, blobs) = image::served(at);
        let registry = Arc::new(Self { login: login(name, password), tried: Mutex::default(), manifest, blobs });
        let serving = registry.clone();
        serve(at, move |request| serving.answer(request)).await;
        registry
    }

    fn has_seen(&self, name: &str, password: &str) -> bool {
        self.tried.lock().unwrap().contains(&login(name, password))
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let text = |status: StatusCode| Response::builder().status(status);
        let given = request.headers().get(AUTHORIZATION).and_then(|given| given.to_str().ok());
        self.tried.lock().unwrap().extend(given.map(str::to_owned));
        if given != Some(&self.login) {
            return text(StatusCode::UNAUTHORIZED).header(WWW_AUTHENTICATE, "Basic realm=\"tests\"").body(Full::default()).unwrap();
        }
        let last = request.uri().path().rsplit('/').next().unwrap_or_default();
        let digest = image::digest(&self.manifest);
        let found = match request.uri().path() {
            path if path.contains("/manifests/") && (last == "1" || last == digest) => Some((MANIFEST, &self.manifest)),
            _ => self.blobs.get(last).map(|blob| ("application/octet-stream", blob)),
        };
        let Some((kind, bytes)) = found else { return text(StatusCode::NOT_FOUND).body(Full::default()).unwrap() };
        text(StatusCode::OK).header(CONTENT_TYPE, kind).header("docker-content-digest", image::digest(bytes)).body(bytes.clone().into()).unwrap()
    }
}

fn spec(image: &str, policy: &str, secrets: &[&str]) -> Value {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    json!({"restartPolicy": "Never", "imagePullSecrets": secrets,
        "containers": [{"name": "c", "image": image, "imagePullPolicy": policy, "command": ["echo", "inside"]}]})
}

/// Waits until the pod's image is refused, and returns why.
async fn refusal(cluster: &Cluster, pod: &str, reason: &str) -> String {
    let is = |status: &Value| container(status, "c")["state"]["waiting"]["reason"] == reason;
    let status = cluster.until_status(pod, reason, is).await;
    container(&status, "c")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
}

pub async fn private_images_are_for_pods_with_a_secret(cluster: Arc<Cluster>) {
    let registry = Registry::start(SECRETS, "ann", "s3cr3t").await;
    let image = format!("{SECRETS}/team/app:1");
    let secret = |user: &str, password: &str| {
        let config = json!({"auths": {SECRETS: {"username": user, "password": password}}}).to_string();
        json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}})
    };
    cluster.create("Secret", "pull-wrong", secret("eve", "guess")).await;
    cluster.create("Secret", "pull", secret("ann", "s3cr3t")).await;
    cluster.pod("stranger", spec(&image, "IfNotPresent", &[])).await;
    let message = refusal(&cluster, "stranger", "ImagePullBackOff").await;
    assert!(message.contains(&image) && message.contains("401 Unauthorized"), "{message}");
    cluster.pod("guesser", spec(&image, "IfNotPresent", &["pull-wrong"])).await;
    let message = refusal(&cluster, "guesser", "ImagePullBackOff").await;
    assert!(message.contains("401 Unauthorized") && !message.contains("guess"), "{message}");
    assert!(registry.has_seen("eve", "guess") && !registry.has_seen("ann", "s3cr3t"));
    cluster.pod("member", spec(&image, "IfNotPresent", &["pull-wrong", "pull"])).await;
    assert_eq!(cluster.output("member").await, "inside\n");
    cluster.until_event("member", &format!("Successfully pulled image \"{image}\"")).await;
    // That the image is there now gives it to nobody who could not pull it.
    cluster.pod("sly", spec(&image, "Never", &[])).await;
    refusal(&cluster, "sly", "ErrImageNeverPull").await;
    cluster.pod("second", spec(&image, "Never", &["pull"])).await;
    assert_eq!(cluster.output("second").await, "inside\n");
}

pub async fn a_credential_provider_logs_in_for_its_images(cluster: Arc<Cluster>) {
    Registry::start(PROVIDED, "cloud", "t0ken").await;
    let image = format!("{PROVIDED}/team/app:1");
    cluster.pod("provided", spec(&image, "IfNotPresent", &[])).await;
    assert_eq!(cluster.output("provided").await, "inside\n");
    let asked = std::fs::read_to_string(format!("{PROGRAMS}/asked")).unwrap();
    let asked: Value = serde_json::from_str(asked.lines().next().unwrap()).unwrap();
    assert_eq!((asked["kind"].as_str(), asked["image"].as_str()), (Some("CredentialProviderRequest"), Some(&*format!("{PROVIDED}/team/app"))));
}
