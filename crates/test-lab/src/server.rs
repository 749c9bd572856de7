//! The embedded API server for tests of its clients.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use apiserver::{Config, Limits, NodeNetworks};
use pki::service_account::SigningKey;
use pki::{Ca, CertRequest};

/// The version that the server of a test reports.
pub const VERSION: &str = "v1.36.2+mullion.0.1.0";

/// What outlives a restart of an API server.
pub struct Keys {
    pub ca: Ca,
    pub service_accounts: SigningKey,
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl Keys {
    /// New ones, for a day.
    pub fn new() -> Self {
        Self { ca: Ca::generate("kubernetes", Duration::from_secs(86_400)).unwrap(), service_accounts: SigningKey::generate().unwrap() }
    }

    /// A server on a store, at a new port of 127.0.0.1, which it advertises. Nodes may have any address of the loopback.
    pub fn config(&self, store_dir: PathBuf) -> Config {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let ips = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let serving = CertRequest { cn: "kube-apiserver".into(), ips, server: true, days: 1, ..CertRequest::default() };
        let client = CertRequest { cn: "kube-apiserver-kubelet-client".into(), client: true, days: 1, ..CertRequest::default() };
        Config {
            store_dir,
            listeners: vec![listener],
            serving: self.ca.issue(&serving).unwrap(),
            ca_pem: self.ca.cert_pem().into(),
            sa_key_pem: self.service_accounts.pem().into(),
            kubelet_client: self.ca.issue(&client).unwrap(),
            node_networks: NodeNetworks { within: vec!["127.0.0.0/8".parse().unwrap()], except: Vec::new() },
            service_cidrs: "10.96.0.0/12".parse().unwrap(),
            node_port_range: 30000..=32767,
            limits: Limits::default(),
            advertise: (address.ip(), address.port()),
            version: VERSION.into(),
            watch_history: apiserver::WATCH_HISTORY,
            audit: None,
        }
    }
}
