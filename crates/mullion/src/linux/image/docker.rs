//! Credentials for registries out of docker's `config.json`.
//!
//! Helpers that keep them elsewhere (`credsStore`) are programs of others, and not run.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use images::registry::Credentials;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    auths: HashMap<String, Auth>,
    creds_store: Option<String>,
    cred_helpers: HashMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// What docker knows about a registry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The credentials of the request.
    pub credentials: Credentials,
    /// The helper that would know more.
    pub helper: Option<String>,
}

/// Reads docker's configuration, if there is one.
pub fn credentials(registry: &str) -> Result<Known> {
    let dir = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    let Some(path) = dir.or_else(home).map(|dir| dir.join("config.json")) else { return Ok(Known::default()) };
    match std::fs::read(&path) {
        Ok(bytes) => look_up(&bytes, registry).with_context(|| format!("cannot read {}", path.display())),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied) => Ok(Known::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn look_up(config: &[u8], registry: &str) -> Result<Known> {
    // An object: serde would read an array as the fields in their order.
    let config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(config)?;
    let config: Config = serde_json::from_value(config.into())?;
    let same = |key: &str| {
        let host = key.trim_start_matches("https://").trim_start_matches("http://");
        let host = host.split('/').next().unwrap_or_default();
        host == registry || (registry == "docker.io" && (host == "index.docker.io" || host == "registry-1.docker.io"))
    };
    let found = config.auths.iter().find(|(key, _)| same(key)).map(|(_, auth)| auth);
    let credentials = match found {
        None => Credentials::Anonymous,
        Some(auth) if !auth.registrytoken.is_empty() => Credentials::Bearer(auth.registrytoken.clone()),
        Some(auth) if !auth.identitytoken.is_empty() => Credentials::Identity(auth.identitytoken.clone()),
        Some(auth) if !auth.username.is_empty() => Credentials::Password { user: auth.username.clone(), password: auth.password.clone() },
        Some(auth) => Credentials::decode(&auth.auth).unwrap_or_default(),
    };
    let helper = config.cred_helpers.iter().find(|(key, _)| same(key)).map(|(_, helper)| helper.clone()).or(config.creds_store);
    Ok(Known { helper: helper.filter(|_| credentials == Credentials::Anonymous), credentials })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let config = br#"{"auths": {"https://index.docker.io/v1/": {"auth": "dXNlcjpzZWNyZXQ="}, "ghcr.io": {"identitytoken": "t"}, "helped": {}},
            "credHelpers": {"helped": "ecr"}}"#;
        let known = |registry| look_up(config, registry).unwrap();
        assert_eq!(known("docker.io").credentials, Credentials::Password { user: "user".into(), password: "secret".into() });
        assert_eq!(known("ghcr.io").credentials, Credentials::Identity("t".into()));
        assert_eq!(known("helped"), Known { credentials: Credentials::Anonymous, helper: Some("ecr".into()) });
        assert_eq!(known("other"), Known::default());
        assert!(look_up(b"[]", "x").is_err());
    }
}
