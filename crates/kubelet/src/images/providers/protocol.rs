//! What a provider is asked and what it answers: CredentialProviderRequest and CredentialProviderResponse
//! (staging/src/k8s.io/kubelet/pkg/apis/credentialprovider). Pure.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::json;

use crate::images::keyring::{DockerConfig, Login};

/// Bytes of an answer at most.
pub(super) const MAX_ANSWER: usize = 1 << 20;

/// A version of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V1alpha1,
    V1beta1,
}

impl Version {
    /// In the order of the alphabet.
    pub(super) const ALL: [Self; 3] = [Self::V1, Self::V1alpha1, Self::V1beta1];

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::V1 => "credentialprovider.kubelet.k8s.io/v1",
            Self::V1alpha1 => "credentialprovider.kubelet.k8s.io/v1alpha1",
            Self::V1beta1 => "credentialprovider.kubelet.k8s.io/v1beta1",
        }
    }

    pub(super) fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.text() == text)
    }
}

/// The account of a pod, as a provider is told of it.
#[derive(Clone, Default)]
pub(super) struct Account {
    pub token: String,
    pub annotations: BTreeMap<String, String>,
}

/// What a provider reads.
pub(super) fn request(version: Version, image: &str, account: Option<&Account>) -> Vec<u8> {
    let mut request = json!({"kind": "CredentialProviderRequest", "apiVersion": version.text(), "image": image});
    if let Some(account) = account {
        if !account.token.is_empty() {
            request["serviceAccountToken"] = account.token.as_str().into();
        }
        if !account.annotations.is_empty() {
            request["serviceAccountAnnotations"] = json!(account.annotations);
        }
    }
    let mut bytes = request.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// How far credentials reach in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Image,
    Registry,
    Global,
}

/// Why what a provider wrote is no answer. It never says what that was.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("it has more than {MAX_ANSWER} bytes")]
    TooLarge,
    #[error("error reading GVK from response: it is no JSON object with kind and apiVersion")]
    Json,
    #[error("apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual apiVersion:{actual}")]
    Version { expected: &'static str, actual: String },
    #[error("error decoding credential provider plugin response from stdout")]
    Decode,
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    Reach(String),
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub reach: Reach,
    /// How long it holds; None for what the configuration says.
    pub duration: Option<SignedDuration>,
    pub auth: DockerConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: Option<String>,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Option<LoginWire>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LoginWire {
    username: Option<String>,
    password: Option<String>,
}

impl Answer {
    pub(super) fn parse(bytes: &[u8], expected: Version) -> Result<Self, AnswerError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Type {
            #[serde(default)]
            kind: String,
            #[serde(default)]
            api_version: String,
        }
        if bytes.len() > MAX_ANSWER {
            return Err(AnswerError::TooLarge);
        }
        let of: Type = serde_json::from_slice(bytes).map_err(|_| AnswerError::Json)?;
        if of.api_version != expected.text() {
            let actual = of.api_version.chars().take(63).map(|c| if c.is_control() { ' ' } else { c }).collect();
            return Err(AnswerError::Version { expected: expected.text(), actual });
        }
        if of.kind != "CredentialProviderResponse" {
            return Err(AnswerError::Decode);
        }
        let wire: Wire = serde_json::from_slice(bytes).map_err(|_| AnswerError::Decode)?;
        let duration = wire.cache_duration.map(|text| kube_rules::duration::parse(&text)).transpose().map_err(|_| AnswerError::Decode)?;
        let reach = match wire.cache_key_type.as_deref().unwrap_or_default() {
            "Image" => Reach::Image,
            "Registry" => Reach::Registry,
            "Global" => Reach::Global,
            other => return Err(AnswerError::Reach(other.chars().take(63).map(|c| if c.is_control() { ' ' } else { c }).collect())),
        };
        let auth = wire.auth.unwrap_or_default().into_iter().map(|(place, login)| {
            let login = login.unwrap_or_default();
            let (username, password) = (login.username.unwrap_or_default(), login.password.unwrap_or_default());
            (place, Login { username, password, ..Login::default() })
        });
        Ok(Answer { reach, duration, auth: auth.collect() })
    }
}

/// What a program wrote, as an answer, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    for version in Version::ALL {
        let _ = Answer::parse(bytes, version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Answer, String> {
        let text = text.replacen('{', r#"{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","#, 1);
        Answer::parse(text.as_bytes(), Version::V1).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_upstreams() {
        let text = |account: Option<&Account>| String::from_utf8(request(Version::V1beta1, "reg.io/a", account)).unwrap();
        let bare = "{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1beta1\",\"image\":\"reg.io/a\"}\n";
        assert_eq!(text(None), bare);
        assert_eq!(text(Some(&Account::default())), bare);
        let account = Account { token: "t".into(), annotations: BTreeMap::from([("k".into(), "v".into())]) };
        let more = ",\"serviceAccountToken\":\"t\",\"serviceAccountAnnotations\":{\"k\":\"v\"}}\n";
        assert_eq!(text(Some(&account)), bare.replace("}\n", more));
    }

    #[test]
    fn answers_are_read_strictly() {
        let whole = parse(r#"{"cacheKeyType":"Registry","cacheDuration":"1h","auth":{"*.io":{"username":"u","password":"p"},"b":null}}"#).unwrap();
        assert_eq!((whole.reach, whole.duration), (Reach::Registry, Some(SignedDuration::from_hours(1))));
        assert_eq!((whole.auth["*.io"].password.as_str(), whole.auth["b"].username.as_str()), ("p", ""));
        let least = parse(r#"{"cacheKeyType":"Image","cacheDuration":null,"auth":null}"#).unwrap();
        assert_eq!((least.reach, least.duration, least.auth.len()), (Reach::Image, None, 0));
        let decode = "error decoding credential provider plugin response from stdout";
        for (text, why) in [
            (r#"{"cacheKeyType":"All"}"#, "credential provider plugin did not return a valid cacheKeyType: All"),
            (r#"{"auth":{}}"#, "credential provider plugin did not return a valid cacheKeyType: "),
            (r#"{"cacheKeyType":"Image","cacheDuration":"1"}"#, decode),
            (r#"{"cacheKeyType":"Image","cacheDuration":1}"#, decode),
            (r#"{"cacheKeyType":"Image","token":"secret"}"#, decode),
            (r#"{"cacheKeyType":"Image","auth":{"a":{"username":"u","secret":"s"}}}"#, decode),
            (r#"{"cacheKeyType":"Image"} x"#, "error reading GVK from response: it is no JSON object with kind and apiVersion"),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn answers_of_another_version_or_kind_are_refused() {
        let parse = |text: &str| Answer::parse(text.as_bytes(), Version::V1).unwrap_err().to_string();
        let version = "apiVersion from credential plugin response did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1, \
                       actual apiVersion:";
        assert_eq!(parse("{}"), version);
        assert_eq!(
            parse(r#"{"apiVersion":"credentialprovider.kubelet.k8s.io/v1beta1"}"#),
            format!("{version}credentialprovider.kubelet.k8s.io/v1beta1")
        );
        let other = parse(r#"{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1"}"#);
        assert_eq!(other, "error decoding credential provider plugin response from stdout");
        assert_eq!(parse(&" ".repeat(MAX_ANSWER + 1)), "it has more than 1048576 bytes");
    }
}
