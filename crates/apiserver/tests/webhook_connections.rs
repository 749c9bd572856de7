//! Connections to webhooks: they are kept between calls, for the same configuration alone.

mod common;

use base64::Engine;
use common::TestServer;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn allow(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let review: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let response = json!({"uid": review["request"]["uid"], "allowed": true});
    Ok(Response::new(Full::from(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string())))
}

/// A webhook that counts connections.
struct Webhook {
    port: u16,
    ca: String,
    opened: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    /// Each change closes all connections.
    close: watch::Sender<u32>,
}

impl Webhook {
    async fn start(server: &TestServer) -> Self {
        let (config, ca) = server.webhook_tls_as(&["hook.default.svc"]);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (close, closed) = watch::channel(0);
        let (opened, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let webhook = Self {
            port: listener.local_addr().unwrap().port(),
            ca: base64::engine::general_purpose::STANDARD.encode(ca),
            opened: Arc::clone(&opened),
            ended: Arc::clone(&ended),
            close,
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::SeqCst);
                let (acceptor, mut closed, ended) = (acceptor.clone(), closed.clone(), Arc::clone(&ended));
                closed.mark_unchanged();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let service = hyper::service::service_fn(allow);
                        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                        tokio::select! {
                            _ = connection => {}
                            _ = closed.changed() => {}
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        webhook
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn url(&self) -> Value {
        json!({"url": format!("https://127.0.0.1:{}/", self.port), "caBundle": self.ca})
    }
}

fn configuration(client: &Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "hook"},
        "webhooks": [{"name": "hook.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client,
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]})
}

/// Makes ConfigMaps one after the other; the webhook sees each.
async fn make(server: &TestServer, names: std::ops::Range<usize>) {
    for index in names {
        server.post(MAPS, &json!({"metadata": {"name": format!("map-{index}")}})).await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_serves_many_calls_until_it_is_closed_or_the_authority_changes() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(&server).await;
    server.post(HOOKS, &configuration(&webhook.url())).await.unwrap();
    make(&server, 0..20).await;
    assert_eq!(webhook.opened(), 1, "one connection serves calls that follow one another");
    webhook.close.send_modify(|count| *count += 1);
    test_lab::until_async("the webhook has closed the connection", async || webhook.ended.load(Ordering::SeqCst) == 1).await;
    make(&server, 20..25).await;
    assert_eq!(webhook.opened(), 2, "no call failed for the connection that was gone");
    let mut client = webhook.url();
    let (_, again) = server.webhook_tls();
    let both = format!("{again}\n{again}");
    client["caBundle"] = base64::engine::general_purpose::STANDARD.encode(both).into();
    server.put(&format!("{HOOKS}/hook"), &configuration(&client)).await.unwrap();
    make(&server, 25..30).await;
    assert_eq!(webhook.opened(), 3, "other authorities make a connection of their own");
    let foreign = TestServer::start().await;
    client["caBundle"] = base64::engine::general_purpose::STANDARD.encode(foreign.webhook_tls().1).into();
    server.put(&format!("{HOOKS}/hook"), &configuration(&client)).await.unwrap();
    let refused = server.post(MAPS, &json!({"metadata": {"name": "refused"}})).await.unwrap_err().to_string();
    assert!(refused.contains("x509: certificate signed by unknown authority"), "{refused}");
    foreign.stop().await;
    server.stop().await;
}

/// The variable tells where the system's authorities are, to a process that has not read them yet.
#[tokio::test]
async fn a_webhook_without_authorities_needs_one_that_the_system_trusts() {
    const OWN: &str = "a_webhook_without_authorities_needs_one_that_the_system_trusts";
    const TRUSTED: &str = "SYSTEM_HAS_THE_AUTHORITY";
    let server = TestServer::start().await;
    let webhook = Webhook::start(&server).await;
    let Ok(trusted) = std::env::var(TRUSTED) else {
        let dir = tempfile::tempdir().unwrap();
        for trusted in ["yes", "no"] {
            let file = dir.path().join(trusted);
            std::fs::write(&file, server.webhook_tls().1).unwrap();
            let child = tokio::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", OWN, "--nocapture"])
                .env(TRUSTED, trusted)
                .env("SSL_CERT_FILE", &file)
                .output()
                .await
                .unwrap();
            assert!(child.status.success(), "{trusted}: {}", String::from_utf8_lossy(&child.stderr));
        }
        server.stop().await;
        return;
    };
    // The server of this process has an authority of its own; the file has the other process's.
    if trusted == "yes" {
        let file = std::env::var("SSL_CERT_FILE").unwrap();
        std::fs::write(file, server.webhook_tls().1).unwrap();
    }
    let client = json!({"url": format!("https://127.0.0.1:{}/", webhook.port)});
    server.post(HOOKS, &configuration(&client)).await.unwrap();
    let made = server.post(MAPS, &json!({"metadata": {"name": "map"}})).await;
    match trusted.as_str() {
        "yes" => drop(made.unwrap()),
        _ => {
            let refused = made.unwrap_err().to_string();
            assert!(refused.contains("tls: failed to verify certificate: x509: certificate signed by unknown authority"), "{refused}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn there_is_no_way_to_a_webhook_behind_a_service_without_an_address() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(&server).await;
    let refused = async |name: &str, address: Value| {
        let service = json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 443}]}});
        server.post("/api/v1/namespaces/default/services", &service).await.unwrap();
        let mut hook = configuration(&json!({"service": {"namespace": "default", "name": name}, "caBundle": webhook.ca}));
        hook["metadata"]["name"] = name.into();
        server.post(HOOKS, &hook).await.unwrap();
        let refused = server.post(MAPS, &json!({"metadata": {"name": "refused"}})).await.unwrap_err().to_string();
        let delete = Request::delete(format!("{HOOKS}/{name}")).body(Vec::new()).unwrap();
        server.admin().request_text(delete).await.unwrap();
        refused
    };
    let refused_with = refused("empty", Value::Null).await;
    assert!(refused_with.contains("no endpoints available for service \"empty\""), "{refused_with}");
    let refused = refused("headless", json!("None")).await;
    let why = "failed calling webhook \"hook.example.com\": failed to call webhook: Post \"https://headless.default.svc:443/?timeout=10s\": \
               cannot route to service with ClusterIP \"None\"";
    assert!(refused.contains(why), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn a_webhook_behind_an_external_name_is_called_there() {
    let server = TestServer::start().await;
    let webhook = Webhook::start(&server).await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    server.post("/api/v1/namespaces/default/services", &service).await.unwrap();
    let client = json!({"service": {"namespace": "default", "name": "hook", "port": webhook.port}, "caBundle": webhook.ca});
    server.post(HOOKS, &configuration(&client)).await.unwrap();
    make(&server, 0..3).await;
    assert_eq!(webhook.opened(), 1, "the certificate is that of hook.default.svc");
    server.stop().await;
}
