//! What is written to Nodes: this node's announcement, and the condition `NetworkUnavailable`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::calico::Announced;
use crate::flannel::Announcement;
use crate::rows::{Condition, NodeRow};

/// Writes the annotations unless the Node announces the same already; true when they were written.
///
/// # Errors
/// The API server's.
pub async fn announce(client: &Client, node: &str, desired: &BTreeMap<String, String>, present: &NodeRow) -> Result<bool, kube::Error> {
    let flannel = Announcement::read(desired);
    if (flannel == Announcement::None || flannel == present.announcement) && present.calico.says(&Announced::read(desired)) {
        return Ok(false);
    }
    let patch = json!({"metadata": {"annotations": desired}});
    Api::<Node>::all(client.clone()).patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(true)
}

/// Writes the condition `NetworkUnavailable` of a Node, and no other. `changed`: its status is another than before.
///
/// # Errors
/// The API server's.
pub async fn condition(client: &Client, node: &str, desired: &Condition, changed: bool) -> Result<(), kube::Error> {
    let now = Timestamp::now();
    let mut condition = json!({
        "type": Condition::TYPE,
        "status": if desired.unavailable { "True" } else { "False" },
        "reason": desired.reason,
        "message": desired.message,
        "lastHeartbeatTime": now,
    });
    if changed {
        condition["lastTransitionTime"] = json!(now);
    }
    // Strategic: conditions of other types stay.
    let patch = json!({"status": {"conditions": [condition]}});
    Api::<Node>::all(client.clone()).patch_status(node, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
}
