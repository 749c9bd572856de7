//! A bare API server in a temporary directory, for trying kubectl against it:
//!
//! ```text
//! cargo run -p apiserver --example serve -- [PORT]
//! kubectl --kubeconfig /tmp/…/admin.conf get namespaces
//! ```
//!
//! No controllers run: pods stay Pending, namespaces stay Terminating, and the `default` ServiceAccount is made here by hand.
//! Ends with Ctrl-C; the directory goes with it.

use apiserver::{Config, Identity, start};
use pki::service_account::SigningKey;
use pki::{Ca, CertRequest, Credentials, KubeConfig};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let port = std::env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let address = listener.local_addr()?;
    let dir = tempfile::tempdir()?;

    let ca = Ca::generate("kubernetes", YEAR)?;
    let server_names = CertRequest {
        cn: "kube-apiserver".into(),
        dns: vec!["kubernetes".into(), "localhost".into()],
        ips: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        server: true,
        days: 365,
        ..CertRequest::default()
    };
    let client =
        |cn: &str, org: &str| ca.issue(&CertRequest { cn: cn.into(), orgs: vec![org.into()], client: true, days: 365, ..CertRequest::default() });
    let server = start(Config {
        store_dir: dir.path().join("store"),
        listeners: vec![listener],
        serving: ca.issue(&server_names)?,
        ca_pem: ca.cert_pem().into(),
        sa_key_pem: SigningKey::generate()?.pem().into(),
        kubelet_client: client("kube-apiserver-kubelet-client", "kubelet-clients")?,
        node_networks: apiserver::NodeNetworks { within: vec!["127.0.0.0/8".parse().unwrap()], except: Vec::new() },
        service_cidrs: "10.96.0.0/12".parse()?,
        node_port_range: 30000..=32767,
        limits: apiserver::Limits::default(),
        advertise: (address.ip(), address.port()),
        version: "v1.36.2+mullion.0.1.0".into(),
        watch_history: apiserver::WATCH_HISTORY,
        audit: None,
    })
    .await?;

    let users = [("admin", "kubernetes-admin", "system:masters"), ("node", "system:node:win01", "system:nodes"), ("nobody", "nobody", "people")];
    for (file, user, group) in users {
        let identity = client(user, group)?;
        let credentials = Credentials::Certificate { cert_pem: identity.cert_pem, key_pem: identity.key_pem };
        let path = dir.path().join(format!("{file}.conf"));
        pki::write_private(&path, &KubeConfig::new(&format!("https://{address}"), ca.cert_pem(), credentials).to_yaml())?;
        println!("{}", path.display());
    }
    let admin = Identity { user: "admin".into(), groups: vec!["system:masters".into()] };
    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::default_namespaced(kube::Client::new(server.in_process(admin), "default"));
    let account = serde_json::from_value(serde_json::json!({"metadata": {"name": "default"}}))?;
    accounts.create(&kube::api::PostParams::default(), &account).await?;

    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}
