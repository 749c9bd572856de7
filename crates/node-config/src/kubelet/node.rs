//! Values of members that say how the agent runs its node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `cgroupDriver`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// Control groups are directories.
    #[default]
    Cgroupfs,
    /// They are units of systemd.
    Systemd,
}

/// `nodeLeaseDurationSeconds`: more than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct LeaseSeconds(pub u32);

impl Default for LeaseSeconds {
    fn default() -> Self {
        Self(40)
    }
}

/// A lease that would not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be greater than 0 and less than 2147483648, instead got {0}")]
pub struct LeaseSecondsError(i64);

impl From<LeaseSeconds> for i64 {
    fn from(seconds: LeaseSeconds) -> Self {
        seconds.0.into()
    }
}

impl TryFrom<i64> for LeaseSeconds {
    type Error = LeaseSecondsError;

    fn try_from(seconds: i64) -> Result<Self, LeaseSecondsError> {
        match u32::try_from(seconds) {
            Ok(short @ 1..=0x7fff_ffff) => Ok(Self(short)),
            _ => Err(LeaseSecondsError(seconds)),
        }
    }
}

/// A name of a kernel setting, or its beginning and `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnsafeSysctl(String);

/// A pattern of kernel settings that no pod can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsafeSysctlError {
    #[error("{0:?} is neither the name of a kernel setting nor its beginning and \"*\"")]
    Name(String),
    #[error("{0:?} belongs to no namespace of a pod: settings of kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* and net.* can be allowed")]
    NotNamespaced(String),
}

impl UnsafeSysctl {
    /// The pattern, with dots.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UnsafeSysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<UnsafeSysctl> for String {
    fn from(pattern: UnsafeSysctl) -> Self {
        pattern.0
    }
}

impl TryFrom<String> for UnsafeSysctl {
    type Error = UnsafeSysctlError;

    fn try_from(text: String) -> Result<Self, UnsafeSysctlError> {
        use kube_rules::sysctl;
        let pattern = sysctl::with_dots(&text);
        match sysctl::check_pattern(&pattern) {
            Ok(()) => Ok(Self(pattern)),
            Err(sysctl::PatternError::Name) => Err(UnsafeSysctlError::Name(text)),
            Err(sysctl::PatternError::NotNamespaced) => Err(UnsafeSysctlError::NotNamespaced(text)),
        }
    }
}
