//! Durations in Go's text form, which JSON documents of Kubernetes have.

use jiff::SignedDuration;

/// Units of a duration, in nanoseconds.
const UNITS: &[(&str, i64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration such as `1h30m` or `-2s` (upstream: `time.ParseDuration`).
///
/// # Errors
/// Go's message.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, after) = rest.split_at(digits(rest));
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|letter: char| letter == '.' || letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let Some((_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("time: unknown unit {unit:?} in duration {text:?}"));
        };
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        // More digits than these are less than a nanosecond.
        let shown = &fraction[..fraction.len().min(18)];
        let part: i128 = if shown.is_empty() { 0 } else { shown.parse().map_err(|_| invalid())? };
        let scale = 10_i128.pow(u32::try_from(shown.len()).unwrap_or_default());
        let value = whole.checked_mul((*size).into()).and_then(|value| value.checked_add(part * i128::from(*size) / scale));
        total = value.and_then(|value| total.checked_add(value)).filter(|total| *total <= i128::from(i64::MAX)).ok_or_else(invalid)?;
        rest = after;
    }
    let nanoseconds = i64::try_from(total).map_err(|_| invalid())?;
    Ok(SignedDuration::from_nanos(if negative { -nanoseconds } else { nanoseconds }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, nanoseconds) in
            [("0", 0), ("1.5h", 5_400_000_000_000), ("-1m", -60_000_000_000), ("1h2m3s", 3_723_000_000_000), (".5s", 500_000_000), ("3µs", 3000)]
        {
            assert_eq!(parse(text), Ok(SignedDuration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "-", ".", "s", "9223372036854775808ns", "99999999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
