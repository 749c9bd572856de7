//! Plan for one Deployment: pure. It works on its own copy of the ReplicaSets, so that later steps see what earlier ones decided.

use std::{cmp::Reverse, fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DeploymentStatus;

use super::{
    rows::{DESIRED_REPLICAS, DeploymentView, HASH_LABEL, MAX_REPLICAS, REVISION, REVISION_HISTORY, RsRow, Strategy},
    status::{self, Progress},
};
use kube_rules::Labels;

/// Annotations that stay with the object they were written on.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];
/// Length of the list of earlier revisions, in bytes (upstream: `maxRevHistoryLengthInChars`).
const HISTORY_BYTES: usize = 2000;

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Make the ReplicaSet of the present template.
    Create { set: String, hash: String, replicas: i32, annotations: Labels },
    /// Give a ReplicaSet this size, noting the Deployment's.
    Scale { set: String, from: i32, to: i32, annotations: Labels },
    /// Write these annotations and `minReadySeconds` on the newest ReplicaSet.
    Refresh { set: String, annotations: Labels, min_ready_seconds: i32 },
    /// Write the newest revision on the Deployment.
    Revision(String),
    /// Remove a ReplicaSet beyond the history limit.
    Delete { set: String },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { set, replicas, annotations, .. } => {
                write!(f, "create {set} with {replicas} replicas as revision {}", annotations.get(REVISION).map_or("?", String::as_str))
            }
            Self::Scale { set, from, to, .. } => write!(f, "scale {set} from {from} to {to}"),
            Self::Refresh { set, .. } => write!(f, "refresh the annotations of {set}"),
            Self::Revision(revision) => write!(f, "note revision {revision}"),
            Self::Delete { set } => write!(f, "delete {set}"),
        }
    }
}

/// Everything to do now.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub actions: Vec<Action>,
    pub status: DeploymentStatus,
    /// When to look again although nothing changed (the progress deadline).
    pub recheck: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for action in &self.actions {
            writeln!(f, "{action}")?;
        }
        for condition in self.status.conditions.iter().flatten() {
            writeln!(f, "{}={} {}", condition.type_, condition.status, condition.reason.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Actions for `deployment`, whose ReplicaSets are `sets`; `old_pods` counts pods of old ReplicaSets that still run (for Recreate).
pub(super) fn plan(deployment: &DeploymentView, sets: Vec<RsRow>, old_pods: usize, now: Timestamp) -> Plan {
    let mut rollout = Rollout::new(deployment, sets);
    let progress = if deployment.deleting {
        Progress::Keep
    } else if deployment.paused || rollout.replicas_changed() {
        rollout.find_new();
        rollout.resize();
        if deployment.paused {
            rollout.clean_up();
        }
        Progress::Keep
    } else {
        match deployment.strategy {
            Strategy::Recreate => rollout.recreate(old_pods),
            Strategy::Rolling { .. } => rollout.roll(),
        }
        Progress::Compare { created: rollout.created }
    };
    let status = status::status(deployment, &rollout.sets, rollout.new, progress, now);
    Plan { recheck: status::recheck(deployment, &status, now), actions: rollout.actions, status }
}

struct Rollout<'a> {
    deployment: &'a DeploymentView,
    /// Oldest first.
    sets: Vec<RsRow>,
    /// Which of `sets` has the present template.
    new: Option<usize>,
    created: bool,
    actions: Vec<Action>,
}

impl<'a> Rollout<'a> {
    fn new(deployment: &'a DeploymentView, mut sets: Vec<RsRow>) -> Self {
        sets.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        let new = sets.iter().position(|set| set.template == deployment.template);
        Self { deployment, sets, new, created: false, actions: Vec::new() }
    }

    fn old(&self) -> impl Iterator<Item = (usize, &RsRow)> {
        self.sets.iter().enumerate().filter(|(index, _)| Some(*index) != self.new)
    }

    fn total(&self) -> i32 {
        self.sets.iter().map(|set| set.replicas).sum()
    }

    /// Whether someone changed the Deployment's replicas since its ReplicaSets were sized.
    fn replicas_changed(&self) -> bool {
        let noted = self.sets.iter().filter(|set| set.replicas > 0).filter_map(|set| set.number(DESIRED_REPLICAS));
        noted.into_iter().any(|noted| noted != i64::from(self.deployment.replicas))
    }

    /// Brings the newest ReplicaSet's annotations and both revisions up to date, if there is one.
    fn find_new(&mut self) {
        let revision = self.old().filter_map(|(_, set)| set.number(REVISION)).max().unwrap_or_default() + 1;
        let Some(new) = self.new else { return };
        let (set, min_ready_seconds) = (&self.sets[new], self.deployment.min_ready_seconds);
        let annotations = refreshed_annotations(&self.deployment.annotations, &set.annotations, revision);
        if annotations != set.annotations || set.min_ready_seconds != min_ready_seconds {
            self.actions.push(Action::Refresh { set: set.name.clone(), annotations: annotations.clone(), min_ready_seconds });
            self.sets[new].annotations = annotations;
            self.sets[new].min_ready_seconds = min_ready_seconds;
        }
        self.note_revision(new);
    }

    /// Like `find_new`, and makes the ReplicaSet if there is none.
    fn find_or_create_new(&mut self) -> usize {
        if let Some(new) = self.new {
            self.find_new();
            return new;
        }
        let deployment = self.deployment;
        let revision = self.sets.iter().filter_map(|set| set.number(REVISION)).max().unwrap_or_default() + 1;
        let hash = match deployment.status.collision_count {
            // After a name collision the count makes another name of it.
            Some(collisions) if collisions > 0 => format!("{}{collisions}", deployment.template),
            _ => deployment.template.clone(),
        };
        let mut annotations = refreshed_annotations(&deployment.annotations, &Labels::new(), revision);
        annotations.extend(self.sizes());
        let mut set = RsRow::new(&k8s_openapi::api::apps::v1::ReplicaSet::default());
        set.name = format!("{}-{hash}", deployment.name);
        set.template.clone_from(&deployment.template);
        set.labels.insert(HASH_LABEL.to_owned(), hash.clone());
        set.annotations.clone_from(&annotations);
        set.replicas = 0;
        self.sets.push(set);
        let new = self.sets.len() - 1;
        self.new = Some(new);
        self.created = true;
        let replicas = self.size_of_new(new);
        self.sets[new].replicas = replicas;
        self.actions.push(Action::Create { set: self.sets[new].name.clone(), hash, replicas, annotations });
        self.note_revision(new);
        new
    }

    fn note_revision(&mut self, new: usize) {
        let Some(revision) = self.sets[new].annotations.get(REVISION) else { return };
        if self.deployment.annotations.get(REVISION) != Some(revision) {
            self.actions.push(Action::Revision(revision.clone()));
        }
    }

    fn sizes(&self) -> [(String, String); 2] {
        let most = self.deployment.replicas + self.deployment.max_surge();
        [(DESIRED_REPLICAS.to_owned(), self.deployment.replicas.to_string()), (MAX_REPLICAS.to_owned(), most.to_string())]
    }

    /// Sizes one ReplicaSet; says whether its size changed.
    fn scale(&mut self, index: usize, to: i32) -> bool {
        let annotations = Labels::from(self.sizes());
        let set = &mut self.sets[index];
        let from = set.replicas;
        let noted = annotations.iter().all(|(key, value)| set.annotations.get(key) == Some(value));
        if from != to || !noted {
            set.annotations.extend(annotations.clone());
            set.replicas = to;
            self.actions.push(Action::Scale { set: set.name.clone(), from, to, annotations });
        }
        from != to
    }

    /// Scales only when the size is another one.
    fn scale_if_needed(&mut self, index: usize, to: i32) -> bool {
        self.sets[index].replicas != to && self.scale(index, to)
    }

    /// How many replicas the newest ReplicaSet may have now (upstream: `NewRSNewReplicas`).
    fn size_of_new(&self, new: usize) -> i32 {
        let (wanted, present) = (self.deployment.replicas, self.sets[new].replicas);
        match self.deployment.strategy {
            Strategy::Recreate => wanted,
            Strategy::Rolling { surge, .. } => {
                let room = wanted.saturating_add(surge) - self.total();
                if room <= 0 { present } else { present + room.min(wanted - present) }
            }
        }
    }

    // --- rolling update

    fn roll(&mut self) {
        let new = self.find_or_create_new();
        if self.grow_new(new) || self.shrink_old(new) {
            return;
        }
        if status::is_complete(self.deployment, &self.deployment.status) {
            self.clean_up();
        }
    }

    fn grow_new(&mut self, new: usize) -> bool {
        let (wanted, present) = (self.deployment.replicas, self.sets[new].replicas);
        let size = match present.cmp(&wanted) {
            std::cmp::Ordering::Equal => present,
            std::cmp::Ordering::Greater => wanted,
            std::cmp::Ordering::Less => self.size_of_new(new),
        };
        self.scale_if_needed(new, size)
    }

    /// Takes replicas from old ReplicaSets: first those that are not available anyway, then as many as availability allows.
    fn shrink_old(&mut self, new: usize) -> bool {
        if self.old().all(|(_, set)| set.replicas == 0) {
            return false;
        }
        let least = self.deployment.replicas - self.deployment.max_unavailable();
        let new_unavailable = self.sets[new].replicas - self.sets[new].available;
        let mut room = self.total() - least - new_unavailable;
        if room <= 0 {
            return false;
        }
        let old: Vec<usize> = self.old().map(|(index, _)| index).collect();
        let mut changed = false;
        for &index in &old {
            let set = &self.sets[index];
            let cut = (set.replicas - set.available).clamp(0, room);
            room -= cut;
            changed |= self.scale_if_needed(index, self.sets[index].replicas - cut);
        }
        let mut spare = self.sets.iter().map(|set| set.available).sum::<i32>() - least;
        for &index in &old {
            let cut = self.sets[index].replicas.min(spare).max(0);
            spare -= cut;
            changed |= self.scale_if_needed(index, self.sets[index].replicas - cut);
        }
        changed
    }

    // --- recreate

    fn recreate(&mut self, old_pods: usize) {
        self.find_new();
        let old: Vec<usize> = self.old().map(|(index, _)| index).collect();
        let mut shrunk = false;
        for &index in &old {
            shrunk |= self.scale_if_needed(index, 0);
        }
        let remaining = old.iter().any(|index| self.sets[*index].actual > 0);
        if shrunk || remaining || old_pods > 0 {
            return;
        }
        let new = match self.new {
            Some(new) => new,
            None => self.find_or_create_new(),
        };
        self.scale_if_needed(new, self.deployment.replicas);
        if status::is_complete(self.deployment, &self.deployment.status) {
            self.clean_up();
        }
    }

    // --- a changed number of replicas, or a paused Deployment

    fn resize(&mut self) {
        let wanted = self.deployment.replicas;
        let active: Vec<usize> = (0..self.sets.len()).filter(|index| self.sets[*index].replicas > 0).collect();
        let only = match active[..] {
            [] => self.new.or_else(|| self.sets.len().checked_sub(1)),
            [only] => Some(only),
            _ => None,
        };
        if let Some(only) = only {
            self.scale(only, wanted);
            return;
        }
        if self.new.is_some_and(|new| self.is_saturated(&self.sets[new])) {
            let new = self.new;
            for index in active.into_iter().filter(|index| Some(*index) != new) {
                self.scale_if_needed(index, 0);
            }
        } else if matches!(self.deployment.strategy, Strategy::Rolling { .. }) {
            self.resize_in_proportion(active);
        }
    }

    fn is_saturated(&self, set: &RsRow) -> bool {
        let wanted = self.deployment.replicas;
        set.number(DESIRED_REPLICAS) == Some(i64::from(wanted)) && set.replicas == wanted && set.available == wanted
    }

    /// Spreads the change over all active ReplicaSets by their size, the rest to the largest (upstream: `sync.go` `scale`).
    fn resize_in_proportion(&mut self, mut active: Vec<usize>) {
        let wanted = self.deployment.replicas;
        let allowed = if wanted > 0 { wanted.saturating_add(self.deployment.max_surge()) } else { 0 };
        let to_add = allowed - active.iter().map(|index| self.sets[*index].replicas).sum::<i32>();
        // Larger ones first; among equals newer ones when growing, older ones when shrinking.
        active.sort_by_key(|index| Reverse(self.sets[*index].replicas));
        if to_add > 0 {
            active.sort_by_key(|index| (Reverse(self.sets[*index].replicas), Reverse(self.sets[*index].created)));
        } else {
            active.sort_by_key(|index| (Reverse(self.sets[*index].replicas), self.sets[*index].created));
        }
        let mut sizes: Vec<i32> = Vec::with_capacity(active.len());
        let mut added = 0;
        for &index in &active {
            let share = self.share(&self.sets[index], to_add, added);
            added += share;
            sizes.push(self.sets[index].replicas + share);
        }
        if let Some(first) = sizes.first_mut() {
            *first = (*first + to_add - added).max(0);
        }
        for (index, size) in active.into_iter().zip(sizes) {
            self.scale(index, size);
        }
    }

    fn share(&self, set: &RsRow, to_add: i32, added: i32) -> i32 {
        if set.replicas == 0 || to_add == 0 || to_add == added {
            return 0;
        }
        if self.deployment.replicas == 0 {
            return -set.replicas;
        }
        let most = f64::from(self.deployment.replicas + self.deployment.max_surge());
        let before = set.number(MAX_REPLICAS).unwrap_or_else(|| i64::from(self.deployment.status.replicas.unwrap_or_default())).max(1);
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "replica counts are far below 2^31")]
        let fraction = (f64::from(set.replicas) * most / before as f64).round() as i32 - set.replicas;
        let left = to_add - added;
        if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
    }

    // --- history

    /// Removes the oldest idle ReplicaSets beyond the history limit.
    fn clean_up(&mut self) {
        let Some(limit) = self.deployment.history_limit else { return };
        let mut old: Vec<&RsRow> = self.old().map(|(_, set)| set).filter(|set| !set.deleting).collect();
        let surplus = old.len().saturating_sub(limit);
        old.sort_by_key(|set| set.number(REVISION).unwrap_or_default());
        let idle = |set: &&&RsRow| set.actual == 0 && set.replicas == 0 && set.generation <= set.observed_generation;
        let gone: Vec<Action> = old.iter().take(surplus).filter(idle).map(|set| Action::Delete { set: set.name.clone() }).collect();
        self.actions.extend(gone);
    }
}

/// A ReplicaSet's annotations with the Deployment's copied and at least this revision (upstream: `SetNewReplicaSetAnnotations`).
fn refreshed_annotations(deployment: &Labels, set: &Labels, revision: i64) -> Labels {
    let mut annotations = set.clone();
    let copied = deployment.iter().filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()));
    annotations.extend(copied.map(|(key, value)| (key.clone(), value.clone())));
    let before = set.get(REVISION).and_then(|number| number.parse::<i64>().ok());
    if before.unwrap_or_default() < revision {
        annotations.insert(REVISION.to_owned(), revision.to_string());
        if let Some(before) = before {
            let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
            if !history.is_empty() {
                history.push(',');
            }
            history.push_str(&before.to_string());
            while history.len() > HISTORY_BYTES {
                *history = history.split_once(',').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
            }
        }
    }
    annotations
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
