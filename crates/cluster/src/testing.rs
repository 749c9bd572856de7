//! A fake API for this crate's tests: one closure answers every request.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

/// A request, as a test sees it.
pub(crate) struct Seen {
    pub method: String,
    pub path: String,
    pub query: String,
    pub body: Value,
}

/// A test's answer: a status code, and the bodies' lines (one line ends the answer; several are a watch that then stays open).
pub(crate) struct Reply {
    code: u16,
    lines: Vec<Value>,
    open: bool,
}

impl Reply {
    pub fn json(code: u16, body: Value) -> Self {
        Self { code, lines: vec![body], open: false }
    }

    pub fn status(code: u16, message: &str) -> Self {
        Self::json(code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "", "code": code}))
    }

    /// A watch's answer; `open` keeps it open after the last line.
    pub fn watch(lines: Vec<Value>, open: bool) -> Self {
        Self { code: 200, lines, open }
    }
}

/// A client whose requests `answer` answers.
pub(crate) fn fake_client(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> kube::Client {
    let answer = std::sync::Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let seen = Seen {
                method: parts.method.to_string(),
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&bytes).unwrap_or_default(),
            };
            Ok::<_, kube::Error>(respond(answer(&seen)))
        }
    });
    kube::Client::new(service, "default")
}

fn respond(reply: Reply) -> Response<Lines> {
    let mut text = Vec::new();
    for line in &reply.lines {
        text.extend(serde_json::to_vec(line).expect("JSON"));
        text.push(b'\n');
    }
    Response::builder().status(reply.code).body(Lines { text: Some(text.into()), open: reply.open }).expect("a response")
}

/// A body that gives its bytes and then ends, or stays open.
struct Lines {
    text: Option<bytes::Bytes>,
    open: bool,
}

impl http_body::Body for Lines {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        match self.text.take() {
            Some(bytes) => Poll::Ready(Some(Ok(http_body::Frame::data(bytes)))),
            None if self.open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

/// A fake API server that serves HTTP on a port of localhost, and a client of it. `answer` answers every request.
pub(crate) async fn fake_server(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> kube::Client {
    crate::install_crypto_provider();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let answer = std::sync::Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move { serve(stream, &*answer).await });
        }
    });
    kube::Client::try_from(kube::Config::new(url.parse().expect("an address"))).expect("a client")
}

/// One request (without a body) and its answer, which ends with the connection.
async fn serve(mut stream: tokio::net::TcpStream, answer: &(dyn Fn(&Seen) -> Reply + Send + Sync)) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let reply = answer(&Seen { method: method.into(), path: path.into(), query: query.into(), body: Value::Null });
    let mut text = format!("HTTP/1.1 {} Answer\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n", reply.code);
    for line in &reply.lines {
        text.push_str(&line.to_string());
        text.push('\n');
    }
    stream.write_all(text.as_bytes()).await?;
    if reply.open {
        // Until the client goes.
        let _ = stream.read_u8().await;
    }
    Ok(())
}
