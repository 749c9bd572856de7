//! `authentication` and `authorization`: whom the node agent's server knows, and what they may do.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::GoDuration;
use crate::values::as_text;

/// `authentication`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Authentication {
    /// Client certificates.
    pub x509: X509,
    pub webhook: AuthenticationWebhook,
    pub anonymous: Anonymous,
}

/// `authentication.x509`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct X509 {
    /// Authority whose client certificates are accepted, a path to PEM.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// `authentication.webhook`: tokens, which the API server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthenticationWebhook {
    /// Whether clients may show tokens.
    pub enabled: bool,
    /// How long an answer of the API server counts.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// `authentication.anonymous`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Anonymous {
    /// Whether clients that show nothing are `system:anonymous`, instead of refused.
    pub enabled: bool,
}

/// `authorization`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authorization {
    pub mode: AuthorizationMode,
    pub webhook: AuthorizationWebhook,
}

/// `authorization.webhook`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthorizationWebhook {
    /// How long the API server's yes counts.
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    /// How long its no counts.
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Whoever is known may do everything.
    AlwaysAllow,
    /// The API server.
    #[default]
    Webhook,
}

/// A mode that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown authorization mode {0}: write AlwaysAllow or Webhook")]
pub struct UnknownMode(String);

impl Default for AuthenticationWebhook {
    fn default() -> Self {
        Self { enabled: true, cache_ttl: GoDuration(Duration::from_secs(120)) }
    }
}

impl Default for AuthorizationWebhook {
    fn default() -> Self {
        let seconds = |seconds| GoDuration(Duration::from_secs(seconds));
        Self { cache_authorized_ttl: seconds(300), cache_unauthorized_ttl: seconds(30) }
    }
}

impl fmt::Display for AuthorizationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::Webhook => "Webhook",
        })
    }
}

impl FromStr for AuthorizationMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "AlwaysAllow" => Ok(Self::AlwaysAllow),
            "" | "Webhook" => Ok(Self::Webhook),
            _ => Err(UnknownMode(text.to_owned())),
        }
    }
}
as_text!(AuthorizationMode);
