//! Engine of faults: decides which of the active faults hit a call.

use hcn::{Function, Guid};
use serde::{Deserialize, Serialize};

use super::{Action, Count, Effects, Fault, FaultKind, Incident, kind};
use crate::latency::mix;
use crate::model::Tampering;
use crate::restart::Loss;

/// A call as the engine sees it.
#[derive(Clone, Copy, Debug)]
pub struct Called<'a> {
    pub function: Function,
    /// The object, where the call names one.
    pub id: Option<Guid>,
    /// The texts that it carries.
    pub texts: [Option<&'a str>; 3],
}

/// A fault that is set, with its number and how often it hit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActiveFault {
    /// The number to remove it by.
    pub number: u32,
    /// How many calls it hit.
    #[serde(rename = "struck")]
    pub hits: u64,
    /// How many calls it named.
    pub seen: u64,
    pub fault: Fault,
}

/// The faults that are set.
#[derive(Debug, Default)]
pub struct Faults {
    active: Vec<ActiveFault>,
    last: u32,
    seed: u64,
}

impl ActiveFault {
    /// Counts a call that the fault names. Returns whether the fault hits it.
    fn hits(&mut self, seed: u64) -> bool {
        self.seen += 1;
        if self.seen <= u64::from(self.fault.skip) || self.fault.count == Some(Count::Calls(0)) {
            return false;
        }
        if let Some(probability) = self.fault.probability {
            // The draw follows from the seed, the fault and the call's number alone: other faults and threads do not move it.
            let draw = mix(seed ^ mix(u64::from(self.number)) ^ self.seen);
            if (draw >> 11) as f64 / (1u64 << 53) as f64 >= probability {
                return false;
            }
        }
        if let Some(Count::Calls(left)) = &mut self.fault.count {
            *left -= 1;
        }
        self.hits += 1;
        true
    }
}

impl Faults {
    /// No faults; draws follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The faults that are set.
    pub fn list(&self) -> &[ActiveFault] {
        &self.active
    }

    /// Sets a fault, after a check. Answers its number.
    pub fn add(&mut self, fault: Fault) -> Result<u32, String> {
        fault.check()?;
        self.last += 1;
        self.active.push(ActiveFault { number: self.last, hits: 0, seen: 0, fault: fault.settled() });
        Ok(self.last)
    }

    /// Effect of the newest fault that does not wait for a call: a fault of one object that names no call hits the object at once.
    pub fn at_once(&mut self) -> Option<(Incident, Fault)> {
        let seed = self.seed;
        let active = self.active.last_mut()?;
        let FaultKind { action, calls, .. } = kind(&active.fault.name)?;
        let incident = match action {
            Action::Defect(defect) => Incident::Tamper(defect.tampering()?),
            Action::Incident(incident @ Incident::Tamper(Tampering::LoseObject | Tampering::LosePolicies)) if calls.is_empty() => *incident,
            _ => return None,
        };
        let Fault { id, call, text, .. } = &active.fault;
        if id.is_none() || call.is_some() || text.is_some() || !active.hits(seed) {
            return None;
        }
        let fault = active.fault.clone();
        self.active.retain(|active| active.fault.count != Some(Count::Calls(0)));
        Some((incident, fault))
    }

    /// Takes a fault back.
    pub fn remove(&mut self, number: u32) -> bool {
        let before = self.active.len();
        self.active.retain(|fault| fault.number != number);
        self.active.len() != before
    }

    /// Takes every fault back.
    pub fn clear(&mut self) {
        self.active.clear();
    }

    /// Whether a fault hangs calls.
    pub fn hangs(&self) -> bool {
        self.active.iter().any(|active| kind(&active.fault.name).is_some_and(|kind| kind.action == Action::Hang))
    }

    /// The effects on a call; the counts of the faults that hit it go down.
    pub fn effects_on(&mut self, called: &Called<'_>) -> Effects {
        let mut effects = Effects::default();
        if self.active.is_empty() {
            return effects;
        }
        let function = called.function.to_string();
        let seed = self.seed;
        for active in &mut self.active {
            let Some(kind) = kind(&active.fault.name) else { continue };
            if !matches!(kind.action, Action::Start(_) | Action::StaysUp) && active.fault.names(kind, called, &function) && active.hits(seed) {
                effects.add(kind, &active.fault);
            }
        }
        // A hanging call is held by its fault, so that one stays until it is cleared.
        self.active
            .retain(|active| active.fault.count != Some(Count::Calls(0)) || kind(&active.fault.name).is_some_and(|kind| kind.action == Action::Hang));
        effects
    }

    /// Whether the service stops when asked to.
    pub fn stops(&mut self) -> bool {
        let seed = self.seed;
        let stays = |active: &&mut ActiveFault| kind(&active.fault.name).is_some_and(|kind| kind.action == Action::StaysUp);
        let stays = self.active.iter_mut().filter(stays).any(|active| active.hits(seed));
        self.active.retain(|active| active.fault.count != Some(Count::Calls(0)));
        !stays
    }

    /// What is lost when the service starts again.
    pub fn losses(&mut self) -> Vec<Loss> {
        let seed = self.seed;
        let mut losses = Vec::new();
        for active in &mut self.active {
            if let Some(FaultKind { action: Action::Start(loss), .. }) = kind(&active.fault.name)
                && active.hits(seed)
            {
                losses.push(*loss);
            }
        }
        self.active.retain(|active| active.fault.count != Some(Count::Calls(0)));
        losses
    }
}
