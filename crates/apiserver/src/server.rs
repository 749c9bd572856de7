//! What requests are served from.

use crate::audit::Auditor;
use crate::authn::{UserInfo, bootstrap_token, token};
use crate::connect::kubelet::{KubeletClient, Location, NodeNetworks};
use crate::health::{self, Started};
use crate::kinds;
use crate::metrics::kept::Kept;
use crate::registry::Registry;
use crate::status::ApiError;
use pki::service_account::SigningKey;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What requests are served from.
pub struct Api {
    /// Objects.
    pub registry: Arc<Registry>,
    /// ServiceAccount tokens.
    pub tokens: SigningKey,
    /// Ends watches and connections.
    pub shutdown: CancellationToken,
    /// The way to kubelets.
    pub kubelet: KubeletClient,
    /// Where they may be.
    pub node_networks: NodeNetworks,
    /// Usage that kubelets reported.
    pub metrics: Kept,
    pub version: String,
    /// Where the `kubernetes` Service leads to.
    pub advertise: (IpAddr, u16),
    /// What is logged of requests; absent when nothing is.
    pub audit: Option<Arc<Auditor>>,
    /// What of the start is done.
    pub started: Started,
}

impl Api {
    /// Where the kubelet of a node is.
    pub fn kubelet_location(&self, node: &str) -> Result<Location, ApiError> {
        let nodes = kinds::by_resource("", "v1", "nodes").ok_or_else(ApiError::no_such_resource)?;
        Location::of(&self.registry.get(nodes, "", node)?.value(), &self.node_networks)
    }

    pub fn token_user(&self, bearer: &str) -> Option<UserInfo> {
        self.review_token(bearer, &[token::ISSUER]).map(|(user, _)| user)
    }

    /// The user of a bearer token, and those of `audiences` that it is meant for: at least one. A bootstrap token is for this server.
    pub fn review_token(&self, bearer: &str, audiences: &[&str]) -> Option<(UserInfo, Vec<String>)> {
        let now = jiff::Timestamp::now();
        if let Some(user) = bootstrap_token::user(&self.registry.store, bearer, now) {
            return audiences.contains(&token::ISSUER).then(|| (user, vec![token::ISSUER.to_string()]));
        }
        let claims = self.tokens.verify(bearer)?;
        token::user(&self.registry.store, &claims, audiences, now.as_second())
    }

    /// What health checks look at.
    pub fn health(&self) -> health::State<'_> {
        health::State { started: &self.started, store_is_open: self.registry.store.is_open(), is_ending: self.shutdown.is_cancelled() }
    }

    /// Whether the start is complete.
    pub fn is_ready(&self) -> bool {
        self.started.is_complete()
    }

    /// `ADDRESS:PORT` of discovery documents.
    pub fn server_address(&self) -> String {
        std::net::SocketAddr::from(self.advertise).to_string()
    }

    /// The `/version` document.
    pub fn version(&self) -> Value {
        let mut numbers = self.version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        json!({
            "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
            "gitVersion": self.version, "gitCommit": "", "gitTreeState": "clean", "buildDate": "",
            "goVersion": "", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, platform()),
        })
    }
}

fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
