//! Rights of nodes that depend on the cluster's options, each a role with its binding to the group of nodes.

use anyhow::{Context as _, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ApiResource, DeleteParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::join::{NODES, RBAC, write};

/// A rule that lets nodes read resources of a group.
fn read(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]})
}

/// What policies ask for: pods of the whole cluster, with which the Node authorizer alone is not generous.
pub async fn network_policy(client: &Client, granted: bool) -> Result<()> {
    let rules = [
        read("", &["pods", "namespaces", "nodes"]),
        read("networking.k8s.io", &["networkpolicies"]),
        read("policy.networking.k8s.io", &["clusternetworkpolicies"]),
    ];
    publish(client, "mullion:network-policy", &rules, ("Group", NODES), granted).await
}

/// Calico's configuration of BGP.
pub async fn bgp(client: &Client, granted: bool) -> Result<()> {
    let rules = [read("crd.projectcalico.org", &["bgppeers", "bgpconfigurations", "ippools"])];
    publish(client, "mullion:bgp", &rules, ("Group", NODES), granted).await
}

/// Lets the process of hollow nodes act as those nodes, and as nobody else.
pub async fn hollow_nodes(client: &Client, count: u32) -> Result<()> {
    let users: Vec<String> = hollow::names(count).map(|name| hollow::user(&name)).collect();
    let act = |resource: &str, names: Value| json!({"apiGroups": [""], "resources": [resource], "verbs": ["impersonate"], "resourceNames": names});
    let rules = [act("users", json!(users)), act("groups", json!([NODES]))];
    publish(client, "mullion:hollow-nodes", &rules, ("User", hollow::IDENTITY), count > 0).await
}

/// Gives nodes (or who else is named) a right, or takes it from them. Role and binding have its name.
async fn publish(client: &Client, name: &str, rules: &[Value], (kind, to): (&str, &str), granted: bool) -> Result<()> {
    if !granted {
        let bindings = Api::<ClusterRoleBinding>::all(client.clone());
        return match bindings.get_opt(name).await?.is_some() {
            true => bindings.delete(name, &DeleteParams::default()).await.map(drop).with_context(|| format!("taking back the right {name} failed")),
            false => Ok(()),
        };
    }
    write(client, ApiResource::erase::<ClusterRole>(&()), json!({"metadata": {"name": name}, "rules": rules})).await?;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": RBAC, "kind": kind, "name": to}],
    });
    write(client, ApiResource::erase::<ClusterRoleBinding>(&()), binding).await
}
