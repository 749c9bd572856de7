//! Connections that say nothing, or too little, keep nobody out.

mod common;

use apiserver::Limits;
use common::TestServer;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest that anything may take on a busy machine. Far less than the times after which the server itself lets go.
const PATIENCE: Duration = Duration::from_secs(30);

/// Half a request over TLS.
async fn half_a_request(server: &TestServer) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let mut stream = server.stranger_tls().connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: a\r\nX-Slow: ").await.unwrap();
    stream
}

#[tokio::test]
async fn idle_connections_starve_nobody() {
    let hour = Duration::from_secs(3600);
    let server = TestServer::start_within(Limits { handshake: hour, first_request: hour, idle: hour, ..Limits::new(16, 16) }).await;
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(TcpStream::connect(server.address()).await.unwrap());
    }
    let admin: Api<Namespace> = Api::all(server.tls_client("admin", "system:masters").await);
    let asked = tokio::time::timeout(PATIENCE, admin.list(&ListParams::default())).await.expect("idle connections keep the client out");
    asked.unwrap();
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(half_a_request(&server).await);
    }
    // On the connection that it has: who is known is not closed for others.
    tokio::time::timeout(PATIENCE, admin.list(&ListParams::default())).await.expect("half requests keep the client out").unwrap();
    let other: Api<Namespace> = Api::all(server.tls_client("other", "system:masters").await);
    tokio::time::timeout(PATIENCE, other.list(&ListParams::default())).await.expect("half requests keep a new client out").unwrap();
    drop((held, slow));
    server.stop().await;
}

#[tokio::test]
async fn half_a_request_ends() {
    let second = Duration::from_secs(1);
    let server = TestServer::start_within(Limits { handshake: second, first_request: second, ..Limits::default() }).await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    let mut slow = half_a_request(&server).await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "a connection without a handshake goes on");
    let trickle = async {
        // A letter now and then does not make it a request.
        while slow.write_all(b"x").await.is_ok() && slow.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, trickle).await.expect("half a request goes on");
    server.stop().await;
}

/// A watch is no silence.
#[tokio::test]
async fn a_quiet_watch_goes_on() {
    let second = Duration::from_secs(1);
    let server = TestServer::start_within(Limits { first_request: second, idle: second, ..Limits::default() }).await;
    let admin: Api<Namespace> = Api::all(server.tls_client("admin", "system:masters").await);
    let parameters = kube::api::WatchParams::default().timeout(4);
    let began = std::time::Instant::now();
    let mut events = std::pin::pin!(admin.watch(&parameters, "0").await.unwrap());
    while let Some(event) = futures::StreamExt::next(&mut events).await {
        event.unwrap();
    }
    assert!(began.elapsed() >= Duration::from_secs(3), "the watch was cut after {:?}", began.elapsed());
    server.stop().await;
}
