//! Bootstrap tokens of a cluster: making, listing and deleting them, as `kubeadm token` does.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use kube_rules::bootstrap_token::{SECRET_NAME, SECRET_TYPE};
use serde_json::{Value, json};

use crate::cluster_info::{self, InfoError, KUBECONFIG};
use crate::pins::{PinError, pins_of};
use crate::token::{BootstrapToken, NotAToken};

const NAMESPACE: &str = "kube-system";
/// The group that kubeadm's roles are bound to.
pub const GROUP: &str = kube_rules::bootstrap_token::NODE_GROUP;
/// What tokens are for.
const USAGES: [&str; 2] = ["authentication", "signing"];
const USAGE: &str = "usage-bootstrap-";

/// Why nothing was done with a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("a bootstrap token with id {0:?} exists already: delete it first, or leave the choice to mullion token create")]
    Exists(String),
    #[error("there is no bootstrap token with id {0:?}")]
    Missing(String),
    #[error("unknown usage {0:?}: authentication and signing are known")]
    Usage(String),
    #[error("invalid group {0:?}: groups of tokens begin with system:bootstrappers: and go on with lower-case letters, digits, hyphens and colons")]
    Group(String),
    #[error("groups need the usage authentication")]
    GroupsWithoutUsage,
    #[error("{0:?} is neither a token nor the id of one: write abcdef or abcdef.0123456789abcdef")]
    NotAnId(String),
    #[error("a time of {0:?} is too long")]
    Ttl(Duration),
    #[error(transparent)]
    Token(#[from] NotAToken),
    #[error("cannot {operation} bootstrap tokens")]
    Request {
        operation: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot use the ConfigMap kube-public/cluster-info, which says how to join")]
    Info(#[source] InfoError),
    #[error("cannot use the ConfigMap kube-public/cluster-info, which says how to join")]
    Pin(#[source] PinError),
}

/// A token that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    pub token: BootstrapToken,
    /// How long it is good; none for ever.
    pub ttl: Option<Duration>,
    pub description: String,
    pub usages: Vec<String>,
    pub groups: Vec<String>,
}

/// A token that there is.
#[derive(Clone, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    pub secret: String,
    pub expires: Option<Timestamp>,
    pub usages: Vec<String>,
    pub description: String,
    pub groups: Vec<String>,
}

/// The Secret of a new token.
///
/// # Errors
/// [`TokenError::Usage`], [`TokenError::Group`], [`TokenError::Ttl`], [`TokenError::GroupsWithoutUsage`].
pub fn secret(new: &NewToken, now: Timestamp) -> Result<Value, TokenError> {
    if let Some(usage) = new.usages.iter().find(|usage| !USAGES.contains(&usage.as_str())) {
        return Err(TokenError::Usage(usage.clone()));
    }
    if let Some(group) = new.groups.iter().find(|group| !is_group(group)) {
        return Err(TokenError::Group(group.clone()));
    }
    if !new.groups.is_empty() && !new.usages.iter().any(|usage| usage == USAGES[0]) {
        return Err(TokenError::GroupsWithoutUsage);
    }
    let mut data = BTreeMap::from([("token-id".to_owned(), new.token.id().to_owned()), ("token-secret".to_owned(), new.token.secret().to_owned())]);
    if let Some(ttl) = new.ttl {
        let end = SignedDuration::try_from(ttl).ok().and_then(|ttl| now.checked_add(ttl).ok()).ok_or(TokenError::Ttl(ttl))?;
        data.insert("expiration".to_owned(), end.round(jiff::Unit::Second).unwrap_or(end).to_string());
    }
    data.extend(new.usages.iter().map(|usage| (format!("{USAGE}{usage}"), "true".to_owned())));
    if !new.description.is_empty() {
        data.insert("description".to_owned(), new.description.clone());
    }
    if !new.groups.is_empty() {
        data.insert("auth-extra-groups".to_owned(), new.groups.join(","));
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE, "stringData": data,
        "metadata": {"name": format!("{SECRET_NAME}{}", new.token.id()), "namespace": NAMESPACE},
    }))
}

/// Whether a token may give the group, as the API server decides.
fn is_group(group: &str) -> bool {
    let member = |name: &str| match name {
        "token-id" => "abcdef",
        "token-secret" => "0123456789abcdef",
        "usage-bootstrap-authentication" => "true",
        "auth-extra-groups" => group,
        _ => "",
    };
    let token = kube_rules::bootstrap_token::Token::new(|name| member(name).to_owned());
    !group.contains(',') && token.for_requests("abcdef", Timestamp::UNIX_EPOCH).is_some_and(|groups| groups.contains(group))
}

/// Makes a token.
///
/// # Errors
/// [`TokenError`].
pub async fn create(client: &Client, new: &NewToken) -> Result<(), TokenError> {
    let document = secret(new, Timestamp::now())?;
    let failed = |source| TokenError::Request { operation: "create", source: Box::new(source) };
    let secret: Secret = serde_json::from_value(document).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    match Api::<Secret>::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &secret).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Err(TokenError::Exists(new.token.id().to_owned())),
        other => other.map(drop).map_err(failed),
    }
}

/// The tokens of a cluster.
///
/// # Errors
/// [`TokenError::Request`].
pub async fn list(client: &Client) -> Result<Vec<Listed>, TokenError> {
    let selected = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE).list(&selected).await;
    let secrets = secrets.map_err(|source| TokenError::Request { operation: "list", source: Box::new(source) })?;
    Ok(secrets.items.iter().filter_map(listed).collect())
}

/// A token's Secret; none for one that is none.
fn listed(secret: &Secret) -> Option<Listed> {
    let member = |name: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(name));
        bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
    };
    let id = member("token-id");
    if secret.metadata.name.as_deref() != Some(&format!("{SECRET_NAME}{id}")) {
        return None;
    }
    let groups = member("auth-extra-groups");
    Some(Listed {
        secret: member("token-secret"),
        expires: member("expiration").parse().ok(),
        usages: USAGES.iter().filter(|usage| member(&format!("{USAGE}{usage}")) == "true").map(|usage| (*usage).to_owned()).collect(),
        description: member("description"),
        groups: groups.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect(),
        id,
    })
}

/// Deletes a token, named whole or by its id; the answer is the id.
///
/// # Errors
/// [`TokenError`].
pub async fn delete(client: &Client, token: &str) -> Result<String, TokenError> {
    let is_id = token.len() == 6 && token.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let id = match token.parse::<BootstrapToken>() {
        Ok(token) => token.id().to_owned(),
        Err(_) if is_id => token.to_owned(),
        // Not shown whole: it may be a token with a letter too many.
        Err(_) => return Err(TokenError::NotAnId(token.chars().take(6).collect())),
    };
    match Api::<Secret>::namespaced(client.clone(), NAMESPACE).delete(&format!("{SECRET_NAME}{id}"), &DeleteParams::default()).await {
        Ok(_) => Ok(id),
        Err(error) if cluster::is_not_found(&error) => Err(TokenError::Missing(id)),
        Err(source) => Err(TokenError::Request { operation: "delete", source: Box::new(source) }),
    }
}

/// The command line that joins a machine, by what cluster-info says.
///
/// # Errors
/// [`TokenError`].
pub async fn join_command(client: &Client, token: &BootstrapToken) -> Result<String, TokenError> {
    let info = Api::<ConfigMap>::namespaced(client.clone(), "kube-public").get("cluster-info").await;
    let info = info.map_err(|source| TokenError::Request { operation: "describe how to use", source: Box::new(source) })?;
    let text = info.data.and_then(|mut data| data.remove(KUBECONFIG)).ok_or(TokenError::Info(InfoError::NoKubeconfig))?;
    command_of(&text, token)
}

fn command_of(kubeconfig: &str, token: &BootstrapToken) -> Result<String, TokenError> {
    let no_files = |_: &str| Err(std::io::Error::from(std::io::ErrorKind::PermissionDenied));
    let described = cluster_info::parse(kubeconfig, true, no_files).map_err(TokenError::Info)?;
    let ca_pem = described.ca_pem.ok_or(TokenError::Info(InfoError::Missing("certificate authority")))?;
    let hashes: String = pins_of(&ca_pem).map_err(TokenError::Pin)?.iter().map(|pin| format!(" --discovery-token-ca-cert-hash {pin}")).collect();
    let server = described.server.trim_start_matches("https://").trim_end_matches('/');
    Ok(format!("mullion join {server} --token {}{hashes}", token.reveal()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use test_lab::api::{Reply, fake_client};

    use super::*;

    fn new() -> NewToken {
        NewToken {
            token: "abcdef.0123456789abcdef".parse().unwrap(),
            ttl: Some(Duration::from_secs(3600)),
            description: "for win01".into(),
            usages: USAGES.map(str::to_owned).into(),
            groups: vec![GROUP.into()],
        }
    }

    #[test]
    fn secrets_are_kubeadms() {
        let now: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let made = secret(&new(), now).unwrap();
        assert_eq!((&made["metadata"]["name"], &made["type"]), (&json!("bootstrap-token-abcdef"), &json!("bootstrap.kubernetes.io/token")));
        let data = &made["stringData"];
        assert_eq!(data["auth-extra-groups"], GROUP);
        assert_eq!((&data["usage-bootstrap-signing"], &data["usage-bootstrap-authentication"]), (&json!("true"), &json!("true")));
        let end: Timestamp = data["expiration"].as_str().unwrap().parse().unwrap();
        assert!((3599..=3601).contains(&end.duration_since(now).as_secs()), "{end}");
        assert_eq!(secret(&NewToken { ttl: None, ..new() }, now).unwrap()["stringData"]["expiration"], Value::Null);
    }

    #[test]
    fn wrong_usages_and_groups_are_refused() {
        let of = |change: NewToken| secret(&change, Timestamp::UNIX_EPOCH).unwrap_err().to_string();
        assert!(of(NewToken { usages: vec!["login".into()], ..new() }).contains("\"login\""));
        assert!(of(NewToken { usages: vec!["signing".into()], ..new() }).contains("need the usage authentication"));
        for group in ["system:masters", "system:bootstrappers:A", "system:bootstrappers:a,system:bootstrappers:b"] {
            assert!(of(NewToken { groups: vec![group.into()], ..new() }).contains(group), "{group}");
        }
        assert!(of(NewToken { ttl: Some(Duration::MAX), ..new() }).contains("too long"));
    }

    #[tokio::test]
    async fn what_was_made_is_listed_and_deleted() {
        let kept = Arc::new(Mutex::new(Vec::<Value>::new()));
        let state = kept.clone();
        let client = fake_client(move |seen| {
            let mut all = state.lock().unwrap();
            match seen.method.as_str() {
                "POST" if all.is_empty() => {
                    let mut made = seen.body.clone();
                    let texts = made["stringData"].as_object().unwrap().clone();
                    use base64::Engine as _;
                    let encode = |text: &Value| base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap());
                    made["data"] = texts.iter().map(|(name, text)| (name.clone(), encode(text).into())).collect::<serde_json::Map<_, _>>().into();
                    all.push(made.clone());
                    Reply::json(201, made)
                }
                "POST" => Reply::status(409, "exists"),
                "GET" => {
                    assert!(seen.query.contains("type%3Dbootstrap.kubernetes.io"), "{}", seen.query);
                    Reply::json(200, json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": all.clone()}))
                }
                "DELETE" if all.is_empty() => Reply::status(404, "gone"),
                _ => Reply::json(200, all.remove(0)),
            }
        });
        create(&client, &new()).await.unwrap();
        assert!(matches!(create(&client, &new()).await, Err(TokenError::Exists(id)) if id == "abcdef"));
        let all = list(&client).await.unwrap();
        assert_eq!((all.len(), all[0].id.as_str(), all[0].description.as_str()), (1, "abcdef", "for win01"));
        assert_eq!((all[0].usages.len(), all[0].groups.as_slice()), (2, [GROUP.to_owned()].as_slice()));
        assert!(all[0].expires.is_some());
        assert_eq!(delete(&client, "abcdef.0123456789abcdef").await.unwrap(), "abcdef");
        assert!(matches!(delete(&client, "abcdef").await, Err(TokenError::Missing(_))));
        let wrong = delete(&client, "ghijkl.9876543210abcdefg").await.unwrap_err().to_string();
        assert!(!wrong.contains("9876543210"), "{wrong}");
    }

    #[test]
    fn the_printed_command_joins() {
        let ca = include_str!("testdata/authority.pem");
        let text = cluster_info::kubeconfig("https://10.0.0.2:6443", ca, &json!({}));
        let text = text.replace("\"current-context\": \"tls-bootstrap-token-user@kubernetes\"", "\"current-context\": \"\"");
        assert!(matches!(command_of(&text, &new().token), Err(TokenError::Info(_))), "a cluster with a name needs its context");
        let text = text.replace("\"name\": \"kubernetes\"", "\"name\": \"\"");
        let expected = format!(
            "mullion join 10.0.0.2:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash {}",
            include_str!("testdata/authority.pin").trim()
        );
        assert_eq!(command_of(&text, &new().token).unwrap(), expected);
    }
}
