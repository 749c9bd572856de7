//! Records of pulls, as files in upstream's form: ImagePullIntent and ImagePulledRecord, `kubelet.config.k8s.io`. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::images::keyring::{Coordinates, Credential, Source};

/// Bytes of a file at most.
pub(super) const MAX_FILE: u64 = 4 << 20;
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const OLDER: &str = "kubelet.config.k8s.io/v1alpha1";

/// A file that is no record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    #[error("it has more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("it is no record")]
    Json(#[from] serde_json::Error),
    #[error("it is a {kind:?} of {version:?}")]
    Kind { kind: String, version: String },
}

/// An image that is being pulled.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntentWire {
    kind: String,
    api_version: String,
    #[serde(default)]
    image: String,
}

/// The text of an intent.
pub(super) fn write_intent(image: &str) -> Vec<u8> {
    line(&IntentWire { kind: "ImagePullIntent".into(), api_version: VERSION.into(), image: image.into() })
}

/// The image of an intent, and whether the file is of today's version.
pub(super) fn read_intent(bytes: &[u8]) -> Result<(String, bool), DocumentError> {
    let wire: IntentWire = parse(bytes)?;
    let is_current = version(&wire.kind, &wire.api_version, "ImagePullIntent")?;
    Ok((wire.image, is_current))
}

/// A pull secret, and the hash of the login in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PullSecret {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub credential_hash: String,
}

impl PullSecret {
    pub(super) fn coordinates(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

/// A ServiceAccount for whose token a provider gave credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PullAccount {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

impl PullAccount {
    pub(super) fn coordinates(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

/// With what an image was pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PullCredentials {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub kubernetes_service_accounts: Vec<PullAccount>,
    /// With the node's own credentials, or without any.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

impl PullCredentials {
    /// Those of a successful pull.
    pub(crate) fn of(used: Option<&Credential>) -> Self {
        match used.map(|credential| (&credential.source, &credential.login)) {
            None | Some((Source::Node, _)) => PullCredentials { node_pods_accessible: true, ..Self::default() },
            Some((Source::Secret(of), login)) => PullCredentials { kubernetes_secrets: vec![secret(of, login.hash())], ..Self::default() },
            Some((Source::ServiceAccount(of), _)) => PullCredentials { kubernetes_service_accounts: vec![account(of)], ..Self::default() },
        }
    }

    /// Those that a pod has for itself. Of accounts there is one.
    pub(crate) fn of_pod(credentials: &[Credential]) -> Self {
        let mut all = Self::default();
        for credential in credentials {
            match &credential.source {
                Source::Node => {}
                Source::Secret(of) => all.kubernetes_secrets.push(secret(of, credential.login.hash())),
                Source::ServiceAccount(of) if all.kubernetes_service_accounts.is_empty() => all.kubernetes_service_accounts.push(account(of)),
                Source::ServiceAccount(_) => {}
            }
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn secret(of: &Coordinates, credential_hash: String) -> PullSecret {
    PullSecret { uid: of.uid.clone(), namespace: of.namespace.clone(), name: of.name.clone(), credential_hash }
}

fn account(of: &Coordinates) -> PullAccount {
    PullAccount { uid: of.uid.clone(), namespace: of.namespace.clone(), name: of.name.clone() }
}

/// An image that the agent has pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PulledRecord {
    kind: String,
    api_version: String,
    #[serde(default, serialize_with = "whole_seconds")]
    pub last_updated_time: Option<Timestamp>,
    #[serde(default)]
    pub image_ref: String,
    /// By the image's name as a pod has it, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_empty")]
    pub credential_mapping: BTreeMap<String, PullCredentials>,
}

impl PulledRecord {
    pub(super) fn new(reference: &str, now: Timestamp) -> Self {
        PulledRecord {
            kind: "ImagePulledRecord".into(),
            api_version: VERSION.into(),
            last_updated_time: Some(now),
            image_ref: reference.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// The record, and whether the file is of today's version.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, bool), DocumentError> {
        let mut record: PulledRecord = parse(bytes)?;
        let is_current = version(&record.kind, &record.api_version, "ImagePulledRecord")?;
        record.api_version = VERSION.into();
        Ok((record, is_current))
    }

    pub(super) fn write(&self) -> Vec<u8> {
        line(self)
    }
}

fn parse<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, DocumentError> {
    if bytes.len() as u64 > MAX_FILE { Err(DocumentError::TooLarge) } else { Ok(serde_json::from_slice(bytes)?) }
}

/// Whether a version is today's.
fn version(kind: &str, version: &str, expected: &str) -> Result<bool, DocumentError> {
    let other = || DocumentError::Kind { kind: kind.chars().take(63).collect(), version: version.chars().take(63).collect() };
    if kind != expected {
        return Err(other());
    }
    match version {
        VERSION => Ok(true),
        OLDER => Ok(false),
        _ => Err(other()),
    }
}

fn line(document: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(document).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn whole_seconds<S: serde::Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time.map(|time| Timestamp::from_second(time.as_second()).unwrap_or(time)) {
        Some(time) => serializer.collect_str(&time),
        None => serializer.serialize_none(),
    }
}

/// A file as another program wrote it, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok((image, _)) = read_intent(bytes) {
        let (again, is_current) = read_intent(&write_intent(&image)).expect("what was written can be read");
        assert!(again == image && is_current);
    }
    if let Ok((record, _)) = PulledRecord::read(bytes) {
        let written = record.write();
        let (again, is_current) = PulledRecord::read(&written).expect("what was written can be read");
        assert!(again.write() == written && is_current);
        assert_eq!(again.credential_mapping, record.credential_mapping);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::keyring::Login;

    #[test]
    fn files_are_upstreams() {
        let intent = "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"secretorg/myimage:customtag\"}\n";
        assert_eq!(String::from_utf8(write_intent("secretorg/myimage:customtag")).unwrap(), intent);
        assert_eq!(read_intent(intent.as_bytes()).unwrap(), ("secretorg/myimage:customtag".into(), true));
        assert!(!read_intent(intent.replace("v1beta1", "v1alpha1").as_bytes()).unwrap().1);

        let text = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"lastUpdatedTime\":\"2024-10-21T12:26:40Z\",\
                    \"imageRef\":\"sha256:1\",\"credentialMapping\":{\"a\":{\"nodePodsAccessible\":true},\"b\":{\"kubernetesSecrets\":\
                    [{\"uid\":\"u\",\"namespace\":\"ns\",\"name\":\"s\",\"credentialHash\":\"h\"}]},\"c\":{\"kubernetesServiceAccounts\":\
                    [{\"uid\":\"u\",\"namespace\":\"ns\",\"name\":\"s\"}]}}}\n";
        let (record, is_current) = PulledRecord::read(text.as_bytes()).unwrap();
        assert!(is_current);
        assert_eq!(String::from_utf8(record.write()).unwrap(), text);
        // As upstream wrote it before.
        let old = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1alpha1\",\"lastUpdatedTime\":\"2024-10-21T12:26:40Z\",\
                   \"imageRef\":\"testemptycredmapping-alpha\"}";
        let (record, is_current) = PulledRecord::read(old.as_bytes()).unwrap();
        assert!(!is_current && record.credential_mapping.is_empty());
        assert_eq!(String::from_utf8(record.write()).unwrap(), old.replace("v1alpha1", "v1beta1") + "\n");
        let null = text.replace("[{\"uid\":\"u\",\"namespace\":\"ns\",\"name\":\"s\"}]", "null");
        assert!(PulledRecord::read(null.as_bytes()).unwrap().0.credential_mapping["c"].is_empty());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let record = |text: &str| PulledRecord::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(record(""), "it is no record");
        assert_eq!(
            record(r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1"}"#),
            "it is a \"ImagePullIntent\" of \"kubelet.config.k8s.io/v1beta1\""
        );
        assert_eq!(record(r#"{"kind":"ImagePulledRecord","apiVersion":"v1"}"#), "it is a \"ImagePulledRecord\" of \"v1\"");
        assert_eq!(record(r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","x":1}"#), "it is no record");
        assert_eq!(record(&" ".repeat(MAX_FILE as usize + 1)), "it has more than 4194304 bytes");
    }

    #[test]
    fn credentials_are_recorded_by_their_source() {
        let of = Coordinates { uid: "u".into(), namespace: "ns".into(), name: "s".into() };
        let credential = |source: Source| Credential { login: Login { username: "n".into(), ..Login::default() }, source };
        let (node, secret, account) =
            (credential(Source::Node), credential(Source::Secret(of.clone())), credential(Source::ServiceAccount(of.clone())));
        assert!(PullCredentials::of(None).node_pods_accessible && PullCredentials::of(Some(&node)).node_pods_accessible);
        let recorded = PullCredentials::of(Some(&secret));
        assert_eq!(recorded.kubernetes_secrets[0].credential_hash, secret.login.hash());
        assert!(!recorded.node_pods_accessible);
        assert_eq!(PullCredentials::of(Some(&account)).kubernetes_service_accounts[0].name, "s");
        let other = credential(Source::ServiceAccount(Coordinates { name: "other".into(), ..of }));
        let all = PullCredentials::of_pod(&[node, secret.clone(), secret, account, other]);
        assert_eq!((all.kubernetes_secrets.len(), all.kubernetes_service_accounts.len(), all.node_pods_accessible), (2, 1, false));
    }
}
