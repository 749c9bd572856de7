//! An API server in the program's own process, asked as an administrator, and what holds for each of its answers. Writes are dry runs: what an
//! input does, does not depend on those before it.

use std::sync::OnceLock;

use apiserver::{Identity, InProcess, Server};
use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use test_lab::server::Keys;
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// What runs as long as the program.
struct Master {
    runtime: Runtime,
    service: InProcess,
    _server: Server,
    _dir: tempfile::TempDir,
}

const MISFIT: &[u8] = b"\"message\":\"failed to create typed patch object";

fn master() -> &'static Master {
    static MASTER: OnceLock<Master> = OnceLock::new();
    MASTER.get_or_init(|| {
        let runtime = Runtime::new().expect("a runtime");
        let dir = tempfile::tempdir().expect("a directory");
        let config = Keys::new().config(dir.path().join("store"));
        let server = runtime.block_on(apiserver::start(config)).expect("a server");
        let service = server.in_process(Identity { user: "admin".into(), groups: vec!["system:masters".into()] });
        Master { runtime, service, _server: server, _dir: dir }
    })
}

/// Sends a request, and requires an answer that is no internal error: a failure is a Status with the answer's code.
pub fn ask(method: &str, target: &str, content_type: &str, body: &[u8]) {
    let Ok(method) = method.parse::<Method>() else { return };
    let target = if method == Method::GET || method == Method::HEAD {
        target.to_owned()
    } else {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        format!("{path}?dryRun=All&{query}")
    };
    let Ok(uri) = target.parse::<Uri>() else { return };
    let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
    let Ok(request) = request.body(Full::new(Bytes::copy_from_slice(body))) else { return };
    let master = master();
    master.runtime.block_on(async {
        let Ok(answer) = master.service.clone().oneshot(request).await;
        let code = answer.status().as_u16();
        // What succeeds may be a stream without an end.
        if code < 400 {
            return;
        }
        let json = answer.headers().get("content-type").is_some_and(|value| value == "application/json");
        let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
        // Upstream answers so when an applied configuration does not fit the schema (structuredmerge.go wraps no status).
        let misfit = bytes.windows(MISFIT.len()).any(|part| part == MISFIT);
        assert!(code != 500 || misfit, "{target}: {}", String::from_utf8_lossy(&bytes));
        if json {
            let status: Value = serde_json::from_slice(&bytes).expect("JSON");
            assert_eq!((&status["kind"], &status["code"]), (&Value::from("Status"), &Value::from(code)), "{target}");
        }
    });
}
