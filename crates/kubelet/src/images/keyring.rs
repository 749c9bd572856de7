//! Credentials by what they are for, and which an image gets, in upstream's order (pkg/credentialprovider). Pure.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::location::Location;

/// Docker's registry, under the name that its clients write.
const DOCKER: &str = "index.docker.io";

/// Why content is no configuration of docker's. It never says what the content was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DockerConfigError {
    #[error("error occurred while trying to unmarshal json")]
    Json,
    #[error("the auth field of {0:?} is not in base64")]
    Base64(String),
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Auth,
}

/// Name and password at a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub username: String,
    pub password: String,
    pub email: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Login {
    /// SHA-256 of the login as upstream's kubelet writes it, so that its records and ours are the same.
    pub(crate) fn hash(&self) -> String {
        let members = [("username", &self.username), ("password", &self.password), ("email", &self.email)];
        let members = members.into_iter().filter(|(_, text)| !text.is_empty());
        let members: Vec<_> = members.map(|(name, text)| format!("{name:?}:{}", go_json(text))).collect();
        hex(&Sha256::digest(format!("{{{}}}", members.join(","))))
    }
}

/// A text as Go's encoder writes it.
fn go_json(text: &str) -> String {
    let escaped = serde_json::Value::from(text).to_string();
    let mut out = String::with_capacity(escaped.len());
    for c in escaped.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a Secret or a ServiceAccount is known by.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Coordinates {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// Whose credentials they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The node's: every pod may use them.
    Node,
    Secret(Coordinates),
    /// A provider gave them for the token of an account.
    ServiceAccount(Coordinates),
}

/// A login that an image may be pulled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credential {
    pub login: Login,
    pub source: Source,
}

/// Logins by what they are for.
pub(crate) type DockerConfig = BTreeMap<String, Login>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
}

/// The content of a `config.json` of docker's.
pub(crate) fn docker_config_json(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Whole {
        auths: Option<serde_json::Value>,
    }
    // By a value: the last of members of the same name counts.
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|_| DockerConfigError::Json)?;
    let whole: Option<Whole> = serde_json::from_value(value).map_err(|_| DockerConfigError::Json)?;
    logins(whole.unwrap_or_default().auths.unwrap_or_default())
}

/// The content of a `.dockercfg`.
pub(crate) fn dockercfg(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    logins(serde_json::from_slice(bytes).map_err(|_| DockerConfigError::Json)?)
}

fn logins(value: serde_json::Value) -> Result<DockerConfig, DockerConfigError> {
    let entries: Option<BTreeMap<String, Option<Entry>>> = serde_json::from_value(value).map_err(|_| DockerConfigError::Json)?;
    let entries = entries.unwrap_or_default().into_iter();
    entries.map(|(place, entry)| entry.unwrap_or_default().login(&place).map(|login| (place, login))).collect()
}

impl Entry {
    fn login(self, place: &str) -> Result<Login, DockerConfigError> {
        let (username, password) = match self.auth.filter(|auth| !auth.is_empty()) {
            Some(auth) => decode(&auth, place)?,
            None => (self.username.unwrap_or_default(), self.password.unwrap_or_default()),
        };
        Ok(Login { username, password, email: self.email.unwrap_or_default() })
    }
}

/// base64 of `NAME:PASSWORD`, padded or not.
fn decode(auth: &str, place: &str) -> Result<(String, String), DockerConfigError> {
    let padding = if auth.trim().ends_with('=') { DecodePaddingMode::RequireCanonical } else { DecodePaddingMode::RequireNone };
    let engine = GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(padding).with_decode_allow_trailing_bits(true));
    // Go's decoder passes over these.
    let text: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let decoded = engine.decode(text).map_err(|_| DockerConfigError::Base64(place.to_owned()))?;
    let decoded = String::from_utf8_lossy(&decoded);
    let (username, password) = decoded.split_once(':').ok_or(DockerConfigError::Auth)?;
    Ok((username.to_owned(), password.to_owned()))
}

/// Credentials by registry and path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyring(BTreeMap<String, (Location, Vec<Credential>)>);

impl Keyring {
    /// Adds a configuration. What stands for no registry is left out.
    pub(crate) fn add(&mut self, source: &Source, config: DockerConfig) {
        for (place, login) in config {
            let bare = place.strip_prefix("https://").or(place.strip_prefix("http://")).unwrap_or(&place);
            let location = match Location::parse(bare) {
                Ok(location) => location,
                Err(error) => {
                    tracing::warn!(entry = place, %error, "an entry of a docker configuration is for no registry; ignoring it");
                    continue;
                }
            };
            // As docker's clients: /v1/ and /v2/ are the registry itself.
            let path = match location.path.get(..4) {
                Some("/v1/" | "/v2/") => &location.path[3..],
                _ => &location.path,
            };
            let path = if path == "/" { "" } else { path };
            let key = format!("{}{path}", location.host);
            // Of a decoded path, the key may be for another place, or for none.
            let Ok(location) = Location::parse(&key) else { continue };
            self.0.entry(key).or_insert((location, Vec::new())).1.push(Credential { login, source: source.clone() });
        }
    }

    /// The credentials for a repository such as `docker.io/library/busybox`, those of longer paths first.
    pub(crate) fn lookup(&self, repository: &str) -> Vec<Credential> {
        let Ok(target) = Location::parse(repository) else { return Vec::new() };
        let fitting = self.0.values().rev().filter(|(location, _)| location.matches(&target));
        let found: Vec<_> = fitting.flat_map(|(_, credentials)| credentials).cloned().collect();
        if !found.is_empty() || !is_docker(repository) {
            return found;
        }
        self.0.get(DOCKER).map(|(_, credentials)| credentials.clone()).unwrap_or_default()
    }
}

/// Whether a repository is in docker's registry.
fn is_docker(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some(("", _)) => false,
        Some(("docker.io" | DOCKER, _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

/// A pull secret of a pod.
pub(crate) struct PullSecret<'a> {
    pub coordinates: Coordinates,
    pub type_: &'a str,
    pub items: &'a BTreeMap<String, Vec<u8>>,
}

/// A pull secret that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read pull secret {name:?}")]
pub(crate) struct SecretError {
    name: String,
    source: DockerConfigError,
}

/// The keyring of pull secrets. Those of other types say nothing.
pub(crate) fn of_secrets(secrets: &[PullSecret<'_>]) -> Result<Keyring, SecretError> {
    let mut keyring = Keyring::default();
    for secret in secrets {
        let item = |name: &str| secret.items.get(name).filter(|bytes| !bytes.is_empty());
        let read = match secret.type_ {
            "kubernetes.io/dockerconfigjson" => item(".dockerconfigjson").map(|bytes| docker_config_json(bytes)),
            "kubernetes.io/dockercfg" => item(".dockercfg").map(|bytes| dockercfg(bytes)),
            _ => None,
        };
        let config = read.transpose().map_err(|source| SecretError { name: secret.coordinates.name.clone(), source })?;
        keyring.add(&Source::Secret(secret.coordinates.clone()), config.unwrap_or_default());
    }
    Ok(keyring)
}

/// A file of docker's as another program wrote it, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    for read in [docker_config_json, dockercfg] {
        if let Ok(config) = read(bytes) {
            let mut keyring = Keyring::default();
            let places: Vec<String> = config.keys().cloned().collect();
            keyring.add(&Source::Node, config);
            for place in places {
                let _ = keyring.lookup(&place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: Vec<Credential>) -> Vec<String> {
        found.into_iter().map(|credential| credential.login.username).collect()
    }

    fn keyring(text: &str) -> Keyring {
        let mut keyring = Keyring::default();
        keyring.add(&Source::Node, docker_config_json(text.as_bytes()).unwrap());
        keyring
    }

    #[test]
    fn longer_paths_come_first_and_dockers_registry_last() {
        let keyring = keyring(
            r#"{"auths":{"reg.io":{"username":"u"},"reg.io/team":{"auth":"dDpx"},"https://index.docker.io/v1/":{"username":"hub"},
            "*.wild.io":{"username":"w"},"a.wild.io":{"username":"a"},"http://old.io/v2/x/":{"username":"o"},"bad host":{"username":"b"}}}"#,
        );
        for (image, want) in [
            ("reg.io/team/app", &["t", "u"][..]),
            ("reg.io/other", &["u"]),
            ("docker.io/library/nginx", &["hub"]),
            ("nginx", &["hub"]),
            ("library/nginx", &["hub"]),
            ("other.io/x", &[]),
            ("localhost/x", &["hub"]),
            ("localhost:5000/x", &[]),
            ("a.wild.io/x", &["a", "w"]),
            ("b.wild.io/x", &["w"]),
            ("old.io/x/y", &["o"]),
            ("old.io/y", &[]),
            ("", &[]),
        ] {
            assert_eq!(names(keyring.lookup(image)), want, "{image}");
        }
    }

    #[test]
    fn several_credentials_of_one_place_are_all_given_in_their_order() {
        let mut all = keyring(r#"{"auths":{"reg.io":{"username":"first"}}}"#);
        all.add(&Source::Node, dockercfg(br#"{"https://reg.io":{"username":"second"}}"#).unwrap());
        assert_eq!(names(all.lookup("reg.io/x")), ["first", "second"]);
        // What matches docker.io by name leaves the other form out.
        let hub = keyring(r#"{"auths":{"docker.io":{"username":"a"},"index.docker.io":{"username":"b"}}}"#);
        assert_eq!(names(hub.lookup("docker.io/library/x")), ["a"]);
    }

    #[test]
    fn logins_are_read_as_upstream_reads_them() {
        let one = |text: &str| {
            let config = docker_config_json(format!(r#"{{"auths":{{"r":{text}}}}}"#).as_bytes());
            config.map(|config| (config["r"].username.clone(), config["r"].password.clone())).map_err(|error| error.to_string())
        };
        let pair = |name: &str, password: &str| Ok((name.to_owned(), password.to_owned()));
        assert_eq!(one(r#"{"username":"u","password":"p"}"#), pair("u", "p"));
        assert_eq!(one(r#"{"username":"no","auth":"dTpwOnE="}"#), pair("u", "p:q"));
        assert_eq!(one(r#"{"auth":"dTpwOnE"}"#), pair("u", "p:q"), "without padding");
        assert_eq!(one("{\"auth\":\"dTpw\\nOnE=\"}"), pair("u", "p:q"), "over two lines");
        assert_eq!((one("{}"), one("null")), (pair("", ""), pair("", "")));
        assert_eq!(one(r#"{"auth":"dQ=="}"#).unwrap_err(), "unable to parse auth field, must be formatted as base64(username:password)");
        assert_eq!(one(r#"{"auth":"%%"}"#).unwrap_err(), "the auth field of \"r\" is not in base64");
        let wrong = one(r#"{"username":{"secret":1}}"#).unwrap_err();
        assert_eq!(wrong, "error occurred while trying to unmarshal json", "nothing of the content");
        assert!(docker_config_json(b"null").unwrap().is_empty() && docker_config_json(br#"{"credsStore":"x"}"#).unwrap().is_empty());
        assert!(dockercfg(b"[]").is_err() && docker_config_json(b"").is_err());
    }

    #[test]
    fn hashes_are_those_of_upstreams_records() {
        let login = |username: &str, password: &str, email: &str| Login { username: username.into(), password: password.into(), email: email.into() };
        let of = |text: &str| hex(&Sha256::digest(text));
        assert_eq!(login("u", "p", "").hash(), of(r#"{"username":"u","password":"p"}"#));
        assert_eq!(login("", "", "a@b").hash(), of(r#"{"email":"a@b"}"#));
        assert_eq!(login("u", "<&>\"\u{2028}", "").hash(), of("{\"username\":\"u\",\"password\":\"\\u003c\\u0026\\u003e\\\"\\u2028\"}"));
        assert_eq!(login("", "", "").hash(), of("{}"));
    }

    #[test]
    fn pull_secrets_count_by_their_type_and_name_their_source() {
        let items = BTreeMap::from([
            (".dockerconfigjson".to_owned(), br#"{"auths":{"reg.io":{"username":"json"}}}"#.to_vec()),
            (".dockercfg".to_owned(), br#"{"reg.io":{"username":"cfg"}}"#.to_vec()),
        ]);
        let secret = |name: &str, type_: &'static str| PullSecret {
            coordinates: Coordinates { uid: "1".into(), namespace: "ns".into(), name: name.into() },
            type_,
            items: &items,
        };
        let all = [secret("a", "kubernetes.io/dockercfg"), secret("b", "Opaque"), secret("c", "kubernetes.io/dockerconfigjson")];
        let found = of_secrets(&all).unwrap().lookup("reg.io/x");
        assert_eq!(names(found.clone()), ["cfg", "json"]);
        assert!(matches!(&found[1].source, Source::Secret(of) if of.name == "c"), "{found:?}");
        let broken = BTreeMap::from([(".dockercfg".to_owned(), b"{".to_vec())]);
        let error = of_secrets(&[PullSecret { items: &broken, ..secret("x", "kubernetes.io/dockercfg") }]).unwrap_err();
        assert_eq!(error.to_string(), "cannot read pull secret \"x\"");
        assert!(!format!("{found:?}").contains("password"), "{found:?}");
    }
}
