//! HTTP probes and hooks of the agent, against a server of the test.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::ready_world;

/// Paths and user agents of the requests so far; of a request that is not HTTP they mean nothing.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// Serves `/to/PLACE` as a redirect to PLACE, `/round` as one to itself, `/well` as healthy, and else 404.
async fn server() -> (u16, Seen) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Seen::default();
    let noted = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 2048];
            let n = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..n]).to_lowercase();
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            let agent = request.lines().find_map(|line| line.strip_prefix("user-agent: ")).unwrap_or_default().to_owned();
            let head = match path.as_str() {
                "/well" => "200 OK".to_owned(),
                "/round" => "302 Found\r\nLocation: /round".to_owned(),
                path => path.strip_prefix("/to/").map_or("404 Not Found".into(), |place| format!("302 Found\r\nLocation: {place}")),
            };
            noted.lock().unwrap().push((path, agent));
            let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody").as_bytes()).await;
        }
    });
    (port, seen)
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_alone() {
    let world = ready_world().await;
    let (port, seen) = server().await;
    for (name, path) in [("same", "/to//well"), ("lost", "/to//nothing"), ("round", "/round"), ("away", "/to/http://0.0.0.0/well")] {
        let probe = json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": path}, "periodSeconds": 1, "timeoutSeconds": 60});
        world.pod(name, json!({"containers": [{"name": "c", "image": "serve:1", "readinessProbe": probe}]})).await;
    }
    world.until_running("same").await;
    world.until_running("away").await;
    for event in [
        "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 404".to_owned(),
        format!("Unhealthy: Readiness probe failed: Get \"http://127.0.0.1:{port}/round\": stopped after 10 redirects"),
        "ProbeWarning: Readiness probe warning: Probe terminated redirects, Response body: body".to_owned(),
    ] {
        world.eventually(&event, async || world.events().await.contains(&event)).await;
    }
    for name in ["lost", "round"] {
        assert_eq!(world.status(name).await["containerStatuses"][0]["ready"], false, "{name}");
    }
    let seen = seen.lock().unwrap();
    assert!(seen.iter().any(|(path, _)| path == "/well") && seen.iter().all(|(_, agent)| agent == "kube-probe/1.36"), "{seen:?}");
}

#[tokio::test]
async fn hook_over_http_takes_any_answer() {
    let world = ready_world().await;
    let (port, seen) = server().await;
    let hook = json!({"postStart": {"httpGet": {"host": "127.0.0.1", "port": port, "path": "/nothing"}}});
    world.pod("web", json!({"containers": [{"name": "c", "image": "serve:1", "lifecycle": hook}]})).await;
    world.until_running("web").await;
    assert_eq!(*seen.lock().unwrap(), [("/nothing".to_owned(), "kube-lifecycle/1.36".to_owned())]);
}

#[tokio::test]
async fn a_hook_over_https_is_run_over_http_where_the_server_knows_nothing_else() {
    let world = ready_world().await;
    let (port, seen) = server().await;
    let hook = json!({"postStart": {"httpGet": {"host": "127.0.0.1", "port": port, "path": "/nothing", "scheme": "HTTPS"}}});
    world.pod("web", json!({"containers": [{"name": "c", "image": "serve:1", "lifecycle": hook}]})).await;
    world.until_running("web").await;
    let event = format!("LifecycleHTTPFallback: request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded");
    world.until_event(&event).await;
    assert_eq!(seen.lock().unwrap().last(), Some(&("/nothing".to_owned(), "kube-lifecycle/1.36".to_owned())));
    assert_eq!(seen.lock().unwrap().len(), 2, "the first one was TLS");
    let probe = json!({"httpGet": {"host": "127.0.0.1", "port": port, "scheme": "HTTPS"}, "periodSeconds": 1});
    world.pod("probed", json!({"containers": [{"name": "c", "image": "serve:1", "readinessProbe": probe}]})).await;
    let event = format!("Unhealthy: Readiness probe failed: Get \"https://127.0.0.1:{port}/\": http: server gave HTTP response to HTTPS client");
    world.until_event(&event).await;
}
