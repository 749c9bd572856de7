//! Count of calls that a fault hits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How many calls a fault still hits: a number, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Count {
    /// So many.
    Calls(u32),
    /// Every one until the fault is cleared.
    All,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u32),
    Word(String),
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            number => number.parse().map(Self::Calls).map_err(|_| format!("{number:?} is no count: write a whole number, or all")),
        }
    }
}

impl TryFrom<Written> for Count {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(number) => Ok(Self::Calls(number)),
            Written::Word(word) => word.parse(),
        }
    }
}

impl From<Count> for Written {
    fn from(count: Count) -> Self {
        match count {
            Count::Calls(number) => Self::Number(number),
            Count::All => Self::Word(count.to_string()),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls(number) => number.fmt(f),
            Self::All => f.write_str("all"),
        }
    }
}
