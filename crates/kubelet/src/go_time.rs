//! Durations as Go prints them, since people and tests read them in events.

use std::time::Duration;

/// To the millisecond: `0s`, `532ms`, `1.2s`, `1m20s`, `2h0m5s`.
pub(crate) fn go_duration(d: Duration) -> String {
    let millis = d.as_millis();
    if (1..1000).contains(&millis) {
        return format!("{millis}ms");
    }
    let (seconds, rest) = (d.as_secs(), d.subsec_millis());
    let fraction = if rest == 0 { String::new() } else { format!(".{rest:03}").trim_end_matches('0').to_owned() };
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}{fraction}s"),
        (0, _) => format!("{m}m{s}{fraction}s"),
        _ => format!("{h}h{m}m{s}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_go_prints_them() {
        for (micros, text) in [
            (0, "0s"),
            (999, "0s"),
            (532_900, "532ms"),
            (1_000_000, "1s"),
            (1_230_000, "1.23s"),
            (10_007_000, "10.007s"),
            (80_000_000, "1m20s"),
            (300_000_000, "5m0s"),
            (3_605_500_000, "1h0m5.5s"),
        ] {
            assert_eq!(go_duration(Duration::from_micros(micros)), text);
        }
    }
}
