//! What a pod's claims ask of its node, and what is written for them before it is bound: pure (upstream: plug-ins VolumeBinding,
//! VolumeRestrictions, NodeVolumeLimits, VolumeZone).

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
};

use cluster::Key;

use super::{
    cache::Usage,
    place::{Candidate, Refusal},
    profile::Plugin,
    rows::{NodeRow, PodRow},
    world::World,
};
use crate::storage::{
    matching::{self, Place},
    rows::{ClaimRow, VolumeRow},
};

/// A write that comes before the binding of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Give the claim this volume.
    Give { claim: Key, volume: String },
    /// Have a volume made for the claim on the chosen node.
    Make { claim: Key },
}

impl Step {
    /// The volume that is assigned, and its claim.
    pub fn given(&self) -> Option<(String, Key)> {
        match self {
            Self::Give { claim, volume } => Some((volume.clone(), claim.clone())),
            Self::Make { .. } => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Give { claim, volume } => write!(f, "give {volume} to {claim}"),
            Self::Make { claim } => write!(f, "have a volume made for {claim}"),
        }
    }
}

/// Why a claim cannot be served on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unserved {
    /// No volume is there, or none may be made there.
    NoVolume,
    /// The storage that a volume could be made from is used up.
    NoSpace,
}

/// Labels of volumes that name where they can be reached, in the old and the present spelling.
const PLACES: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

/// A pod's claims, sorted by what they need.
#[derive(Debug, Default)]
pub(super) struct Volumes<'a> {
    /// The names of volumes that are bound already.
    bound: Vec<&'a str>,
    /// Claims that wait for a node.
    waiting: Vec<(Key, &'a ClaimRow)>,
    /// Claims that only one pod may use.
    exclusive: Vec<&'a str>,
    world: Option<&'a World>,
}

impl<'a> Volumes<'a> {
    /// Looks at the pod's claims; the error is why it fits nowhere, whatever the nodes are.
    pub fn of(pod: &'a PodRow, world: &'a World) -> Result<Self, String> {
        let mut all = Self { world: Some(world), ..Self::default() };
        let mut immediate = false;
        for claim in &pod.claims {
            let (key, name) = (Key::new(&pod.ns, &claim.name), &claim.name);
            let Some(row) = world.claims.get(&key) else {
                return Err(match claim.ephemeral {
                    true => format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"),
                    false => format!("persistentvolumeclaim {name:?} not found"),
                });
            };
            if row.phase == "Lost" {
                return Err(format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}", row.volume));
            }
            if row.deleting {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if !claim.ephemeral && row.modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                all.exclusive.push(name);
            }
            if row.is_bound() {
                all.bound.push(&row.volume);
            } else if row.volume.is_empty() && world.classes.get(&row.class).is_some_and(|class| class.waits) {
                all.waiting.push((key, row));
            } else {
                immediate = true;
            }
        }
        if immediate { Err("pod has unbound immediate PersistentVolumeClaims".to_owned()) } else { Ok(all) }
    }

    /// Whether another pod, wherever it is, has a claim of this pod that only one may use.
    pub fn are_contended<'n>(&self, pod: &PodRow, mut nodes: impl Iterator<Item = Candidate<'n>>) -> bool {
        if !self.world.is_some_and(|world| world.profile.has(Plugin::VolumeRestrictions)) {
            return false;
        }
        let uses = |other: &PodRow| other.ns == pod.ns && other.claims.iter().any(|claim| self.exclusive.contains(&claim.name.as_str()));
        !self.exclusive.is_empty() && nodes.any(|(_, _, usage)| usage.members.iter().any(|other| uses(other)))
    }

    /// Why a node cannot take the pod because of its volumes.
    pub fn refuse(&self, pod: &PodRow, (name, node, usage): Candidate<'_>) -> Option<Refusal> {
        let world = self.world.filter(|_| !pod.claims.is_empty())?;
        let has = |plugin| world.profile.has(plugin);
        (has(Plugin::NodeVolumeLimits) && exceeds_limits(world, pod, name, usage))
            .then(|| Refusal::curable("node(s) exceed max volume count"))
            .or_else(|| if has(Plugin::VolumeBinding) { self.refuse_binding(world, name, node) } else { None })
            .or_else(|| {
                (has(Plugin::VolumeZone) && self.is_elsewhere(world, node)).then(|| Refusal::hopeless("node(s) had no available volume zone"))
            })
    }

    fn refuse_binding(&self, world: &World, name: &str, node: &NodeRow) -> Option<Refusal> {
        let (mut missing, mut unreachable) = (false, false);
        for volume in &self.bound {
            match world.volume(volume) {
                None => missing = true,
                Some(row) => unreachable |= !row.reaches(&node.labels),
            }
        }
        let mut reasons = Vec::new();
        if unreachable {
            reasons.push("node(s) didn't match PersistentVolume's node affinity");
        }
        match self.steps(name, node) {
            Err(Unserved::NoVolume) => reasons.push("node(s) didn't find available persistent volumes to bind"),
            Err(Unserved::NoSpace) => reasons.push("node(s) did not have enough free storage"),
            Ok(_) => {}
        }
        if missing {
            reasons.push("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
        }
        (!reasons.is_empty()).then(|| Refusal::all_hopeless(&reasons))
    }

    /// Whether a bound volume says by its labels that it is in another zone or region.
    fn is_elsewhere(&self, world: &World, node: &NodeRow) -> bool {
        if !PLACES.iter().any(|(label, _)| node.labels.contains_key(*label)) {
            return false;
        }
        self.bound.iter().filter_map(|volume| world.volume(volume)).any(|volume| {
            PLACES.iter().any(|(label, present)| {
                let Some(places) = volume.labels.get(*label) else { return false };
                let here = node.labels.get(*label).or_else(|| node.labels.get(*present));
                !here.is_some_and(|here| places.split("__").any(|place| place.trim() == here))
            })
        })
    }

    /// Writes for the claims if the pod goes to this node; none if a claim cannot be served there.
    pub fn steps(&self, name: &str, node: &NodeRow) -> Result<Vec<Step>, Unserved> {
        let Some(world) = self.world else { return Ok(Vec::new()) };
        let mut steps = Vec::new();
        let mut taken: HashSet<String> = HashSet::new();
        // Small claims first, so that they leave large volumes to large claims.
        let mut waiting: Vec<&(Key, &ClaimRow)> = self.waiting.iter().collect();
        waiting.sort_by_key(|(_, claim)| claim.size);
        for (key, claim) in waiting {
            if let Some(selected) = &claim.selected_node {
                if selected != name {
                    return Err(Unserved::NoVolume);
                }
                steps.push(Step::Make { claim: key.clone() });
                continue;
            }
            let others = world.given.iter().filter(|(_, owner)| *owner != key).map(|(volume, _)| volume.clone());
            let unavailable: HashSet<String> = taken.iter().cloned().chain(others).collect();
            if let Some((volume, _)) = matching::find(key, claim, &world.volumes, Place::Node(&node.labels), &unavailable) {
                taken.insert(volume.name.clone());
                steps.push(Step::Give { claim: key.clone(), volume: volume.name.clone() });
                continue;
            }
            let class = world.classes.get(&claim.class).filter(|class| class.provisions() && class.allows(&node.labels));
            let class = class.ok_or(Unserved::NoVolume)?;
            let limited = world.drivers.get(&class.provisioner).is_some_and(|driver| driver.publishes_capacity);
            if limited && !world.capacities.iter().any(|one| one.suffices(&claim.class, claim.size, &node.labels)) {
                return Err(Unserved::NoSpace);
            }
            steps.push(Step::Make { claim: key.clone() });
        }
        Ok(steps)
    }
}

/// The CSI volumes of a pod: a name of each, with its driver. A claim without a volume counts as a volume of its own.
fn csi_volumes<'a>(world: &'a World, pod: &'a PodRow) -> impl Iterator<Item = (String, &'a str)> {
    pod.claims.iter().filter_map(|claim| {
        let key = Key::new(&pod.ns, &claim.name);
        let row = world.claims.get(&key)?;
        match world.volume(&row.volume) {
            Some(volume) => volume.csi.as_ref().map(|csi| (format!("{}/{}", csi.driver, csi.handle), csi.driver.as_str())),
            None => world.classes.get(&row.class).map(|class| (format!("{}/claim:{key}", class.provisioner), class.provisioner.as_str())),
        }
    })
}

/// Whether a driver says that the node takes no more of its volumes.
fn exceeds_limits(world: &World, pod: &PodRow, name: &str, usage: &Usage) -> bool {
    let Some(limits) = world.csi_nodes.get(name).map(|node| &node.limits).filter(|limits| !limits.is_empty()) else { return false };
    let mut present: BTreeSet<(String, &str)> = usage.members.iter().flat_map(|other| csi_volumes(world, other)).collect();
    let wanted: BTreeSet<(String, &str)> = csi_volumes(world, pod).filter(|one| !present.contains(one)).collect();
    for attachment in world.attachments.iter().filter(|one| one.node == name && !one.attacher.is_empty()) {
        if let Some(csi) = attachment.volume.as_ref().and_then(|volume| world.volume(volume)).and_then(|volume| volume.csi.as_ref()) {
            present.insert((format!("{}/{}", attachment.attacher, csi.handle), &attachment.attacher));
        }
    }
    let mut more: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, driver) in &wanted {
        *more.entry(driver).or_default() += 1;
    }
    more.into_iter().any(|(driver, count)| {
        let held = present.iter().filter(|(_, other)| *other == driver).count();
        limits.get(driver).is_some_and(|limit| i64::try_from(held).unwrap_or(i64::MAX).saturating_add(count) > *limit)
    })
}

/// Binding progress of the claims of a pod whose node is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Waiting,
    /// The provisioner gave up on the node: choose again.
    Lost,
}

/// Whether all claims of a pod meant for `node` are bound to volumes that it reaches.
pub(super) fn progress(pod: &PodRow, world: &World, name: &str, node: Option<&NodeRow>) -> Progress {
    let Some(node) = node else { return Progress::Lost };
    let mut progress = Progress::Done;
    for claim in &pod.claims {
        let key = Key::new(&pod.ns, &claim.name);
        let Some(row) = world.claims.get(&key).filter(|row| !row.deleting) else { return Progress::Lost };
        if row.is_bound() {
            if !world.volume(&row.volume).is_some_and(|volume| volume.reaches(&node.labels)) {
                return Progress::Lost;
            }
        } else if row.selected_node.as_deref() == Some(name) || is_given(world, &key, row) {
            progress = Progress::Waiting;
        } else {
            return Progress::Lost;
        }
    }
    progress
}

/// Whether a volume was given to a claim, in the API or not there yet.
fn is_given(world: &World, key: &Key, claim: &ClaimRow) -> bool {
    let written = |volume: &VolumeRow| volume.claim.as_ref().is_some_and(|owner| owner.uid == claim.uid);
    world.given.values().any(|owner| owner == key) || world.volumes.iter().any(|(_, volume)| written(volume))
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
