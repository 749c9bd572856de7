//! Claims of persistent volumes: which place of this node a bound claim means (upstream
//! volumemanager/populator and the hostpath and local plug-ins).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::Api;

use crate::pod::admit::reaches_volume;

/// A claimed volume of this node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claimed {
    /// Name of the persistent volume.
    pub volume: String,
    /// Where it is.
    pub source: HostPathVolumeSource,
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
pub(crate) async fn resolve(client: &kube::Client, pod: &Pod, node: Option<&Node>) -> Result<Claims, String> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = Claims::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some(name) = claim_of(pod, volume) else { continue };
        let failed = |why: String| {
            let names = format!("unmounted volumes=[{0}], unattached volumes=[], failed to process volumes=[{0}]", volume.name);
            format!("Unable to attach or mount volumes: {names}: error processing PVC {ns}/{name}: {why}")
        };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), ns);
        let claim = claims.get(&name).await.map_err(|e| failed(format!("failed to fetch PVC from API server: {}", said(e))))?;
        if volume.ephemeral.is_some() && !owned(&claim, pod) {
            return Err(failed(format!("PVC {ns}/{name} was not created for pod: pod is not its owner; delete it or rename the pod")));
        }
        let bound = bound_to(&claim).map_err(&failed)?;
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let found = volumes.get(&bound).await;
        let found = found.map_err(|e| failed(format!("failed to fetch PV {bound} from API server: {}", said(e))))?;
        check_binding(&found, &claim).map_err(&failed)?;
        out.insert(volume.name.clone(), place(&found, node)?);
    }
    Ok(out)
}

/// What the API said, without the client's words around it.
fn said(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

fn owned(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    claim.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref())
}

/// The name of the volume a claim is bound to.
fn bound_to(claim: &PersistentVolumeClaim) -> Result<String, String> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("PVC is being deleted".into());
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
    if phase != "Bound" || name.is_empty() {
        return Err(format!("PVC is not bound: phase {phase:?}, volume {name:?}"));
    }
    Ok(name)
}

/// A volume serves the claim only when both name each other.
fn check_binding(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(back) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return Err(format!("found PV object {name:?} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"));
    };
    if back.uid != claim.metadata.uid {
        let (has, wanted) = (back.uid.clone().unwrap_or_default(), claim.metadata.uid.clone().unwrap_or_default());
        return Err(format!("found PV object {name:?} but its pv.Spec.ClaimRef.UID {has:?} does not point to claim.UID {wanted:?}"));
    }
    Ok(())
}

/// The place of a volume on this node. The error is the whole message.
fn place(volume: &PersistentVolume, node: Option<&Node>) -> Result<Claimed, String> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    if let (Some(node), Some(required)) = (node, spec.node_affinity.as_ref().and_then(|a| a.required.as_ref()))
        && !reaches_volume(required, node)
    {
        return Err(format!("MountVolume.NodeAffinity check failed for volume {name:?} : no matching NodeSelectorTerms"));
    }
    let source = match (spec.host_path, spec.local) {
        (Some(source), _) => source,
        (None, Some(local)) => HostPathVolumeSource { path: local.path, type_: Some("Directory".into()) },
        (None, None) => {
            return Err(format!(
                "MountVolume.SetUp failed for volume {name:?} : this node agent mounts persistent volumes of type hostPath and local only"
            ));
        }
    };
    Ok(Claimed { volume: name, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(status: &str, volume: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"uid": "c1"}, "spec": {"volumeName": volume}, "status": {"phase": status}})).unwrap()
    }

    fn volume(spec: serde_json::Value) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
    }

    #[test]
    fn only_a_bound_claim_has_a_volume() {
        assert_eq!(bound_to(&claim("Bound", "pv")), Ok("pv".into()));
        assert!(bound_to(&claim("Pending", "")).unwrap_err().starts_with("PVC is not bound"));
        assert!(bound_to(&claim("Bound", "")).is_err());
    }

    #[test]
    fn both_sides_name_each_other() {
        let c = claim("Bound", "pv");
        assert_eq!(check_binding(&volume(json!({"claimRef": {"uid": "c1"}})), &c), Ok(()));
        assert!(check_binding(&volume(json!({"claimRef": {"uid": "c2"}})), &c).unwrap_err().contains("does not point to"));
        assert!(check_binding(&volume(json!({})), &c).unwrap_err().contains("nil pv.Spec.ClaimRef"));
    }

    #[test]
    fn places() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "win01", "labels": {"zone": "a"}}})).unwrap();
        let of = |spec| place(&volume(spec), Some(&node));
        assert_eq!(of(json!({"hostPath": {"path": "D:/"}})).unwrap().source.path, "D:/");
        assert_eq!(of(json!({"local": {"path": "/x"}})).unwrap().source.type_.as_deref(), Some("Directory"));
        assert!(of(json!({"nfs": {"path": "/x", "server": "s"}})).unwrap_err().contains("hostPath and local only"));
        let affine = |zone: &str| {
            of(json!({"local": {"path": "/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}}}))
        };
        assert!(affine("a").is_ok());
        assert_eq!(affine("b"), Err("MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms".into()));
    }
}
