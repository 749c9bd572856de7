//! Random clusters of claims and volumes: whatever users do, and wherever a pass fails, everything settles and nothing is bound twice.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use cluster::Key;
use proptest::prelude::*;

use super::*;
use crate::storage::{
    rows::ClaimRef,
    testing::{claim, volume},
};

/// Actions of users.
#[derive(Debug, Clone)]
enum Step {
    Claim {
        name: u8,
        size: i64,
        names: Option<u8>,
    },
    Volume {
        name: u8,
        size: i64,
        reserved: Option<u8>,
        recycles: bool,
    },
    DropClaim(u8),
    DropVolume(u8),
    /// Passes happen, each broken off after so many steps.
    Passes(u8),
}

fn actions() -> impl Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        (0u8..5, 1i64..20, proptest::option::of(0u8..5)).prop_map(|(name, size, names)| Step::Claim { name, size, names }),
        (0u8..5, 1i64..20, proptest::option::of(0u8..5), any::<bool>()).prop_map(|(name, size, reserved, recycles)| Step::Volume {
            name,
            size,
            reserved,
            recycles
        }),
        (0u8..5).prop_map(Step::DropClaim),
        (0u8..5).prop_map(Step::DropVolume),
        (0u8..5).prop_map(Step::Passes),
    ];
    proptest::collection::vec(action, 1..25)
}

#[derive(Debug, Default)]
struct Model {
    claims: BTreeMap<Key, ClaimRow>,
    volumes: BTreeMap<String, VolumeRow>,
    born: u32,
    /// Volumes that users took away, and those that claims lost.
    dropped: HashSet<String>,
    lost: HashSet<String>,
}

impl Model {
    fn named(&self) -> Vec<Named> {
        self.volumes.iter().map(|(name, row)| (Key::cluster(name), Arc::new(row.clone()))).collect()
    }

    fn act(&mut self, action: &Step) {
        self.born += 1;
        let born = self.born;
        match action {
            Step::Claim { name, size, names } => {
                let row = claim(|row| {
                    row.uid = format!("uid-{born}");
                    row.size = *size;
                    row.volume = names.map(|name| format!("v{name}")).unwrap_or_default();
                });
                self.claims.entry(Key::new("a", format!("c{name}"))).or_insert(row);
            }
            Step::Volume { name, size, reserved, recycles } => {
                let (key, row) = volume(&format!("v{name}"), |row| {
                    row.uid = format!("uid-{born}");
                    row.size = *size;
                    row.policy = if *recycles { "Recycle" } else { "Retain" }.to_owned();
                    row.claim = reserved.map(|name| ClaimRef { key: Key::new("a", format!("c{name}")), uid: String::new() });
                });
                self.volumes.entry(key.name).or_insert_with(|| (*row).clone());
            }
            Step::DropClaim(name) => drop(self.claims.remove(&Key::new("a", format!("c{name}")))),
            Step::DropVolume(name) => {
                self.volumes.remove(&format!("v{name}"));
                self.dropped.insert(format!("v{name}"));
            }
            Step::Passes(steps) => {
                self.pass(usize::from(*steps));
            }
        }
    }

    /// One pass over everything, each key's work broken off after `most` steps; says whether anything was written.
    fn pass(&mut self, most: usize) -> bool {
        let mut wrote = false;
        for key in self.claims.keys().cloned().collect::<Vec<_>>() {
            let (row, volumes) = (self.claims[&key].clone(), self.named());
            let actions = for_claim(&ClaimInput { key: &key, claim: &row, volumes: &volumes, class: None, waiting_pods: &[] });
            for action in actions.iter().take(most) {
                wrote |= self.apply(&key, action);
            }
        }
        for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
            let row = self.volumes[&name].clone();
            let owner = row.claim.as_ref().map(|owner| owner.key.clone()).unwrap_or_default();
            for action in for_volume(&name, &row, self.claims.get(&owner)).iter().take(most) {
                wrote |= self.apply(&owner, action);
            }
        }
        wrote
    }

    /// Applies an action to the API double.
    fn apply(&mut self, key: &Key, action: &Action) -> bool {
        match action {
            Action::Reserve { volume, by_controller } => {
                let uid = self.claims[key].uid.clone();
                let row = self.volumes.get_mut(volume).unwrap();
                row.claim = Some(ClaimRef { key: key.clone(), uid });
                row.by_controller |= by_controller;
            }
            Action::VolumePhase { volume, phase, .. } => (*phase).clone_into(&mut self.volumes.get_mut(volume).unwrap().phase),
            Action::Release { volume } => "Released".clone_into(&mut self.volumes.get_mut(volume).unwrap().phase),
            Action::Unbind { volume, keep_name } => {
                let row = self.volumes.get_mut(volume).unwrap();
                row.by_controller = false;
                row.claim = row.claim.take().filter(|_| *keep_name).map(|owner| ClaimRef { uid: String::new(), ..owner });
            }
            Action::Name { volume, by_controller } => {
                let row = self.claims.get_mut(key).unwrap();
                row.volume.clone_from(volume);
                row.bind_completed = true;
                row.by_controller |= by_controller;
            }
            Action::ClaimPhase { phase, volume } => {
                let granted = volume.as_ref().map(|name| &self.volumes[name]).map(|row| (row.modes.clone(), row.capacity.clone()));
                let row = self.claims.get_mut(key).unwrap();
                if *phase == "Lost" {
                    self.lost.insert(row.volume.clone());
                }
                (*phase).clone_into(&mut row.phase);
                row.granted = granted.unwrap_or_default();
            }
            Action::Ask { .. } | Action::Report { .. } => return false,
        }
        true
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut taken = HashSet::new();
        for (key, claim) in self.claims.iter().filter(|(_, claim)| claim.phase == "Bound") {
            prop_assert!(taken.insert(&claim.volume), "{} is bound twice", claim.volume);
            let volume = &self.volumes[&claim.volume];
            let owner = volume.claim.as_ref().unwrap();
            prop_assert_eq!((&owner.key, &owner.uid, volume.phase.as_str()), (key, &claim.uid, "Bound"));
        }
        prop_assert!(self.lost.is_subset(&self.dropped), "lost {:?}, but only {:?} were taken away", self.lost, self.dropped);
        let volumes = self.named();
        for (key, claim) in self.claims.iter().filter(|(_, claim)| claim.volume.is_empty() && !claim.bind_completed) {
            prop_assert_eq!(claim.phase.as_str(), "Pending");
            let found = matching::find(key, claim, &volumes, Place::Anywhere, &HashSet::new());
            prop_assert!(found.is_none(), "{} could have had {:?}", key, found.map(|(name, _)| name));
        }
        let bound = self.volumes.iter().filter(|(_, volume)| volume.phase == "Bound");
        for (name, volume) in bound {
            let owner = volume.claim.as_ref().and_then(|owner| self.claims.get(&owner.key));
            prop_assert_eq!(owner.map(|claim| &claim.volume), Some(name), "a bound volume has its claim");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn everything_settles_and_nothing_is_bound_twice(actions in actions()) {
        let mut model = Model::default();
        for action in &actions {
            model.act(action);
        }
        let mut passes = 0;
        while model.pass(usize::MAX) {
            passes += 1;
            prop_assert!(passes < 20, "it does not settle: {model:?}");
        }
        model.check()?;
    }
}
