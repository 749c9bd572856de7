//! `kubectl top`: metrics.k8s.io from the counters of kubelets.

mod common;

use common::{TestServer, pod};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_rustls::TlsAcceptor;

/// The counters after so many readings: a second passes between two, the node uses half a processor, the container a tenth.
fn counters(reading: u64) -> String {
    let at = 1_700_000_000_000 + reading * 1000;
    let (node, container) = (reading * 500, reading * 100);
    let of = "container=\"web\",namespace=\"default\",pod=\"web\"";
    format!(
        "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total {}.{:03} {at}\nnode_memory_working_set_bytes 1048576 {at}\n\
         container_cpu_usage_seconds_total{{{of}}} {}.{:03} {at}\ncontainer_memory_working_set_bytes{{{of}}} 524288 {at}\n\
         container_start_time_seconds{{{of}}} 1600000000\n",
        node / 1000,
        node % 1000,
        container / 1000,
        container % 1000
    )
}

async fn kubelet(server: &TestServer, readings: Arc<AtomicU64>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(server.kubelet_tls()));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            let readings = Arc::clone(&readings);
            let answer = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                assert_eq!(request.uri().path(), "/metrics/resource");
                let text = counters(readings.fetch_add(1, Ordering::SeqCst) + 1);
                async move { Ok::<_, Infallible>(http::Response::new(Full::new(bytes::Bytes::from(text)))) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        }
    });
    port
}

async fn get(server: &TestServer, path: &str) -> Result<Value, kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    server.admin().request_text(request).await.map(|text| serde_json::from_str(&text).unwrap())
}

#[tokio::test]
async fn use_is_computed_when_somebody_asks() {
    let server = TestServer::start().await;
    let readings = Arc::new(AtomicU64::new(0));
    let port = kubelet(&server, Arc::clone(&readings)).await;
    let nodes: Api<Node> = Api::all(server.admin());
    let node = |name: &str, address: &str, port: u16| {
        let status = json!({"addresses": [{"type": "InternalIP", "address": address}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"a": name}}, "status": status})).unwrap()
    };
    nodes.create(&PostParams::default(), &node("win01", "127.0.0.1", port)).await.unwrap();
    // Nobody answers here: the others' figures come all the same.
    nodes.create(&PostParams::default(), &node("gone", "127.0.0.1", 1)).await.unwrap();
    let mut web = pod("web");
    web.spec.as_mut().unwrap().node_name = Some("win01".into());
    Api::<Pod>::namespaced(server.admin(), "default").create(&PostParams::default(), &web).await.unwrap();

    let list = get(&server, "/apis/metrics.k8s.io/v1beta1/nodes").await.unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("NodeMetricsList"), 1));
    let win01 = &list["items"][0];
    assert_eq!((&win01["metadata"]["name"], &win01["usage"]), (&json!("win01"), &json!({"cpu": "500m", "memory": "1024Ki"})));
    assert_eq!((&win01["window"], &win01["metadata"]["labels"]["a"]), (&json!("1s"), &json!("win01")));
    let asked = readings.load(Ordering::SeqCst);
    let pods = get(&server, "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods").await.unwrap();
    assert_eq!(pods["items"][0]["containers"], json!([{"name": "web", "usage": {"cpu": "100m", "memory": "512Ki"}}]));
    assert_eq!(readings.load(Ordering::SeqCst), asked, "fresh readings are used again");
    let one = get(&server, "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/web").await.unwrap();
    assert_eq!(one["kind"], "PodMetrics");
    let absent = get(&server, "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/none").await.unwrap_err();
    assert!(absent.to_string().contains("pods.metrics.k8s.io \"default/none\" not found"), "{absent}");
    let selected = get(&server, "/apis/metrics.k8s.io/v1beta1/nodes?labelSelector=a%3Dgone").await.unwrap();
    assert_eq!(selected["items"], json!([]));
    server.stop().await;
}
