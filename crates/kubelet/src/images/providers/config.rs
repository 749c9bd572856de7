//! CredentialProviderConfig: which programs give credentials for which images (upstream pkg/credentialprovider/plugin/config.go). Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use kube_rules::{ErrorKind, FieldError};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::protocol::Version;
use crate::images::keyring::hex;
use crate::images::location::Location;

/// Bytes of a file at most.
pub(crate) const MAX_FILE: u64 = 1 << 20;

/// Why a configuration cannot be used. Texts are upstream's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("no configuration files found in directory {0:?}")]
    NoFiles(String),
    #[error("unable to access path {0:?}: no such file or directory")]
    Missing(String),
    #[error("it has more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("it is no YAML")]
    Yaml(#[source] serde_yaml_ng::Error),
    #[error("it must hold one document")]
    Documents,
    #[error("failed to decode {kind:?} of {version:?}: it must be CredentialProviderConfig of kubelet.config.k8s.io/v1, v1beta1 or v1alpha1")]
    Kind { kind: String, version: String },
    #[error("strict decoding error")]
    Strict(#[source] serde_json::Error),
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    #[error("failed to validate credential provider config: {}", aggregate(.0))]
    Invalid(Vec<FieldError>),
}

/// As upstream joins several errors.
pub(crate) fn aggregate(errors: &[impl ToString]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors.iter().map(ToString::to_string) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) }
}

/// A program that gives credentials, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Provider {
    pub name: String,
    pub match_images: Vec<Location>,
    pub default_cache_duration: Duration,
    pub version: Version,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub tokens: Option<TokenAttributes>,
}

impl Provider {
    /// Whether it is asked for a repository.
    pub(crate) fn is_for(&self, repository: &str) -> bool {
        Location::parse(repository).is_ok_and(|image| self.match_images.iter().any(|pattern| pattern.matches(&image)))
    }
}

/// What a provider is told of a pod's account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenAttributes {
    pub audience: String,
    /// Credentials hold for the token alone, not for the account.
    pub by_token: bool,
    pub required: bool,
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(rename = "kind")]
    _kind: serde_json::Value,
    #[serde(rename = "apiVersion")]
    _api_version: serde_json::Value,
    providers: Option<Vec<ProviderWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
struct ProviderWire {
    name: Option<String>,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<String>,
    api_version: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    token_attributes: Option<TokensWire>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
struct TokensWire {
    service_account_token_audience: Option<String>,
    cache_type: Option<String>,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Option<Vec<String>>,
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// The providers of one file, not checked yet.
pub(crate) struct Parsed(Vec<ProviderWire>);

/// Reads a file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, ConfigError> {
    if bytes.len() as u64 > MAX_FILE {
        return Err(ConfigError::TooLarge);
    }
    let mut documents = serde_yaml_ng::Deserializer::from_slice(bytes).map(serde_json::Value::deserialize);
    let value = documents.next().ok_or(ConfigError::Documents)?.map_err(ConfigError::Yaml)?;
    if documents.next().is_some() {
        return Err(ConfigError::Documents);
    }
    let text = |name: &str| value.get(name).and_then(|text| text.as_str()).unwrap_or_default().to_owned();
    let (kind, version) = (text("kind"), text("apiVersion"));
    let older = match version.strip_prefix("kubelet.config.k8s.io/") {
        Some("v1") => false,
        Some("v1beta1" | "v1alpha1") => true,
        _ => return Err(ConfigError::Kind { kind, version }),
    };
    if kind != "CredentialProviderConfig" {
        return Err(ConfigError::Kind { kind, version });
    }
    let wire: Wire = serde_json::from_value(value).map_err(ConfigError::Strict)?;
    let providers = wire.providers.unwrap_or_default();
    if older && providers.iter().any(|provider| provider.token_attributes.is_some()) {
        let why = format!("unknown field `tokenAttributes` of {version}: use kubelet.config.k8s.io/v1");
        return Err(ConfigError::Strict(serde::de::Error::custom(why)));
    }
    Ok(Parsed(providers))
}

/// The providers of all files, in their order.
pub(crate) fn merge(files: Vec<Parsed>) -> Result<Vec<Provider>, ConfigError> {
    let mut names = BTreeSet::new();
    let all: Vec<ProviderWire> = files.into_iter().flat_map(|file| file.0).collect();
    for name in all.iter().map(|provider| provider.name.clone().unwrap_or_default()) {
        if let Some(name) = names.replace(name) {
            return Err(ConfigError::Duplicate(name));
        }
    }
    let mut errors = Vec::new();
    if all.is_empty() {
        errors.push(required("providers", "at least 1 item in plugins is required"));
    }
    let checked: Vec<_> = all.into_iter().map(|provider| provider.check(&mut errors)).collect();
    match checked.into_iter().collect() {
        Some(providers) if errors.is_empty() => Ok(providers),
        _ => Err(ConfigError::Invalid(errors)),
    }
}

/// The hash that the agent shows of its files (upstream `readCredentialProviderConfig`).
pub(crate) fn hash<'a>(files: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut sum = Sha256::new();
    for file in files {
        sum.update((file.len() as u64).to_be_bytes());
        sum.update(file);
    }
    format!("sha256:{}", hex(&sum.finalize()))
}

impl ProviderWire {
    /// The provider, unless something is wrong with it.
    fn check(self, errors: &mut Vec<FieldError>) -> Option<Provider> {
        let begun = errors.len();
        let name = self.name.unwrap_or_default();
        for (wrong, why) in [
            (name.contains('/'), "provider name cannot contain '/'"),
            (name.contains(' '), "provider name cannot contain spaces"),
            (name == ".", "provider name cannot be '.'"),
            (name == "..", "provider name cannot be '..'"),
            // Upstream finds that out when it looks for the program.
            (name.is_empty(), "provider name cannot be empty"),
            (name.contains('\\') || name.contains(':') || name.contains('\0'), "provider name must be the name of a file"),
        ] {
            if wrong {
                errors.push(invalid("providers.name", &name, why));
            }
        }
        let api_version = self.api_version.unwrap_or_default();
        let version = Version::of(&api_version);
        if api_version.is_empty() {
            errors.push(required("providers.apiVersion", ""));
        } else if version.is_none() {
            errors.push(not_supported("providers.apiVersion", &api_version, &Version::ALL.map(|version| version.text())));
        }
        let match_images = self.match_images.unwrap_or_default();
        if match_images.is_empty() {
            errors.push(required("providers.matchImages", "at least 1 item in matchImages is required"));
        }
        let mut patterns = Vec::new();
        for pattern in &match_images {
            match Location::parse(pattern) {
                Ok(location) => patterns.push(location),
                Err(error) => errors.push(invalid("providers.matchImages", pattern, &format!("match image is invalid: {error}"))),
            }
        }
        let duration = check_duration(self.default_cache_duration.as_deref(), errors);
        let tokens = self.token_attributes.and_then(|tokens| tokens.check(version, errors));
        if errors.len() > begun {
            return None;
        }
        Some(Provider {
            name,
            match_images: patterns,
            default_cache_duration: duration?,
            version: version?,
            args: self.args.unwrap_or_default(),
            env: self.env.unwrap_or_default().into_iter().map(|variable| (variable.name, variable.value)).collect(),
            tokens,
        })
    }
}

fn check_duration(text: Option<&str>, errors: &mut Vec<FieldError>) -> Option<Duration> {
    let Some(text) = text else {
        errors.push(required("providers.defaultCacheDuration", ""));
        return None;
    };
    match kube_rules::duration::parse(text) {
        Ok(duration) if duration.is_negative() => {
            errors.push(invalid("providers.defaultCacheDuration", text, "must be greater than or equal to 0"));
            None
        }
        Ok(duration) => Some(duration.unsigned_abs()),
        Err(why) => {
            errors.push(invalid("providers.defaultCacheDuration", text, &why));
            None
        }
    }
}

impl TokensWire {
    fn check(self, version: Option<Version>, errors: &mut Vec<FieldError>) -> Option<TokenAttributes> {
        let begun = errors.len();
        let path = |member: &str| format!("providers.tokenAttributes.{member}");
        let audience = self.service_account_token_audience.unwrap_or_default();
        let (needed, optional) =
            (self.required_service_account_annotation_keys.unwrap_or_default(), self.optional_service_account_annotation_keys.unwrap_or_default());
        if audience.is_empty() {
            errors.push(required(&path("serviceAccountTokenAudience"), ""));
        }
        if self.require_service_account.is_none() {
            errors.push(required(&path("requireServiceAccount"), ""));
        }
        if version != Some(Version::V1) {
            let why = format!("tokenAttributes is only supported for {} API version", Version::V1.text());
            errors.push(forbidden("providers.tokenAttributes", &why));
        }
        if self.require_service_account == Some(false) && !needed.is_empty() {
            let why = "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set";
            errors.push(forbidden(&path("requiredServiceAccountAnnotationKeys"), why));
        }
        for (member, keys) in [("requiredServiceAccountAnnotationKeys", &needed), ("optionalServiceAccountAnnotationKeys", &optional)] {
            check_keys(&path(member), keys, errors);
        }
        let both: BTreeSet<_> = needed.iter().filter(|key| optional.contains(key)).collect();
        if !both.is_empty() {
            let both = serde_json::json!(both);
            errors.push(FieldError::invalid("providers.tokenAttributes", both, "annotation keys cannot be both required and optional"));
        }
        let cache_type = self.cache_type.unwrap_or_default();
        match cache_type.as_str() {
            "ServiceAccount" | "Token" => {}
            "" => {
                let why = "cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token";
                errors.push(required(&path("cacheType"), why));
            }
            other => errors.push(not_supported(&path("cacheType"), other, &["ServiceAccount", "Token"])),
        }
        (errors.len() == begun).then(|| TokenAttributes {
            audience,
            by_token: cache_type == "Token",
            required: self.require_service_account == Some(true),
            required_annotations: needed,
            optional_annotations: optional,
        })
    }
}

/// Keys are qualified names, whatever their case, each once.
fn check_keys(path: &str, keys: &[String], errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for key in keys {
        errors.extend(qualified_name(&key.to_lowercase()).into_iter().map(|why| invalid(path, key, &why)));
        if !seen.insert(key) {
            errors.push(duplicate(path, key));
        }
    }
}

/// apimachinery pkg/util/validation, `IsQualifiedName`.
fn qualified_name(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (prefix, name) = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => (None, name),
        [prefix, name] => (Some(prefix), name),
        _ => {
            let why = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                       character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                       '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![why.to_owned()];
        }
    };
    let edges = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    if let Some(prefix) = prefix {
        let label = |label: &str| edges(label) && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if prefix.is_empty() {
            problems.push("prefix part must be non-empty".to_owned());
        } else if prefix.len() > 253 {
            problems.push("prefix part must be no more than 253 bytes".to_owned());
        }
        if !prefix.is_empty() && !prefix.split('.').all(label) {
            let why = "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
                       and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                       '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
            problems.push(why.to_owned());
        }
    }
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !edges(name) || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        let why = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
                   (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        problems.push(why.to_owned());
    }
    problems
}

fn required(path: &str, why: &str) -> FieldError {
    FieldError::new(ErrorKind::Required, path, None, why)
}

fn invalid(path: &str, value: &str, why: &str) -> FieldError {
    FieldError::invalid(path, value.into(), why)
}

fn forbidden(path: &str, why: &str) -> FieldError {
    FieldError::new(ErrorKind::Forbidden, path, None, why)
}

fn duplicate(path: &str, value: &str) -> FieldError {
    FieldError::new(ErrorKind::Duplicate, path, Some(value.into()), "")
}

fn not_supported(path: &str, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<_> = supported.iter().map(|text| format!("{text:?}")).collect();
    FieldError::new(ErrorKind::NotSupported, path, Some(value.into()), format!("supported values: {}", supported.join(", ")))
}

/// A file as another program wrote it, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(parsed) = parse(bytes) {
        for provider in merge(vec![parsed]).into_iter().flatten() {
            assert!(!provider.name.contains(['/', '\\']) && !matches!(provider.name.as_str(), "" | "." | ".."));
            let _ = provider.is_for("reg.io:5000/team/app");
        }
    }
}

#[cfg(test)]
mod tests;
