//! `crashLoopBackOff`

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::GoDuration;

/// How long containers that end wait before they start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    /// The longest that they wait, from 1 s to 300 s.
    pub max_container_restart_period: GoDuration,
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self { max_container_restart_period: GoDuration(Duration::from_secs(300)) }
    }
}
