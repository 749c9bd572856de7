//! What the proxy tells over HTTP: metrics and mode on :10249, health on :10256, with upstream's meaning.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use service_proxy::{Metrics, Status};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the answers are made of.
pub struct Told {
    /// How far the proxy is.
    pub status: watch::Receiver<Status>,
    /// What it measured.
    pub metrics: Metrics,
    /// Which backend works.
    pub mode: &'static str,
    /// A change that waits for twice as long is a sign of ill health.
    pub sync_period: Duration,
    /// The configuration, as JSON.
    pub config: serde_json::Value,
    /// Answers of /healthz and /livez so far: good and bad of each.
    pub asked: [AtomicU64; 4],
}

/// What is served at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Metrics, mode, configuration.
    Metrics,
    /// Health.
    Health,
}

/// An answer: status, type and text.
type Answer = (StatusCode, &'static str, String);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

fn time(at: Option<SystemTime>) -> String {
    let at = at.unwrap_or(SystemTime::UNIX_EPOCH);
    jiff::Timestamp::try_from(at).map_or_else(|error| error.to_string(), |at| at.to_string())
}

impl Told {
    /// The answer to a path.
    pub fn answer(&self, site: Site, path: &str) -> Answer {
        match (site, path) {
            (Site::Metrics, "/metrics") => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", self.metrics()),
            (Site::Metrics, "/proxyMode") => (StatusCode::OK, TEXT, self.mode.to_owned()),
            (Site::Metrics, "/configz") => (StatusCode::OK, JSON, serde_json::json!({"kubeproxy.config.k8s.io": self.config}).to_string()),
            (Site::Metrics, "/healthz") => (StatusCode::OK, TEXT, "ok".to_owned()),
            (Site::Metrics, "/readyz") => self.readiness(),
            (Site::Health, "/healthz") => self.health(0),
            (Site::Health, "/livez") => self.health(2),
            _ => (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
        }
    }

    /// Upstream's health: a change waits for too long. `/healthz` also says whether load balancers should send anything new here.
    fn health(&self, first: usize) -> Answer {
        let status = self.status.borrow();
        let healthy = status.is_healthy(self.sync_period);
        let good = healthy && (first != 0 || !status.node_leaving);
        self.asked[first + usize::from(!good)].fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now();
        // Nothing waits: everything is as of now.
        let updated = if status.is_converged() { Some(now) } else { self.metrics.last_synced() };
        let eligible = !status.node_leaving;
        let text = format!("{{\"lastUpdated\": {:?},\"currentTime\": {:?}, \"nodeEligible\": {eligible}}}", time(updated), time(Some(now)));
        (if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, text)
    }

    /// Whether the proxy did what it could: every VIP was tried. One that the host refuses for good is told here, by metric and by
    /// event, and does not make the node one that is not ready.
    fn readiness(&self) -> Answer {
        let status = self.status.borrow();
        let ready = status.is_ready();
        let text = serde_json::json!({
            "ready": ready,
            "converged": status.is_converged(),
            "desired": status.vips,
            "missing": status.missing(),
            "failing": status.progress.failing.len(),
            "etaSeconds": status.eta.map(|eta| eta.as_secs_f64()),
            "unavailable": status.progress.unavailable,
        });
        (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, text.to_string())
    }

    fn metrics(&self) -> String {
        let mut text = self.metrics.render(&self.status.borrow());
        for (name, first) in [("kubeproxy_proxy_healthz_total", 0), ("kubeproxy_proxy_livez_total", 2)] {
            text.push_str(&format!("# HELP {name} Questions for health, by answer\n# TYPE {name} counter\n"));
            for (code, index) in [(200, first), (503, first + 1)] {
                text.push_str(&format!("{name}{{code=\"{code}\"}} {}\n", self.asked[index].load(Ordering::Relaxed)));
            }
        }
        text
    }
}

/// Listens at `at` and answers until the program ends.
pub async fn serve(at: SocketAddr, site: Site, told: Arc<Told>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}: end what does, or choose another address"))?;
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let told = told.clone();
            let reply = service_fn(move |request: Request<Incoming>| {
                let (status, kind, text) = told.answer(site, request.uri().path());
                let mut response = Response::new(Full::new(Bytes::from(text)));
                *response.status_mut() = status;
                response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
                response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
                async move { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(async move {
                // Who asks wrongly or goes away hears nothing; there is nobody else to tell.
                let _ =
                    http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(PATIENCE).serve_connection(TokioIo::new(stream), reply).await;
            });
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use service_proxy::{Protocol, VipAddress, VipKey};
    use tokio::time::Instant;

    use super::*;

    fn told(status: Status) -> Told {
        let status = watch::Sender::new(status).subscribe();
        let config = serde_json::json!({"mode": "kernelspace"});
        Told { status, metrics: Metrics::default(), mode: "kernelspace", sync_period: Duration::from_secs(30), config, asked: Default::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn health_means_what_upstream_means() {
        let busy = Status { stuck_since: Some(Instant::now()), ..Status::default() };
        let codes = |told: &Told| ["/healthz", "/livez"].map(|path| told.answer(Site::Health, path).0.as_u16());
        let waits = told(busy);
        assert_eq!(codes(&waits), [200, 200], "a change may wait for a while");
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(codes(&waits), [503, 503]);
        let leaving = told(Status { node_leaving: true, ..Status::default() });
        assert_eq!(codes(&leaving), [503, 200], "a node that leaves takes no new load, and is alive");
        assert!(leaving.answer(Site::Health, "/healthz").2.contains("\"nodeEligible\": false"));
        let metrics = leaving.answer(Site::Metrics, "/metrics").2;
        assert!(
            metrics.contains("kubeproxy_proxy_healthz_total{code=\"503\"} 2\n") && metrics.contains("kubeproxy_proxy_livez_total{code=\"200\"} 1\n")
        );
    }

    #[test]
    fn each_site_has_its_own_paths() {
        let ready = told(Status { ready: true, ..Status::default() });
        let code = |told: &Told, site, path| told.answer(site, path).0.as_u16();
        assert_eq!(ready.answer(Site::Metrics, "/proxyMode").2, "kernelspace");
        assert_eq!(
            [code(&ready, Site::Metrics, "/readyz"), code(&ready, Site::Metrics, "/configz"), code(&ready, Site::Metrics, "/healthz")],
            [200; 3]
        );
        assert_eq!([code(&ready, Site::Health, "/metrics"), code(&ready, Site::Metrics, "/livez")], [404; 2]);
        let mut behind = Status { vips: 10, eta: Some(Duration::from_secs(7)), ..Status::default() };
        behind.progress.pending = 4;
        let (code, _, text) = told(behind).answer(Site::Metrics, "/readyz");
        assert_eq!(code, 503);
        assert!(text.contains("\"missing\":4") && text.contains("\"etaSeconds\":7.0"), "{text}");
        // One is refused for good: the others are served, and the node is ready.
        let mut refused = Status { ready: true, vips: 10, ..Status::default() };
        let key = VipKey { address: VipAddress::Ip([10, 96, 0, 9].into()), protocol: Protocol::Tcp, port: 80 };
        refused.progress.failing.insert(key, "the port is taken".into());
        let (code, _, text) = told(refused.clone()).answer(Site::Metrics, "/readyz");
        assert!(code == 200 && text.contains("\"converged\":false") && text.contains("\"failing\":1"), "{text}");
        refused.progress.unavailable = Some("the service is away".into());
        assert_eq!(told(refused).answer(Site::Metrics, "/readyz").0, 503);
    }
}
