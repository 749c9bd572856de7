//! Fake API servers: one closure answers every request, or a test writes the watches line by line.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A request, as a test sees it.
pub struct Seen {
    /// GET, POST, …
    pub method: String,
    /// Without the query.
    pub path: String,
    /// Empty where there is none.
    pub query: String,
    /// Null where it is no JSON.
    pub body: Value,
}

/// A test's answer: a status code, and the lines of its body.
pub struct Reply {
    code: u16,
    lines: Vec<Value>,
    rest: Rest,
}

/// What comes after the lines that are there.
enum Rest {
    End,
    /// Nothing, and no end.
    Silence,
    /// What a test sends.
    Lines(mpsc::UnboundedReceiver<Value>),
}

impl Reply {
    /// One object.
    pub fn json(code: u16, body: Value) -> Self {
        Self { code, lines: vec![body], rest: Rest::End }
    }

    /// A failure.
    pub fn status(code: u16, message: &str) -> Self {
        Self::json(code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "", "code": code}))
    }

    /// A watch's answer; `open` keeps it open after the last line.
    pub fn watch(lines: Vec<Value>, open: bool) -> Self {
        Self { code: 200, lines, rest: if open { Rest::Silence } else { Rest::End } }
    }

    /// A watch whose lines the test sends; it ends with their sender.
    pub fn live(lines: mpsc::UnboundedReceiver<Value>) -> Self {
        Self { code: 200, lines: Vec::new(), rest: Rest::Lines(lines) }
    }
}

/// A client whose requests `answer` answers.
pub fn fake_client(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> kube::Client {
    let answer = Arc::new(answer);
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
        text.extend(format!("{line}\n").into_bytes());
    }
    let text = (!text.is_empty()).then(|| text.into());
    Response::builder().status(reply.code).body(Lines { text, rest: reply.rest }).expect("a response")
}

struct Lines {
    text: Option<Bytes>,
    rest: Rest,
}

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(bytes) = self.text.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match &mut self.rest {
            Rest::End => Poll::Ready(None),
            Rest::Silence => Poll::Pending,
            Rest::Lines(lines) => lines.poll_recv(context).map(|line| Some(Ok(Frame::data(format!("{}\n", line?).into())))),
        }
    }
}

/// A fake API server that listens on a port of localhost and speaks HTTP, and a client of it. `answer` answers every request.
pub async fn fake_server(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> kube::Client {
    // An error says only that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let answer = Arc::new(answer);
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
    match reply.rest {
        Rest::End => {}
        // Until the client goes.
        Rest::Silence => drop(stream.read_u8().await),
        Rest::Lines(mut lines) => {
            while let Some(line) = lines.recv().await {
                stream.write_all(format!("{line}\n").as_bytes()).await?;
            }
        }
    }
    Ok(())
}

/// A line of a watch.
pub fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

/// The line that ends a streamed list.
pub fn end_of_list(api_version: &str, kind: &str, resource_version: &str) -> Value {
    let metadata = json!({"resourceVersion": resource_version, "annotations": {"k8s.io/initial-events-end": "true"}});
    event("BOOKMARK", json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
}

/// A kind that a [`ScriptedApi`] has: its path, `apiVersion` and `kind`.
pub type Kind = (&'static str, &'static str, &'static str);

/// An API whose watches have the lines that a test sends. Objects that are written come back as they are.
pub struct ScriptedApi {
    kinds: &'static [Kind],
    watches: HashMap<&'static str, mpsc::UnboundedSender<Value>>,
    /// A client of it.
    pub client: kube::Client,
    /// The bodies of all POST, PUT and PATCH requests.
    pub writes: mpsc::UnboundedReceiver<Value>,
}

impl ScriptedApi {
    /// With one watch of each kind; a watch that is asked for again stays silent.
    pub fn new(kinds: &'static [Kind]) -> Self {
        Self::with(kinds, |_| None)
    }

    /// The same, with answers of the test's own to some of the requests that write nothing.
    pub fn with(kinds: &'static [Kind], answer: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let (watches, lines): (HashMap<_, _>, HashMap<_, _>) = kinds
            .iter()
            .map(|(path, ..)| {
                let (sender, lines) = mpsc::unbounded_channel();
                ((*path, sender), (*path, lines))
            })
            .unzip();
        let lines = Mutex::new(lines);
        let (written, writes) = mpsc::unbounded_channel();
        let client = fake_client(move |request| {
            if request.method != "GET" {
                // A test that reads no writes is fine.
                let _ = written.send(request.body.clone());
                return Reply::json(201, request.body.clone());
            }
            if let Some(reply) = answer(request) {
                return reply;
            }
            let lines = lines.lock().expect("no test panics here").remove(request.path.as_str());
            lines.map_or_else(|| Reply::watch(Vec::new(), true), Reply::live)
        });
        Self { kinds, watches, client, writes }
    }

    /// Sends a line of the watch of that path.
    pub fn send(&self, path: &str, kind: &str, object: Value) {
        self.watches[path].send(event(kind, object)).expect("the watch is open");
    }

    /// Ends the streamed list of each kind.
    pub fn listed(&self) {
        for (path, api_version, kind) in self.kinds {
            self.watches[path].send(end_of_list(api_version, kind, "1")).expect("the watch is open");
        }
    }
}
