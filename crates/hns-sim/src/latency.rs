//! Latency of calls: a model of the real service's, and the small deterministic generator that faults share.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long calls wait before they are answered. Text form: `read=2ms,write=20ms,jitter=5ms,balancer=50us`, or `windows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// Of a call that changes nothing, in microseconds.
    pub read_us: u64,
    /// Of a call that changes something.
    pub write_us: u64,
    /// Up to this much more.
    pub jitter_us: u64,
    /// More for each existing load balancer, when one is created: the service writes all of them anew on every port.
    pub balancer_us: u64,
}

impl Latency {
    /// What logs of Windows Server 2022 show on a quiet host: 1 to 5 ms a read, 20 ms an endpoint, a load balancer's cost grows with their number.
    pub const WINDOWS: Self = Self { read_us: 1_000, write_us: 20_000, jitter_us: 4_000, balancer_us: 15 };

    /// How long call `number` waits.
    pub fn of(&self, write: bool, balancers: usize, seed: u64, number: u64) -> Duration {
        let jitter = if self.jitter_us == 0 { 0 } else { mix(seed ^ mix(number)) % self.jitter_us };
        let base = if write { self.write_us } else { self.read_us };
        Duration::from_micros(base + jitter + self.balancer_us * balancers as u64)
    }

    /// Whether no call waits.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Scrambles a number (SplitMix64): equal inputs give equal outputs on every system.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Reads `200ms`, `1.5s`, `50us` or `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)];
    let number = units.iter().find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds));
    let number = number.or_else(|| (text == "0").then_some(0.0));
    number
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{text:?} is no duration: write it as 200ms, 1.5s or 2m"))
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "windows" => return Ok(Self::WINDOWS),
            "none" => return Ok(Self::default()),
            _ => {}
        }
        let mut latency = Self::default();
        for part in text.split(',') {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is no latency: write read=2ms,write=20ms, or windows, or none"))?;
            let slot = match key.trim() {
                "read" => &mut latency.read_us,
                "write" => &mut latency.write_us,
                "jitter" => &mut latency.jitter_us,
                "balancer" => &mut latency.balancer_us,
                other => return Err(format!("a latency has no {other:?}: use read, write, jitter or balancer, or windows, or none")),
            };
            *slot = u64::try_from(duration(value)?.as_micros()).unwrap_or(u64::MAX);
        }
        Ok(latency)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read={}us,write={}us,jitter={}us,balancer={}us", self.read_us, self.write_us, self.jitter_us, self.balancer_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_texts_round_trip_and_draws_repeat() {
        let latency: Latency = "read=2ms,write=1.5s,jitter=50us".parse().unwrap();
        assert_eq!((latency.read_us, latency.write_us, latency.jitter_us), (2_000, 1_500_000, 50));
        assert_eq!(latency.to_string().parse(), Ok(latency));
        assert_eq!("windows".parse(), Ok(Latency::WINDOWS));
        for bad in ["", "read", "read=2", "read=-1ms", "speed=1ms", "read=1e400s"] {
            assert!(bad.parse::<Latency>().is_err(), "{bad}");
        }
        assert_eq!("fast".parse::<Latency>(), Err(r#""fast" is no latency: write read=2ms,write=20ms, or windows, or none"#.to_owned()));
        let draws = |seed| (0..20).map(|number| Latency::WINDOWS.of(false, 0, seed, number)).collect::<Vec<_>>();
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert!(draws(1).iter().all(|delay| (1_000..5_000).contains(&delay.as_micros())));
        assert_eq!(Latency::WINDOWS.of(true, 1_000, 0, 0) - Latency::WINDOWS.of(true, 0, 0, 0), Duration::from_millis(15));
    }
}
