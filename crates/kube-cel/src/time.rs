//! Durations and timestamps: Go's notation, arithmetic, parts of dates.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::value::{Result, Value, error, no_overload};

/// Go's `time.ParseDuration`, in nanoseconds.
pub fn parse_duration(text: &str) -> std::result::Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
            return Err(invalid());
        }
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let nanos: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return Err(format!("time: missing unit in duration {}", quote(text))),
            _ => return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text))),
        };
        total += whole.parse::<i128>().unwrap_or(0) * nanos;
        let mut scale = nanos;
        for digit in fraction.bytes() {
            total += i128::from(digit - b'0') * scale / 10;
            scale /= 10;
        }
        if total > i128::from(i64::MAX) + 1 {
            return Err(invalid());
        }
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

fn quote(text: &str) -> String {
    format!("{text:?}")
}

/// Seconds with a fraction as short as can be, and `s`.
pub fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (seconds, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let fraction = format!(".{fraction:09}");
    format!("{sign}{seconds}{}s", fraction.trim_end_matches('0').trim_end_matches('.'))
}

/// RFC 3339.
pub fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let shaped = bytes.len() >= 20 && bytes[4] == b'-' && bytes[7] == b'-' && matches!(bytes[10], b'T' | b't');
    shaped.then(|| text.parse().ok()).flatten()
}

/// The moment, when it lies in the years 1 to 9999.
pub fn moment(nanos: i128) -> Result<Timestamp> {
    let least = -62_135_596_800_i64;
    match Timestamp::from_nanosecond(nanos) {
        Ok(at) if at.as_second() >= least => Ok(at),
        _ => error("timestamp overflow"),
    }
}

fn zone(name: &str) -> Result<TimeZone> {
    let fixed = || {
        let (negative, rest) = match name.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, name.strip_prefix('+').unwrap_or(name)),
        };
        let (hours, minutes) = rest.split_once(':')?;
        let seconds = hours.parse::<i32>().ok()?.checked_mul(3600)? + minutes.parse::<i32>().ok()?.checked_mul(60)?;
        let offset = jiff::tz::Offset::from_seconds(if negative { -seconds } else { seconds }).ok()?;
        Some(TimeZone::fixed(offset))
    };
    if name.is_empty() || name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    match fixed().or_else(|| TimeZone::get(name).ok()) {
        Some(zone) => Ok(zone),
        None => error(format!("unknown time zone {name}")),
    }
}

/// A part of a date or a duration: `getHours` and its like.
pub fn part<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let number = match args {
        [Value::Duration(nanos)] => match name {
            "getHours" => nanos / 3_600_000_000_000,
            "getMinutes" => nanos / 60_000_000_000,
            "getSeconds" => nanos / 1_000_000_000,
            "getMilliseconds" => nanos / 1_000_000,
            _ => return no_overload(),
        },
        [Value::Timestamp(at), rest @ ..] => {
            let zone = match rest {
                [] => TimeZone::UTC,
                [Value::String(name)] => zone(name)?,
                _ => return no_overload(),
            };
            let at = at.to_zoned(zone);
            match name {
                "getFullYear" => i64::from(at.year()),
                "getMonth" => i64::from(at.month()) - 1,
                "getDayOfYear" => i64::from(at.day_of_year()) - 1,
                "getDayOfMonth" => i64::from(at.day()) - 1,
                "getDate" => i64::from(at.day()),
                "getDayOfWeek" => i64::from(at.weekday().to_sunday_zero_offset()),
                "getHours" => i64::from(at.hour()),
                "getMinutes" => i64::from(at.minute()),
                "getSeconds" => i64::from(at.second()),
                _ => i64::from(at.millisecond()),
            }
        }
        _ => return no_overload(),
    };
    Ok(Value::Int(number))
}
