//! Volumes that have grown: their file systems grow on the node (upstream operationexecutor node_expander.go).

use csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use csi::{Access, access_mode, volume_capability};
use host::PodPath;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube_rules::Quantity;
use serde_json::json;

use super::source::CsiVolume;
use super::{Csi, CsiError};
use crate::volumes::plugin::Request;

/// What is left for the node to do.
const PENDING: &str = "FileSystemResizePending";

/// The bytes that a claim is to have, when it has fewer by its status: the volume has grown, and nobody told its file system.
fn wanted(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<i64> {
    let storage = |capacity: Option<&std::collections::BTreeMap<_, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>| {
        Quantity::parse(&capacity?.get("storage")?.0).ok().map(|quantity| quantity.value())
    };
    let has = storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref()))?;
    let is = storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))?;
    (is > has).then_some(is)
}

/// What the claim's status says when its file system has grown.
fn grown(claim: &PersistentVolumeClaim, bytes: i64) -> serde_json::Value {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let left: Vec<_> = conditions.filter(|condition| condition.type_ != PENDING && condition.type_ != "Resizing").collect();
    json!({"status": {"capacity": {"storage": Quantity::from_bytes(bytes).to_string()}, "conditions": left}})
}

impl Csi {
    /// Grows the file system of a claimed volume that has grown. One that is read-only stays.
    pub(super) async fn expand(&self, request: &Request<'_>, volume: &CsiVolume, place: &PodPath) -> Result<(), CsiError> {
        let Some(claimed) = request.claimed.filter(|_| !volume.ephemeral && !volume.read_only) else { return Ok(()) };
        let uid = request.pod.metadata.uid.clone().unwrap_or_default();
        let can = self.mounted().get(&(uid, request.volume.name.clone())).map(|mounted| mounted.can).unwrap_or_default();
        if !can.expands {
            return Ok(());
        }
        let namespace = request.pod.metadata.namespace.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let failed = |error: kube::Error| CsiError::Claim { claim: format!("{namespace}/{}", claimed.claim), source: error.into() };
        let claim = claims.get(&claimed.claim).await.map_err(failed)?;
        let found = volumes.get(&claimed.volume).await.map_err(failed)?;
        let Some(bytes) = wanted(&found, &claim) else { return Ok(()) };
        let mount = || Access::Mount { fs_type: volume.fs_type.clone(), options: volume.options.clone(), group: None };
        let access = if volume.block { Access::Block } else { mount() };
        let staging = if can.stages { self.staging(volume)?.to_string() } else { String::new() };
        let request = NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: place.to_string(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: staging,
            volume_capability: Some(volume_capability(access, access_mode(volume.access_mode(), can))),
            secrets: self.secrets(volume.expand_secret.as_ref()).await?,
        };
        let _held = self.hold(&volume.unique_name()).await;
        let has = self.driver(&volume.driver)?.expand(request).await.map_err(CsiError::Expand)?;
        let patch = grown(&claim, if has > 0 { has } else { bytes });
        claims.patch_status(&claimed.claim, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(failed)?;
        tracing::info!(volume = claimed.volume, bytes, "a volume has grown");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_grows_to_its_volume() {
        let volume = |size: &str| serde_json::from_value::<PersistentVolume>(json!({"spec": {"capacity": {"storage": size}}})).unwrap();
        let claim = |size: &str| {
            let pending = json!([{"type": PENDING, "status": "True"}, {"type": "Other", "status": "True"}]);
            serde_json::from_value::<PersistentVolumeClaim>(json!({"status": {"capacity": {"storage": size}, "conditions": pending}})).unwrap()
        };
        assert_eq!(wanted(&volume("2Gi"), &claim("1Gi")), Some(2 << 30));
        assert_eq!(wanted(&volume("1Gi"), &claim("1Gi")), None);
        assert_eq!(wanted(&volume("1Gi"), &claim("2Gi")), None);
        assert_eq!(wanted(&volume("1Gi"), &PersistentVolumeClaim::default()), None);
        let patch = grown(&claim("1Gi"), 2 << 30);
        assert_eq!(patch["status"]["capacity"]["storage"], "2Gi");
        assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 1);
    }
}
