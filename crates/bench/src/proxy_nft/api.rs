//! As much of an API as a proxy watches, and a proxy that watches it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::Result;
use serde_json::json;
use service_proxy::nftables::{Pods, Settings};
use service_proxy::{BackendConfig, Config, Status};
use tokio::sync::watch;

use super::IntoNet as _;

/// Lists Services and slices to who watches, and has no news.
pub struct Server {
    at: SocketAddr,
}

impl Server {
    /// With so many Services.
    pub fn start(services: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream, services));
            }
        });
        Ok(Self { at })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }
}

/// Answers one request and keeps its connection open.
fn serve(stream: TcpStream, services: usize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut out = std::io::BufWriter::new(&stream);
    out.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let mut say = |kind: &str, object: serde_json::Value| {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        write!(out, "{:x}\r\n{line}\r\n", line.len())
    };
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (kind, version) = match path {
        path if path.contains("/endpointslices") => ("EndpointSlice", "discovery.k8s.io/v1"),
        path if path.contains("/services") => ("Service", "v1"),
        _ => ("Node", "v1"),
    };
    for n in 0..services {
        match kind {
            "Service" => say("ADDED", super::service(n))?,
            "EndpointSlice" => say("ADDED", super::slice(n, 0))?,
            _ => {}
        }
    }
    say(
        "BOOKMARK",
        json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}),
    )?;
    out.flush()?;
    // Until the other side goes.
    while lines.next().transpose()?.is_some() {}
    Ok(())
}

/// Runs the proxy, by nftables or over a Host Networking Service; says so once it serves `fronts` front ends, and goes on until it is killed.
pub fn proxy(api: &str, fronts: usize, hcn: Option<&str>) -> Result<()> {
    linux_sys::memory::keep_little();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        cluster::install_crypto_provider();
        let client = kube::Client::try_from(kube::Config::new(api.parse()?))?;
        let (status, mut seen) = watch::channel(Status::default());
        // A pod of the host itself would need an endpoint there: over HNS all are on other hosts.
        let (node, backend) = match hcn {
            Some(at) => {
                let settings = service_proxy::hns::Settings::new("pods");
                ("another", BackendConfig::Hcn { client: hcn::HcnClient::connect(at)?, settings })
            }
            None => {
                let pods = Pods::Nets(vec![([10, 0, 0, 0], 12).into_net()]);
                ("node-0", BackendConfig::Nftables(Settings::new(vec![[10, 240, 0, 11].into()], pods)))
            }
        };
        let config = Config { status: Some(status), ..Config::new(client, node, "bench", backend) };
        let said = async {
            let done = seen.wait_for(|status| status.fronts == fronts && status.is_converged()).await;
            done.map(|_| println!("converged"))?;
            std::future::pending::<Result<()>>().await
        };
        tokio::select! {
            () = service_proxy::run(config, std::future::pending()) => Ok(()),
            ended = said => ended,
        }
    })
}
