//! The specification's error object and its codes.

use serde::{Deserialize, Serialize};

use super::version::SpecVersion;

/// Error codes: below 100 the specification's, from 100 on ours.
pub mod code {
    /// The configuration's `cniVersion` is not supported.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field of the configuration is not supported; the message names it.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is unknown; the runtime need not call DEL.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// An environment variable is missing or invalid; the message names it.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// A document could not be decoded.
    pub const DECODE: u32 = 6;
    /// The network configuration is invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// Nothing is wrong with the request; try again later.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: an ADD would fail.
    pub const NOT_AVAILABLE: u32 = 50;
    /// What libcni calls an internal error; upstream's plug-ins use it for anything unclassified.
    pub const INTERNAL: u32 = 999;
    /// The host network service refused a request.
    pub const HOST_NETWORK: u32 = 100;
    /// Every address of a range is taken.
    pub const EXHAUSTED: u32 = 101;
    /// CHECK found the network different from what ADD had made.
    pub const DRIFT: u32 = 102;
}

/// The error object a plug-in prints on stdout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{msg}")]
pub struct CniError {
    /// The version of this document.
    #[serde(rename = "cniVersion", default)]
    pub cni_version: String,
    /// See [`code`].
    #[serde(default)]
    pub code: u32,
    /// A short text that names operation, object and way out.
    #[serde(default)]
    pub msg: String,
    /// The long text; empty when there is nothing to add.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    /// An error of `code` that says `msg`.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { cni_version: SpecVersion::CURRENT.to_string(), code, msg: msg.into(), details: String::new() }
    }

    /// The same error with its long text.
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// An I/O failure while doing `what`, for example "create /var/lib/cni/networks/net".
    pub fn io(what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Self::new(code::IO, format!("cannot {what}: {error}"))
    }

    /// A document `what` that is not what it should be.
    pub fn decode(what: impl std::fmt::Display, error: &serde_json::Error) -> Self {
        Self::new(code::DECODE, format!("cannot decode {what}: {error}"))
    }

    /// An invalid network configuration.
    pub fn config(msg: impl Into<String>) -> Self {
        Self::new(code::INVALID_CONFIG, msg)
    }

    /// Anything without a code of its own.
    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, msg)
    }
}
