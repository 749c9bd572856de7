//! `memorySwap`

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::values::as_text;

/// Swap of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySwap {
    pub swap_behavior: SwapBehavior,
}

/// Which containers may swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// Written "" or `NoSwap`.
    #[default]
    NoSwap,
    /// Those of Burstable pods, as much of it as they request of the memory; with control groups of version 2.
    LimitedSwap,
}

/// A behaviour that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid configuration: memorySwap.swapBehavior {0:?} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"")]
pub struct UnknownSwapBehavior(String);

impl fmt::Display for SwapBehavior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSwap => "NoSwap",
            Self::LimitedSwap => "LimitedSwap",
        })
    }
}

impl FromStr for SwapBehavior {
    type Err = UnknownSwapBehavior;

    fn from_str(text: &str) -> Result<Self, UnknownSwapBehavior> {
        match text {
            "" | "NoSwap" => Ok(Self::NoSwap),
            "LimitedSwap" => Ok(Self::LimitedSwap),
            _ => Err(UnknownSwapBehavior(text.to_owned())),
        }
    }
}
as_text!(SwapBehavior);
