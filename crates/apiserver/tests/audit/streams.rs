//! Connections to pods: events at their beginning and at their end.

use super::common::{TestServer, pod};
use super::{Audited, of, read};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Reads the head of a request or response.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A kubelet that switches protocols and sends back what it gets, until the client's end. It refuses pods that it does not know.
async fn echoing_kubelet(server: &TestServer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(server.kubelet_tls()));
    tokio::spawn(async move {
        loop {
            let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            tokio::spawn(async move {
                if head(&mut stream).await.lines().next().unwrap().contains("/unknown") {
                    stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 13\r\n\r\npod not found").await.unwrap();
                    return;
                }
                stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n").await.unwrap();
                let (mut from, mut to) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    port
}

/// Pods on a node with that kubelet.
async fn place(server: &TestServer, names: &[&str]) {
    let port = echoing_kubelet(server).await;
    let status = json!({"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
    let node = serde_json::from_value(json!({"metadata": {"name": "win01"}, "status": status})).unwrap();
    Api::<Node>::all(server.admin()).create(&PostParams::default(), &node).await.unwrap();
    for name in names {
        let mut pod = pod(name);
        pod.spec.as_mut().unwrap().node_name = Some("win01".into());
        Api::<Pod>::namespaced(server.admin(), "default").create(&PostParams::default(), &pod).await.unwrap();
    }
}

/// Asks for an upgrade; the connection, and the code of the answer.
async fn upgrade(server: &TestServer, method: &str, path: &str, headers: &str) -> (tokio_rustls::client::TlsStream<TcpStream>, String) {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let mut stream = server.client_tls("jane", "system:masters").connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\n{headers}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = head(&mut stream).await;
    let code = answer.split(' ').nth(1).unwrap().to_owned();
    (stream, code)
}

fn stages(events: &[Value], subresource: &str) -> Vec<String> {
    let of = events.iter().filter(|event| event["objectRef"]["subresource"] == subresource);
    of.map(|event| event["stage"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn connections_to_pods_have_events_at_their_beginning_and_at_their_end() {
    let audited = Audited::start("- {level: RequestResponse, users: [jane]}").await;
    place(&audited.server, &["web"]).await;
    let log = audited.dir.path().join("audit.log");
    for (subresource, query) in [("exec", "?command=hostname&stdout=true"), ("attach", "?stdout=true"), ("portforward", "")] {
        let path = format!("/api/v1/namespaces/default/pods/web/{subresource}{query}");
        let (mut stream, code) = upgrade(&audited.server, "POST", &path, "upgrade: SPDY/3.1").await;
        assert_eq!(code, "101", "{subresource}");
        stream.write_all(b"ping").await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(stages(&read(&log), subresource), ["RequestReceived", "ResponseStarted"], "the connection goes on");
        stream.shutdown().await.unwrap();
        drop(stream);
        test_lab::until_async("the end of the connection is logged", async || stages(&read(&log), subresource).len() == 3).await;
    }
    let events = audited.events().await;
    for event in of(&events, "jane", "ResponseComplete") {
        let object = &event["objectRef"];
        assert_eq!((&event["responseStatus"], &event["verb"]), (&json!({"metadata": {}, "code": 101}), &json!("create")));
        assert_eq!((&object["resource"], &object["namespace"], &object["name"]), (&json!("pods"), &json!("default"), &json!("web")));
        assert!(event.get("requestObject").is_none() && event.get("responseObject").is_none(), "connections have no bodies: {event}");
    }
    let exec = &of(&events, "jane", "ResponseStarted")[0];
    assert_eq!(exec["requestURI"], "/api/v1/namespaces/default/pods/web/exec?command=hostname&stdout=true");
}

#[tokio::test]
async fn what_a_websocket_asks_for_ends_with_it_and_a_refusal_at_once() {
    let audited = Audited::start("- {level: Metadata, users: [jane], omitStages: [RequestReceived]}").await;
    place(&audited.server, &["unknown"]).await;
    let log = audited.dir.path().join("audit.log");
    let path = "/api/v1/namespaces/default/pods/unknown/exec?command=hostname&stdout=true";
    let socket =
        "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-protocol: v5.channel.k8s.io";
    let (mut stream, code) = upgrade(&audited.server, "GET", path, socket).await;
    // The kubelet's refusal comes on the error channel.
    assert_eq!(code, "101");
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("pod not found") {
        let read = test_lab::in_time("the kubelet's refusal", stream.read_buf(&mut said)).await.unwrap();
        assert!(read > 0, "the socket ended after {said:?}");
    }
    drop(stream);
    test_lab::until_async("the end of the socket is logged", async || stages(&read(&log), "exec").len() == 2).await;
    let (_stream, code) = upgrade(&audited.server, "POST", path, "upgrade: SPDY/3.1").await;
    assert_eq!(code, "404");
    let events = audited.events().await;
    assert_eq!(stages(&events, "exec"), ["ResponseStarted", "ResponseComplete", "ResponseStarted", "ResponseComplete"]);
    let done = of(&events, "jane", "ResponseComplete");
    let got: Vec<_> = done.iter().map(|event| (event["verb"].as_str().unwrap(), event["responseStatus"]["code"].as_u64().unwrap())).collect();
    assert_eq!(got, [("get", 101), ("create", 404)]);
}
