//! Kubernetes quantities (apimachinery pkg/api/resource): `100m`, `1.5Gi`, `2e3`.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// Upstream's cap: 2^63 - 1 units.
const MAX: i128 = (i64::MAX as i128) * NANO;

/// How a quantity was written, which decides how it is printed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `Ki`, `Mi`, …
    BinarySi,
    /// `m`, `k`, `M`, …
    DecimalSi,
    /// `1e3`.
    DecimalExponent,
}

/// A number of nano-units with the notation it came in. Compares by value alone.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Wrong form. Upstream's message.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// A number with an unknown suffix. Upstream's message.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// Whole units, decimal notation.
    pub const fn from_units(units: i64) -> Self {
        Quantity { nanos: units as i128 * NANO, format: Format::DecimalSi }
    }

    /// Bytes, binary notation.
    pub const fn from_bytes(bytes: i64) -> Self {
        Quantity { nanos: bytes as i128 * NANO, format: Format::BinarySi }
    }

    /// Thousandths, decimal notation.
    pub const fn from_millis(millis: i64) -> Self {
        Quantity { nanos: millis as i128 * (NANO / 1000), format: Format::DecimalSi }
    }

    pub const ZERO: Quantity = Quantity::from_units(0);

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        text.parse()
    }

    /// Units, rounded up (upstream's `Value`).
    pub fn value(self) -> i64 {
        div_ceil(self.nanos, NANO)
    }

    /// Thousandths, rounded up (upstream's `MilliValue`).
    pub fn milli_value(self) -> i64 {
        div_ceil(self.nanos, NANO / 1000)
    }

    /// As a float, for ratios and metrics.
    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Division rounded up, as resourceFieldRef's divisor does it: units of `divisor`.
    pub fn div_ceil(self, divisor: Quantity) -> i64 {
        if divisor.nanos == 0 { self.value() } else { div_ceil(self.nanos, divisor.nanos) }
    }

    fn write_decimal(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(i128, &str, i32); 10] = [
            (1_000_000_000_000_000_000 * NANO, "E", 18),
            (1_000_000_000_000_000 * NANO, "P", 15),
            (1_000_000_000_000 * NANO, "T", 12),
            (1_000_000_000 * NANO, "G", 9),
            (1_000_000 * NANO, "M", 6),
            (1_000 * NANO, "k", 3),
            (NANO, "", 0),
            (1_000_000, "m", -3),
            (1_000, "u", -6),
            (1, "n", -9),
        ];
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let Some((unit, suffix, exponent)) = STEPS.iter().find(|(unit, ..)| self.nanos % unit == 0) else {
            return write!(f, "{}n", self.nanos);
        };
        let number = self.nanos / unit;
        match (self.format, exponent) {
            (Format::DecimalExponent, 0) => write!(f, "{number}"),
            (Format::DecimalExponent, e) => write!(f, "{number}e{e}"),
            _ => write!(f, "{number}{suffix}"),
        }
    }
}

fn div_ceil(a: i128, b: i128) -> i64 {
    let q = a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0);
    q.clamp(i64::MIN as i128, i64::MAX as i128) as i64
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, body) = match text.as_bytes().first() {
            Some(b'+') => (false, &text[1..]),
            Some(b'-') => (true, &text[1..]),
            _ => (false, text),
        };
        let split = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
        let (number, suffix) = body.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Format);
        }
        let (multiplier, exponent, format) = parse_suffix(suffix)?;
        let nanos = scale(whole, fraction, multiplier, exponent + 9);
        let nanos = nanos.min(MAX);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }
}

/// (multiplier, power of ten, format) of a suffix.
fn parse_suffix(suffix: &str) -> Result<(i128, i32, Format), QuantityError> {
    let decimal = |e| Ok((1, e, Format::DecimalSi));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Ok((1 << 10, 0, Format::BinarySi)),
        "Mi" => Ok((1 << 20, 0, Format::BinarySi)),
        "Gi" => Ok((1 << 30, 0, Format::BinarySi)),
        "Ti" => Ok((1 << 40, 0, Format::BinarySi)),
        "Pi" => Ok((1 << 50, 0, Format::BinarySi)),
        "Ei" => Ok((1 << 60, 0, Format::BinarySi)),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?.parse::<i32>().map_err(|_| QuantityError::Suffix)?;
            Ok((1, exponent, Format::DecimalExponent))
        }
    }
}

/// `whole.fraction × multiplier × 10^power`, rounded up to an integer and saturated at [`MAX`].
fn scale(whole: &str, fraction: &str, multiplier: i128, power: i32) -> i128 {
    let mut value: i128 = 0;
    let mut lost = false;
    let mut power = power;
    for digit in whole.bytes() {
        value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    for digit in fraction.bytes() {
        if value > MAX {
            lost |= digit != b'0';
            continue;
        }
        value = value * 10 + i128::from(digit - b'0');
        power = power.saturating_sub(1);
    }
    value = value.saturating_mul(multiplier);
    while power > 0 && value != 0 && value <= MAX {
        value = value.saturating_mul(10);
        power -= 1;
    }
    while power < 0 && value != 0 {
        lost |= value % 10 != 0;
        value /= 10;
        power += 1;
    }
    if lost { value.saturating_add(1) } else { value }
}

impl fmt::Display for Quantity {
    /// Upstream's canonical form: the largest suffix without a fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = self.format == Format::BinarySi && self.nanos % NANO == 0 && (self.nanos / NANO).unsigned_abs() >= 1024;
        if !binary {
            return self.write_decimal(f);
        }
        let mut value = self.nanos / NANO;
        let mut step = 0;
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        while value % 1024 == 0 && step + 1 < SUFFIXES.len() {
            value /= 1024;
            step += 1;
        }
        write!(f, "{value}{}", SUFFIXES[step])
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        // Upstream keeps the format of the left side unless that side is zero.
        let format = if self.nanos == 0 { other.format } else { self.format };
        Quantity { nanos: (self.nanos + other.nanos).clamp(-MAX, MAX), format }
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        Quantity { nanos: (self.nanos - other.nanos).clamp(-MAX, MAX), format: self.format }
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(iter: I) -> Quantity {
        iter.fold(Quantity::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_print_in_canonical_form() {
        for (text, shown, value, milli) in [
            ("0", "0", 0, 0),
            ("1", "1", 1, 1000),
            ("100m", "100m", 1, 100),
            ("0.5", "500m", 1, 500),
            (".5", "500m", 1, 500),
            ("1.5Gi", "1536Mi", 1610612736, 1610612736000),
            ("1024Ki", "1Mi", 1048576, 1048576000),
            ("1000k", "1M", 1000000, 1000000000),
            ("16Gi", "16Gi", 17179869184, 17179869184000),
            ("1023", "1023", 1023, 1023000),
            ("1Ki", "1Ki", 1024, 1024000),
            ("0.5Ki", "512", 512, 512000),
            ("2e3", "2e3", 2000, 2000000),
            ("1E", "1E", 1_000_000_000_000_000_000, i64::MAX),
            ("12e6", "12e6", 12000000, 12000000000),
            ("1n", "1n", 1, 1),
            ("0.1n", "1n", 1, 1),
            ("-1.5", "-1500m", -1, -1500),
            ("1000m", "1", 1, 1000),
        ] {
            let q = Quantity::parse(text).unwrap();
            assert_eq!(q.to_string(), shown, "{text}");
            assert_eq!(q.value(), value, "{text}");
            assert_eq!(q.milli_value(), milli, "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in ["", "-", "Gi", "1.2.3", "1 Gi", "1gi", "0x1", "1e", "e3", "1Gib"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
        assert_eq!(Quantity::parse("99999999999E").unwrap().value(), i64::MAX);
    }

    #[test]
    fn arithmetic_and_divisors() {
        let q = |t| Quantity::parse(t).unwrap();
        assert!(q("1") > q("999m") && q("1Ki") > q("1k") && q("1") == q("1000m"));
        assert_eq!((q("1Gi") + q("512Mi")).to_string(), "1536Mi");
        assert_eq!((q("2") - q("250m")).to_string(), "1750m");
        assert_eq!(q("1250m").div_ceil(q("1")), 2);
        assert_eq!(q("64Mi").div_ceil(q("1Mi")), 64);
        assert_eq!(q("1250m").div_ceil(q("1m")), 1250);
    }

    proptest! {
        #[test]
        fn printing_and_reading_agree(
            n in -1_000_000_000_000i64..1_000_000_000_000,
            s in proptest::sample::select(vec!["", "m", "k", "M", "Ki", "Mi", "u", "e3", "e-3"]),
        ) {
            let q: Quantity = format!("{n}{s}").parse().unwrap();
            let again: Quantity = q.to_string().parse().unwrap();
            prop_assert_eq!(again, q);
            prop_assert_eq!(again.to_string(), q.to_string());
        }

        #[test]
        fn parsing_never_panics(s in ".{0,40}") {
            let _ = Quantity::parse(&s);
        }

        #[test]
        fn digits_never_panic(s in "[0-9.]{0,60}[eE]?[-+]?[0-9]{0,12}") {
            if let Ok(q) = Quantity::parse(&s) {
                let _ = (q.to_string(), q.value(), q.milli_value());
            }
        }
    }
}
