//! ControllerRevisions of a DaemonSet, for `kubectl rollout history` and `rollout undo`.

use std::{collections::BTreeSet, fmt, sync::Arc};

use anyhow::Context as _;
use cluster::{Key, is_conflict, is_not_found};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec},
    core::v1::{Pod, PodTemplateSpec},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::Context;
use crate::{
    revisions::{HASH_LABEL, Owner, RevisionRow, template_digest},
    view::PodRow,
};

/// Actions for the revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The present template has no revision yet.
    Create { revision: i64 },
    /// The present template's revision is not the newest (someone went back to it).
    Renumber { name: String, revision: i64 },
    /// Pods with the hash of a second revision of the present template get that of the first.
    Relabel { from: Vec<String>, to: String },
    /// A revision has no hash: its name becomes it.
    Label { name: String },
    /// A second revision of the present template, or one beyond the limit.
    Delete { name: String },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { revision } => write!(f, "note the template as revision {revision}"),
            Self::Renumber { name, revision } => write!(f, "make {name} revision {revision}"),
            Self::Relabel { from, to } => write!(f, "label pods of {} as {to}", from.join(", ")),
            Self::Label { name } => write!(f, "label {name}"),
            Self::Delete { name } => write!(f, "delete {name}"),
        }
    }
}

/// Compares the revisions there are with the present template, whose digest is `data`; `live` are the hashes of pods that still run.
pub(super) fn plan(revisions: &[RevisionRow], data: &str, live: &BTreeSet<String>, limit: usize) -> Vec<Step> {
    let (mut current, mut old): (Vec<&RevisionRow>, Vec<&RevisionRow>) = revisions.iter().partition(|one| one.data == data);
    current.sort_by_key(|one| std::cmp::Reverse(one.revision));
    old.sort_by_key(|one| one.revision);
    let next = old.last().map_or(0, |one| one.revision) + 1;
    let bare = revisions.iter().filter(|one| !one.labels.contains_key(HASH_LABEL));
    let mut steps: Vec<Step> = bare.map(|one| Step::Label { name: one.name.clone() }).collect();
    match current.split_first() {
        None => steps.push(Step::Create { revision: next }),
        Some((keep, surplus)) => {
            if keep.revision < next {
                steps.push(Step::Renumber { name: keep.name.clone(), revision: next });
            }
            // A revision goes when no pod names it any longer: such a pod would count as old.
            let (named, free): (Vec<&RevisionRow>, Vec<&RevisionRow>) =
                surplus.iter().partition(|one| one.hash() != keep.hash() && live.contains(one.hash()));
            steps.extend(free.iter().map(|one| Step::Delete { name: one.name.clone() }));
            if !named.is_empty() {
                let from = named.iter().map(|one| one.hash().to_owned()).collect();
                steps.push(Step::Relabel { from, to: keep.hash().to_owned() });
            }
        }
    }
    let surplus = old.len().saturating_sub(limit);
    let unused = old.into_iter().filter(|one| !live.contains(one.hash()));
    steps.extend(unused.take(surplus).map(|one| Step::Delete { name: one.name.clone() }));
    steps
}

/// The DaemonSet as the owner of revisions.
pub(super) fn owner<'a>(context: &'a Context, key: &'a Key, set: &'a DaemonSet) -> Owner<'a> {
    Owner { client: context.client(), kind: "DaemonSet", key, meta: &set.metadata, label: HASH_LABEL, longest: usize::MAX }
}

/// Carries the steps out; answers with the hash of the present template's revision, or none while pods are being labelled anew.
pub(super) async fn apply(
    context: &Context,
    key: &Key,
    (set, spec): (&DaemonSet, &DaemonSetSpec),
    (mine, pods): (&[RevisionRow], &[(String, Arc<PodRow>)]),
    steps: &[Step],
) -> anyhow::Result<Option<String>> {
    let owner = owner(context, key, set);
    let data = template_digest(&spec.template);
    let present = mine.iter().filter(|one| one.data == data).max_by_key(|one| one.revision);
    let mut hash = Some(present.map(|one| one.hash().to_owned()).unwrap_or_default());
    for step in steps {
        tracing::debug!(daemonset = %key, "{step}");
        match step {
            Step::Create { revision } => hash = Some(create(&owner, set, &spec.template, *revision).await?),
            Step::Renumber { name, revision } => owner.renumber(mine, name, *revision).await?,
            Step::Label { name } => owner.set_label(name).await?,
            Step::Relabel { from, to } => {
                relabel(context, key, pods, (from, to)).await?;
                hash = None;
            }
            Step::Delete { name } => {
                if let Some(one) = mine.iter().find(|one| one.name == *name) {
                    owner.delete(one).await?;
                }
            }
        }
    }
    Ok(hash)
}

/// Gives pods with one of these hashes another one.
async fn relabel(context: &Context, key: &Key, pods: &[(String, Arc<PodRow>)], (from, to): (&[String], &str)) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(context.client().clone(), &key.ns);
    for (name, pod) in pods.iter().filter(|(_, pod)| pod.labels.get(HASH_LABEL).is_some_and(|hash| from.contains(hash))) {
        let patch = json!({"metadata": {"uid": pod.uid, "labels": {HASH_LABEL: to}}});
        match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if !is_conflict(&error) && !is_not_found(&error) => return Err(error).with_context(|| format!("labelling pod {name}")),
            _ => {}
        }
    }
    Ok(())
}

async fn create(owner: &Owner<'_>, set: &DaemonSet, template: &PodTemplateSpec, revision: i64) -> anyhow::Result<String> {
    let (object, hash) = owner.revision(template, revision, set.status.as_ref().and_then(|status| status.collision_count));
    match owner.api().create(&PostParams::default(), &object).await {
        Ok(_) => Ok(hash),
        Err(error) if is_conflict(&error) => already_there(owner, set, &object).await.map(|()| hash),
        Err(error) => Err(error).with_context(|| format!("creating revision {}", object.metadata.name.unwrap_or_default())),
    }
}

/// A revision of this name exists: ours from an earlier attempt, or another one that met the same hash.
async fn already_there(owner: &Owner<'_>, set: &DaemonSet, object: &ControllerRevision) -> anyhow::Result<()> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let Some(found) = owner.api().get_opt(&name).await? else { anyhow::bail!("{name} went away while it was looked at") };
    let (row, wanted) = (RevisionRow::new(&found), RevisionRow::new(object));
    if row.controller == wanted.controller && row.data == wanted.data {
        return Ok(());
    }
    let mut counted = set.clone();
    let status = counted.status.get_or_insert_default();
    status.collision_count = Some(status.collision_count.unwrap_or_default() + 1);
    let sets: Api<DaemonSet> = Api::namespaced(owner.client.clone(), &owner.key.ns);
    sets.replace_status(&owner.key.name, &PostParams::default(), &counted).await.context("noting a name collision")?;
    anyhow::bail!("the name {name} is taken by a revision of another template; another name will be tried")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: i64, data: &str) -> RevisionRow {
        RevisionRow {
            name: format!("web-{number}"),
            uid: String::new(),
            version: String::new(),
            controller: None,
            labels: [(HASH_LABEL.to_owned(), format!("h{number}"))].into(),
            deleting: false,
            revision: number,
            data: data.to_owned(),
        }
    }

    #[test]
    fn history() {
        let live = |hashes: &[&str]| hashes.iter().map(|hash| (*hash).to_owned()).collect::<BTreeSet<_>>();
        for (what, revisions, data, live, limit, expected) in [
            ("the first", vec![], "a", live(&[]), 10, &["note the template as revision 1"][..]),
            ("nothing new", vec![revision(1, "a")], "a", live(&["h1"]), 10, &[]),
            ("a new template", vec![revision(1, "a")], "b", live(&["h1"]), 10, &["note the template as revision 2"]),
            ("gone back", vec![revision(1, "a"), revision(2, "b")], "a", live(&["h2"]), 10, &["make web-1 revision 3"]),
            ("twice the same", vec![revision(1, "a"), revision(2, "a")], "a", live(&["h2"]), 10, &["delete web-1"]),
            ("twice the same, both in use", vec![revision(1, "a"), revision(2, "a")], "a", live(&["h1", "h2"]), 10, &["label pods of h1 as h2"]),
            (
                "thrice the same, and renumbered",
                vec![revision(1, "a"), revision(2, "a"), revision(3, "a"), revision(4, "b")],
                "a",
                live(&["h1"]),
                10,
                &["make web-3 revision 5", "delete web-2", "label pods of h1 as h3"],
            ),
            ("no hash", vec![RevisionRow { labels: Default::default(), ..revision(1, "a") }], "a", live(&[]), 10, &["label web-1"]),
            ("over the limit", vec![revision(1, "a"), revision(2, "b"), revision(3, "c")], "c", live(&[]), 1, &["delete web-1"]),
            ("over the limit, but in use", vec![revision(1, "a"), revision(2, "b"), revision(3, "c")], "c", live(&["h1"]), 1, &["delete web-2"]),
        ] {
            let steps: Vec<String> = plan(&revisions, data, &live, limit).iter().map(ToString::to_string).collect();
            assert_eq!(steps, expected, "{what}");
        }
    }
}
