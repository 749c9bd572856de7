//! ControllerRevisions of a StatefulSet: what updates come from and lead to, and `kubectl rollout undo`.

use std::{collections::BTreeSet, fmt};

use anyhow::Context as _;
use cluster::{Key, is_conflict};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::PodTemplateSpec,
};
use kube::{Api, api::PostParams};

use super::Context;
use crate::revisions::{Owner, RevisionRow, template_digest};

/// Label with the hash in a revision's name.
const LABEL: &str = "controller.kubernetes.io/hash";
/// The longest name of a StatefulSet that its revisions' names hold whole.
const LONGEST_PREFIX: usize = 223;

/// How the present template becomes the newest revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It is that already.
    Keep { name: String },
    /// It has no revision yet.
    Create { revision: i64 },
    /// Someone went back to it.
    Renumber { name: String, revision: i64 },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep { name } => write!(f, "keep {name}"),
            Self::Create { revision } => write!(f, "note the template as revision {revision}"),
            Self::Renumber { name, revision } => write!(f, "make {name} revision {revision}"),
        }
    }
}

/// Compares the revisions there are with the present template, whose digest is `data`.
pub(super) fn plan(revisions: &[RevisionRow], data: &str) -> Step {
    let newest = revisions.iter().max_by_key(|one| one.revision);
    let same = revisions.iter().filter(|one| one.data == data).max_by_key(|one| one.revision);
    let next = newest.map_or(0, |one| one.revision) + 1;
    match (same, newest) {
        (Some(same), Some(newest)) if same.revision == newest.revision => Step::Keep { name: same.name.clone() },
        (Some(same), _) => Step::Renumber { name: same.name.clone(), revision: next },
        (None, _) => Step::Create { revision: next },
    }
}

/// Revisions that nothing is of and that are beyond the limit, the oldest first.
pub(super) fn surplus<'a>(revisions: &'a [RevisionRow], live: &BTreeSet<&str>, limit: usize) -> Vec<&'a RevisionRow> {
    let mut unused: Vec<&RevisionRow> = revisions.iter().filter(|one| !live.contains(one.name.as_str())).collect();
    unused.sort_by_key(|one| one.revision);
    unused.truncate(unused.len().saturating_sub(limit));
    unused
}

/// The StatefulSet as the owner of revisions.
pub(super) fn owner<'a>(context: &'a Context, key: &'a Key, set: &'a StatefulSet) -> Owner<'a> {
    Owner { client: &context.client, kind: "StatefulSet", key, meta: &set.metadata, label: LABEL, longest: LONGEST_PREFIX }
}

/// The revision of the present template.
pub(super) struct Newest {
    pub name: String,
    pub collisions: Option<i32>,
}

/// Makes the present template the newest revision.
pub(super) async fn bring_up(owner: &Owner<'_>, set: &StatefulSet, template: &PodTemplateSpec, mine: &[RevisionRow]) -> anyhow::Result<Newest> {
    let collisions = set.status.as_ref().and_then(|status| status.collision_count);
    match plan(mine, &template_digest(template)) {
        Step::Keep { name } => Ok(Newest { name, collisions }),
        Step::Renumber { name, revision } => owner.renumber(mine, &name, revision).await.map(|()| Newest { name, collisions }),
        Step::Create { revision } => create(owner, template, revision, collisions).await,
    }
}

async fn create(owner: &Owner<'_>, template: &PodTemplateSpec, revision: i64, mut collisions: Option<i32>) -> anyhow::Result<Newest> {
    let api = owner.api();
    // A name that is taken again and again is no accident.
    for _ in 0..10 {
        let (object, _) = owner.revision(template, revision, collisions);
        let name = object.metadata.name.clone().unwrap_or_default();
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => return Ok(Newest { name, collisions }),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("creating revision {name}")),
        }
        // The same template is the same revision, whoever owns it: an orphan may not be shown as one yet.
        let found = api.get_opt(&name).await?.map(|found| RevisionRow::new(&found));
        if found.is_some_and(|found| found.data == RevisionRow::new(&object).data) {
            return Ok(Newest { name, collisions });
        }
        collisions = Some(collisions.unwrap_or_default() + 1);
    }
    anyhow::bail!("the names of new revisions of {} are taken by revisions of other templates; delete those", owner.key)
}

/// The template that a revision holds.
pub(super) async fn template(context: &Context, key: &Key, name: &str) -> anyhow::Result<PodTemplateSpec> {
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &key.ns);
    let revision = api.get(name).await.with_context(|| format!("reading revision {name}"))?;
    let data = revision.data.map(|data| data.0).unwrap_or_default();
    serde_json::from_value(data["spec"]["template"].clone()).with_context(|| format!("reading the template of revision {name}"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn revision(number: i64, data: &str) -> RevisionRow {
        let object =
            ControllerRevision { metadata: ObjectMeta { name: Some(format!("web-{number}")), ..Default::default() }, data: None, revision: number };
        RevisionRow { data: data.to_owned(), ..RevisionRow::new(&object) }
    }

    #[test]
    fn history() {
        for (what, revisions, data, expected) in [
            ("the first", vec![], "a", "note the template as revision 1"),
            ("nothing new", vec![revision(1, "b"), revision(2, "a")], "a", "keep web-2"),
            ("a new template", vec![revision(1, "a")], "b", "note the template as revision 2"),
            ("gone back", vec![revision(1, "a"), revision(2, "b")], "a", "make web-1 revision 3"),
        ] {
            assert_eq!(plan(&revisions, data).to_string(), expected, "{what}");
        }
    }

    #[test]
    fn the_limit_spares_what_is_in_use() {
        let all: Vec<RevisionRow> = (1..=5).rev().map(|number| revision(number, "")).collect();
        for (limit, expected) in [(0, vec!["web-1", "web-3", "web-4"]), (2, vec!["web-1"]), (3, vec![])] {
            let names: Vec<&str> = surplus(&all, &BTreeSet::from(["web-2", "web-5"]), limit).iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, expected);
        }
    }
}
