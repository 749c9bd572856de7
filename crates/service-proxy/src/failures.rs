//! VIPs that have failed for so long that their Service gets an event (pure).

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::table::VipKey;

/// A failure that ends sooner gets no event.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often failures are compared: there may be thousands.
const COMPARE_EVERY: Duration = Duration::from_secs(1);

/// VIPs that fail, since when, and whether that was reported.
#[derive(Debug, Default)]
pub(crate) struct LastingFailures {
    since: BTreeMap<VipKey, (Instant, bool)>,
    compared: Option<Instant>,
}

impl LastingFailures {
    /// Updates with what fails now; returns what has failed for long and was not reported yet.
    pub fn overdue(&mut self, failing: &BTreeMap<VipKey, String>, now: Instant) -> Vec<VipKey> {
        if self.compared.is_some_and(|at| now < at + COMPARE_EVERY) || failing.is_empty() && self.since.is_empty() {
            return Vec::new();
        }
        self.compared = Some(now);
        self.since.retain(|key, _| failing.contains_key(key));
        failing.keys().for_each(|key| _ = self.since.entry(*key).or_insert((now, false)));
        let overdue = self.since.iter_mut().filter(|(_, (since, reported))| !*reported && now >= *since + PATIENCE);
        overdue
            .map(|(key, (_, reported))| {
                *reported = true;
                *key
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Protocol, VipAddress};

    #[test]
    fn lasting_failure_is_reported_once_until_it_recovers() {
        let key = |port| VipKey { address: VipAddress::Ip([10, 96, 0, 1].into()), protocol: Protocol::Tcp, port };
        let failing = |ports: &[u16]| ports.iter().map(|port| (key(*port), "refused".to_owned())).collect::<BTreeMap<_, _>>();
        let (start, mut failures) = (Instant::now(), LastingFailures::default());
        let mut at = |seconds: u64, ports: &[u16]| failures.overdue(&failing(ports), start + Duration::from_secs(seconds));
        assert_eq!(at(0, &[80, 81]), []);
        assert_eq!(at(5, &[80]), []);
        assert_eq!(at(10, &[80, 81]), [key(80)], "81 was well in between");
        assert_eq!(at(19, &[80, 81]), []);
        assert_eq!(at(20, &[80, 81]), [key(81)]);
        assert_eq!(at(60, &[80, 81]), [], "once");
        assert_eq!(at(61, &[]), []);
        assert_eq!(at(62, &[80]), []);
        assert_eq!(at(72, &[80]), [key(80)]);
    }
}
