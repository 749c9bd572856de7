//! The right of nodes to read what policies ask for: pods of the whole cluster, with which the Node authorizer alone is not generous.

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ApiResource, DeleteParams};
use kube::{Api, Client};
use serde_json::json;

use super::join::{NODES, RBAC, write};

/// Name of role and binding.
const NAME: &str = "mullion:network-policy";

/// Gives nodes the right, or takes it from them.
pub async fn publish(client: &Client, granted: bool) -> Result<()> {
    if !granted {
        let bindings = Api::<ClusterRoleBinding>::all(client.clone());
        return match bindings.get_opt(NAME).await?.is_some() {
            true => bindings.delete(NAME, &DeleteParams::default()).await.map(drop).context("taking back the right to read pods failed"),
            false => Ok(()),
        };
    }
    let read = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]});
    let rules = [
        read("", &["pods", "namespaces", "nodes"]),
        read("networking.k8s.io", &["networkpolicies"]),
        read("policy.networking.k8s.io", &["clusternetworkpolicies"]),
    ];
    write(client, ApiResource::erase::<ClusterRole>(&()), json!({"metadata": {"name": NAME}, "rules": rules})).await?;
    let binding = json!({
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": NAME},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": NODES}],
    });
    write(client, ApiResource::erase::<ClusterRoleBinding>(&()), binding).await
}
