//! Plan for one claim or one volume: pure (upstream: `pkg/controller/volume/persistentvolume/pv_controller.go`).

use std::{collections::HashSet, fmt, sync::Arc};

use cluster::{EventType, Key};

use super::{
    matching::{self, Named, Place},
    rows::{ClaimRow, ClassRow, VolumeRow},
};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Write the claim reference to a volume.
    Reserve { volume: String, by_controller: bool },
    /// Write a volume's phase.
    VolumePhase { volume: String, phase: &'static str, message: String },
    /// Note on the claim which volume it has, and that this is complete.
    Name { volume: String, by_controller: bool },
    /// Write the claim's phase; Bound comes with what the volume grants.
    ClaimPhase { phase: &'static str, volume: Option<String> },
    /// Request a volume from the provisioner of the claim's class.
    Ask { provisioner: String },
    /// The volume's claim is gone: the volume is free of it, but not for others.
    Release { volume: String },
    /// Mark the volume Released.
    Unbind { volume: String, keep_name: bool },
    /// Record an Event for the author of the claim or volume.
    Report { type_: EventType, reason: &'static str, message: String },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserve { volume, .. } => write!(f, "reserve {volume}"),
            Self::VolumePhase { volume, phase, .. } => write!(f, "{volume} is {phase}"),
            Self::Name { volume, .. } => write!(f, "name {volume}"),
            Self::ClaimPhase { phase, .. } => write!(f, "the claim is {phase}"),
            Self::Ask { provisioner } => write!(f, "ask {provisioner}"),
            Self::Release { volume } => write!(f, "release {volume}"),
            Self::Unbind { volume, .. } => write!(f, "unbind {volume}"),
            Self::Report { reason, message, .. } => write!(f, "report {reason}: {message}"),
        }
    }
}

fn tell(type_: EventType, reason: &'static str, message: impl Into<String>) -> Action {
    Action::Report { type_, reason, message: message.into() }
}

/// Input of a claim's plan.
pub(super) struct ClaimInput<'a> {
    pub key: &'a Key,
    pub claim: &'a ClaimRow,
    pub volumes: &'a [Named],
    /// The claim's class, if there is one of its name.
    pub class: Option<Arc<ClassRow>>,
    /// Pods that use the claim and have no node yet.
    pub waiting_pods: &'a [String],
}

/// Plan for one claim (`syncClaim`).
pub(super) fn for_claim(input: &ClaimInput<'_>) -> Vec<Action> {
    if input.claim.bind_completed { input.bound() } else { input.unbound() }
}

impl ClaimInput<'_> {
    fn volume(&self) -> Option<&Named> {
        self.volumes.iter().find(|(name, _)| name.name == self.claim.volume)
    }

    fn pending(&self, mut actions: Vec<Action>) -> Vec<Action> {
        actions.extend((self.claim.phase != "Pending").then_some(Action::ClaimPhase { phase: "Pending", volume: None }));
        actions
    }

    fn unbound(&self) -> Vec<Action> {
        if self.claim.volume.is_empty() {
            let waits = self.class.as_ref().is_some_and(|class| class.waits) && !self.claim.class.is_empty();
            let place = if waits { Place::Reserved } else { Place::Anywhere };
            return match matching::find(self.key, self.claim, self.volumes, place, &HashSet::new()) {
                Some(found) => self.bind(found),
                None if waits && self.claim.selected_node.is_none() => self.pending(vec![self.wait()]),
                None if !self.claim.class.is_empty() => self.pending(self.provision()),
                None => {
                    let message = "no persistent volumes available for this claim and no storage class is set";
                    self.pending(vec![tell(EventType::Normal, "FailedBinding", message)])
                }
            };
        }
        let Some(found) = self.volume() else { return self.pending(Vec::new()) };
        let (name, volume) = found;
        match &volume.claim {
            None => match matching::mismatch(self.claim, volume) {
                None => self.bind(found),
                Some(why) => {
                    let message = format!("Cannot bind to requested volume {:?}: {why}", name.name);
                    self.pending(vec![tell(EventType::Warning, "VolumeMismatch", message)])
                }
            },
            Some(_) if volume.is_for(self.key, self.claim) => self.bind(found),
            Some(_) => {
                let message = format!("volume {:?} already bound to a different claim.", name.name);
                self.pending(vec![tell(EventType::Warning, "FailedBinding", message)])
            }
        }
    }

    /// Nothing happens before a pod needs the claim.
    fn wait(&self) -> Action {
        match self.waiting_pods {
            [] => tell(EventType::Normal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
            pods => tell(EventType::Normal, "WaitForPodScheduled", format!("waiting for pod {} to be scheduled", pods.join(","))),
        }
    }

    fn provision(&self) -> Vec<Action> {
        let Some(class) = &self.class else {
            let message = format!("storageclass.storage.k8s.io {:?} not found", self.claim.class);
            return vec![tell(EventType::Warning, "ProvisioningFailed", message)];
        };
        let provisioner = class.provisioner.clone();
        if provisioner.starts_with("kubernetes.io/") {
            return vec![tell(EventType::Warning, "ProvisioningFailed", format!("no volume plugin matched name: {provisioner}"))];
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. \
             If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        let mut actions = Vec::new();
        if self.claim.provisioner.as_ref() != Some(&provisioner) {
            actions.push(Action::Ask { provisioner });
        }
        actions.push(tell(EventType::Normal, "ExternalProvisioning", message));
        actions
    }

    /// The steps of a binding that are not done yet.
    fn bind(&self, (name, volume): &Named) -> Vec<Action> {
        let (name, mut actions) = (name.name.clone(), Vec::new());
        if volume.claim.as_ref().is_none_or(|one| one.uid != self.claim.uid) {
            actions.push(Action::Reserve { volume: name.clone(), by_controller: volume.claim.is_none() });
        }
        if volume.phase != "Bound" {
            actions.push(Action::VolumePhase { volume: name.clone(), phase: "Bound", message: String::new() });
        }
        if self.claim.volume != name || !self.claim.bind_completed {
            actions.push(Action::Name { volume: name.clone(), by_controller: self.claim.volume.is_empty() });
        }
        if self.claim.phase != "Bound" || self.claim.granted != (volume.modes.clone(), volume.capacity.clone()) {
            actions.push(Action::ClaimPhase { phase: "Bound", volume: Some(name) });
        }
        actions
    }

    fn bound(&self) -> Vec<Action> {
        let lost = |reason: &'static str, message: &str| {
            if self.claim.phase == "Lost" {
                return Vec::new();
            }
            vec![Action::ClaimPhase { phase: "Lost", volume: None }, tell(EventType::Warning, reason, message)]
        };
        if self.claim.volume.is_empty() {
            return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!");
        }
        let Some(found) = self.volume() else {
            return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
        };
        match &found.1.claim {
            Some(claim) if claim.uid != self.claim.uid => {
                lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
            }
            _ => self.bind(found),
        }
    }
}

/// Plan for one volume (`syncVolume`); `claim` is the one it names, if there is one of that name.
pub(super) fn for_volume(name: &str, volume: &VolumeRow, claim: Option<&ClaimRow>) -> Vec<Action> {
    let phase = |phase: &'static str| match volume.phase == phase {
        true => Vec::new(),
        false => vec![Action::VolumePhase { volume: name.to_owned(), phase, message: String::new() }],
    };
    let Some(owner) = volume.claim.as_ref().filter(|owner| !owner.uid.is_empty()) else { return phase("Available") };
    let Some(claim) = claim.filter(|claim| claim.uid == owner.uid) else { return released(name, volume) };
    if claim.volume.is_empty() {
        // The claim's own turn completes the binding.
        Vec::new()
    } else if claim.volume == name {
        phase("Bound")
    } else if volume.provisioned_by.is_some() && volume.policy == "Delete" {
        // Made for a claim that found another volume meanwhile.
        released(name, volume)
    } else {
        vec![Action::Unbind { volume: name.to_owned(), keep_name: !volume.by_controller }]
    }
}

/// Plan for a volume whose claim is gone.
fn released(name: &str, volume: &VolumeRow) -> Vec<Action> {
    match volume.phase.as_str() {
        "Failed" => return Vec::new(),
        "Released" => {}
        _ => return vec![Action::Release { volume: name.to_owned() }],
    }
    let fail = |reason: &'static str, message: String| {
        vec![Action::VolumePhase { volume: name.to_owned(), phase: "Failed", message: message.clone() }, tell(EventType::Warning, reason, message)]
    };
    match volume.policy.as_str() {
        "Recycle" => fail("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned()),
        // The provisioner that made it also removes it.
        "Delete" if volume.provisioned_by.is_none() => {
            fail("VolumeFailedDelete", format!("error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"))
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_tests.rs"]
mod model;
