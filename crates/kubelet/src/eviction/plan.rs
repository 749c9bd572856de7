//! Which thresholds are met, for how long, and what the Node's conditions say; pure.

use std::collections::{BTreeMap, BTreeSet};

use host::Available;
use jiff::{SignedDuration, Timestamp};

use super::{Eviction, Pressure, Signal, Threshold};

/// What the signals say. A signal that could not be observed is not there, and meets no threshold.
pub(super) type Observations = BTreeMap<Signal, Available>;

/// What is known from earlier observations.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Thresholds that drove an eviction; they stay until their minimum reclaim is there too.
    met: Vec<Threshold>,
    first: Vec<(Threshold, Timestamp)>,
    last: BTreeMap<Pressure, Timestamp>,
    pub(super) pressures: BTreeSet<Pressure>,
}

/// The thresholds that are met, perhaps with what has to be reclaimed on top.
fn met(thresholds: &[Threshold], seen: &Observations, with_reclaim: bool) -> Vec<Threshold> {
    let is_met = |t: &&Threshold| {
        let Some(seen) = seen.get(&t.signal) else { return false };
        let reclaim = t.reclaim.filter(|_| with_reclaim).map_or(0, |r| r.of(seen.capacity));
        t.value.of(seen.capacity).saturating_add(reclaim) > seen.available
    };
    thresholds.iter().filter(is_met).copied().collect()
}

/// Whether any threshold asks for more than there is: after something was reclaimed.
pub(super) fn is_short(config: &Eviction, seen: &Observations) -> bool {
    !met(&config.thresholds, seen, true).is_empty()
}

/// Takes observations in. Returns the thresholds for which something has to be done now, memory first.
pub(super) fn observe(config: &Eviction, state: &mut State, seen: &Observations, now: Timestamp) -> Vec<Threshold> {
    let mut all = met(&config.thresholds, seen, false);
    for unresolved in met(&state.met, seen, true) {
        if !all.contains(&unresolved) {
            all.push(unresolved);
        }
    }
    let since = |t: &Threshold| state.first.iter().find(|(known, _)| known == t).map_or(now, |(_, at)| *at);
    state.first = all.iter().map(|t| (*t, since(t))).collect();
    state.last.extend(all.iter().map(|t| (t.signal.pressure(), now)));
    let transition = SignedDuration::try_from(config.transition).unwrap_or(SignedDuration::MAX);
    // What is observed now counts, however short the period.
    let holds = |at: Timestamp| at == now || now.duration_since(at) < transition;
    state.pressures = state.last.iter().filter(|(_, at)| holds(**at)).map(|(pressure, _)| *pressure).collect();
    let ripe = |(t, since): &&(Threshold, Timestamp)| {
        let grace = SignedDuration::try_from(t.grace.unwrap_or_default()).unwrap_or(SignedDuration::MAX);
        now.duration_since(*since) >= grace
    };
    state.met = state.first.iter().filter(ripe).map(|(t, _)| *t).collect();
    state.met.sort_by_key(|t| t.signal.pressure() != Pressure::Memory);
    state.met.clone()
}
