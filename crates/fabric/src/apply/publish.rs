//! What this node announces: annotations of its own Node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::flannel::Announcement;

/// Writes the annotations unless the Node announces the same already; true when they were written.
///
/// # Errors
/// The API server's.
pub async fn announce(client: &Client, node: &str, desired: &BTreeMap<String, String>, present: &Announcement) -> Result<bool, kube::Error> {
    if desired.is_empty() || Announcement::read(desired) == *present {
        return Ok(false);
    }
    let patch = json!({"metadata": {"annotations": desired}});
    Api::<Node>::all(client.clone()).patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(true)
}
