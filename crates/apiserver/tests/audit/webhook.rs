//! Events that a receiver gets instead of a file.

use super::common::TestServer;
use super::{PODS, of, pod, policy};
use apiserver::{AuditConfig, AuditMode, AuditWebhook, Batch, Post, Truncate, WebhookConfig};
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A receiver that takes lists, or refuses them.
#[derive(Debug, Default)]
struct Receiver {
    refuses: bool,
    lists: Mutex<Vec<Value>>,
}

impl Post for Receiver {
    fn post(&self, list: bytes::Bytes) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async move {
            if self.refuses {
                return Err("503 Service Unavailable".into());
            }
            self.lists.lock().unwrap().push(serde_json::from_slice(&list).unwrap());
            Ok(())
        })
    }
}

impl Receiver {
    fn events(&self) -> Vec<Value> {
        self.lists.lock().unwrap().iter().flat_map(|list| list["items"].as_array().unwrap().clone()).collect()
    }
}

async fn audited(rules: &str, config: WebhookConfig, truncate: Option<Truncate>, refuses: bool) -> (TestServer, Arc<Receiver>) {
    let receiver = Arc::new(Receiver { refuses, ..Receiver::default() });
    let webhook = AuditWebhook { config, truncate, post: Arc::clone(&receiver) as Arc<dyn Post> };
    let server = TestServer::start_audited(AuditConfig { policy: policy(rules), log: None, webhook: Some(webhook) }).await;
    (server, receiver)
}

/// The code of the answer to a new pod of jane's.
async fn make(server: &TestServer, name: &str) -> u16 {
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::default_namespaced(server.client("jane", &["system:masters"]));
    match pods.create(&kube::api::PostParams::default(), &serde_json::from_value(pod(name)).unwrap()).await {
        Ok(_) => 201,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_receiver_gets_lists_of_events() {
    let batch = Batch { max_size: 3, max_wait: Duration::from_secs(3600), ..Batch::default() };
    let rules = "- {level: RequestResponse, users: [jane], resources: [{group: '', resources: [pods]}]}";
    let (server, receiver) = audited(rules, WebhookConfig { batch, ..WebhookConfig::default() }, None, false).await;
    assert_eq!((make(&server, "a").await, make(&server, "b").await), (201, 201));
    test_lab::until_async("a list is full", async || receiver.lists.lock().unwrap().len() == 1).await;
    server.stop().await;
    let events = receiver.events();
    let sizes: Vec<usize> = receiver.lists.lock().unwrap().iter().map(|list| list["items"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [3, 1], "the end sends what waits");
    let done = of(&events, "jane", "ResponseComplete");
    assert_eq!(done.len(), 2);
    assert_eq!(
        (&done[0]["requestURI"], &done[0]["verb"], &done[0]["responseStatus"]["code"]),
        (&json!(format!("{PODS}?")), &json!("create"), &json!(201))
    );
    assert_eq!((&done[0]["responseObject"]["metadata"]["name"], done[0].get("kind")), (&json!("a"), None));
}

#[tokio::test]
async fn a_strict_receiver_that_is_away_lets_no_request_pass() {
    let strict = WebhookConfig { mode: AuditMode::BlockingStrict, initial_backoff: Duration::from_millis(1), ..WebhookConfig::default() };
    let rules = "- {level: Metadata, users: [jane]}";
    let (server, _receiver) = audited(rules, strict.clone(), None, true).await;
    assert_eq!(make(&server, "a").await, 500);
    server.stop().await;
    let (server, _receiver) = audited(rules, WebhookConfig { mode: AuditMode::Blocking, ..strict }, None, true).await;
    assert_eq!(make(&server, "a").await, 201);
    server.stop().await;
}

#[tokio::test]
async fn large_events_reach_a_receiver_without_their_objects() {
    let blocking = WebhookConfig { mode: AuditMode::Blocking, ..WebhookConfig::default() };
    let rules = "- {level: RequestResponse, users: [jane], omitStages: [RequestReceived]}";
    let (server, receiver) = audited(rules, blocking, Some(Truncate { max_event: 1000 }), false).await;
    assert_eq!(make(&server, "a").await, 201);
    server.stop().await;
    let events = receiver.events();
    assert_eq!((events.len(), &events[0]["annotations"]["audit.k8s.io/truncated"]), (1, &json!("true")), "{events:?}");
    assert!(events[0].get("requestObject").is_none() && events[0]["objectRef"]["name"] == "a");
}
