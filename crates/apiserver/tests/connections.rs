//! Connections that say nothing, or too little, keep nobody out.

mod common;

use apiserver::Limits;
use common::TestServer;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use std::time::Duration;
use test_lab::in_time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
    in_time("an answer beside idle connections", admin.list(&ListParams::default())).await.unwrap();
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(half_a_request(&server).await);
    }
    // On the connection that it has: who is known is not closed for others.
    in_time("an answer beside half requests", admin.list(&ListParams::default())).await.unwrap();
    let other: Api<Namespace> = Api::all(server.tls_client("other", "system:masters").await);
    in_time("an answer to a new client beside half requests", other.list(&ListParams::default())).await.unwrap();
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
    let _ = in_time("the end of a connection without a handshake", silent.read_to_end(&mut rest)).await;
    let trickle = async {
        // A letter now and then does not make it a request.
        while slow.write_all(b"x").await.is_ok() && slow.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    in_time("the end of half a request", trickle).await;
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
