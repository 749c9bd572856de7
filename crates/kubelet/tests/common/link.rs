//! What lies between the agent and the API server: it answers some requests itself, as servers of other ages and settings do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use apiserver::InProcess;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Value, json};
use tower::Service as _;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Default)]
pub struct Link {
    /// The last part of the path whose lists and watches are refused.
    refused: Mutex<Vec<String>>,
    /// The line that answers a streamed list, within the watch.
    streams: Mutex<Option<Value>>,
    /// Nothing answers.
    down: AtomicBool,
}

impl Link {
    /// Lists and watches of these resources, such as `pods`, are forbidden; no others are any longer.
    pub fn forbid(&self, resources: &[&str]) {
        *self.refused.lock().unwrap() = resources.iter().map(|resource| (*resource).to_owned()).collect();
    }

    /// Streamed lists end with this error, as on an etcd that is too old for them.
    pub fn answer_streams(&self, code: u16, message: &str) {
        let status = json!({"kind": "Status", "status": "Failure", "reason": "InternalError", "code": code, "message": message});
        *self.streams.lock().unwrap() = Some(json!({"type": "ERROR", "object": status}));
    }

    /// Whether no request arrives.
    pub fn cut(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// A client whose requests come this way.
    pub fn client(self: &Arc<Self>, server: InProcess) -> kube::Client {
        let link = self.clone();
        kube::Client::new(tower::service_fn(move |request| link.clone().carry(server.clone(), request)), "default")
    }

    async fn carry(self: Arc<Self>, mut server: InProcess, request: Request<Body>) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError> {
        if self.down.load(Ordering::Relaxed) {
            return Err("connection refused".into());
        }
        if let Some((code, answer)) = self.answer(request.uri()) {
            let body = Full::new(Bytes::from(format!("{answer}\n"))).map_err(|never| match never {}).boxed_unsync();
            return Ok(Response::builder().status(code).body(body)?);
        }
        let answer = server.call(request).await.unwrap_or_else(|never| match never {});
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    fn answer(&self, uri: &http::Uri) -> Option<(u16, Value)> {
        let query = uri.query().unwrap_or_default();
        let resource = uri.path().rsplit('/').next().unwrap_or_default();
        if self.refused.lock().unwrap().iter().any(|refused| refused == resource) {
            let message = format!("{resource} is forbidden: User \"system:node:win01\" cannot list resource {resource:?}");
            return Some((403, json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message})));
        }
        let streams = self.streams.lock().unwrap().clone();
        streams.filter(|_| query.contains("sendInitialEvents=true")).map(|line| (200, line))
    }
}
