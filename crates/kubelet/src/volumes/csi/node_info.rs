//! What the API server learns of the drivers on the node: the CSINode, and the Node's annotation and labels (upstream
//! pkg/volume/csi/nodeinfomanager).

use std::collections::{BTreeMap, BTreeSet};

use cluster::Key;
use csi::v1::NodeGetInfoResponse;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube_rules::csi::migration;
use serde_json::json;

use super::Csi;

/// Ids of the node by driver, as JSON.
const IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// Why the API server does not know of a driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeInfoError {
    #[error("the driver names no id for this node")]
    NoId,
    #[error("the driver's limit of {0} volumes is no limit")]
    Limit(i64),
    #[error("detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{existing:?}")]
    Collision { key: String, value: String, existing: String },
    #[error("writing the Node or CSINode failed")]
    Api(#[from] kube::Error),
    #[error("writing the CSINode failed")]
    Update(#[from] cluster::Error),
}

/// The list of drivers with this one in it; None when it says the same already.
fn with_driver(drivers: &[CSINodeDriver], name: &str, info: &NodeGetInfoResponse) -> Option<Vec<CSINodeDriver>> {
    let keys: BTreeSet<&String> = info.accessible_topology.iter().flat_map(|topology| topology.segments.keys()).collect();
    let count = (info.max_volumes_per_node > 0).then(|| i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX));
    let driver = CSINodeDriver {
        name: name.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then(|| keys.into_iter().cloned().collect()),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    if drivers.contains(&driver) {
        return None;
    }
    let others = drivers.iter().filter(|other| other.name != name).cloned();
    Some(others.chain([driver]).collect())
}

/// The merge patch that tells the Node of a driver; None when it says so already.
fn node_patch(node: &Node, name: &str, info: Option<&NodeGetInfoResponse>) -> Result<Option<serde_json::Value>, NodeInfoError> {
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let written = annotations.get(IDS);
    let mut ids: BTreeMap<String, String> = written.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    match info {
        Some(info) => ids.insert(name.to_owned(), info.node_id.clone()),
        None => ids.remove(name),
    };
    let ids = (!ids.is_empty()).then(|| json!(ids).to_string());
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let mut wanted = BTreeMap::new();
    for (key, value) in info.iter().filter_map(|info| info.accessible_topology.as_ref()).flat_map(|topology| &topology.segments) {
        match labels.get(key) {
            Some(existing) if existing == value => {}
            Some(existing) => return Err(NodeInfoError::Collision { key: key.clone(), value: value.clone(), existing: existing.clone() }),
            None => drop(wanted.insert(key, value)),
        }
    }
    if written == ids.as_ref() && wanted.is_empty() {
        return Ok(None);
    }
    let version = &node.metadata.resource_version;
    Ok(Some(json!({"metadata": {"resourceVersion": version, "annotations": {IDS: ids}, "labels": wanted}})))
}

/// An empty CSINode of a Node.
fn empty(node: &Node) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let annotations = Some(BTreeMap::from([(migration::ANNOTATION.to_owned(), migration::MIGRATED.join(","))]));
    let name = node.metadata.name.clone();
    let metadata = ObjectMeta { name, annotations, owner_references: Some(vec![owner]), ..ObjectMeta::default() };
    CSINode { metadata, spec: CSINodeSpec { drivers: Vec::new() } }
}

/// How often a write is tried against another writer.
const ATTEMPTS: usize = 5;

impl Csi {
    fn csi_nodes(&self) -> Api<CSINode> {
        Api::all(self.client.clone())
    }

    /// The UID of the Node; None while there is none.
    pub(super) fn node_uid(&self) -> Option<String> {
        self.node.get(Key::cluster(&self.node_name))?.metadata.uid.clone()
    }

    /// The Node, once it is registered.
    pub(super) async fn own_node(&self) -> std::sync::Arc<Node> {
        let mut changed = self.node.changed();
        loop {
            if let Some(node) = self.node.get(Key::cluster(&self.node_name)) {
                return node;
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Makes the node's CSINode, or makes it again for a Node that was registered anew.
    pub(super) async fn ensure_csi_node(&self) -> Result<(), NodeInfoError> {
        let node = self.own_node().await;
        match self.csi_nodes().create(&PostParams::default(), &empty(&node)).await {
            Ok(_) => return Ok(()),
            Err(error) if cluster::is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        let ObjectMeta { owner_references, annotations, .. } = empty(&node).metadata;
        cluster::update_with_retry(&self.csi_nodes(), &self.node_name, |found: &mut CSINode| {
            let before = found.metadata.clone();
            found.metadata.owner_references.clone_from(&owner_references);
            found.metadata.annotations.get_or_insert_default().extend(annotations.clone().unwrap_or_default());
            found.metadata != before
        })
        .await?;
        Ok(())
    }

    /// Tells the API server of a driver that registered.
    pub(super) async fn install(&self, name: &str, info: &NodeGetInfoResponse) -> Result<(), NodeInfoError> {
        if info.node_id.is_empty() {
            return Err(NodeInfoError::NoId);
        }
        if info.max_volumes_per_node < 0 {
            return Err(NodeInfoError::Limit(info.max_volumes_per_node));
        }
        self.patch_node(name, Some(info)).await?;
        self.ensure_csi_node().await?;
        cluster::update_with_retry(&self.csi_nodes(), &self.node_name, |found: &mut CSINode| match with_driver(&found.spec.drivers, name, info) {
            Some(drivers) => {
                found.spec.drivers = drivers;
                true
            }
            None => false,
        })
        .await?;
        Ok(())
    }

    /// Tells the API server that a driver is gone.
    pub(super) async fn uninstall(&self, name: &str) -> Result<(), NodeInfoError> {
        cluster::update_with_retry(&self.csi_nodes(), &self.node_name, |found: &mut CSINode| {
            let before = found.spec.drivers.len();
            found.spec.drivers.retain(|driver| driver.name != name);
            found.spec.drivers.len() != before
        })
        .await?;
        self.patch_node(name, None).await
    }

    async fn patch_node(&self, name: &str, info: Option<&NodeGetInfoResponse>) -> Result<(), NodeInfoError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        for attempt in 1.. {
            let node = nodes.get(&self.node_name).await?;
            let Some(patch) = node_patch(&node, name, info)? else { break };
            match nodes.patch(&self.node_name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(error) if cluster::is_conflict(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use csi::v1::Topology;

    use super::*;

    fn info(id: &str, limit: i64, segments: &[(&str, &str)]) -> NodeGetInfoResponse {
        let segments = segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NodeGetInfoResponse { node_id: id.into(), max_volumes_per_node: limit, accessible_topology: Some(Topology { segments }) }
    }

    #[test]
    fn a_csi_node_lists_each_driver_once() {
        let first = with_driver(&[], "a", &info("n1", 3, &[("zone/b", "2"), ("zone/a", "1")])).unwrap();
        assert_eq!(json!(first), json!([{"name": "a", "nodeID": "n1", "topologyKeys": ["zone/a", "zone/b"], "allocatable": {"count": 3}}]));
        assert_eq!(with_driver(&first, "a", &info("n1", 3, &[("zone/b", "2"), ("zone/a", "1")])), None);
        let both = with_driver(&first, "b", &info("n9", 0, &[])).unwrap();
        assert_eq!(both.iter().map(|driver| driver.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let moved = with_driver(&both, "a", &info("n2", i64::MAX, &[])).unwrap();
        assert_eq!(json!(moved[1]), json!({"name": "a", "nodeID": "n2", "allocatable": {"count": i32::MAX}}));
    }

    #[test]
    fn a_node_says_its_ids_and_where_it_is() {
        let node = |annotations: serde_json::Value, labels: serde_json::Value| {
            serde_json::from_value::<Node>(json!({"metadata": {"resourceVersion": "7", "annotations": annotations, "labels": labels}})).unwrap()
        };
        let plain = node(json!({}), json!({}));
        let patch = node_patch(&plain, "a", Some(&info("n1", 0, &[("zone", "1")]))).unwrap().unwrap();
        assert_eq!(patch, json!({"metadata": {"resourceVersion": "7", "annotations": {IDS: "{\"a\":\"n1\"}"}, "labels": {"zone": "1"}}}));
        let known = node(json!({IDS: "{\"a\":\"n1\"}"}), json!({"zone": "1"}));
        assert!(node_patch(&known, "a", Some(&info("n1", 0, &[("zone", "1")]))).unwrap().is_none());
        let error = node_patch(&known, "a", Some(&info("n1", 0, &[("zone", "2")]))).unwrap_err();
        assert!(error.to_string().starts_with("detected topology value collision"), "{error}");
        let gone = node_patch(&known, "a", None).unwrap().unwrap();
        assert_eq!(gone["metadata"]["annotations"][IDS], serde_json::Value::Null);
        let broken = node(json!({IDS: "?"}), json!({}));
        assert_eq!(node_patch(&broken, "b", Some(&info("n", 0, &[]))).unwrap().unwrap()["metadata"]["annotations"][IDS], "{\"b\":\"n\"}");
    }
}
