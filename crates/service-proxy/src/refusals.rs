//! Which VIPs have failed for so long that whoever wrote their Service should hear of it (pure).

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::table::VipKey;

/// What fails for less passes by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often is looked: there may be thousands.
const LOOK: Duration = Duration::from_secs(1);

/// VIPs that fail, since when, and whether that was told.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    since: BTreeMap<VipKey, (Instant, bool)>,
    looked: Option<Instant>,
}

impl Refusals {
    /// Takes in what fails now; returns what has failed for long and was not told yet.
    pub fn overdue(&mut self, behind: &BTreeMap<VipKey, String>, now: Instant) -> Vec<VipKey> {
        if self.looked.is_some_and(|at| now < at + LOOK) || behind.is_empty() && self.since.is_empty() {
            return Vec::new();
        }
        self.looked = Some(now);
        self.since.retain(|key, _| behind.contains_key(key));
        behind.keys().for_each(|key| _ = self.since.entry(*key).or_insert((now, false)));
        let overdue = self.since.iter_mut().filter(|(_, (since, told))| !*told && now >= *since + PATIENCE);
        overdue
            .map(|(key, (_, told))| {
                *told = true;
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
        let behind = |ports: &[u16]| ports.iter().map(|port| (key(*port), "refused".to_owned())).collect::<BTreeMap<_, _>>();
        let (start, mut refusals) = (Instant::now(), Refusals::default());
        let mut at = |seconds: u64, ports: &[u16]| refusals.overdue(&behind(ports), start + Duration::from_secs(seconds));
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
