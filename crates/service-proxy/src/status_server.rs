//! Health and metrics server: metrics, mode and configuration on :10249, health on :10256, with upstream's meaning.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exposition::Format;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use listen::Limits;
use node_config::KubeProxyConfiguration;
use node_config::kube_proxy::{HEALTHZ_PORT, METRICS_PORT};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::options::Mode;
use crate::run::Status;

/// Connections to one address.
const LIMITS: Limits = Limits { first_request: Duration::from_secs(10), ..Limits::new(256, 128) };

/// The server of the proxy's status.
pub struct StatusServer {
    /// Progress of the proxy.
    pub status: watch::Receiver<Status>,
    /// What is measured.
    pub metrics: Metrics,
    /// Which backend works.
    mode: Mode,
    /// The configuration in effect.
    config: KubeProxyConfiguration,
}

/// A port that the proxy cannot listen on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at}: end what does, or choose another address")]
pub struct ListenError {
    at: SocketAddr,
    source: std::io::Error,
}

/// Which server an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// Metrics, mode, configuration.
    Metrics,
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

impl StatusServer {
    /// The server of a proxy that works as `config` says, which is the configuration in effect.
    pub fn new(config: KubeProxyConfiguration, mode: Mode, status: watch::Receiver<Status>) -> Arc<Self> {
        let metrics = Metrics::default();
        metrics.report(status.clone());
        Arc::new(Self { status, metrics, mode, config })
    }

    /// Serves at the addresses of the configuration until the program ends. A port that cannot be listened on is an error with
    /// `bindAddressHardFail`, else a warning.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn serve(self: &Arc<Self>) -> Result<(), ListenError> {
        let sites = [
            (Site::Metrics, self.config.metrics_bind_address.socket(METRICS_PORT)),
            (Site::Health, self.config.healthz_bind_address.socket(HEALTHZ_PORT)),
        ];
        for (site, at) in sites {
            let Some(at) = at else { continue };
            match serve_at(at, site, self.clone()).await {
                Err(error) if !self.config.bind_address_hard_fail => tracing::warn!("{error}: {}", error.source),
                done => done?,
            }
        }
        Ok(())
    }

    /// The answer to a path; `format` is that of metrics.
    fn answer(&self, site: Site, path: &str, format: Format) -> Answer {
        match (site, path) {
            (Site::Metrics, "/metrics") => (StatusCode::OK, format.content_type(), self.metrics.encode(format)),
            (Site::Metrics, "/proxyMode") => (StatusCode::OK, TEXT, self.mode.as_str().to_owned()),
            (Site::Metrics, "/configz") => (StatusCode::OK, JSON, self.configz().to_string()),
            (Site::Metrics, "/healthz") => (StatusCode::OK, TEXT, "ok".to_owned()),
            (Site::Metrics, "/readyz") => self.readiness(),
            (Site::Health, "/healthz") => self.healthz(),
            (Site::Health, "/livez") => self.livez(),
            _ => (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
        }
    }

    fn configz(&self) -> serde_json::Value {
        serde_json::json!({"kubeproxy.config.k8s.io": node_config::document::to_document(&self.config)})
    }

    /// Upstream's health: no change waits for too long, and load balancers should send new connections here.
    fn healthz(&self) -> Answer {
        let answer = self.health(|status| !status.node_leaving);
        self.metrics.answered_healthz(answer.0.as_u16());
        answer
    }

    /// Upstream's liveness: no change waits for too long.
    fn livez(&self) -> Answer {
        let answer = self.health(|_| true);
        self.metrics.answered_livez(answer.0.as_u16());
        answer
    }

    fn health(&self, also: impl Fn(&Status) -> bool) -> Answer {
        let status = self.status.borrow();
        let good = status.is_healthy(self.config.sync_period.0) && also(&status);
        let now = SystemTime::now();
        // Nothing waits: everything is as of now.
        let updated = if status.is_converged() { Some(now) } else { self.metrics.last_synced() };
        let eligible = !status.node_leaving;
        let text = format!("{{\"lastUpdated\": {:?},\"currentTime\": {:?}, \"nodeEligible\": {eligible}}}", time(updated), time(Some(now)));
        (if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, text)
    }

    /// Whether the proxy did what it could: every VIP was tried. One that the host refuses for good is reported here, by metric and by
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
}

/// Listens at `at` and answers until the program ends.
async fn serve_at(at: SocketAddr, site: Site, server: Arc<StatusServer>) -> Result<(), ListenError> {
    let listener = TcpListener::bind(at).await.map_err(|source| ListenError { at, source })?;
    let service = move |request: Request<Incoming>| {
        let (status, kind, text) = server.answer(site, request.uri().path(), Format::accepted(request.headers()));
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
        async move { response }
    };
    tokio::spawn(listen::serve_http(listener, LIMITS, service));
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::table::{Protocol, VipAddress, VipKey};

    fn server(status: Status) -> Arc<StatusServer> {
        StatusServer::new(KubeProxyConfiguration::default(), Mode::Hns, watch::Sender::new(status).subscribe())
    }

    #[tokio::test(start_paused = true)]
    async fn health_means_what_upstreams_means() {
        let busy = Status { stuck_since: Some(Instant::now()), ..Status::default() };
        let codes = |server: &StatusServer| ["/healthz", "/livez"].map(|path| server.answer(Site::Health, path, Format::Text).0.as_u16());
        let waits = server(busy);
        assert_eq!(codes(&waits), [200, 200], "a change may wait for a while");
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(codes(&waits), [503, 503]);
        let leaving = server(Status { node_leaving: true, ..Status::default() });
        assert_eq!(codes(&leaving), [503, 200], "a node that leaves takes no new load, and is alive");
        assert!(leaving.answer(Site::Health, "/healthz", Format::Text).2.contains("\"nodeEligible\": false"));
        let metrics = leaving.answer(Site::Metrics, "/metrics", Format::Text).2;
        assert!(
            metrics.contains("kubeproxy_proxy_healthz_total{code=\"503\"} 2\n") && metrics.contains("kubeproxy_proxy_livez_total{code=\"200\"} 1\n")
        );
    }

    #[test]
    fn each_site_has_its_own_paths() {
        let ready = server(Status { ready: true, ..Status::default() });
        let code = |server: &StatusServer, site, path| server.answer(site, path, Format::Text).0.as_u16();
        assert_eq!(ready.answer(Site::Metrics, "/proxyMode", Format::Text).2, "kernelspace");
        assert_eq!(
            [code(&ready, Site::Metrics, "/readyz"), code(&ready, Site::Metrics, "/configz"), code(&ready, Site::Metrics, "/healthz")],
            [200; 3]
        );
        assert_eq!([code(&ready, Site::Health, "/metrics"), code(&ready, Site::Metrics, "/livez")], [404; 2]);
        let mut behind = Status { vips: 10, eta: Some(Duration::from_secs(7)), ..Status::default() };
        behind.progress.pending = 4;
        let (code, _, text) = server(behind).answer(Site::Metrics, "/readyz", Format::Text);
        assert_eq!(code, 503);
        assert!(text.contains("\"missing\":4") && text.contains("\"etaSeconds\":7.0"), "{text}");
        // One is refused for good: the others are served, and the node is ready.
        let mut refused = Status { ready: true, vips: 10, ..Status::default() };
        let key = VipKey { address: VipAddress::Ip([10, 96, 0, 9].into()), protocol: Protocol::Tcp, port: 80 };
        refused.progress.failing.insert(key, "the port is taken".into());
        let (code, _, text) = server(refused.clone()).answer(Site::Metrics, "/readyz", Format::Text);
        assert!(code == 200 && text.contains("\"converged\":false") && text.contains("\"failing\":1"), "{text}");
        refused.progress.unavailable = Some("the service is away".into());
        assert_eq!(server(refused).answer(Site::Metrics, "/readyz", Format::Text).0, 503);
    }

    #[test]
    fn configz_serves_the_configuration_in_effect() {
        let config = KubeProxyConfiguration { hostname_override: "win01".into(), ..KubeProxyConfiguration::default() };
        let config = crate::options::in_effect(config, Mode::Hns, Some("pods".into()));
        let served = StatusServer::new(config.clone(), Mode::Hns, watch::Sender::new(Status::default()).subscribe()).configz();
        let document = &served["kubeproxy.config.k8s.io"];
        assert_eq!(node_config::document::read::<KubeProxyConfiguration>(document).unwrap().config, config);
        assert_eq!((&document["mode"], &document["winkernel"]["networkName"]), (&"kernelspace".into(), &"pods".into()));
    }
}
