//! kubeconfig files: written for users and agents, read back by agents.

use crate::Error;
use crate::yaml::to_yaml;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::path::Path;

/// Credentials of the holder of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A client certificate and its key, PEM.
    Certificate {
        /// The certificate, PEM.
        cert_pem: String,
        key_pem: String,
    },
    Token(String),
}

/// One cluster, one user, one context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeConfig {
    /// `https://HOST:PORT`.
    pub server: String,
    /// The certificate authority that the server's certificate is checked against, PEM.
    pub ca_pem: String,
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

    /// The context's name: `USER@CLUSTER`, or the cluster's name where the user has the same one.
    pub fn context(&self) -> String {
        if self.user == self.cluster { self.cluster.clone() } else { format!("{}@{}", self.user, self.cluster) }
    }

    /// The file's text: everything inline, so that it can be moved about.
    pub fn to_yaml(&self) -> String {
        to_yaml(&self.document())
    }

    /// The text of a kubeconfig that others use too, with this cluster, its user and its context in it, in the place of those of the
    /// same names; the context becomes the current one.
    ///
    /// # Errors
    /// When `existing` is no kubeconfig.
    pub fn merged_into(&self, existing: &str) -> Result<String, serde_yaml_ng::Error> {
        let mut document = read_document(existing)?;
        let Value::Object(own) = self.document() else { return Ok(self.to_yaml()) };
        for (key, value) in own {
            match (value, &mut document[&key]) {
                (Value::Array(entries), Value::Array(all)) => {
                    all.retain(|entry| !entries.iter().any(|new| new["name"] == entry["name"]));
                    all.extend(entries);
                }
                (value, place) => *place = value,
            }
        }
        Ok(to_yaml(&document))
    }

    /// The text of a kubeconfig without the cluster `name` at `server`, its users and contexts; `None` when nothing else is in it.
    ///
    /// # Errors
    /// When `existing` is no kubeconfig.
    pub fn removed_from(existing: &str, name: &str, server: &str) -> Result<Option<String>, serde_yaml_ng::Error> {
        let mut document = read_document(existing)?;
        let entries = |document: &Value, key: &str| document[key].as_array().cloned().unwrap_or_default();
        // Another cluster may have got the name meanwhile.
        if !entries(&document, "clusters").iter().any(|entry| entry["name"] == name && entry["cluster"]["server"] == server) {
            return Ok(Some(existing.to_owned()));
        }
        let contexts = entries(&document, "contexts");
        let (ours, others): (Vec<_>, Vec<_>) = contexts.into_iter().partition(|entry| entry["context"]["cluster"] == name);
        let users: Vec<_> = ours.iter().map(|entry| entry["context"]["user"].clone()).collect();
        let users = users.iter().filter(|user| !others.iter().any(|entry| entry["context"]["user"] == **user)).collect::<Vec<_>>();
        let left = |key: &str, gone: &dyn Fn(&Value) -> bool| entries(&document, key).into_iter().filter(|entry| !gone(&entry["name"])).collect();
        let (clusters, users): (Vec<Value>, Vec<Value>) = (left("clusters", &|entry| entry == name), left("users", &|entry| users.contains(&entry)));
        if clusters.is_empty() && users.is_empty() && others.is_empty() {
            return Ok(None);
        }
        if ours.iter().any(|entry| entry["name"] == document["current-context"]) {
            document["current-context"] = json!("");
        }
        (document["clusters"], document["users"], document["contexts"]) = (clusters.into(), users.into(), others.into());
        Ok(Some(to_yaml(&document)))
    }

    fn document(&self) -> Value {
        let context = self.context();
        let user = match &self.credentials {
            Credentials::Certificate { cert_pem, key_pem } => {
                json!({"client-certificate-data": STANDARD.encode(cert_pem), "client-key-data": STANDARD.encode(key_pem)})
            }
            Credentials::Token(token) => json!({"token": token}),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.cluster, "cluster": {"server": self.server, "certificate-authority-data": STANDARD.encode(&self.ca_pem)}}],
            "users": [{"name": self.user, "user": user}],
            "contexts": [{"name": context, "context": {"cluster": self.cluster, "user": self.user}}],
            "current-context": context,
        })
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

/// The kubeconfig of a node whose client certificate and key are in the file `pem`, under the names of upstream's kubelet. Of `cluster`, an
/// entry of another kubeconfig, it takes what says where the API server is and how it is checked.
pub fn kubeconfig_of_files(cluster: &Value, pem: &str) -> String {
    const KEPT: [&str; 6] =
        ["server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name", "proxy-url"];
    let kept = KEPT.iter().filter_map(|name| Some(((*name).to_owned(), cluster.get(name)?.clone())));
    to_yaml(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": Value::Object(kept.collect())}],
        "users": [{"name": "default-auth", "user": {"client-certificate": pem, "client-key": pem}}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "user": "default-auth", "namespace": "default"}}],
        "current-context": "default-context",
    }))
}

/// A kubeconfig of anybody's; an empty one counts.
fn read_document(text: &str) -> Result<Value, serde_yaml_ng::Error> {
    match serde_yaml_ng::from_str(text)? {
        Value::Null => Ok(json!({})),
        document @ Value::Object(_) => Ok(document),
        _ => Err(serde::de::Error::custom("it is no kubeconfig")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, port: u16) -> KubeConfig {
        KubeConfig::new(&format!("https://127.0.0.1:{port}"), "CA", Credentials::Token(name.into())).named(name, name)
    }

    #[test]
    fn clusters_share_a_file_and_leave_it_again() {
        let first = of("a", 1).merged_into("").unwrap();
        let foreign = "preferences: {colors: true}\n";
        let both = of("b", 2).merged_into(&format!("{foreign}{first}")).unwrap();
        let again = of("b", 3).merged_into(&both).unwrap();
        let document: Value = serde_yaml_ng::from_str(&again).unwrap();
        for key in ["clusters", "users", "contexts"] {
            let names: Vec<_> = document[key].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
            assert_eq!(names, ["a", "b"], "{key}");
        }
        assert_eq!(document["clusters"][1]["cluster"]["server"], "https://127.0.0.1:3", "replaced");
        assert_eq!((&document["current-context"], &document["preferences"]["colors"]), (&json!("b"), &json!(true)));

        let other = KubeConfig::removed_from(&again, "b", "https://127.0.0.1:9").unwrap().unwrap();
        assert_eq!(other, again, "another cluster of that name stays");
        let left = KubeConfig::removed_from(&again, "b", "https://127.0.0.1:3").unwrap().unwrap();
        let document: Value = serde_yaml_ng::from_str(&left).unwrap();
        assert_eq!(
            (&document["clusters"][0]["name"], &document["users"][0]["name"], &document["current-context"]),
            (&json!("a"), &json!("a"), &json!(""))
        );
        assert_eq!(document["contexts"].as_array().unwrap().len(), 1);
        assert_eq!(KubeConfig::removed_from(&left, "a", "https://127.0.0.1:1").unwrap(), None);
        assert!(of("a", 1).merged_into("[1, 2]").is_err() && of("a", 1).merged_into("a: [").is_err());
    }

    #[test]
    fn a_nodes_kubeconfig_points_to_its_files() {
        let cluster = json!({"server": "https://a:6443", "certificate-authority-data": "QQ==", "tls-server-name": "b", "extensions": [1]});
        let read: Value = serde_yaml_ng::from_str(&kubeconfig_of_files(&cluster, r"C:\var\kubelet-client-current.pem")).unwrap();
        assert_eq!(read["clusters"][0]["cluster"], json!({"server": "https://a:6443", "certificate-authority-data": "QQ==", "tls-server-name": "b"}));
        let pem = r"C:\var\kubelet-client-current.pem";
        assert_eq!(read["users"][0], json!({"name": "default-auth", "user": {"client-certificate": pem, "client-key": pem}}));
        assert_eq!(read["contexts"][0]["context"], json!({"cluster": "default-cluster", "user": "default-auth", "namespace": "default"}));
        assert_eq!((&read["contexts"][0]["name"], &read["current-context"]), (&json!("default-context"), &json!("default-context")));
    }

    #[test]
    fn names_are_strings_for_kubectl_too() {
        let names = ["y", "n", "yes", "no", "on", "off", "null", "~", "123", "1e3", r#"a"b\c: d"#];
        for name in names {
            let alone = of(name, 1);
            let merged = alone.merged_into(&of("other", 2).to_yaml()).unwrap();
            let left = KubeConfig::removed_from(&merged, "other", "https://127.0.0.1:2").unwrap().unwrap();
            let quoted = serde_json::to_string(name).unwrap();
            for text in [alone.to_yaml(), merged, left] {
                for line in ["- name: ", "    cluster: ", "    user: ", "current-context: ", "    token: "] {
                    assert!(text.contains(&format!("{line}{quoted}\n")), "{line}{quoted} is missing:\n{text}");
                }
                let read: Value = serde_yaml_ng::from_str(&text).unwrap();
                assert_eq!(read["current-context"], name, "{text}");
            }
        }
    }

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
