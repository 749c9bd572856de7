//! Whole conversations over sockets: HTTP upgrade, the wires, programs and ports behind them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use streaming::remotecommand::{self, Outcome, Remote, Requested, Size, Streams};
use streaming::spdy::{Connection, Headers, Limits, Role};
use streaming::upgrade::{self, Answer};
use streaming::{portforward, websocket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol;

/// Long enough for a busy machine: only a failure takes it.
const SOON: Duration = Duration::from_secs(240);
const ALL: Requested = Requested { stdin: true, stdout: true, stderr: true, tty: false };

/// A server whose answers `answer` makes.
async fn serve(answer: impl Fn(Request<Incoming>) -> Response<String> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let response = answer(request).map(|text| Full::new(Bytes::from(text)));
                async move { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades());
        }
    });
    address
}

/// A server that runs `program` with the streams of whoever asks.
async fn program<F, R>(requested: Requested, program: F) -> SocketAddr
where
    F: Fn(Streams) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send,
{
    serve(move |mut request| {
        let (response, accepted) = match remotecommand::accept(request.headers(), requested) {
            Ok(accepted) => accepted,
            Err(refusal) => return *refusal,
        };
        let program = program.clone();
        tokio::spawn(async move {
            let client = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            if let Ok(streams) = accepted.streams(client).await {
                program(streams).await;
            }
        });
        response.map(|()| String::new())
    })
    .await
}

/// Copies input to output, says something on the side, ends with code 3.
async fn copies(mut streams: Streams) {
    let (mut stdin, mut stdout) = (streams.stdin.take().unwrap(), streams.stdout.take().unwrap());
    tokio::io::copy(&mut stdin, &mut stdout).await.unwrap();
    stdout.shutdown().await.unwrap();
    streams.stderr.take().unwrap().write_all(b"done").await.unwrap();
    streams.finish(&Outcome::Exit(3, "exit code 3".into())).await;
}

async fn upgraded(address: SocketAddr, request: Request<Full<Bytes>>) -> (Response<()>, TokioIo<hyper::upgrade::Upgraded>) {
    match upgrade::send(TcpStream::connect(address).await.unwrap(), request).await.unwrap() {
        Answer::Switched(response, io) => (response, io),
        Answer::Refused(response) => panic!("{}", response.status()),
    }
}

async fn spdy(address: SocketAddr, protocols: &[&'static str]) -> Connection {
    let request = upgrade::spdy_request("/", "host", protocols).unwrap();
    Connection::new(upgraded(address, request).await.1, Role::Client, Limits::default())
}

async fn websocket(address: SocketAddr, protocol: &str) -> WebSocketStream<TokioIo<hyper::upgrade::Upgraded>> {
    let mut request = Request::builder().uri("/").header("host", "h").header("connection", "Upgrade").header("upgrade", "websocket");
    request = request.header("sec-websocket-version", "13").header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    if !protocol.is_empty() {
        request = request.header("sec-websocket-protocol", protocol);
    }
    let (response, io) = upgraded(address, request.body(Full::default()).unwrap()).await;
    assert_eq!(response.headers().get("sec-websocket-protocol").map_or("", |own| own.to_str().unwrap()), protocol);
    WebSocketStream::from_raw_socket(io, protocol::Role::Client, None).await
}

/// Everything that comes on each channel, until the server closes.
async fn channels<I>(socket: &mut WebSocketStream<I>) -> Vec<Vec<u8>>
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut found = vec![Vec::new(); 5];
    while let Some(message) = timeout(SOON, socket.next()).await.unwrap() {
        match message.unwrap() {
            Message::Binary(bytes) => found[usize::from(bytes[0])].extend_from_slice(&bytes[1..]),
            Message::Close(frame) => assert_eq!(u16::from(frame.expect("with a code").code), 1000),
            other => panic!("{other}"),
        }
    }
    found
}

#[tokio::test]
async fn program_runs_over_spdy() {
    let address = program(ALL, copies).await;
    let connection = spdy(address, &["v9", "v4.channel.k8s.io"]).await;
    let open = |kind: &'static str| connection.open(Headers::new([("streamType", kind)]));
    let (mut error, mut stdin, mut stdout, mut stderr) = tokio::try_join!(open("error"), open("stdin"), open("stdout"), open("stderr")).unwrap();
    let sent = vec![9; 1 << 20];
    let (mut out, mut err, mut status) = (Vec::new(), String::new(), String::new());
    timeout(SOON, async {
        let write = async {
            stdin.send.write_all(&sent).await.unwrap();
            // The server does not end what it never sends: a client that reads it would take that for the end.
            assert!(timeout(Duration::from_millis(50), stdin.receive.read_u8()).await.is_err());
            stdin.send.shutdown().await.unwrap();
        };
        let read = stdout.receive.read_to_end(&mut out);
        let (_, read, errors, ended) = tokio::join!(write, read, stderr.receive.read_to_string(&mut err), error.receive.read_to_string(&mut status));
        (read.unwrap(), errors.unwrap(), ended.unwrap())
    })
    .await
    .unwrap();
    assert!(out == sent);
    assert_eq!(err, "done");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["reason"], &status["details"]["causes"][0]["message"]), (&"NonZeroExitCode".into(), &"3".into()));
}

#[tokio::test]
async fn program_runs_over_websocket() {
    let address = program(ALL, copies).await;
    let mut socket = websocket(address, "v5.channel.k8s.io").await;
    socket.send(Message::Binary(Bytes::from_static(b"\0hello "))).await.unwrap();
    socket.send(Message::Binary(Bytes::from_static(b"\x07what nobody knows"))).await.unwrap();
    socket.send(Message::Binary(Bytes::from_static(b"\0world"))).await.unwrap();
    socket.send(Message::Binary(Bytes::from_static(b"\xff\0"))).await.unwrap();
    let found = channels(&mut socket).await;
    assert_eq!((&*found[1], &*found[2]), (&b"hello world"[..], &b"done"[..]));
    let status: Value = serde_json::from_slice(&found[3]).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "3");
}

#[tokio::test]
async fn oldest_protocols_get_the_error_as_text() {
    let refuses = async |streams: Streams| streams.finish(&Outcome::Failed("no such program".into())).await;
    for protocol in ["channel.k8s.io", ""] {
        let address = program(ALL, refuses).await;
        let found = channels(&mut websocket(address, protocol).await).await;
        assert_eq!(String::from_utf8_lossy(&found[3]), "error executing remote command: no such program");
    }
}

#[tokio::test]
async fn an_interrupted_client_is_noticed() {
    let (gone, seen) = tokio::sync::mpsc::channel(2);
    let address = program(ALL, move |streams: Streams| {
        let gone = gone.clone();
        async move {
            let streams = streams;
            streams.gone.cancelled().await;
            gone.send(()).await.unwrap();
        }
    })
    .await;
    let mut seen = seen;
    let socket = websocket(address, "v4.channel.k8s.io").await;
    drop(socket);
    timeout(SOON, seen.recv()).await.unwrap().unwrap();
    let connection = spdy(address, &["v4.channel.k8s.io"]).await;
    for kind in ["error", "stdin", "stdout", "stderr"] {
        connection.open(Headers::new([("streamType", kind)])).await.unwrap();
    }
    drop(connection);
    timeout(SOON, seen.recv()).await.unwrap().unwrap();
}

/// As the API server does: WebSocket to the client, SPDY to `backend`.
async fn bridge(backend: SocketAddr, requested: Requested) -> SocketAddr {
    program(requested, move |client| async move {
        let request = upgrade::spdy_request("/", "host", &remotecommand::REMOTE_PROTOCOLS).unwrap();
        let remote = Remote::begin(upgraded(backend, request).await.1, requested).await.unwrap();
        remote.bridge(client).await;
    })
    .await
}

#[tokio::test]
async fn websocket_becomes_spdy_on_the_way() {
    let address = bridge(program(ALL, copies).await, ALL).await;
    let mut socket = websocket(address, "v5.channel.k8s.io").await;
    for _ in 0..64 {
        let mut message = vec![0; 1 + (16 << 10)];
        message[1..].fill(b'x');
        socket.send(Message::Binary(message.into())).await.unwrap();
    }
    socket.send(Message::Binary(Bytes::from_static(b"\xff\0"))).await.unwrap();
    let found = channels(&mut socket).await;
    assert_eq!((found[1].len(), &*found[2]), (1 << 20, &b"done"[..]));
    let status: Value = serde_json::from_slice(&found[3]).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "3");
}

#[tokio::test]
async fn sizes_of_a_terminal_arrive() {
    let requested = Requested { stdin: true, stdout: true, stderr: true, tty: true };
    let shows = async |mut streams: Streams| {
        assert!(streams.stderr.is_none(), "a terminal has one output");
        let mut stdout = streams.stdout.take().unwrap();
        for _ in 0..2 {
            let Size { width, height } = streams.sizes.recv().await.unwrap();
            stdout.write_all(format!("{width}x{height} ").as_bytes()).await.unwrap();
        }
        stdout.shutdown().await.unwrap();
        streams.finish(&Outcome::Success).await;
    };
    let address = bridge(program(requested, shows).await, requested).await;
    let mut socket = websocket(address, "v5.channel.k8s.io").await;
    socket.send(Message::Binary(Bytes::from_static(b"\x04{\"Width\":80,\"Height\":24}"))).await.unwrap();
    socket.send(Message::Binary(Bytes::from_static(b"\x04{\"Width\":100,\"Height\":30}"))).await.unwrap();
    let found = channels(&mut socket).await;
    assert_eq!(String::from_utf8_lossy(&found[1]), "80x24 100x30 ");
    assert_eq!(String::from_utf8_lossy(&found[3]), r#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test]
async fn requests_that_upgrade_nothing_are_refused() {
    let address = program(ALL, copies).await;
    let request = Request::builder().uri("/").header("host", "h").body(Full::default()).unwrap();
    let Answer::Refused(refusal) = upgrade::send(TcpStream::connect(address).await.unwrap(), request).await.unwrap() else { panic!() };
    assert_eq!(refusal.status(), 400);
    let request = upgrade::spdy_request("/", "host", &["v9"]).unwrap();
    let Answer::Refused(refusal) = upgrade::send(TcpStream::connect(address).await.unwrap(), request).await.unwrap() else { panic!() };
    assert_eq!((refusal.status().as_u16(), refusal.headers().get_all("x-accepted-stream-protocol-versions").iter().count()), (403, 4));
}

/// Forwards to a server that answers each connection with what it read, and counts those that are open.
async fn forwards() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (target, open) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                count.fetch_add(1, Ordering::SeqCst);
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                count.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let address = serve(move |mut request| {
        let response = match portforward::accept(request.headers()) {
            Ok(response) => response,
            Err(refusal) => return *refusal,
        };
        tokio::spawn(async move {
            let client = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            let dial = move |port: u16| async move {
                if port == 80 { TcpStream::connect(target).await.map_err(|error| error.to_string()) } else { Err("connection refused".to_owned()) }
            };
            portforward::serve(client, "pod", dial).await;
        });
        response.map(|()| String::new())
    })
    .await;
    (address, open)
}

fn headers(kind: &str, request: usize, port: u16) -> Headers {
    Headers::new([("streamType", kind), ("port", &port.to_string()), ("requestID", &request.to_string())])
}

#[tokio::test]
async fn many_connections_share_one_forwarding() {
    let (address, open) = forwards().await;
    let connection = Arc::new(spdy(address, &[portforward::PROTOCOL]).await);
    let mut all = tokio::task::JoinSet::new();
    for request in 0..100 {
        let connection = Arc::clone(&connection);
        all.spawn(async move {
            let mut error = connection.open(headers("error", request, 80)).await.unwrap();
            error.send.shutdown().await.unwrap();
            let mut data = connection.open(headers("data", request, 80)).await.unwrap();
            let sent = vec![request as u8; 50_000];
            let write = async {
                data.send.write_all(&sent).await.unwrap();
                data.send.shutdown().await.unwrap();
            };
            let mut back = Vec::new();
            let (_, read) = tokio::join!(write, data.receive.read_to_end(&mut back));
            read.unwrap();
            assert!(back == sent);
            let mut why = String::new();
            error.receive.read_to_string(&mut why).await.unwrap();
            assert_eq!(why, "");
        });
    }
    timeout(SOON, async { while all.join_next().await.transpose().unwrap().is_some() {} }).await.unwrap();
    assert_eq!(open.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn refused_ports_are_reported() {
    let (address, _) = forwards().await;
    let connection = spdy(address, &[portforward::PROTOCOL]).await;
    let (mut error, mut data) = tokio::try_join!(connection.open(headers("error", 0, 81)), connection.open(headers("data", 0, 81))).unwrap();
    let mut why = String::new();
    timeout(SOON, error.receive.read_to_string(&mut why)).await.unwrap().unwrap();
    assert_eq!(why, "error forwarding port 81 to pod pod, uid : connection refused");
    assert!(data.receive.read_u8().await.is_err());
    assert!(connection.open(headers("data", 1, 0)).await.is_err(), "no port");
    assert!(connection.open(Headers::new([("port", "80"), ("streamType", "other")])).await.is_err(), "no such type");
}

#[tokio::test]
async fn an_interrupted_forwarding_leaves_no_connections() {
    let (address, open) = forwards().await;
    let connection = spdy(address, &[portforward::PROTOCOL]).await;
    let mut held = Vec::new();
    for request in 0..5 {
        held.push(connection.open(headers("error", request, 80)).await.unwrap());
        let mut data = connection.open(headers("data", request, 80)).await.unwrap();
        data.send.write_all(b"x").await.unwrap();
        assert_eq!(data.receive.read_u8().await.unwrap(), b'x');
        held.push(data);
    }
    assert_eq!(open.load(Ordering::SeqCst), 5);
    drop((connection, held));
    timeout(SOON, async {
        while open.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn spdy_inside_websocket_is_the_same() {
    let (backend, _) = forwards().await;
    let address = serve(move |mut request| {
        assert!(portforward::is_tunnel(request.headers()));
        let (response, _) = upgrade::accept_websocket(request.headers(), &[portforward::TUNNEL], None).unwrap();
        tokio::spawn(async move {
            let client = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            let asked = upgrade::spdy_request("/", "host", &[portforward::PROTOCOL]).unwrap();
            let (_, server) = upgraded(backend, asked).await;
            upgrade::copy(websocket::Tunnel::server(client).await, server).await;
        });
        response.map(|()| String::new())
    })
    .await;
    let socket = websocket(address, portforward::TUNNEL).await;
    let tunnel = websocket::Tunnel::client(socket.into_inner()).await;
    let connection = Connection::new(tunnel, Role::Client, Limits::default());
    let _error = connection.open(headers("error", 7, 80)).await.unwrap();
    let data = connection.open(headers("data", 7, 80)).await.unwrap();
    let sent = vec![5; 500_000];
    let (mut receive, mut send) = (data.receive, data.send);
    let write = async {
        send.write_all(&sent).await.unwrap();
        send.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let (_, read) = timeout(SOON, async { tokio::join!(write, receive.read_to_end(&mut back)) }).await.unwrap();
    read.unwrap();
    assert!(back == sent);
    timeout(SOON, connection.close(SOON)).await.unwrap();
}
