//! Ranges of ports, in the text forms of kube-apiserver's flags (apimachinery pkg/util/net/port_range.go). Pure.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MAX: i64 = u16::MAX as i64;

/// A range of ports, never empty: `30000-32767`, `30000+2767` (a port and how many follow it), or one port. Empty text is the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports.
    pub const fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

/// Upstream's range of NodePorts, 30000-32767.
impl Default for PortRange {
    fn default() -> Self {
        Self { first: 30000, last: 32767 }
    }
}

/// Text that is not a range of ports. Upstream's words, where upstream refuses it too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortRangeError {
    /// None of the three forms.
    #[error("unable to parse port range: {0}; write it as 30000-32767, 30000+2767 or 30000")]
    Form(String),
    /// Beyond the last port.
    #[error("the port range cannot be greater than 65535: {0}")]
    TooLarge(String),
    /// Ends before it begins.
    #[error("end port cannot be less than start port: {0}")]
    Reversed(String),
    /// Upstream takes it, and its allocator may hand it out.
    #[error("the port range cannot begin with 0, which is no port: {0}")]
    Zero(String),
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let number = |part: &str| part.parse::<i64>().map_err(|_| PortRangeError::Form(text.to_owned()));
        let (first, last) = match (text.split_once('-'), text.split_once('+')) {
            (Some(_), Some(_)) => return Err(PortRangeError::Form(text.to_owned())),
            (Some((first, last)), None) => (number(first)?, number(last)?),
            (None, Some((first, more))) => {
                let first = number(first)?;
                (first, first.saturating_add(number(more)?))
            }
            (None, None) => (number(text)?, number(text)?),
        };
        if first > MAX || last > MAX {
            return Err(PortRangeError::TooLarge(text.to_owned()));
        }
        if last < first {
            return Err(PortRangeError::Reversed(text.to_owned()));
        }
        match (u16::try_from(first), u16::try_from(last)) {
            (Ok(first @ 1..), Ok(last)) => Ok(Self { first, last }),
            _ => Err(PortRangeError::Zero(text.to_owned())),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl TryFrom<String> for PortRange {
    type Error = PortRangeError;

    fn try_from(text: String) -> Result<Self, PortRangeError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_upstream_reads_are_read() {
        let cases = [
            ("30000-32767", 30000..=32767),
            ("31000+9", 31000..=31009),
            ("31000+0", 31000..=31000),
            ("40000", 40000..=40000),
            (" 80-90 ", 80..=90),
            ("1-65535", 1..=65535),
            ("", 30000..=32767),
        ];
        for (text, ports) in cases {
            assert_eq!(text.parse::<PortRange>().unwrap().ports(), ports, "{text:?}");
        }
    }

    #[test]
    fn other_texts_are_refused_in_upstreams_words() {
        let form = "unable to parse port range: ";
        let large = "the port range cannot be greater than 65535: ";
        let reversed = "end port cannot be less than start port: ";
        let cases = [
            ("many", form),
            ("-", form),
            ("+5", form),
            ("-5", form),
            ("30000-", form),
            ("1-2-3", form),
            ("1-2+3", form),
            ("30000 - 30010", form),
            ("30000:30010", form),
            ("99999999999999999999", form),
            ("70000", large),
            ("65000-65536", large),
            ("65000+1000", large),
            ("30001-30000", reversed),
            ("0-10", "the port range cannot begin with 0, which is no port: "),
        ];
        for (text, message) in cases {
            let error = text.parse::<PortRange>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("{message}{text}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn all_forms_of_a_range_read_the_same(first in 1..=65535u16, more in 0..=65535u16) {
            let last = first.saturating_add(more);
            let range = PortRange { first, last };
            prop_assert_eq!(range.to_string().parse::<PortRange>(), Ok(range));
            prop_assert_eq!(format!("{first}+{}", last - first).parse::<PortRange>(), Ok(range));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9+\\- ]{0,14}") {
            if let Ok(range) = text.parse::<PortRange>() {
                prop_assert_eq!(range.to_string().parse::<PortRange>(), Ok(range));
            }
        }
    }
}
