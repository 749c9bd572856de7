//! Health check servers at `healthCheckNodePort`: load balancers learn whether this node serves a Service.
//!
//! The answer is upstream's: 200 while at least one ready endpoint is here and the proxy does its work, else 503; the number of
//! endpoints as weight. A changed number reaches the next question; a listener stays while its port does.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cluster::Key;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use listen::Limits;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::table::HealthCheck;

/// Whether the proxy does its work.
pub type Healthy = Arc<dyn Fn() -> bool + Send + Sync>;

/// Connections to the port of one Service: a load balancer asks from few addresses.
const LIMITS: Limits = Limits { first_request: Duration::from_secs(5), ..Limits::new(128, 64) };

/// The servers of all Services.
pub struct HealthServers {
    healthy: Healthy,
    running: BTreeMap<Key, Server>,
}

struct Server {
    port: u16,
    endpoints: Arc<AtomicUsize>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl HealthServers {
    /// Nobody listens yet. `healthy` is asked for each answer.
    pub fn new(healthy: Healthy) -> Self {
        Self { healthy, running: BTreeMap::new() }
    }

    /// Has exactly `checks` answered, on every address of this host. Returns the Services whose port cannot be listened on, with
    /// the reason; they are tried again with the next call. Must be called within a tokio runtime.
    pub fn sync<'a>(&mut self, checks: impl IntoIterator<Item = (&'a Key, HealthCheck)>) -> Vec<(Key, String)> {
        let checks: BTreeMap<&Key, HealthCheck> = checks.into_iter().collect();
        // Old servers free their ports for new ones.
        self.running.retain(|service, server| checks.get(service).is_some_and(|check| check.port == server.port));
        let mut failures = Vec::new();
        for (service, check) in checks {
            match self.running.get(service) {
                Some(server) => server.endpoints.store(check.endpoints, Ordering::Relaxed),
                None => match self.start(service, check) {
                    Ok(server) => drop(self.running.insert(service.clone(), server)),
                    Err(error) => {
                        let reason = format!("load balancers cannot ask for the health of {service} at port {}: {error}", check.port);
                        failures.push((service.clone(), reason));
                    }
                },
            }
        }
        failures
    }

    fn start(&self, service: &Key, check: HealthCheck) -> io::Result<Server> {
        let endpoints = Arc::new(AtomicUsize::new(check.endpoints));
        let listeners = bind(check.port)?;
        let serve = |listener| tokio::spawn(serve(listener, service.clone(), endpoints.clone(), self.healthy.clone())).abort_handle();
        let tasks = listeners.into_iter().map(serve).collect();
        Ok(Server { port: check.port, endpoints, tasks })
    }
}

/// On every address of both IP versions; a host without IPv6 has those of IPv4.
fn bind(port: u16) -> io::Result<Vec<TcpListener>> {
    let at = |ip: IpAddr| {
        let listener = std::net::TcpListener::bind(SocketAddr::new(ip, port))?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    if cfg!(windows) {
        // There a socket of IPv6 hears nothing of IPv4.
        return Ok([Some(at(v4)?), at(v6).ok()].into_iter().flatten().collect());
    }
    match at(v6) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => Ok(vec![at(v4)?]),
        both => Ok(vec![both?]),
    }
}

async fn serve(listener: TcpListener, service: Key, endpoints: Arc<AtomicUsize>, healthy: Healthy) {
    let service = move |_| {
        let response = answer(&service, endpoints.load(Ordering::Relaxed), healthy());
        async move { response }
    };
    match listen::serve_http(listener, LIMITS, service).await {}
}

/// As upstream writes it, for whatever is asked.
fn answer(service: &Key, endpoints: usize, healthy: bool) -> Response<Full<Bytes>> {
    let status = if endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}",
        service.ns, service.name
    );
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    headers.insert("X-Load-Balancing-Endpoint-Weight", header::HeaderValue::from(endpoints));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn ask(port: u16) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.write_all(b"GET /any HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn free_port() -> u16 {
        std::net::TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port()
    }

    fn status(port: u16) -> Option<u16> {
        ask(port)?.split(' ').nth(1)?.parse().ok()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn health_check_response_matches_upstream() {
        let well = Arc::new(AtomicBool::new(true));
        let asked = well.clone();
        let mut servers = HealthServers::new(Arc::new(move || asked.load(Ordering::Relaxed)));
        let (web, port) = (Key::new("default", "web"), free_port());
        let check = |port: u16, endpoints: usize| [(&web, HealthCheck { port, endpoints })];
        assert_eq!(servers.sync(check(port, 2)), []);
        let text = ask(port).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut head: Vec<String> = head.lines().map(str::to_lowercase).filter(|line| !line.starts_with("date:")).collect();
        head[1..].sort();
        let expected = [
            "http/1.1 200 ok",
            "connection: close",
            "content-length: 114",
            "content-type: application/json",
            "x-content-type-options: nosniff",
            "x-load-balancing-endpoint-weight: 2",
        ];
        assert_eq!(head, expected);
        assert_eq!(
            body,
            "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
        );
        serde_json::from_str::<serde_json::Value>(body).unwrap();
        well.store(false, Ordering::Relaxed);
        assert!(ask(port).unwrap().contains("503") && ask(port).unwrap().contains("\"serviceProxyHealthy\": false"));
        well.store(true, Ordering::Relaxed);
        servers.sync(check(port, 0));
        assert_eq!(status(port), Some(503));
        servers.sync(check(port, 1));
        assert_eq!(status(port), Some(200));
        // The port is another one, then it is taken, then free again.
        let taken = std::net::TcpListener::bind("[::]:0").unwrap();
        let other = taken.local_addr().unwrap().port();
        let failures = servers.sync(check(other, 1));
        assert!(failures[0].1.starts_with(&format!("load balancers cannot ask for the health of default/web at port {other}: ")), "{failures:?}");
        drop(taken);
        assert_eq!(servers.sync(check(other, 1)), []);
        assert_eq!(status(other), Some(200));
        servers.sync([]);
        while status(other).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
