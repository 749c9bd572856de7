//! Released versions of the specification.

use std::fmt;
use std::str::FromStr;

use super::error::{CniError, code};

/// A released version of the CNI specification, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpecVersion {
    /// 0.1.0; also what a configuration without `cniVersion` means.
    V0_1_0,
    /// 0.2.0, the version of the first Windows plug-ins.
    V0_2_0,
    /// 0.3.0
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0: CHECK and `prevResult` for DEL.
    V0_4_0,
    /// 1.0.0: `ips[].version` is gone.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

impl SpecVersion {
    /// Every supported version, oldest first.
    pub const ALL: [Self; 7] = [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// The newest supported version.
    pub const CURRENT: Self = Self::V1_1_0;

    /// The version's text, as in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Whether CHECK exists and DEL receives `prevResult`.
    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// Whether GC and STATUS exist.
    pub fn has_gc(self) -> bool {
        self >= Self::V1_1_0
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SpecVersion {
    type Err = CniError;

    /// An empty text is 0.1.0, as in libcni.
    fn from_str(text: &str) -> Result<Self, CniError> {
        let text = if text.is_empty() { "0.1.0" } else { text };
        Self::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| {
            let ours = Self::ALL.map(Self::as_str).join(", ");
            CniError::new(code::INCOMPATIBLE_VERSION, format!("incompatible CNI versions: the configuration asks for {text:?}"))
                .with_details(format!("config is {text:?}, plugin supports [{ours}]"))
        })
    }
}
