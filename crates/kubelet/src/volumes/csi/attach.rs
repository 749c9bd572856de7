//! Waiting until a volume is attached to the node. Controllers and the driver's attacher do it; the node says in its status which volumes it
//! uses, so that none is detached under a pod (upstream operationexecutor `GenerateVerifyControllerAttachedVolumeFunc`, csi_attacher.go).

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::Key;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus};
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::{Csi, CsiVolume};
use crate::error::ApiError;

/// How long a pod's mount waits before it is reported.
const LIMIT: Duration = Duration::from_secs(122);
/// How often an attachment is looked at: a node may not watch it.
const LOOK: Duration = Duration::from_millis(500);

/// Why a volume is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("the pod ends")]
    PodEnds,
    #[error("Volume not attached according to node status: no controller attached it within {}s", LIMIT.as_secs())]
    Unreported,
    #[error("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}")]
    Unattached { driver: String, handle: String },
    #[error("reading VolumeAttachment {name} failed")]
    Read { name: String, source: ApiError },
    #[error("{0}")]
    Failed(String),
}

/// Whether the Node's status says both that the node uses the volume and that it is attached.
fn is_reported(node: &Node, unique: &str) -> bool {
    let Some(status) = &node.status else { return false };
    let in_use = status.volumes_in_use.iter().flatten().any(|name| name == unique);
    in_use && status.volumes_attached.iter().flatten().any(|volume| volume.name == unique)
}

/// What an attachment says: None while nothing is decided.
fn verdict(status: Option<VolumeAttachmentStatus>) -> Option<Result<BTreeMap<String, String>, AttachError>> {
    let status = status?;
    if let Some(error) = status.attach_error {
        return Some(Err(AttachError::Failed(error.message.unwrap_or_default())));
    }
    status.attached.then(|| Ok(status.attachment_metadata.unwrap_or_default()))
}

impl Csi {
    /// Waits until the volume is attached. Returns what the attacher has to say to the driver.
    pub(super) async fn attached(&self, volume: &CsiVolume, ends: &CancellationToken) -> Result<BTreeMap<String, String>, AttachError> {
        let unique = volume.unique_name();
        self.in_use.send_if_modified(|all| all.insert(unique.clone()));
        let wait = async {
            tokio::time::timeout(LIMIT, self.reported(&unique)).await.map_err(|_| AttachError::Unreported)?;
            let late = |_| AttachError::Unattached { driver: volume.driver.clone(), handle: volume.handle.clone() };
            tokio::time::timeout(LIMIT, self.confirmed(volume)).await.map_err(late)?
        };
        tokio::select! {
            () = ends.cancelled() => Err(AttachError::PodEnds),
            done = wait => done,
        }
    }

    async fn reported(&self, unique: &str) {
        let mut changed = self.node.changed();
        while !self.node.get(Key::cluster(&self.node_name)).is_some_and(|node| is_reported(&node, unique)) {
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn confirmed(&self, volume: &CsiVolume) -> Result<BTreeMap<String, String>, AttachError> {
        let name = kube_rules::csi::attachment_name(&volume.driver, &volume.handle, &self.node_name);
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        loop {
            let found = api.get_opt(&name).await.map_err(|error| AttachError::Read { name: name.clone(), source: error.into() })?;
            if let Some(verdict) = verdict(found.and_then(|attachment| attachment.status)) {
                return verdict;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_is_used_and_attached_before_it_is_mounted() {
        let node = |in_use: &[&str], attached: &[&str]| {
            let attached: Vec<_> = attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
            serde_json::from_value::<Node>(json!({"status": {"volumesInUse": in_use, "volumesAttached": attached}})).unwrap()
        };
        assert!(is_reported(&node(&["a", "b"], &["b"]), "b"));
        assert!(!is_reported(&node(&["b"], &["a"]), "b"));
        assert!(!is_reported(&node(&[], &["b"]), "b"), "it could be detached at once");
        assert!(!is_reported(&Node::default(), "b"));
    }

    #[test]
    fn an_attachment_decides_once() {
        let of = |value: serde_json::Value| verdict(Some(serde_json::from_value(value).unwrap()));
        assert!(verdict(None).is_none() && of(json!({"attached": false})).is_none());
        assert_eq!(of(json!({"attached": true, "attachmentMetadata": {"lun": "3"}})).unwrap().unwrap()["lun"], "3");
        let error = of(json!({"attached": false, "attachError": {"message": "no disk"}})).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "no disk");
    }
}
