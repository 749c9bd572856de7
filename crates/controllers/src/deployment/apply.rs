//! Reads one Deployment, plans, and applies the plan.

use std::sync::Arc;

use anyhow::Context as _;
use cluster::{EventType, Key, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{
    Context,
    plan::{Action, plan},
    rows::{DeploymentView, HASH_LABEL, RsRow, Strategy},
    status,
};
use crate::{
    ownership::{self, Claim},
    runner::Next,
    view::controller_reference,
};
use kube_rules::Selector;

/// One pass over one Deployment.
pub(super) async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let api: Api<Deployment> = Api::namespaced(context.client.clone(), &key.ns);
    let Some(deployment) = api.get_opt(&key.name).await? else { return Ok(Next::Change) };
    let Some(spec) = deployment.spec.clone() else { return Ok(Next::Change) };
    let selector = Selector::new(&spec.selector);
    if selector.is_empty() {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        context.events.event(&deployment.object_ref(&()), EventType::Warning, "SelectingAll", None, message);
        return Ok(Next::Change);
    }
    let view = DeploymentView::new(&deployment, &spec);
    let (sets, claimed) = claim(&context, &key, &view, &selector).await?;
    if claimed {
        // The rows will say so in a moment.
        return Ok(Next::Change);
    }
    let old_pods = old_pods(&context, &key, &view, &sets);
    let plan = plan(&view, sets.clone(), old_pods, Timestamp::now());
    for action in &plan.actions {
        tracing::debug!(deployment = %key, "{action}");
    }
    let mut pass = Pass { context: &context, api, deployment, spec, sets };
    for action in &plan.actions {
        pass.apply(action).await?;
    }
    let before = pass.deployment.status.clone().unwrap_or_default();
    if before != plan.status {
        let mut deployment = pass.deployment.clone();
        deployment.status = Some(plan.status);
        pass.api.replace_status(&key.name, &PostParams::default(), &deployment).await.context("writing the deployment's status")?;
    }
    Ok(plan.recheck.map_or(Next::Change, Next::Within))
}

/// The Deployment's ReplicaSets; matching orphans are adopted and ReplicaSets that do not match are released first (then the second value is true).
async fn claim(context: &Context, key: &Key, view: &DeploymentView, selector: &Selector) -> anyhow::Result<(Vec<RsRow>, bool)> {
    let (mut mine, mut claimed) = (Vec::new(), false);
    let sets: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &key.ns);
    let owner = controller_reference("apps/v1", "Deployment", &view.name, &view.uid);
    for (name, set) in context.views.replica_sets.in_namespace(&key.ns) {
        let matches = selector.matches(&set.labels);
        match ownership::claim(set.controller.as_ref(), &view.uid, matches, set.deleting || view.deleting) {
            Claim::Mine => mine.push((*set).clone()),
            Claim::Adopt => {
                ownership::adopt(&sets, &name.name, &set.uid, &owner).await?;
                claimed = true;
            }
            Claim::Release => {
                ownership::release(&sets, &name.name, &set.uid, &view.uid).await?;
                claimed = true;
            }
            Claim::Foreign => {}
        }
    }
    Ok((mine, claimed))
}

/// Pods of old ReplicaSets that have not ended yet. Only Recreate waits for them, and there may be many pods.
fn old_pods(context: &Context, key: &Key, view: &DeploymentView, sets: &[RsRow]) -> usize {
    if view.strategy != Strategy::Recreate {
        return 0;
    }
    let old: Vec<&str> = sets.iter().filter(|set| set.template != view.template).map(|set| set.uid.as_str()).collect();
    let pods = context.views.pods.in_namespace(&key.ns);
    let of_old = |uid: &str| old.contains(&uid);
    pods.iter().filter(|(_, pod)| !pod.is_finished() && pod.controller.as_ref().is_some_and(|owner| of_old(&owner.uid))).count()
}

struct Pass<'a> {
    context: &'a Context,
    api: Api<Deployment>,
    deployment: Deployment,
    spec: DeploymentSpec,
    sets: Vec<RsRow>,
}

impl Pass<'_> {
    async fn apply(&mut self, action: &Action) -> anyhow::Result<()> {
        let ns = self.deployment.metadata.namespace.clone().unwrap_or_default();
        let sets: Api<ReplicaSet> = Api::namespaced(self.context.client.clone(), &ns);
        match action {
            Action::Create { set, hash, replicas, annotations } => {
                let object = self.replica_set(set, hash, *replicas, annotations.clone());
                self.create(&sets, &object).await
            }
            Action::Scale { set, from, to, annotations } => {
                let patch = json!({"metadata": {"resourceVersion": self.version(set), "annotations": annotations}, "spec": {"replicas": to}});
                let written = sets.patch(set, &PatchParams::default(), &Patch::Merge(patch)).await.with_context(|| format!("scaling {set}"))?;
                self.remember(set, &written);
                if from != to {
                    let way = if to > from { "up" } else { "down" };
                    self.event(EventType::Normal, "ScalingReplicaSet", format!("Scaled {way} replica set {set} from {from} to {to}"));
                }
                Ok(())
            }
            Action::Refresh { set, annotations, min_ready_seconds } => {
                let meta = json!({"resourceVersion": self.version(set), "annotations": annotations});
                let patch = json!({"metadata": meta, "spec": {"minReadySeconds": min_ready_seconds}});
                let written = sets.patch(set, &PatchParams::default(), &Patch::Merge(patch)).await.with_context(|| format!("refreshing {set}"))?;
                self.remember(set, &written);
                Ok(())
            }
            Action::Revision(revision) => {
                let name = self.deployment.metadata.name.clone().unwrap_or_default();
                let version = &self.deployment.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version, "annotations": {super::rows::REVISION: revision}}});
                self.deployment =
                    self.api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.context("noting the deployment's revision")?;
                Ok(())
            }
            Action::Delete { set } => self.delete(&sets, set).await,
        }
    }

    /// The version of a ReplicaSet that the plan, or the last write since, saw.
    fn version(&self, set: &str) -> Option<&str> {
        self.sets.iter().find(|row| row.name == set).map(|row| row.version.as_str())
    }

    fn remember(&mut self, set: &str, written: &ReplicaSet) {
        if let Some(row) = self.sets.iter_mut().find(|row| row.name == set) {
            row.version = written.metadata.resource_version.clone().unwrap_or_default();
        }
    }

    fn event(&self, type_: EventType, reason: &str, message: String) {
        self.context.events.event(&self.deployment.object_ref(&()), type_, reason, None, message);
    }

    fn replica_set(&self, name: &str, hash: &str, replicas: i32, annotations: kube_rules::Labels) -> ReplicaSet {
        let meta = &self.deployment.metadata;
        let owner = controller_reference("apps/v1", "Deployment", meta.name.as_deref().unwrap_or_default(), meta.uid.as_deref().unwrap_or_default());
        let mut template: PodTemplateSpec = self.spec.template.clone();
        let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
        let labels = labels.clone();
        let mut selector: LabelSelector = self.spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.to_owned());
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: meta.namespace.clone(),
                labels: Some(labels),
                annotations: Some(annotations),
                owner_references: Some(vec![owner]),
                ..Default::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(replicas),
                selector,
                template: Some(template),
                min_ready_seconds: self.spec.min_ready_seconds,
            }),
            status: None,
        }
    }

    async fn create(&mut self, sets: &Api<ReplicaSet>, object: &ReplicaSet) -> anyhow::Result<()> {
        let name = object.metadata.name.clone().unwrap_or_default();
        match sets.create(&PostParams::default(), object).await {
            Ok(_) => {
                let replicas = object.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
                if replicas > 0 {
                    self.event(EventType::Normal, "ScalingReplicaSet", format!("Scaled up replica set {name} from 0 to {replicas}"));
                }
                Ok(())
            }
            Err(error) if is_conflict(&error) => self.already_there(sets, object).await,
            Err(error) => {
                let message = format!("Failed to create new replica set {name:?}: {}", crate::refusal(&error));
                self.event(EventType::Warning, "ReplicaSetCreateError", message.clone());
                let mut failed = self.deployment.clone();
                status::set(failed.status.get_or_insert_default(), "Progressing", "False", "ReplicaSetCreateError", &message, Timestamp::now());
                let deployment = failed.metadata.name.clone().unwrap_or_default();
                self.api.replace_status(&deployment, &PostParams::default(), &failed).await.context("writing the deployment's status")?;
                Err(error).with_context(|| format!("creating {name}"))
            }
        }
    }

    /// A ReplicaSet of this name exists: ours from an earlier attempt, or another one that met the same hash.
    async fn already_there(&mut self, sets: &Api<ReplicaSet>, object: &ReplicaSet) -> anyhow::Result<()> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let Some(found) = sets.get_opt(&name).await? else { anyhow::bail!("{name} went away while it was looked at") };
        let (row, wanted) = (RsRow::new(&found), RsRow::new(object));
        let ours = row.controller.as_ref().map(|owner| &owner.uid) == self.deployment.metadata.uid.as_ref();
        if ours && row.template == wanted.template {
            return Ok(());
        }
        let mut counted = self.deployment.clone();
        let status = counted.status.get_or_insert_default();
        status.collision_count = Some(status.collision_count.unwrap_or_default() + 1);
        let deployment = counted.metadata.name.clone().unwrap_or_default();
        self.api.replace_status(&deployment, &PostParams::default(), &counted).await.context("noting a name collision")?;
        anyhow::bail!("the name {name} is taken by a ReplicaSet of another template; another name will be tried")
    }

    async fn delete(&self, sets: &Api<ReplicaSet>, set: &str) -> anyhow::Result<()> {
        let uid = self.sets.iter().find(|row| row.name == set).map(|row| row.uid.clone());
        let params = DeleteParams { preconditions: Some(Preconditions { uid, resource_version: None }), ..DeleteParams::background() };
        match sets.delete(set, &params).await {
            Err(error) if !is_not_found(&error) => Err(error).with_context(|| format!("deleting {set}")),
            _ => Ok(()),
        }
    }
}
