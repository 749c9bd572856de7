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

/// Asks a node's kubelet for something through the API server.
async fn through(server: &TestServer, node: &str, headers: &[(&str, &str)]) -> Result<String, String> {
    let request = http::Request::get(format!("/api/v1/nodes/{node}/proxy/stats"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    server.admin().request_text(request.body(Vec::new()).unwrap()).await.map_err(|error| error.to_string())
}

async fn node_at(server: &TestServer, name: &str, address: &str, port: u16) {
    let status = json!({"addresses": [{"type": "InternalIP", "address": address}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
    let node = serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap();
    Api::<Node>::all(server.admin()).create(&PostParams::default(), &node).await.unwrap();
}

/// A node says where it is, and lies: at another node's address, at the control plane's, outside of the nodes' networks.
#[tokio::test]
async fn a_node_is_reached_where_nodes_are_and_proves_who_it_is() {
    let server = TestServer::start().await;
    let port = fake_kubelet(&server).await;
    node_at(&server, "win01", "127.0.0.1", port).await;
    assert_eq!(through(&server, "win01", &[]).await.unwrap(), "/stats");
    node_at(&server, "liar", "127.0.0.1", port).await;
    let refused = through(&server, "liar", &[]).await.unwrap_err();
    assert!(refused.contains("the kubelet's serving certificate does not name node \"liar\""), "{refused}");
    for (name, address) in [("own", common::NO_NODE), ("linked", "169.254.169.254"), ("outside", "10.9.8.7")] {
        node_at(&server, name, address, port).await;
        let refused = through(&server, name, &[]).await.unwrap_err();
        assert!(refused.contains("address not allowed"), "{address}: {refused}");
        let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
        let mut on = pod(&format!("on-{name}"));
        on.spec.as_mut().unwrap().node_name = Some(name.into());
        pods.create(&PostParams::default(), &on).await.unwrap();
        let refused = pods.logs(&format!("on-{name}"), &LogParams::default()).await.unwrap_err();
        assert!(refused.to_string().contains("address not allowed"), "{address}: {refused}");
    }
    // Past the kubelet, at a port of the node: nothing of the machine that the API server runs on.
    let request = http::Request::get(format!("/api/v1/nodes/win01:{}/proxy/", port + 1)).body(Vec::new()).unwrap();
    let refused = server.admin().request_text(request).await.unwrap_err();
    assert!(refused.to_string().contains("address not allowed"), "{refused}");
    server.stop().await;
}

/// A kubelet that tells which headers it got.
#[tokio::test]
async fn a_kubelet_hears_nothing_of_who_asks() {
    let server = TestServer::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(server.kubelet_tls()));
    tokio::spawn(async move {
        let stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let answer = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async move {
            let names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
            Ok::<_, Infallible>(http::Response::new(Full::new(bytes::Bytes::from(names.join(" ")))))
        });
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    });
    node_at(&server, "win01", "127.0.0.1", port).await;
    let headers = [
        ("impersonate-user", "admin"),
        ("impersonate-group", "system:masters"),
        ("impersonate-extra-scopes", "x"),
        ("x-remote-user", "admin"),
        ("x-remote-group", "system:masters"),
        ("x-asked", "1"),
    ];
    let heard = through(&server, "win01", &headers).await.unwrap();
    assert!(heard.contains("x-asked") && !heard.contains("impersonate") && !heard.contains("x-remote"), "{heard}");
    server.stop().await;
}

/// CVE-2020-8559: a node answered with a redirect, which the API server followed with its own credentials.
#[tokio::test]
async fn a_node_sends_the_api_server_nowhere() {
    let server = TestServer::start().await;
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("https://{}/secrets", elsewhere.local_addr().unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(server.kubelet_tls()));
    let location = target.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            let answer = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| {
                let status = request.uri().query().and_then(|query| query.strip_prefix("status=")?.parse().ok()).unwrap_or(302);
                let response = http::Response::builder().status(status).header("location", &location).body(Full::new(bytes::Bytes::new()));
                async move { Ok::<_, Infallible>(response.unwrap()) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        }
    });
    node_at(&server, "win01", "127.0.0.1", port).await;
    place(&server, "web").await;
    let ask = async |path: &str, upgrades: bool| {
        let mut request = http::Request::get(path);
        if upgrades {
            let headers = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")];
            request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            request = request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==").header("sec-websocket-protocol", "v4.channel.k8s.io");
        }
        let answer = server.admin().send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
        let location = answer.headers().get("location").map(|location| location.to_str().unwrap().to_owned());
        let status = answer.status().as_u16();
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        (status, location, String::from_utf8_lossy(&body).into_owned())
    };
    let pod = "/api/v1/namespaces/default/pods/web";
    for status in [301, 302, 303, 307, 308] {
        let paths = [
            format!("/api/v1/nodes/win01/proxy/exec/default/web/web?status={status}"),
            format!("{pod}/exec?command=ls&stdout=true"),
            format!("{pod}/attach?stdout=true"),
            format!("{pod}/portforward"),
        ];
        for path in paths {
            let (code, location, body) = ask(&path, true).await;
            assert!(code == 500 && location.is_none(), "{path}: {code} {location:?}");
            assert!(body.contains("invalid upgrade response: status code 30"), "{path}: {body}");
        }
        // What asks for no upgrade is told of the redirect, and may follow it with credentials of its own.
        let (code, location, _) = ask(&format!("/api/v1/nodes/win01/proxy/stats?status={status}"), false).await;
        assert_eq!((code, location.as_deref()), (status, Some(target.as_str())));
    }
    let reached = tokio::time::timeout(std::time::Duration::from_millis(200), elsewhere.accept()).await;
    assert!(reached.is_err(), "the API server went where the node sent it");
    server.stop().await;
}
