//! Claims of persistent volumes: which place of this node a bound claim means (upstream
//! volumemanager/populator and the hostpath and local plug-ins).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::Api;
use kube_rules::csi::migration::MigrationError;

use crate::error::ApiError;
use crate::pod::admit::reaches_volume;
use crate::volumes::csi::CsiVolume;
use crate::volumes::flexvolume::FlexVolume;

/// A claimed volume of this node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claimed {
    /// Name of the persistent volume.
    pub volume: String,
    /// Name of the claim.
    pub claim: String,
    /// It is a device, not a file system.
    pub block: bool,
    /// SELinux's label of the pod is put on it: it is no directory that the node shares.
    pub relabels: bool,
    pub source: Source,
}

/// What a persistent volume is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// A place of this node.
    Path(HostPathVolumeSource),
    /// A device of this node.
    Device { path: String },
    /// Made by a driver.
    Csi(Box<CsiVolume>),
    /// Made by a flexvolume driver.
    Flex(Box<FlexVolume>),
}

/// Why a pod's claims give it no volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: error processing PVC {claim}"
    )]
    Process { volume: String, claim: String, source: Box<BindingError> },
    #[error("MountVolume.NodeAffinity check failed for volume {volume:?} : no matching NodeSelectorTerms")]
    NodeAffinity { volume: String },
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : this node agent mounts persistent volumes of type csi, flexVolume, hostPath and local only"
    )]
    Unsupported { volume: String },
    #[error("MapVolume.SetUpDevice failed for volume {volume:?} : this node agent has devices of persistent volumes of type csi and local only")]
    NoDevice { volume: String },
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: volume {volume} has volumeMode {mode}, but is specified in {list}"
    )]
    Mode { volume: String, mode: &'static str, list: &'static str },
    #[error("MountVolume.SetUp failed for volume {volume:?} :")]
    Migration { volume: String, source: MigrationError },
}

/// Why a claim is not bound to a volume for this pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindingError {
    #[error("failed to fetch PVC from API server")]
    FetchClaim(#[source] ApiError),
    #[error("PVC {claim} was not created for pod: pod is not its owner; delete it or rename the pod")]
    NotOwned { claim: String },
    #[error("PVC is being deleted")]
    Deleting,
    #[error("PVC is not bound: phase {phase:?}, volume {volume:?}")]
    Unbound { phase: String, volume: String },
    #[error("failed to fetch PV {volume} from API server")]
    FetchVolume { volume: String, source: ApiError },
    #[error("found PV object {volume:?} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim")]
    NoClaimRef { volume: String },
    #[error("found PV object {volume:?} but its pv.Spec.ClaimRef.UID {found:?} does not point to claim.UID {wanted:?}")]
    OtherClaim { volume: String, found: String, wanted: String },
}

/// By the volume's name in the pod.
pub(crate) type Claims = BTreeMap<String, Claimed>;

/// The claim behind a volume: the one it names, or the one made for this pod alone.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    volume.ephemeral.as_ref()?;
    Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name))
}

/// Reads the claims of a pod and the volumes bound to them.
pub(crate) async fn resolve(client: &kube::Client, pod: &Pod, node: Option<&Node>) -> Result<Claims, ClaimError> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = Claims::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some(name) = claim_of(pod, volume) else { continue };
        let found = binding(client, pod, volume, &name).await;
        let found =
            found.map_err(|error| ClaimError::Process { volume: volume.name.clone(), claim: format!("{ns}/{name}"), source: error.into() })?;
        let read_only = volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true);
        let placed = place(&name, &found, read_only, node)?;
        check_use(pod, &volume.name, placed.block)?;
        out.insert(volume.name.clone(), placed);
    }
    Ok(out)
}

/// The persistent volume that a claim of the pod is bound to.
async fn binding(client: &kube::Client, pod: &Pod, volume: &Volume, name: &str) -> Result<PersistentVolume, BindingError> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), ns);
    let claim = claims.get(name).await.map_err(|error| BindingError::FetchClaim(error.into()))?;
    if volume.ephemeral.is_some() && !owned(&claim, pod) {
        return Err(BindingError::NotOwned { claim: format!("{ns}/{name}") });
    }
    let bound = bound_to(&claim)?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let found = volumes.get(&bound).await.map_err(|error| BindingError::FetchVolume { volume: bound, source: error.into() })?;
    check_binding(&found, &claim)?;
    Ok(found)
}

fn owned(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    claim.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref())
}

/// The name of the volume a claim is bound to.
fn bound_to(claim: &PersistentVolumeClaim) -> Result<String, BindingError> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(BindingError::Deleting);
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
    if phase != "Bound" || volume.is_empty() {
        return Err(BindingError::Unbound { phase: phase.to_owned(), volume });
    }
    Ok(volume)
}

/// A volume serves the claim only when both name each other.
fn check_binding(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), BindingError> {
    let name = || volume.metadata.name.clone().unwrap_or_default();
    let Some(back) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return Err(BindingError::NoClaimRef { volume: name() });
    };
    if back.uid != claim.metadata.uid {
        let (found, wanted) = (back.uid.clone().unwrap_or_default(), claim.metadata.uid.clone().unwrap_or_default());
        return Err(BindingError::OtherClaim { volume: name(), found, wanted });
    }
    Ok(())
}

/// Containers mount file systems, and are given devices.
fn check_use(pod: &Pod, volume: &str, block: bool) -> Result<(), ClaimError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    // Ephemeral containers are added when the volumes are there.
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let wrong = if block {
        containers.any(|c| c.volume_mounts.iter().flatten().any(|mount| mount.name == volume)).then_some(("Block", "volumeMounts"))
    } else {
        containers.any(|c| c.volume_devices.iter().flatten().any(|device| device.name == volume)).then_some(("Filesystem", "volumeDevices"))
    };
    wrong.map_or(Ok(()), |(mode, list)| Err(ClaimError::Mode { volume: volume.to_owned(), mode, list }))
}

/// What a volume is on this node.
fn place(claim: &str, volume: &PersistentVolume, read_only: bool, node: Option<&Node>) -> Result<Claimed, ClaimError> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    if let (Some(node), Some(required)) = (node, spec.node_affinity.as_ref().and_then(|a| a.required.as_ref()))
        && !reaches_volume(required, node)
    {
        return Err(ClaimError::NodeAffinity { volume: name });
    }
    let driver = CsiVolume::persistent(volume, read_only).map_err(|source| ClaimError::Migration { volume: name.clone(), source })?;
    let block = spec.volume_mode.as_deref() == Some("Block");
    let relabels = spec.host_path.is_none() && !block;
    let source = match (spec.host_path, spec.local, driver, FlexVolume::persistent(volume, read_only)) {
        (Some(_), ..) | (None, None, None, Some(_)) if block => return Err(ClaimError::NoDevice { volume: name }),
        (Some(source), ..) => Source::Path(source),
        (None, Some(local), ..) if block => Source::Device { path: local.path },
        (None, Some(local), ..) => Source::Path(HostPathVolumeSource { path: local.path, type_: Some("Directory".into()) }),
        (None, None, Some(volume), _) => Source::Csi(Box::new(volume)),
        (None, None, None, Some(volume)) => Source::Flex(Box::new(volume)),
        (None, None, None, None) => return Err(ClaimError::Unsupported { volume: name }),
    };
    Ok(Claimed { volume: name, claim: claim.to_owned(), block, relabels, source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thiserror_ext::AsReport as _;

    use super::*;

    fn claim(status: &str, volume: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"uid": "c1"}, "spec": {"volumeName": volume}, "status": {"phase": status}})).unwrap()
    }

    fn volume(spec: serde_json::Value) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
    }

    #[test]
    fn only_a_bound_claim_has_a_volume() {
        assert_eq!(bound_to(&claim("Bound", "pv")).unwrap(), "pv");
        assert!(bound_to(&claim("Pending", "")).unwrap_err().to_string().starts_with("PVC is not bound"));
        assert!(bound_to(&claim("Bound", "")).is_err());
    }

    #[test]
    fn both_sides_name_each_other() {
        let c = claim("Bound", "pv");
        check_binding(&volume(json!({"claimRef": {"uid": "c1"}})), &c).unwrap();
        assert!(check_binding(&volume(json!({"claimRef": {"uid": "c2"}})), &c).unwrap_err().to_string().contains("does not point to"));
        assert!(check_binding(&volume(json!({})), &c).unwrap_err().to_string().contains("nil pv.Spec.ClaimRef"));
    }

    #[test]
    fn messages_are_those_of_upstream() {
        let source = bound_to(&claim("Pending", "")).unwrap_err().into();
        let error = ClaimError::Process { volume: "data".into(), claim: "ns/claim".into(), source };
        assert_eq!(
            error.to_report_string(),
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: \
             error processing PVC ns/claim: PVC is not bound: phase \"Pending\", volume \"\""
        );
    }

    #[test]
    fn containers_use_a_volume_as_what_it_is() {
        let pod = |list: &str| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [{"name": "c", list: [{"name": "v", "mountPath": "/v", "devicePath": "/v"}]}]}}))
                .unwrap()
        };
        assert!(check_use(&pod("volumeMounts"), "v", false).is_ok() && check_use(&pod("volumeDevices"), "v", true).is_ok());
        assert!(check_use(&pod("volumeMounts"), "w", true).is_ok());
        let error = |list, block| check_use(&pod(list), "v", block).unwrap_err().to_string();
        assert!(error("volumeMounts", true).ends_with(": volume v has volumeMode Block, but is specified in volumeMounts"));
        assert!(error("volumeDevices", false).ends_with(": volume v has volumeMode Filesystem, but is specified in volumeDevices"));
    }

    #[test]
    fn places() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "win01", "labels": {"zone": "a"}}})).unwrap();
        let of = |spec| place("c", &volume(spec), false, Some(&node));
        let path = |path: &str, kind: Option<&str>| Source::Path(HostPathVolumeSource { path: path.into(), type_: kind.map(Into::into) });
        assert_eq!(of(json!({"hostPath": {"path": "D:/"}})).unwrap().source, path("D:/", None));
        assert_eq!(of(json!({"local": {"path": "/x"}})).unwrap().source, path("/x", Some("Directory")));
        assert!(matches!(of(json!({"csi": {"driver": "d", "volumeHandle": "h"}})).unwrap().source, Source::Csi(_)));
        assert!(of(json!({"nfs": {"path": "/x", "server": "s"}})).unwrap_err().to_string().contains("csi, flexVolume, hostPath and local only"));
        let block = of(json!({"local": {"path": "/dev/x"}, "volumeMode": "Block"})).unwrap();
        assert_eq!((block.block, block.source), (true, Source::Device { path: "/dev/x".into() }));
        let refused = of(json!({"hostPath": {"path": "/dev/x"}, "volumeMode": "Block"})).unwrap_err().to_string();
        assert!(refused.starts_with("MapVolume.SetUpDevice failed for volume \"pv\" :"), "{refused}");
        let affine = |zone: &str| {
            of(json!({"local": {"path": "/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}}}))
        };
        assert!(affine("a").is_ok());
        assert_eq!(affine("b").unwrap_err().to_string(), "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms");
    }
}
