//! Durations in Go's text form, as `metav1.Duration` reads and writes them: `30s`, `1m30s`, `250ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration in Go's text form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// A text that is not a duration in Go's form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration, write it as 30s or 1m30s")]
pub struct NotADuration(String);

const UNITS: [(&str, u128); 8] = [
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ns", 1),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
];

impl FromStr for GoDuration {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        nanos(text)
            .and_then(|nanos| u64::try_from(nanos).ok())
            .map(|nanos| Self(Duration::from_nanos(nanos)))
            .ok_or_else(|| NotADuration(text.to_owned()))
    }
}

/// Sums `1h2m3.5s`. What is finer than a nanosecond is cut off, as Go does. `None` for anything else, and for negative times.
fn nanos(text: &str) -> Option<u128> {
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut sum) = (text, 0u128);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let (unit, factor) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.into() };
        sum = sum.checked_add(whole.checked_mul(*factor)?)?;
        let mut scale = *factor;
        for digit in fraction.bytes() {
            sum += u128::from(digit - b'0') * scale / 10;
            scale /= 10;
        }
        rest = &after[unit.len()..];
    }
    (!text.is_empty()).then_some(sum)
}

/// The shortest text, as Go prints it.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let with_fraction = |f: &mut fmt::Formatter<'_>, unit: u128, name: &str| {
            let (whole, part) = (nanos % 60_000_000_000 / unit, nanos % unit);
            if part == 0 {
                return write!(f, "{whole}{name}");
            }
            let digits = unit.ilog10() as usize;
            write!(f, "{whole}.{}{name}", format!("{part:0digits$}").trim_end_matches('0'))
        };
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => with_fraction(f, 1_000, "µs"),
            1_000_000..1_000_000_000 => with_fraction(f, 1_000_000, "ms"),
            _ => {
                let minutes = nanos / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                with_fraction(f, 1_000_000_000, "s")
            }
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let read = |text: &str| text.parse::<GoDuration>().map(|time| time.0.as_micros()).ok();
        for (text, micros) in [
            ("30s", 30_000_000),
            ("1m30s", 90_000_000),
            ("250ms", 250_000),
            ("0", 0),
            ("0s", 0),
            ("1.5h", 5_400_000_000),
            (".5s", 500_000),
            ("2us", 2),
            ("3µs", 3),
        ] {
            assert_eq!(read(text), Some(micros), "{text}");
        }
        for text in ["30", "", "s", "5 s", "-5s", "1.2.3s", "1e9s", "5x", ".s", "99999999999999999999h", "9999999999h"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for text in ["0s", "30s", "1m30s", "250ms", "1h0m0s", "1.5s", "100h0m0.25s", "1.001µs", "5ns", "1m0s"] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_as_itself(nanos in any::<u64>()) {
            let duration = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }
    }
}
