//! Carries out the plan for one StatefulSet (upstream: `stateful_pod_control.go`, whose Events these are).

use std::sync::Arc;

use anyhow::Context as _;
use cluster::{EventType, Key, is_conflict, is_not_found};
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetSpec},
    core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{
    Context,
    claims::{self, OfPod},
    history,
    plan::Step,
    rows::{INDEX_LABEL, NAME_LABEL, SetPod, SetView},
};
use crate::{pods, revisions::HASH_LABEL, view::controller_reference};

/// All that is needed to carry out steps.
pub(super) struct Apply<'a> {
    pub context: &'a Context,
    pub key: &'a Key,
    pub set: &'a StatefulSet,
    pub spec: &'a StatefulSetSpec,
    pub view: &'a SetView,
    pub pods: &'a [Arc<SetPod>],
    /// The revision of the present template.
    pub update: &'a str,
}

/// What is done to a pod, for Events.
#[derive(Clone, Copy)]
enum Verb {
    Create,
    Update,
    Delete,
}

impl Verb {
    fn text(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Update => "Update",
            Self::Delete => "Delete",
        }
    }
}

impl Apply<'_> {
    /// Carries out the steps; ends with the first that fails.
    pub async fn run(&self, steps: &[Step]) -> anyhow::Result<()> {
        for step in steps {
            match step {
                Step::Create { ordinal, revision } => self.create(*ordinal, revision).await?,
                Step::Claims { ordinal } => {
                    self.create_claims(*ordinal, Verb::Update).await?;
                    self.mend_owners(*ordinal, Verb::Update).await?;
                }
                Step::Repair { ordinal } => self.repair(*ordinal).await?,
                Step::Owners { ordinal } => self.mend_owners(*ordinal, Verb::Update).await?,
                Step::Delete { ordinal } => self.delete(*ordinal).await?,
            }
        }
        Ok(())
    }

    fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), &self.key.ns)
    }

    fn claim_api(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.context.client.clone(), &self.key.ns)
    }

    fn row(&self, ordinal: i32) -> Option<&SetPod> {
        self.pods.iter().map(Arc::as_ref).find(|pod| pod.ordinal() == Some(ordinal))
    }

    fn event(&self, type_: EventType, reason: String, message: String) {
        self.context.events.event(&self.set.object_ref(&()), type_, &reason, None, message);
    }

    /// Says what became of a pod.
    fn report(&self, verb: Verb, pod: &str, failure: Option<&str>) {
        let (verb, set) = (verb.text(), &self.key.name);
        match failure {
            None => self.event(EventType::Normal, format!("Successful{verb}"), format!("{verb} Pod {pod} in StatefulSet {set} successful")),
            Some(why) => {
                self.event(EventType::Warning, format!("Failed{verb}"), format!("{verb} Pod {pod} in StatefulSet {set} failed error: {why}"))
            }
        }
    }

    async fn create(&self, ordinal: i32, revision: &str) -> anyhow::Result<()> {
        let name = self.view.pod_name(ordinal);
        self.create_claims(ordinal, Verb::Create).await?;
        let template = match revision == self.update {
            true => self.spec.template.clone(),
            false => history::template(self.context, self.key, revision).await?,
        };
        match self.pod_api().create(&PostParams::default(), &self.new_pod(template, ordinal, revision)).await {
            Ok(pod) => {
                self.context.flight.created(self.key, pod.metadata.uid.unwrap_or_default());
                self.mend_owners(ordinal, Verb::Update).await?;
                self.report(Verb::Create, &name, None);
                Ok(())
            }
            Err(error) if is_conflict(&error) => Err(error).with_context(|| format!("creating pod {name}")),
            Err(error) => {
                self.report(Verb::Create, &name, Some(&crate::refusal(&error)));
                Err(error).with_context(|| format!("creating pod {name}"))
            }
        }
    }

    fn new_pod(&self, template: PodTemplateSpec, ordinal: i32, revision: &str) -> Pod {
        let owner = controller_reference("apps/v1", "StatefulSet", &self.key.name, &self.view.uid);
        let mut pod = pods::from_template(template, self.key, owner);
        self.shape(&mut pod, ordinal);
        pod.metadata.labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), revision.to_owned());
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(self.view.pod_name(ordinal));
        spec.subdomain = self.spec.service_name.clone().filter(|name| !name.is_empty());
        pod
    }

    /// Gives a pod its name, its labels and the volumes of its claims.
    fn shape(&self, pod: &mut Pod, ordinal: i32) {
        let name = self.view.pod_name(ordinal);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(NAME_LABEL.to_owned(), name.clone());
        labels.insert(INDEX_LABEL.to_owned(), ordinal.to_string());
        pod.metadata.name = Some(name);
        let source = |template: &String| PersistentVolumeClaimVolumeSource { claim_name: self.view.claim_name(template, ordinal), read_only: None };
        let volume = |template: &String| Volume { name: template.clone(), persistent_volume_claim: Some(source(template)), ..Default::default() };
        let mut volumes: Vec<Volume> = self.view.claims.iter().map(volume).collect();
        let spec = pod.spec.get_or_insert_default();
        let others = spec.volumes.take().into_iter().flatten().filter(|volume| !self.view.claims.contains(&volume.name));
        volumes.extend(others);
        spec.volumes = (!volumes.is_empty()).then_some(volumes);
    }

    /// Creates the claims that are missing.
    async fn create_claims(&self, ordinal: i32, verb: Verb) -> anyhow::Result<()> {
        let pod = self.view.pod_name(ordinal);
        let mut failures = Vec::new();
        for template in self.spec.volume_claim_templates.iter().flatten() {
            let claim = self.new_claim(template, ordinal);
            let name = claim.metadata.name.clone().unwrap_or_default();
            match self.context.claims.get(Key::new(&self.key.ns, &name)) {
                Some(row) if row.deleting => failures.push(format!("pvc {name} is being deleted")),
                Some(_) => {}
                None => failures.extend(self.create_claim(&claim, &name, &pod).await),
            }
        }
        let Some(first) = failures.first() else { return Ok(()) };
        let why = if failures.len() == 1 { first.clone() } else { format!("[{}]", failures.join(", ")) };
        if matches!(verb, Verb::Create) {
            self.report(verb, &pod, Some(&why));
        }
        anyhow::bail!("{why}")
    }

    /// Creates a claim; answers with what went wrong.
    async fn create_claim(&self, claim: &PersistentVolumeClaim, name: &str, pod: &str) -> Option<String> {
        let set = &self.key.name;
        match self.claim_api().create(&PostParams::default(), claim).await {
            Ok(_) => {
                let message = format!("Create Claim {name} Pod {pod} in StatefulSet {set} success");
                self.event(EventType::Normal, "SuccessfulCreate".to_owned(), message);
                None
            }
            // It is there, and its row only late.
            Err(error) if is_conflict(&error) => None,
            Err(error) => {
                let why = crate::refusal(&error);
                let message = format!("Create Claim {name} for Pod {pod} in StatefulSet {set} failed error: {why}");
                self.event(EventType::Warning, "FailedCreate".to_owned(), message);
                Some(format!("failed to create PVC {name}: {why}"))
            }
        }
    }

    fn new_claim(&self, template: &PersistentVolumeClaim, ordinal: i32) -> PersistentVolumeClaim {
        let mut claim = template.clone();
        let name = self.view.claim_name(template.metadata.name.as_deref().unwrap_or_default(), ordinal);
        let pod = self.view.pod_name(ordinal);
        let meta = &mut claim.metadata;
        meta.name = Some(name);
        meta.namespace = Some(self.key.ns.clone());
        let labels = meta.labels.get_or_insert_default();
        labels.extend(self.spec.selector.match_labels.clone().unwrap_or_default());
        meta.owner_references = claims::policy_owner(self.view, OfPod { name: &pod, uid: "", surplus: false }).map(|owner| vec![owner]);
        claim.status = None;
        claim
    }

    /// Gives the claims of a pod the owners that the policy asks for.
    async fn mend_owners(&self, ordinal: i32, verb: Verb) -> anyhow::Result<()> {
        let name = self.view.pod_name(ordinal);
        let uid = self.row(ordinal).map(|pod| pod.uid.as_str()).unwrap_or_default();
        let pod = OfPod { name: &name, uid, surplus: !self.view.wants(ordinal) };
        for template in &self.view.claims {
            let claim = self.view.claim_name(template, ordinal);
            let Some(row) = self.context.claims.get(Key::new(&self.key.ns, &claim)) else { continue };
            if claims::is_contested(&row.owners, self.view, pod) {
                let message = format!(
                    "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging controller, the retention policy is \
                     ignored for this claim"
                );
                self.event(EventType::Warning, "ConflictingController".to_owned(), message);
            }
            if claims::new_owners(&row.owners, self.view, pod).is_none() {
                continue;
            }
            if let Err(error) = self.write_owners(&claim, pod).await {
                let why = format!("could not update claim {claim} for delete policy ownerRefs: {}", crate::refusal(&error));
                self.report(verb, &name, Some(&why));
                return Err(error).context(why);
            }
        }
        Ok(())
    }

    async fn write_owners(&self, claim: &str, pod: OfPod<'_>) -> kube::Result<()> {
        let api = self.claim_api();
        let Some(mut live) = api.get_opt(claim).await? else { return Ok(()) };
        let owners = live.metadata.owner_references.take().unwrap_or_default();
        let Some(wanted) = claims::new_owners(&owners, self.view, pod) else { return Ok(()) };
        let patch = json!({"metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version, "ownerReferences": wanted}});
        api.patch(claim, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    }

    /// Mends name, volumes and owners of claims of a pod that is there.
    async fn repair(&self, ordinal: i32) -> anyhow::Result<()> {
        let Some(row) = self.row(ordinal) else { return Ok(()) };
        let name = row.name.clone();
        if !self.view.is_in_shape(row, ordinal) {
            self.create_claims(ordinal, Verb::Update).await?;
            let Some(mut pod) = self.pod_api().get_opt(&name).await? else { return Ok(()) };
            self.shape(&mut pod, ordinal);
            match self.pod_api().replace(&name, &PostParams::default(), &pod).await {
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => {
                    self.report(Verb::Update, &name, Some(&crate::refusal(&error)));
                    return Err(error).with_context(|| format!("updating pod {name}"));
                }
                Ok(_) => {}
            }
        }
        self.mend_owners(ordinal, Verb::Update).await?;
        self.report(Verb::Update, &name, None);
        Ok(())
    }

    async fn delete(&self, ordinal: i32) -> anyhow::Result<()> {
        let Some(row) = self.row(ordinal) else { return Ok(()) };
        let preconditions = Some(Preconditions { uid: Some(row.uid.clone()), resource_version: None });
        self.context.flight.deleted(self.key, row.uid.clone());
        match self.pod_api().delete(&row.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Err(error) if !is_not_found(&error) && !is_conflict(&error) => {
                self.context.flight.gone(&row.uid);
                self.report(Verb::Delete, &row.name, Some(&crate::refusal(&error)));
                Err(error).with_context(|| format!("deleting pod {}", row.name))
            }
            _ => {
                self.report(Verb::Delete, &row.name, None);
                Ok(())
            }
        }
    }
}
