//! `registerWithTaints`, and the taints of `--register-with-taints`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::FlagError;

/// A taint of a Node that is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    pub key: String,
    #[serde(default)]
    pub value: String,
    pub effect: TaintEffect,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// `KEY=VALUE:EFFECT` or `KEY:EFFECT`, as upstream's `--register-with-taints`.
impl FromStr for Taint {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        let wrong = || FlagError::Taint(text.to_owned());
        let (name, effect) = text.rsplit_once(':').ok_or_else(wrong)?;
        let effect = [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule, TaintEffect::NoExecute]
            .into_iter()
            .find(|known| known.to_string() == effect)
            .ok_or_else(wrong)?;
        let (key, value) = name.split_once('=').unwrap_or((name, ""));
        if key.is_empty() {
            return Err(wrong());
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned(), effect })
    }
}
