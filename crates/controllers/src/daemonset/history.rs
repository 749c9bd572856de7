//! ControllerRevisions of a DaemonSet, for `kubectl rollout history` and `rollout undo`.

use std::{collections::BTreeSet, fmt};

use anyhow::Context as _;
use cluster::{Key, is_conflict, is_not_found};
use k8s_openapi::{
    api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{
    Context,
    rows::{self, HASH_LABEL, RevisionRow, digest, revision_data},
};
use crate::{
    ownership::{self, Claim},
    view::controller_reference,
};
use kube_rules::Selector;

/// Actions for the revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The present template has no revision yet.
    Create { revision: i64 },
    /// The present template's revision is not the newest (someone went back to it).
    Renumber { name: String, revision: i64 },
    /// A second revision of the present template, or one beyond the limit.
    Delete { name: String },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { revision } => write!(f, "note the template as revision {revision}"),
            Self::Renumber { name, revision } => write!(f, "make {name} revision {revision}"),
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
    let mut steps = Vec::new();
    match current.split_first() {
        None => steps.push(Step::Create { revision: next }),
        Some((keep, surplus)) => {
            if keep.revision < next {
                steps.push(Step::Renumber { name: keep.name.clone(), revision: next });
            }
            steps.extend(surplus.iter().map(|one| Step::Delete { name: one.name.clone() }));
        }
    }
    let surplus = old.len().saturating_sub(limit);
    let unused = old.into_iter().filter(|one| !live.contains(one.hash()));
    steps.extend(unused.take(surplus).map(|one| Step::Delete { name: one.name.clone() }));
    steps
}

/// The DaemonSet's revisions; matching orphans are adopted.
pub(super) async fn claim(context: &Context, key: &Key, set: &DaemonSet, selector: &Selector) -> anyhow::Result<Vec<RevisionRow>> {
    let api: Api<ControllerRevision> = Api::namespaced(context.client().clone(), &key.ns);
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let owner = controller_reference("apps/v1", "DaemonSet", &key.name, uid);
    let leaving = set.metadata.deletion_timestamp.is_some();
    let mut mine = Vec::new();
    for (name, row) in context.sets.revisions.in_namespace(&key.ns) {
        match ownership::claim(row.controller.as_ref(), uid, selector.matches(&row.labels), row.deleting || leaving) {
            Claim::Mine => mine.push((*row).clone()),
            Claim::Adopt => {
                ownership::adopt(&api, &name.name, &row.uid, &owner).await?;
                mine.push((*row).clone());
            }
            Claim::Release => ownership::release(&api, &name.name, &row.uid, uid).await?,
            Claim::Foreign => {}
        }
    }
    Ok(mine)
}

/// Carries the steps out; answers with the hash of the present template's revision.
pub(super) async fn apply(
    context: &Context,
    key: &Key,
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    mine: &[RevisionRow],
    steps: &[Step],
) -> anyhow::Result<String> {
    let api: Api<ControllerRevision> = Api::namespaced(context.client().clone(), &key.ns);
    let data = digest(&revision_data(&spec.template));
    let present = mine.iter().filter(|one| one.data == data).max_by_key(|one| one.revision);
    let mut hash = present.map(|one| one.hash().to_owned()).unwrap_or_default();
    for step in steps {
        tracing::debug!(daemonset = %key, "{step}");
        match step {
            Step::Create { revision } => hash = create(context, &api, key, set, spec, *revision).await?,
            Step::Renumber { name, revision } => {
                let version = mine.iter().find(|one| one.name == *name).map(|one| one.version.as_str());
                let patch = json!({"metadata": {"resourceVersion": version}, "revision": revision});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.with_context(|| format!("renumbering {name}"))?;
            }
            Step::Delete { name } => {
                let uid = mine.iter().find(|one| one.name == *name).map(|one| one.uid.clone());
                let params = DeleteParams { preconditions: Some(Preconditions { uid, resource_version: None }), ..DeleteParams::default() };
                match api.delete(name, &params).await {
                    Err(error) if !is_not_found(&error) && !is_conflict(&error) => return Err(error).with_context(|| format!("deleting {name}")),
                    _ => {}
                }
            }
        }
    }
    Ok(hash)
}

async fn create(
    context: &Context,
    api: &Api<ControllerRevision>,
    key: &Key,
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    revision: i64,
) -> anyhow::Result<String> {
    let hash = rows::hash(spec, set.status.as_ref().and_then(|status| status.collision_count));
    let name = format!("{}-{hash}", key.name);
    let mut labels = spec.template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let owner = controller_reference("apps/v1", "DaemonSet", &key.name, set.metadata.uid.as_deref().unwrap_or_default());
    let object = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(key.ns.clone()),
            labels: Some(labels),
            // `kubernetes.io/change-cause` among them, which history shows.
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        data: Some(RawExtension(revision_data(&spec.template))),
        revision,
    };
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(hash),
        Err(error) if is_conflict(&error) => already_there(context, api, key, set, &object).await.map(|()| hash),
        Err(error) => Err(error).with_context(|| format!("creating revision {name}")),
    }
}

/// A revision of this name exists: ours from an earlier attempt, or another one that met the same hash.
async fn already_there(
    context: &Context,
    api: &Api<ControllerRevision>,
    key: &Key,
    set: &DaemonSet,
    object: &ControllerRevision,
) -> anyhow::Result<()> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let Some(found) = api.get_opt(&name).await? else { anyhow::bail!("{name} went away while it was looked at") };
    let (row, wanted) = (RevisionRow::new(&found), RevisionRow::new(object));
    if row.controller == wanted.controller && row.data == wanted.data {
        return Ok(());
    }
    let mut counted = set.clone();
    let status = counted.status.get_or_insert_default();
    status.collision_count = Some(status.collision_count.unwrap_or_default() + 1);
    let sets: Api<DaemonSet> = Api::namespaced(context.client().clone(), &key.ns);
    sets.replace_status(&key.name, &PostParams::default(), &counted).await.context("noting a name collision")?;
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
            ("twice the same", vec![revision(1, "a"), revision(2, "a")], "a", live(&[]), 10, &["delete web-1"]),
            ("over the limit", vec![revision(1, "a"), revision(2, "b"), revision(3, "c")], "c", live(&[]), 1, &["delete web-1"]),
            ("over the limit, but in use", vec![revision(1, "a"), revision(2, "b"), revision(3, "c")], "c", live(&["h1"]), 1, &["delete web-2"]),
        ] {
            let steps: Vec<String> = plan(&revisions, data, &live, limit).iter().map(ToString::to_string).collect();
            assert_eq!(steps, expected, "{what}");
        }
    }
}
