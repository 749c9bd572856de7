//! Logs of the node (upstream pkg/kubelet/kubelet_server_journal.go): files below /var/log, and what services log to the system.
//!
//! Nothing is started for it, neither journalctl nor PowerShell. Files are opened beneath a handle and through no link: whoever may write to
//! /var/log, such as a pod with a hostPath, leads nobody to other files.

#[cfg(any(windows, test))]
mod events;
mod files;
#[cfg(unix)]
pub(crate) mod journal;
mod native;
mod query;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use host::{HostRoot, PodPath};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::server::{Body, text};
use files::Found;
use query::Query;

/// Where logs are, in the node's form.
const DIRECTORY: &str = "/var/log";
/// How long a query may take (upstream: 30 s).
const LIMIT: Duration = Duration::from_secs(30);

/// Which logs are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemLogs {
    /// Files and directories (`enableSystemLogHandler`).
    pub files: bool,
    /// Queries for services too (`enableSystemLogQuery`).
    pub queries: bool,
}

/// Answers a request below `/logs/`.
pub(crate) async fn serve(root: &Arc<HostRoot>, settings: SystemLogs, path: &str, query: &str) -> Response<Body> {
    if !settings.files {
        return text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n");
    }
    let path = &*percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let Ok(directory) = root.parse(DIRECTORY) else { return text(StatusCode::NOT_FOUND, "404 page not found\n") };
    if !settings.queries {
        return file(root, &directory, path).await;
    }
    let query = match Query::parse(query) {
        Ok(query) => query,
        Err(errors) => return text(StatusCode::BAD_REQUEST, format!("{errors}\n")),
    };
    let Some(query) = query else { return file(root, &directory, path).await };
    if let Err(errors) = query.validate(root, &directory) {
        return text(StatusCode::NOT_ACCEPTABLE, format!("{errors}\n"));
    }
    match query.files.first() {
        Some(name) => file(root, &directory, &name.replace('\\', "/")).await,
        None => services(root.clone(), directory, query),
    }
}

/// One file or directory.
async fn file(root: &Arc<HostRoot>, directory: &PodPath, path: &str) -> Response<Body> {
    let (root, directory, path) = (root.clone(), directory.clone(), path.to_owned());
    let found = tokio::task::spawn_blocking(move || files::find(&root, &directory, &path)).await;
    match found.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
        Found::File { file, kind } => {
            let (sender, answer) = stream(kind);
            tokio::task::spawn_blocking(move || {
                if let Err(error) = files::copy(file, &sender) {
                    tracing::debug!(%error, "sending a log of the node ended early");
                }
            });
            answer
        }
        Found::Listing(page) => {
            let mut answer = text(StatusCode::OK, page);
            answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/html; charset=utf-8"));
            answer
        }
        Found::Moved(place) => {
            let mut answer = text(StatusCode::MOVED_PERMANENTLY, "");
            if let Ok(place) = http::HeaderValue::from_str(&place) {
                answer.headers_mut().insert(http::header::LOCATION, place);
            }
            answer
        }
        Found::Missing => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        Found::Denied => text(StatusCode::FORBIDDEN, "403 Forbidden\n"),
    }
}

/// An answer that is sent piece by piece.
fn stream(kind: &'static str) -> (mpsc::Sender<Bytes>, Response<Body>) {
    let (sender, receiver) = mpsc::channel::<Bytes>(8);
    let frames = ReceiverStream::new(receiver).map(|bytes| Ok(Frame::data(bytes)));
    let mut answer = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    (sender, answer)
}

/// What services logged: to the system, or else into files of their own.
fn services(root: Arc<HostRoot>, directory: PodPath, query: Query) -> Response<Body> {
    let (sender, answer) = stream("text/plain;charset=UTF-8");
    tokio::task::spawn_blocking(move || {
        let until = std::time::Instant::now() + LIMIT;
        let say = |line: String| drop(sender.blocking_send(Bytes::from(line)));
        let (native, others): (Vec<String>, Vec<String>) = query.services.iter().cloned().partition(|service| native::logs(&root, service));
        if !native.is_empty() {
            let mut send = |line: &str| sender.blocking_send(Bytes::from(format!("{line}\n"))).is_ok() && std::time::Instant::now() < until;
            if let Err(error) = native::copy(&root, &native, &query, &mut send) {
                say(format!("\nerror: journal output not available: {error}\n"));
            }
        }
        if others.is_empty() {
            return;
        }
        if query.has_options() {
            say(format!("\noptions present and query resolved to log files for [{}]\ntry without specifying options\n", others.join(" ")));
            return;
        }
        for service in &others {
            match files::of_service(&root, &directory, service) {
                Ok(Some(file)) => {
                    if files::copy(file, &sender).is_err() {
                        return;
                    }
                }
                Ok(None) => say(format!("\nlog not found for {service}\n")),
                Err(error) => say(format!("\nerror getting log for {service}: {error}\n")),
            }
        }
    });
    answer
}
