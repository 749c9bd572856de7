//! Requests that the API server forwards to a kubelet.

mod common;

use common::{TestServer, pod};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, LogParams, PostParams};
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// A kubelet that answers with the path it was asked for, or refuses those who show no certificate.
async fn fake_kubelet(server: &TestServer) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(server.kubelet_tls()));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            let shown = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
            let answer = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| async move {
                let refuse = !shown || request.uri().path().contains("broken");
                let text = if refuse {
                    "container \"web\" in pod \"broken\" is waiting to start: ContainerCreating".to_string()
                } else {
                    request.uri().to_string()
                };
                let response = http::Response::builder().status(if refuse { 400 } else { 200 }).body(Full::new(bytes::Bytes::from(text)));
                Ok::<_, Infallible>(response.unwrap())
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        }
    });
    port
}

async fn place(server: &TestServer, name: &str) {
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    let mut pod = pod(name);
    pod.spec.as_mut().unwrap().node_name = Some("win01".into());
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

#[tokio::test]
async fn logs_come_from_the_pod_s_node() {
    let server = TestServer::start().await;
    let port = fake_kubelet(&server).await;
    let nodes: Api<Node> = Api::all(server.admin());
    let node = json!({"metadata": {"name": "win01"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    place(&server, "web").await;
    place(&server, "broken").await;
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    let log = pods.logs("web", &LogParams { tail_lines: Some(5), timestamps: true, ..LogParams::default() }).await.unwrap();
    assert_eq!(log, "/containerLogs/default/web/web?timestamps=true&tailLines=5");
    let refused = pods.logs("broken", &LogParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("is waiting to start: ContainerCreating"), "{refused}");
    let absent = pods.logs("web", &LogParams { container: Some("x".into()), ..LogParams::default() }).await.unwrap_err();
    assert!(absent.to_string().contains("container x is not valid for pod web"), "{absent}");
    let request = http::Request::get("/api/v1/nodes/win01/proxy/stats/summary").body(Vec::new()).unwrap();
    assert_eq!(server.admin().request_text(request).await.unwrap(), "/stats/summary");
    server.stop().await;
}
