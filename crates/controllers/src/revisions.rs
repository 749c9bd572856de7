//! ControllerRevisions: the templates that DaemonSets and StatefulSets have had (upstream: `pkg/controller/history`).

use anyhow::Context as _;
use cluster::{Client, Informer, Key, is_conflict, is_not_found};
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        runtime::RawExtension,
    },
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    deployment::template_hash,
    ownership::{self, Claim},
    view::{Controller, controller_of, controller_reference},
};
use kube_rules::{Labels, Selector};

/// Label with the revision of a pod; of a ControllerRevision too, where it is a DaemonSet's.
pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

/// Row of a ControllerRevision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RevisionRow {
    pub name: String,
    pub uid: String,
    pub version: String,
    pub controller: Option<Controller>,
    pub labels: Labels,
    pub deleting: bool,
    pub revision: i64,
    /// A digest of what it holds.
    pub data: String,
}

impl RevisionRow {
    pub fn new(revision: &ControllerRevision) -> Self {
        let meta = &revision.metadata;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            controller: controller_of(meta),
            labels: meta.labels.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            revision: revision.revision,
            data: revision.data.as_ref().map(|data| digest(&data.0)).unwrap_or_default(),
        }
    }

    /// The hash that a DaemonSet's pods of this revision carry.
    pub fn hash(&self) -> &str {
        self.labels.get(HASH_LABEL).map_or(self.name.as_str(), String::as_str)
    }
}

/// A digest of a template, by which its revision is found again.
pub(crate) fn template_digest(template: &PodTemplateSpec) -> String {
    digest(&revision_data(template))
}

/// A digest of a document that does not depend on the order of its keys.
fn digest(value: &Value) -> String {
    let text = sorted(value).to_string();
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            keys.into_iter().map(|key| (key.clone(), sorted(&fields[key]))).collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// The patch that brings a template back, as kubectl applies it for `rollout undo` (upstream: `getPatch`; keys sorted as Go writes them).
fn revision_data(template: &PodTemplateSpec) -> Value {
    // A template came from JSON, so it goes back into JSON.
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    sorted(&json!({"spec": {"template": template}}))
}

/// The hash by which a template's revision is named; a count of name collisions makes another one of it.
fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let hash = template_hash(Some(template));
    match collisions {
        Some(collisions) if collisions > 0 => format!("{hash}{collisions}"),
        _ => hash,
    }
}

/// A workload and its revisions.
pub(crate) struct Owner<'a> {
    pub client: &'a Client,
    pub kind: &'static str,
    pub key: &'a Key,
    pub meta: &'a ObjectMeta,
    /// The label that its revisions carry their hash in.
    pub label: &'static str,
    /// The longest name of the workload that its revisions' names hold whole.
    pub longest: usize,
}

impl Owner<'_> {
    pub fn api(&self) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), &self.key.ns)
    }

    fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    fn reference(&self) -> OwnerReference {
        controller_reference("apps/v1", self.kind, &self.key.name, self.uid())
    }

    /// Its revisions; matching orphans are adopted. Those that match no longer are released if `releases` says so.
    pub async fn claim(&self, all: &Informer<RevisionRow>, selector: &Selector, releases: bool) -> anyhow::Result<Vec<RevisionRow>> {
        let (api, owner) = (self.api(), self.reference());
        let leaving = self.meta.deletion_timestamp.is_some();
        let mut mine = Vec::new();
        for (name, row) in all.in_namespace(&self.key.ns) {
            match ownership::claim(row.controller.as_ref(), self.uid(), selector.matches(&row.labels), row.deleting || leaving) {
                Claim::Mine => mine.push((*row).clone()),
                Claim::Adopt => {
                    ownership::adopt(&api, &name.name, &row.uid, &owner).await?;
                    mine.push((*row).clone());
                }
                Claim::Release if releases => ownership::release(&api, &name.name, &row.uid, self.uid()).await?,
                Claim::Release | Claim::Foreign => {}
            }
        }
        Ok(mine)
    }

    /// A new revision, and the hash in its name.
    pub fn revision(&self, template: &PodTemplateSpec, number: i64, collisions: Option<i32>) -> (ControllerRevision, String) {
        let hash = hash(template, collisions);
        let prefix = self.key.name.get(..self.longest).unwrap_or(&self.key.name);
        let mut labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
        labels.insert(self.label.to_owned(), hash.clone());
        let metadata = ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: Some(self.key.ns.clone()),
            labels: Some(labels),
            // `kubernetes.io/change-cause` among them, which history shows.
            annotations: self.meta.annotations.clone(),
            owner_references: Some(vec![self.reference()]),
            ..Default::default()
        };
        (ControllerRevision { metadata, data: Some(RawExtension(revision_data(template))), revision: number }, hash)
    }

    /// Makes a revision that is there the newest.
    pub async fn renumber(&self, mine: &[RevisionRow], name: &str, revision: i64) -> anyhow::Result<()> {
        let version = mine.iter().find(|one| one.name == name).map(|one| one.version.as_str());
        let patch = json!({"metadata": {"resourceVersion": version}, "revision": revision});
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.with_context(|| format!("renumbering {name}"))?;
        Ok(())
    }

    /// Makes a revision's name its hash, where it has none.
    pub async fn set_label(&self, name: &str) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"labels": {self.label: name}}});
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.with_context(|| format!("labelling {name}"))?;
        Ok(())
    }

    pub async fn delete(&self, one: &RevisionRow) -> anyhow::Result<()> {
        let preconditions = Some(Preconditions { uid: Some(one.uid.clone()), resource_version: None });
        match self.api().delete(&one.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error).with_context(|| format!("deleting {}", one.name)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_keys_makes_no_other_revision() {
        let digests = [r#"{"a": 1, "b": [{"c": 2, "d": 3}]}"#, r#"{"b": [{"d": 3, "c": 2}], "a": 1}"#].map(|text| digest(&text.parse().unwrap()));
        assert_eq!(digests[0], digests[1]);
        assert_ne!(digests[0], digest(&json!({"a": 1, "b": []})));
    }
}
