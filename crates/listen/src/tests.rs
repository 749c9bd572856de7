//! Plain HTTP over real connections.

use super::*;
use http_body_util::Full;
use hyper::body::Bytes;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt};

/// A server that counts its requests, and its address.
async fn server(limits: Limits) -> (SocketAddr, tokio::task::AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = AtomicUsize::new(0);
    let service = move |request: Request<Incoming>| {
        let text = format!("{} of {}", count.fetch_add(1, Ordering::Relaxed) + 1, request.uri().path());
        async move { Response::new(Full::new(Bytes::from(text))) }
    };
    (address, tokio::spawn(serve_http(listener, limits, service)).abort_handle())
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n")
}

/// Connects, and sends the first request before the server sees the connection.
fn connect(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(request(path).as_bytes()).unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

/// Reads an answer, which ends with `end`.
async fn answer(stream: &mut TcpStream, end: &str) {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut buffer = [0; 1024];
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
}

async fn ask(stream: &mut TcpStream, path: &str, end: &str) {
    AsyncWriteExt::write_all(stream, request(path).as_bytes()).await.unwrap();
    answer(stream, end).await;
}

/// Whether the server closes the connection. It says nothing before.
async fn closes(stream: &mut TcpStream) -> bool {
    // Closed with bytes unread is a reset.
    stream.read(&mut [0; 1]).await.map_or(true, |read| read == 0)
}

#[tokio::test]
async fn plain_http_keeps_connections_within_bounds() {
    let (address, _) = server(Limits::new(3, 2)).await;
    let mut first = connect(address, "/a");
    answer(&mut first, "1 of /a").await;
    ask(&mut first, "/b", "2 of /b").await;
    let mut second = connect(address, "/c");
    answer(&mut second, "3 of /c").await;
    // One peer has two connections: its third replaces its first.
    let mut third = connect(address, "/d");
    answer(&mut third, "4 of /d").await;
    assert!(closes(&mut first).await);
    ask(&mut second, "/e", "5 of /e").await;
}

#[tokio::test]
async fn plain_http_closes_silent_connections() {
    let limits = Limits { first_request: Duration::from_millis(20), ..Limits::new(8, 8) };
    let (address, _) = server(limits.clone()).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(closes(&mut silent).await, "no request");
    let (address, _) = server(Limits { first_request: Duration::from_secs(600), idle: Duration::from_millis(20), ..limits }).await;
    let mut idle = connect(address, "/a");
    answer(&mut idle, "1 of /a").await;
    assert!(closes(&mut idle).await, "no second request");
}

#[tokio::test]
async fn plain_http_ends_with_its_server() {
    let (address, server) = server(Limits::new(8, 8)).await;
    let mut idle = connect(address, "/a");
    answer(&mut idle, "1 of /a").await;
    server.abort();
    assert!(closes(&mut idle).await);
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens");
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// CVE-2023-44487: streams that are reset at once cost the server work, and count to no bound of open ones.
#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection() {
    const ENHANCE_YOUR_CALM: u32 = 11;
    let (address, _) = server(Limits::new(8, 8)).await;
    let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    for number in 0..200 {
        // GET / of http://node, and its cancellation.
        bytes.extend(frame(1, 5, 2 * number + 1, b"\x82\x86\x84\x41\x04node"));
        bytes.extend(frame(3, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(&bytes).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut stream = TcpStream::from_std(stream).unwrap();
    let mut answer = Vec::new();
    // Closed with bytes unread is a reset.
    let _ = stream.read_to_end(&mut answer).await;
    let mut errors = Vec::new();
    let mut rest = &answer[..];
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if *kind == 7 {
            errors.push(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = payload.get(length..).unwrap_or_default();
    }
    assert_eq!(errors.last(), Some(&ENHANCE_YOUR_CALM), "{answer:?}");
}
