//! State of each VIP that the mirror does not hold: what it waits for, why it fails, and what HNS cannot do for it (pure).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::take;

use hcn::Guid;

use super::document::successor_id;
use super::gap::Gap;
use crate::table::{Vip, VipKey};

/// The states of all VIPs.
#[derive(Debug, Default)]
pub struct VipStates {
    /// How many load balancers of a VIP could not be deleted, where any.
    generations: HashMap<VipKey, u32>,
    /// VIPs that wait until every endpoint was read.
    reading: BTreeSet<VipKey>,
    /// VIPs that wait for a new enumeration of endpoints; those that had it.
    awaiting_enumeration: BTreeSet<VipKey>,
    enumerated: BTreeSet<VipKey>,
    failing: BTreeMap<VipKey, String>,
    gaps: BTreeMap<VipKey, Vec<Gap>>,
    finished: u64,
    changed: bool,
}

impl VipStates {
    /// VIPs that are not what they should be, with the reason.
    pub fn failing(&self) -> &BTreeMap<VipKey, String> {
        &self.failing
    }

    /// What HNS cannot do, by VIP.
    pub fn gaps(&self) -> &BTreeMap<VipKey, Vec<Gap>> {
        &self.gaps
    }

    /// How many were processed to the end.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Whether a failure or a gap came or went since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        take(&mut self.changed)
    }

    /// The id of the VIP's load balancer.
    pub fn id_of(&self, cluster_uid: &str, key: &VipKey) -> Guid {
        successor_id(cluster_uid, key, self.generation(key))
    }

    /// How many load balancers of the VIP could not be deleted.
    pub fn generation(&self, key: &VipKey) -> u32 {
        self.generations.get(key).copied().unwrap_or(0)
    }

    /// Whether the load balancer of any VIP could not be deleted.
    pub fn has_generations(&self) -> bool {
        !self.generations.is_empty()
    }

    pub fn set_generation(&mut self, key: VipKey, generation: u32) {
        self.generations.insert(key, generation);
    }

    /// The VIP changed: it waits for nothing any more.
    pub fn touch(&mut self, key: &VipKey) {
        self.reading.remove(key);
        self.awaiting_enumeration.remove(key);
        self.enumerated.remove(key);
    }

    /// Has a VIP wait until every endpoint was read.
    pub fn wait_for_reading(&mut self, key: VipKey) {
        self.reading.insert(key);
    }

    /// Every endpoint was read: these waited.
    pub fn end_reading(&mut self) -> BTreeSet<VipKey> {
        take(&mut self.reading)
    }

    /// Has a VIP wait for the next enumeration of endpoints, unless it had one since it last ended. Whether it waits.
    pub fn wait_for_enumeration(&mut self, key: VipKey) -> bool {
        let waits = !self.enumerated.contains(&key);
        if waits {
            self.awaiting_enumeration.insert(key);
        }
        waits
    }

    /// Endpoints were enumerated: these waited, and do not wait again.
    pub fn end_enumeration(&mut self) -> BTreeSet<VipKey> {
        self.enumerated.extend(&self.awaiting_enumeration);
        take(&mut self.awaiting_enumeration)
    }

    /// No VIP waits any more: everything was read again.
    pub fn forget_waiting(&mut self) {
        self.reading.clear();
        self.awaiting_enumeration.clear();
    }

    /// Whether a VIP waits for something to be read.
    pub fn is_waiting(&self, key: &VipKey) -> bool {
        self.reading.contains(key) || self.awaiting_enumeration.contains(key)
    }

    /// Whether some wait for an enumeration.
    pub fn awaits_enumeration(&self) -> bool {
        !self.awaiting_enumeration.is_empty()
    }

    /// How many wait for something to be read.
    pub fn waiting(&self) -> usize {
        self.reading.len() + self.awaiting_enumeration.len()
    }

    /// A VIP was processed to the end; `reason` says what is not as it should be.
    pub fn record_result(&mut self, key: VipKey, reason: Option<String>) {
        self.finished += 1;
        self.enumerated.remove(&key);
        if self.failing.get(&key) == reason.as_ref() {
            return;
        }
        self.changed = true;
        match reason {
            Some(reason) => {
                tracing::warn!(vip = %key, "{reason}; trying again");
                self.failing.insert(key, reason);
            }
            None => drop(self.failing.remove(&key)),
        }
    }

    /// Notes what HNS cannot do for a VIP.
    pub fn note_gaps(&mut self, key: &VipKey, gaps: &[Gap], vip: Option<&Vip>) {
        let same = self.gaps.get(key).map_or(gaps.is_empty(), |known| known == gaps);
        if same {
            return;
        }
        self.changed = true;
        if let Some(vip) = vip {
            gaps.iter().for_each(|gap| tracing::warn!(service = %vip.service, vip = %key, "{gap}"));
        }
        if gaps.is_empty() {
            self.gaps.remove(key);
        } else {
            self.gaps.insert(*key, gaps.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{IpFamily, Protocol, VipAddress};

    fn key(port: u16) -> VipKey {
        VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Tcp, port }
    }

    #[test]
    fn vip_waits_for_one_enumeration_until_it_ends_or_changes() {
        let mut vips = VipStates::default();
        assert!(vips.wait_for_enumeration(key(1)) && vips.is_waiting(&key(1)));
        vips.wait_for_reading(key(2));
        assert_eq!((vips.waiting(), vips.end_enumeration()), (2, [key(1)].into()));
        assert!(!vips.wait_for_enumeration(key(1)), "it had its enumeration");
        vips.record_result(key(1), Some("no endpoint".into()));
        assert!(vips.wait_for_enumeration(key(1)), "the next attempt asks again");
        vips.touch(&key(1));
        assert!(!vips.is_waiting(&key(1)) && !vips.awaits_enumeration());
        assert_eq!((vips.end_reading(), vips.waiting()), ([key(2)].into(), 0));
    }

    #[test]
    fn changes_of_failures_and_gaps_are_reported_once() {
        let mut vips = VipStates::default();
        vips.record_result(key(1), None);
        vips.note_gaps(&key(1), &[], None);
        assert!(!vips.take_changed(), "nothing differs");
        vips.record_result(key(1), Some("refused".into()));
        assert!(vips.take_changed() && !vips.take_changed());
        vips.record_result(key(1), Some("refused".into()));
        assert!(!vips.take_changed(), "the same failure again");
        vips.note_gaps(&key(1), &[Gap::SourceRanges], None);
        vips.record_result(key(1), None);
        assert!(vips.take_changed() && vips.failing().is_empty());
        assert_eq!((vips.finished(), vips.gaps()[&key(1)].len()), (4, 1));
    }

    #[test]
    fn load_balancer_that_cannot_be_deleted_gets_a_successor_with_another_id() {
        let mut vips = VipStates::default();
        let first = vips.id_of("uid", &key(1));
        assert!(!vips.has_generations());
        vips.set_generation(key(1), 1);
        assert!(vips.has_generations());
        assert_ne!(vips.id_of("uid", &key(1)), first);
        assert_eq!((vips.generation(&key(1)), vips.generation(&key(3))), (1, 0));
    }
}
