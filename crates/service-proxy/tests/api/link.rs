//! A connection between client and API server that can be cut, stalled, and ended in the middle of a list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use apiserver::{Body, InProcess};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use tokio::sync::{broadcast, watch};
use tower::Service as _;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// An answer on its way to the client.
type Carried = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

pub struct Link {
    /// Absent: nobody answers.
    to: Mutex<Option<InProcess>>,
    cut: watch::Sender<u64>,
    held: watch::Sender<bool>,
    whispers: broadcast::Sender<(String, Bytes)>,
    asked: Mutex<Vec<String>>,
    breaks_lists: AtomicBool,
    refuses_streams: AtomicBool,
}

impl Link {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            to: Mutex::default(),
            cut: watch::Sender::new(0),
            held: watch::Sender::new(false),
            whispers: broadcast::Sender::new(16),
            asked: Mutex::default(),
            breaks_lists: AtomicBool::new(false),
            refuses_streams: AtomicBool::new(false),
        })
    }

    /// A client whose requests come this way.
    pub fn client(self: &Arc<Self>) -> Client {
        let link = self.clone();
        Client::new(tower::service_fn(move |request| link.clone().carry(request)), "default")
    }

    /// Leads to that server from now on, or to nobody. What was under way ends.
    pub fn lead(&self, to: Option<InProcess>) {
        *self.to.lock().unwrap() = to;
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Answers stand still, or go on.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Streamed lists end after their first object, or are whole again.
    pub fn break_lists(&self, broken: bool) {
        self.breaks_lists.store(broken, Ordering::Relaxed);
    }

    /// The server knows no streamed lists.
    pub fn refuse_streams(&self) {
        self.refuses_streams.store(true, Ordering::Relaxed);
    }

    /// Puts a line into running watches of `path`.
    pub fn whisper(&self, path: &str, line: &serde_json::Value) {
        self.whispers.send((path.to_owned(), Bytes::from(format!("{line}\n")))).unwrap();
    }

    /// How often something was asked for at `path` with `text` in its query.
    pub fn asked(&self, path: &str, text: &str) -> usize {
        let is = |line: &&String| line.split_once('?').is_some_and(|(at, query)| at == path && query.contains(text));
        self.asked.lock().unwrap().iter().filter(is).count()
    }

    async fn carry(self: Arc<Self>, request: Request<kube::client::Body>) -> Result<Response<Carried>, BoxError> {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        self.asked.lock().unwrap().push(format!("{path}?{query}"));
        let to = self.to.lock().unwrap().clone();
        let Some(mut server) = to else { return Err("connection refused".into()) };
        let list = query.contains("sendInitialEvents=true");
        if list && self.refuses_streams.load(Ordering::Relaxed) {
            let status = serde_json::json!({"kind": "Status", "status": "Failure", "message": "sendInitialEvents is forbidden", "reason": "Invalid", "code": 422});
            let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
            return Ok(Response::builder().status(StatusCode::UNPROCESSABLE_ENTITY).body(body)?);
        }
        let broken = list && self.breaks_lists.load(Ordering::Relaxed);
        let (parts, body) = server.call(request).await.unwrap_or_else(|never| match never {}).into_parts();
        let lines = Lines { body, path, broken, cut: self.cut.subscribe(), held: self.held.subscribe(), whispers: self.whispers.subscribe() };
        let stream = futures::stream::unfold(Some(lines), |lines| async move {
            let mut lines = lines?;
            let next = lines.next().await?;
            let go_on = next.is_ok() && !lines.broken;
            Some((next.map(Frame::data), go_on.then_some(lines)))
        });
        Ok(Response::from_parts(parts, BodyExt::boxed_unsync(StreamBody::new(stream))))
    }
}

/// One answer.
struct Lines {
    body: Body,
    path: String,
    broken: bool,
    cut: watch::Receiver<u64>,
    held: watch::Receiver<bool>,
    whispers: broadcast::Receiver<(String, Bytes)>,
}

impl Lines {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            let held = *self.held.borrow_and_update();
            tokio::select! {
                biased;
                _ = self.cut.changed() => return Some(Err("connection reset by peer".into())),
                _ = self.held.changed() => {}
                Ok((path, line)) = self.whispers.recv() => if path == self.path { return Some(Ok(line)) },
                frame = self.body.frame(), if !held => {
                    let data = match frame? {
                        Ok(frame) => frame.into_data().unwrap_or_default(),
                        Err(error) => return Some(Err(error)),
                    };
                    let first = data.iter().position(|byte| *byte == b'\n').map_or(data.len(), |at| at + 1);
                    return Some(Ok(if self.broken { data.slice(..first) } else { data }));
                }
            }
        }
    }
}
