//! Levels, versions, and the policy that a Namespace's labels make (pod-security-admission/api/helpers.go).

use crate::{ErrorKind, FieldError};
use serde_json::Value;
use std::fmt;

/// How much a pod may do, from most to least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "privileged" => Ok(Level::Privileged),
            "baseline" => Ok(Level::Baseline),
            "restricted" => Ok(Level::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        })
    }
}

/// Of which Kubernetes version the checks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// `v1.MINOR`.
    Minor(u64),
    #[default]
    Latest,
}

impl Version {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let minor = |digits: &str| {
            let canonical = digits == "0" || !digits.starts_with('0');
            let all = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
            // Upstream reads it as a signed number.
            if canonical && all { digits.parse().ok().filter(|minor| *minor <= i64::MAX as u64) } else { None }
        };
        match text {
            "latest" => Ok(Version::Latest),
            _ => text.strip_prefix("v1.").and_then(minor).map(Version::Minor).ok_or(r#"must be "latest" or "v1.x""#),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Latest => formatter.write_str("latest"),
            Version::Minor(minor) => write!(formatter, "v1.{minor}"),
        }
    }
}

/// A level in a version, such as `restricted:latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl LevelVersion {
    fn is_equivalent(self, other: Self) -> bool {
        self == other || (self.level == Level::Privileged && other.level == Level::Privileged)
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.level, self.version)
    }
}

/// What refuses a pod, what only marks its audit event, what only warns. The default allows everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|mode| mode.level == Level::Privileged)
    }

    pub(super) fn is_equivalent(&self, other: &Policy) -> bool {
        self.enforce.is_equivalent(other.enforce) && self.audit.is_equivalent(other.audit) && self.warn.is_equivalent(other.warn)
    }
}

pub(super) const PREFIX: &str = "pod-security.kubernetes.io/";

/// The label of a mode, when it is there.
pub(super) fn label<'a>(labels: &'a Value, name: &str) -> Option<&'a str> {
    labels.get(format!("{PREFIX}{name}")).and_then(Value::as_str)
}

/// The policy of a Namespace with these labels, and what is wrong with them. A wrong value of `enforce` counts as the strictest, of `audit`
/// and `warn` as the laxest level.
pub fn policy_of(labels: &Value, defaults: &Policy) -> (Policy, Vec<FieldError>) {
    let mut policy = *defaults;
    let mut errors = Vec::new();
    let mut refuse = |name: &str, value: &str, why: &str| {
        let field = format!("metadata.labels[{PREFIX}{name}]");
        errors.push(FieldError::new(ErrorKind::Invalid, field, Value::from(value), why));
    };
    let mut enforced = false;
    for (mode, fallback, slot) in [
        ("enforce", Level::Restricted, &mut policy.enforce),
        ("audit", Level::Privileged, &mut policy.audit),
        ("warn", Level::Privileged, &mut policy.warn),
    ] {
        if let Some(value) = label(labels, mode) {
            let level = Level::parse(value);
            enforced |= mode == "enforce" && level.is_ok();
            slot.level = level.unwrap_or_else(|why| {
                refuse(mode, value, why);
                fallback
            });
        }
        let version = format!("{mode}-version");
        if let Some(value) = label(labels, &version) {
            slot.version = Version::parse(value).unwrap_or_else(|why| {
                refuse(&version, value, why);
                Version::Latest
            });
        }
    }
    // Who asks for enforcement alone is warned of the same.
    if label(labels, "warn").is_none() && enforced && policy.enforce.level > policy.warn.level {
        policy.warn.level = policy.enforce.level;
        if label(labels, "warn-version").is_none() {
            policy.warn.version = policy.enforce.version;
        }
    }
    (policy, errors)
}
