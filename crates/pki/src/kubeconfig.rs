//! kubeconfig files: written for users and agents, read back by agents.

use crate::Error;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::path::Path;

/// How the holder of a kubeconfig proves who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A client certificate and its key, PEM.
    Certificate {
        /// The certificate, PEM.
        cert_pem: String,
        /// Its key, PEM.
        key_pem: String,
    },
    /// A bearer token.
    Token(String),
}

/// One cluster, one user, one context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeConfig {
    /// `https://HOST:PORT`.
    pub server: String,
    /// The certificate authority that the server's certificate is checked against, PEM.
    pub ca_pem: String,
    /// Who we are.
    pub credentials: Credentials,
    /// The cluster's name in the file.
    pub cluster: String,
    /// The user's name in the file.
    pub user: String,
}

impl KubeConfig {
    /// A kubeconfig for `server`, for a cluster named "mullion" and a user named "admin".
    pub fn new(server: &str, ca_pem: &str, credentials: Credentials) -> Self {
        Self { server: server.into(), ca_pem: ca_pem.into(), credentials, cluster: "mullion".into(), user: "admin".into() }
    }

    /// Renames cluster and user.
    pub fn named(mut self, cluster: &str, user: &str) -> Self {
        self.cluster = cluster.into();
        self.user = user.into();
        self
    }

    /// The file's text: everything inline, so that it can be moved about.
    pub fn to_yaml(&self) -> String {
        let context = format!("{}@{}", self.user, self.cluster);
        let user = match &self.credentials {
            Credentials::Certificate { cert_pem, key_pem } => {
                json!({"client-certificate-data": STANDARD.encode(cert_pem), "client-key-data": STANDARD.encode(key_pem)})
            }
            Credentials::Token(token) => json!({"token": token}),
        };
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.cluster, "cluster": {"server": self.server, "certificate-authority-data": STANDARD.encode(&self.ca_pem)}}],
            "users": [{"name": self.user, "user": user}],
            "contexts": [{"name": context, "context": {"cluster": self.cluster, "user": self.user}}],
            "current-context": context,
        });
        serde_yaml_ng::to_string(&document).unwrap_or_default()
    }

    /// Reads a kubeconfig with inline data: its first cluster and first user, which is what [`KubeConfig::to_yaml`] writes.
    pub fn from_path(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File { operation: "reading", path: path.into(), source })?;
        let document: Value = serde_yaml_ng::from_str(&text).map_err(|source| Error::KubeConfig { path: path.into(), source })?;
        let missing = |member| Error::KubeConfigMember { path: path.into(), member };
        let member = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).map(str::to_string);
        let decoded = |pointer: &str, name| {
            let bytes = member(pointer).and_then(|text| STANDARD.decode(text).ok());
            bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(missing(name))
        };
        let credentials = match member("/users/0/user/token") {
            Some(token) => Credentials::Token(token),
            None => Credentials::Certificate {
                cert_pem: decoded("/users/0/user/client-certificate-data", "client-certificate-data")?,
                key_pem: decoded("/users/0/user/client-key-data", "client-key-data")?,
            },
        };
        Ok(Self {
            server: member("/clusters/0/cluster/server").ok_or(missing("server"))?,
            ca_pem: decoded("/clusters/0/cluster/certificate-authority-data", "certificate-authority-data")?,
            credentials,
            cluster: member("/clusters/0/name").ok_or(missing("cluster name"))?,
            user: member("/users/0/name").ok_or(missing("user name"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let certificate = Credentials::Certificate { cert_pem: "C".into(), key_pem: "K".into() };
        for credentials in [certificate, Credentials::Token("abc".into())] {
            let config = KubeConfig::new("https://127.0.0.1:6443", "CA", credentials).named("c", "u");
            crate::write_private(&path, &config.to_yaml()).unwrap();
            assert_eq!(KubeConfig::from_path(&path).unwrap(), config);
        }
    }

    #[test]
    fn a_file_without_a_server_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, "users: [{name: a, user: {token: t}}]").unwrap();
        assert!(KubeConfig::from_path(&path).unwrap_err().to_string().ends_with("has no server: write it anew"));
    }
}
