//! Transaction: changes of the state with the plan that brings the kernel to them.

use std::collections::{BTreeMap, BTreeSet};

use hcn::{Guid, Kind};

use crate::compile::{dependents, facts};
use crate::fact::{Fact, Plan, Shared};
use crate::state::{Change, Object, State};
use crate::switches::Switches;

/// Changes that are in the state and not yet in the kernel.
pub struct Transaction {
    /// What brings the kernel to them.
    pub plan: Plan,
    undo: Vec<Change>,
    compiled: Vec<(BTreeSet<Fact>, BTreeSet<Fact>)>,
}

impl Transaction {
    /// Makes changes in a state. Its cost follows what they touch.
    pub fn begin(state: &mut State, shared: &mut Shared, changes: &[Change], switches: &Switches) -> Self {
        let mut touched: Vec<(Kind, Guid)> = Vec::new();
        let mut undo: Vec<Change> = Vec::with_capacity(changes.len());
        let mut seen = BTreeSet::new();
        for change in changes {
            if seen.insert((change.kind, change.id)) {
                touched.push((change.kind, change.id));
                undo.push(Change { kind: change.kind, id: change.id, after: state.get(change.kind, &change.id) });
            }
        }
        for change in changes {
            touched.extend(dependents(change, state).into_iter().filter(|object| seen.insert(*object)));
        }
        let known =
            |object: Option<&Object>, id: &Guid, state: &State| object.map_or_else(BTreeSet::new, |object| facts(object, id, state, switches));
        let read = |kind, id: &Guid, state: &State| known(state.get(kind, id).as_ref(), id, state);
        // The objects of the changes themselves are at hand; only dependents must be read.
        let changed = undo.len();
        let before: Vec<_> = (undo.iter().map(|change| known(change.after.as_ref(), &change.id, state)))
            .chain(touched[changed..].iter().map(|(kind, id)| read(*kind, id, state)))
            .collect();
        changes.iter().for_each(|change| state.apply(change.clone()));
        let last: BTreeMap<(Kind, Guid), Option<&Object>> = changes.iter().map(|change| ((change.kind, change.id), change.after.as_ref())).collect();
        let after: Vec<_> = (touched[..changed].iter().map(|object| known(last.get(object).copied().flatten(), &object.1, state)))
            .chain(touched[changed..].iter().map(|(kind, id)| read(*kind, id, state)))
            .collect();
        let compiled: Vec<_> = before.into_iter().zip(after).collect();
        Self { plan: shared.replace(&compiled), undo, compiled }
    }

    /// Takes the changes back.
    pub fn roll_back(self, state: &mut State, shared: &mut Shared) {
        for (before, after) in self.compiled.iter().rev() {
            shared.commit(after, before);
        }
        self.undo.into_iter().rev().for_each(|change| state.apply(change));
    }
}
