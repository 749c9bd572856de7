//! The kubeconfigs of discovery: that in the ConfigMap `cluster-info`, and those of files. Pure but for what `read` gives.

use std::collections::BTreeMap;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_rules::bootstrap_token::SIGNATURE;
use serde_json::{Map, Value, json};

use crate::jws::{self, JwsError};
use crate::token::BootstrapToken;

/// Bytes that a kubeconfig of discovery, or an answer that has one, may have.
pub const LARGEST: usize = 1 << 20;
/// The member of the ConfigMap that is signed.
pub const KUBECONFIG: &str = "kubeconfig";

/// What is wrong with a description of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    #[error("the ConfigMap cluster-info has no kubeconfig: this cluster is not set up for bootstrap tokens")]
    NoKubeconfig,
    #[error(
        "the ConfigMap cluster-info has no signature of token {id:?}: the token is not of this cluster, has expired, or may not sign; make one \
         with mullion token create or kubeadm token create"
    )]
    NoSignature { id: String },
    #[error("the ConfigMap cluster-info is not signed with this token: do not trust this server; check address and token")]
    Signature(#[source] JwsError),
    #[error("the kubeconfig is larger than {LARGEST} bytes")]
    TooLarge,
    #[error("the kubeconfig has aliases of YAML (& and *): write what they stand for")]
    Aliases,
    #[error("the kubeconfig is no YAML")]
    Yaml(#[source] serde_yaml_ng::Error),
    #[error("the kubeconfig has no {0}")]
    Missing(&'static str),
    #[error("the kubeconfig's server {0:?} is no https URL")]
    Server(String),
    #[error("{0} in the kubeconfig is not base64 of a text")]
    Base64(&'static str),
    #[error("cannot read {path:?}, which the kubeconfig names")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the kubeconfig's user has {0}: only tokens and client certificates are taken; give --tls-bootstrap-token")]
    Unusable(&'static str),
}

/// A cluster as a kubeconfig describes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Described {
    /// `https://HOST:PORT`.
    pub server: String,
    /// The authority of the server's certificate, PEM; a file may leave it out.
    pub ca_pem: Option<String>,
    /// The user's credentials, inline.
    pub user: Option<Value>,
}

/// The kubeconfig of the ConfigMap, if the token's signature of it is good.
///
/// # Errors
/// [`InfoError::NoSignature`] when the token has no signature (yet), [`InfoError::Signature`] when it is another's.
pub fn verified<'a>(data: &'a BTreeMap<String, String>, token: &BootstrapToken) -> Result<&'a str, InfoError> {
    let content = data.get(KUBECONFIG).filter(|text| !text.is_empty()).ok_or(InfoError::NoKubeconfig)?;
    let signature = data.get(&format!("{SIGNATURE}{}", token.id())).filter(|text| !text.is_empty());
    let signature = signature.ok_or_else(|| InfoError::NoSignature { id: token.id().to_owned() })?;
    jws::verify(signature, content, token).map_err(InfoError::Signature)?;
    Ok(content)
}

/// Reads a kubeconfig: the cluster of its current context, else the one without a name, as kubeadm does, and the credentials of its user where
/// they are wanted. `read` gives files that it names.
///
/// # Errors
/// [`InfoError`].
pub fn parse(text: &str, wants_user: bool, read: impl Fn(&str) -> io::Result<String>) -> Result<Described, InfoError> {
    if text.len() > LARGEST {
        return Err(InfoError::TooLarge);
    }
    // A megabyte of them stands for gigabytes; no kubeconfig that a program writes has any.
    if text.contains('&') && text.contains('*') {
        return Err(InfoError::Aliases);
    }
    let document: Value = serde_yaml_ng::from_str(text).map_err(InfoError::Yaml)?;
    let context = entry(&document, "contexts", document["current-context"].as_str().unwrap_or_default()).map(|entry| &entry["context"]);
    let name = context.map_or("", |context| context["cluster"].as_str().unwrap_or_default());
    let cluster = entry(&document, "clusters", name).map(|entry| &entry["cluster"]).ok_or(InfoError::Missing("cluster of its context"))?;
    let server = cluster["server"].as_str().ok_or(InfoError::Missing("server"))?;
    let is_url = server.parse::<http::Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty()));
    if !is_url {
        return Err(InfoError::Server(server.to_owned()));
    }
    let ca_pem = inline(cluster, "certificate-authority-data", "certificate-authority", &read)?;
    let user = context.filter(|_| wants_user).and_then(|context| entry(&document, "users", context["user"].as_str().unwrap_or_default()));
    let user = user.map(|entry| credentials(&entry["user"], &read)).transpose()?.flatten();
    Ok(Described { server: server.to_owned(), ca_pem, user })
}

fn entry<'a>(document: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    document[list].as_array()?.iter().find(|entry| entry["name"].as_str().unwrap_or_default() == name)
}

/// A PEM text that stands in the kubeconfig, or in a file that it names.
fn inline(object: &Value, data: &'static str, file: &str, read: &impl Fn(&str) -> io::Result<String>) -> Result<Option<String>, InfoError> {
    if let Some(text) = object[data].as_str().filter(|text| !text.is_empty()) {
        let bytes = STANDARD.decode(text).map_err(|_| InfoError::Base64(data))?;
        return String::from_utf8(bytes).map(Some).map_err(|_| InfoError::Base64(data));
    }
    let Some(path) = object[file].as_str().filter(|path| !path.is_empty()) else { return Ok(None) };
    read(path).map(Some).map_err(|source| InfoError::File { path: path.to_owned(), source })
}

/// The user's credentials without files; none for a user without any.
fn credentials(user: &Value, read: &impl Fn(&str) -> io::Result<String>) -> Result<Option<Value>, InfoError> {
    for (member, what) in [("exec", "a program for credentials"), ("auth-provider", "an auth-provider"), ("username", "a password")] {
        if !user[member].is_null() {
            return Err(InfoError::Unusable(what));
        }
    }
    let mut found = Map::new();
    let token = match user["token"].as_str().filter(|token| !token.is_empty()) {
        Some(token) => Some(token.to_owned()),
        None => {
            let path = user["tokenFile"].as_str().filter(|path| !path.is_empty());
            path.map(|path| read(path).map_err(|source| InfoError::File { path: path.to_owned(), source })).transpose()?
        }
    };
    if let Some(token) = token.as_deref().map(str::trim).filter(|token| !token.is_empty()) {
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InfoError::Unusable("a token that no request can carry"));
        }
        found.insert("token".into(), token.into());
    }
    for (data, file) in [("client-certificate-data", "client-certificate"), ("client-key-data", "client-key")] {
        if let Some(pem) = inline(user, data, file, read)? {
            found.insert(data.into(), STANDARD.encode(pem).into());
        }
    }
    Ok((!found.is_empty()).then_some(Value::Object(found)))
}

/// A kubeconfig with everything inline, under kubeadm's names. It is JSON, which every reader of YAML takes.
pub(crate) fn kubeconfig(server: &str, ca_pem: &str, user: &Value) -> String {
    let name = "tls-bootstrap-token-user";
    let context = format!("{name}@kubernetes");
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kubernetes", "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(ca_pem)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": "kubernetes", "user": name}}],
        "current-context": context,
    });
    format!("{document:#}\n")
}

/// Reads whatever bytes as a signed description of a cluster, and as a kubeconfig: for fuzzing. What is read must read the same again.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(token) = "abcdef.0123456789abcdef".parse::<BootstrapToken>() {
        let (jws, content) = text.split_once('\n').unwrap_or((text, ""));
        let members = [(KUBECONFIG.to_owned(), content.to_owned()), (format!("{SIGNATURE}abcdef"), jws.to_owned())];
        let _ = verified(&members.into(), &token);
    }
    let nothing = |_: &str| Err(io::Error::from(io::ErrorKind::NotFound));
    if let Ok(Described { server, ca_pem: Some(ca), user: Some(user) }) = parse(text, true, nothing) {
        let again = parse(&kubeconfig(&server, &ca, &user), true, nothing);
        assert!(again.is_ok_and(|again| again.server == server && again.ca_pem.as_deref() == Some(&ca) && again.user == Some(user)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jws::tests::{HEADER, SECRET, sign, token};

    fn none(_: &str) -> io::Result<String> {
        Err(io::Error::from(io::ErrorKind::NotFound))
    }

    fn reason(error: &InfoError) -> String {
        use thiserror_ext::AsReport as _;
        error.to_report_string()
    }

    #[test]
    fn only_a_signed_kubeconfig_is_read() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>();
        let good = sign(HEADER, "config", SECRET);
        let info = map(&[("kubeconfig", "config"), ("jws-kubeconfig-abcdef", &good)]);
        assert_eq!(verified(&info, &token()).unwrap(), "config");
        for (data, part) in [
            (map(&[("jws-kubeconfig-abcdef", &good)]), "has no kubeconfig"),
            (map(&[("kubeconfig", ""), ("jws-kubeconfig-abcdef", &good)]), "has no kubeconfig"),
            (map(&[("kubeconfig", "config")]), "no signature of token \"abcdef\""),
            (map(&[("kubeconfig", "config"), ("jws-kubeconfig-ghijkl", &good)]), "no signature of token \"abcdef\""),
            (map(&[("kubeconfig", "other"), ("jws-kubeconfig-abcdef", &good)]), "do not trust this server"),
            (map(&[("kubeconfig", "config"), ("jws-kubeconfig-abcdef", "x")]), "do not trust this server"),
        ] {
            let error = verified(&data, &token()).unwrap_err();
            assert!(reason(&error).contains(part), "{}", reason(&error));
            assert!(!reason(&error).contains(SECRET), "the secret is in no message");
        }
    }

    #[test]
    fn kubeadms_kubeconfig_has_one_cluster_without_a_name() {
        let text = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    server: https://10.0.0.2:6443\n  name: \"\"\n\
                    contexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n";
        let found = parse(text, true, none).unwrap();
        assert_eq!((found.server.as_str(), found.ca_pem.as_deref(), found.user), ("https://10.0.0.2:6443", Some("CA"), None));
    }

    #[test]
    fn files_of_a_discovery_kubeconfig_are_embedded() {
        let text = "clusters: [{name: a, cluster: {server: 'https://a', certificate-authority: /ca}}]\ncurrent-context: c\n\
                    contexts: [{name: c, context: {cluster: a, user: u}}]\n\
                    users: [{name: u, user: {client-certificate: /crt, client-key: /key}}]\n";
        let found = parse(text, true, |path| Ok(path.to_uppercase())).unwrap();
        assert_eq!(found.ca_pem.as_deref(), Some("/CA"));
        let user = found.user.unwrap();
        assert_eq!(user, json!({"client-certificate-data": STANDARD.encode("/CRT"), "client-key-data": STANDARD.encode("/KEY")}));
        let again = parse(&kubeconfig("https://a", "/CA", &user), true, none).unwrap();
        assert!(again.server == "https://a" && again.ca_pem.as_deref() == Some("/CA") && again.user == Some(user));
    }

    #[test]
    fn credentials_that_are_not_wanted_are_not_read() {
        let text = "clusters: [{name: a, cluster: {server: 'https://a'}}]\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: a, user: u}}]\n\
                    users: [{name: u, user: {exec: {command: x}}}]\n";
        assert!(parse(text, false, none).unwrap().user.is_none());
        assert!(matches!(parse(text, true, none), Err(InfoError::Unusable(_))));
    }

    #[test]
    fn malformed_descriptions_say_what_is_wrong() {
        let of = |cluster: &str| format!("clusters: [{{name: '', cluster: {cluster}}}]");
        let user = |user: &str| {
            format!(
                "clusters: [{{name: a, cluster: {{server: 'https://a'}}}}]\ncontexts: [{{name: c, context: {{cluster: a, user: u}}}}]\n\
                 current-context: c\nusers: [{{name: u, user: {user}}}]"
            )
        };
        for (text, part) in [
            ("a: [".to_owned(), "is no YAML"),
            (String::new(), "no cluster of its context"),
            ("[]".to_owned(), "no cluster of its context"),
            ("clusters: {}".to_owned(), "no cluster of its context"),
            ("clusters: [{name: a, cluster: {server: 'https://a'}}]".to_owned(), "no cluster of its context"),
            (of("{}"), "has no server"),
            (of("{server: 'http://a'}"), "\"http://a\" is no https URL"),
            (of("{server: 'https://'}"), "is no https URL"),
            (of("{server: 'https://a', certificate-authority-data: '?'}"), "certificate-authority-data in the kubeconfig is not base64"),
            (of("{server: 'https://a', certificate-authority: /none}"), "cannot read \"/none\""),
            (user("{exec: {command: x}}"), "a program for credentials"),
            (user("{username: a, password: b}"), "a password"),
            (user("{token: \"a\\nb\"}"), "a token that no request can carry"),
            (user("{client-key: /none}"), "cannot read \"/none\""),
            ("x".repeat(LARGEST + 1), "larger than"),
            (format!("a: &x b\n{}", of("*x")), "has aliases of YAML"),
        ] {
            let error = parse(&text, true, none).err().unwrap_or_else(|| panic!("{text:.80} was read"));
            assert!(reason(&error).contains(part), "{}", reason(&error));
        }
    }
}
