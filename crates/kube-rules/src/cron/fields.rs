//! Fields of a schedule.

/// What a field may hold.
pub(super) struct Bounds {
    min: u64,
    max: u64,
    /// Names of values, from `min` on.
    names: &'static [&'static str],
}

pub(super) const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
pub(super) const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
pub(super) const DAYS: Bounds = Bounds { min: 1, max: 31, names: &[] };
pub(super) const MONTHS: Bounds =
    Bounds { min: 1, max: 12, names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"] };
pub(super) const WEEKDAYS: Bounds = Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// The values that a field allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Field {
    bits: u64,
    /// Whether it says nothing (`*` or `?`), which decides how days of months and of weeks are combined.
    pub star: bool,
}

impl Field {
    pub fn has(self, value: u64) -> bool {
        self.bits & (1 << value) != 0
    }

    /// Reads a list of ranges.
    pub fn parse(text: &str, bounds: &Bounds) -> Result<Self, String> {
        let mut field = Self::default();
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let one = parse_range(range, bounds)?;
            field = Self { bits: field.bits | one.bits, star: field.star || one.star };
        }
        Ok(field)
    }
}

fn parse_range(text: &str, bounds: &Bounds) -> Result<Field, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let mut star = false;
    let (start, mut end) = match ends.as_slice() {
        ["*" | "?", ..] => {
            star = true;
            (bounds.min, bounds.max)
        }
        [only] => {
            let value = parse_value(only, bounds)?;
            (value, value)
        }
        [low, high] => (parse_value(low, bounds)?, parse_value(high, bounds)?),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            let step = parse_number(step)?;
            if ends.len() == 1 {
                end = bounds.max;
            }
            star = star && step <= 1;
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < bounds.min {
        return Err(format!("beginning of range ({start}) below minimum ({}): {text}", bounds.min));
    }
    if end > bounds.max {
        return Err(format!("end of range ({end}) above maximum ({}): {text}", bounds.max));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    Ok(Field { bits: (start..=end).step_by(step).fold(0, |bits, value| bits | 1 << value), star })
}

fn parse_value(text: &str, bounds: &Bounds) -> Result<u64, String> {
    match bounds.names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        Some(index) => Ok(bounds.min + index as u64),
        None => parse_number(text),
    }
}

fn parse_number(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let failed = |why: &str| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(failed("invalid syntax"));
    }
    let number: i64 = text.parse().map_err(|_| failed("value out of range"))?;
    u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}"))
}
