//! The node's Lease: its heartbeat (upstream: `k8s.io/component-helpers/apimachinery/lease/controller.go`, `pkg/kubelet/kubelet.go`).

use std::time::Duration;

use backoff::Backoff;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{Api, api::PostParams};

use crate::{Client, is_conflict, is_not_found};
use thiserror_ext::AsReport;

/// How long a node's lease lasts.
pub const LEASE_DURATION: Duration = Duration::from_secs(40);
/// How often it is renewed: a quarter of its duration.
pub const LEASE_RENEWAL: Duration = Duration::from_secs(10);

/// How long one attempt may take: a connection that died quietly must not cost the lease.
const PATIENCE: Duration = LEASE_RENEWAL;

const NAMESPACE: &str = "kube-node-lease";

/// Keeps the node's Lease in `kube-node-lease` fresh, owned by the Node with `owner_uid`. Never returns: drop the future to stop.
pub async fn keep_node_lease(client: Client, node: &str, owner_uid: &str) {
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let mut backoff = Backoff::new(Duration::from_millis(100), LEASE_RENEWAL);
    let mut held = None;
    loop {
        let attempt = tokio::time::timeout(PATIENCE, renew(&leases, node, owner_uid, held.take())).await;
        match attempt.unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into()))) {
            Ok(lease) => {
                held = Some(lease);
                backoff.reset();
                tokio::time::sleep(LEASE_RENEWAL).await;
            }
            Err(error) => {
                let delay = backoff.next_delay();
                tracing::warn!(node, error = %error.as_report(), ?delay, "renewing the node lease failed; trying again");
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Writes the lease over the one held, or reads or creates it first.
async fn renew(leases: &Api<Lease>, node: &str, owner_uid: &str, held: Option<Lease>) -> kube::Result<Lease> {
    let post = PostParams::default();
    if let Some(held) = held {
        match leases.replace(node, &post, &renewed(held, node, owner_uid, Timestamp::now())).await {
            Err(error) if is_conflict(&error) || is_not_found(&error) => {}
            other => return other,
        }
    }
    match leases.get_opt(node).await? {
        Some(found) => leases.replace(node, &post, &renewed(found, node, owner_uid, Timestamp::now())).await,
        None => leases.create(&post, &renewed(Lease::default(), node, owner_uid, Timestamp::now())).await,
    }
}

/// The lease as it should read at `now`.
fn renewed(mut lease: Lease, node: &str, owner_uid: &str, now: Timestamp) -> Lease {
    let meta = ObjectMeta { name: Some(node.to_owned()), namespace: Some(NAMESPACE.to_owned()), ..lease.metadata };
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: owner_uid.to_owned(),
        ..Default::default()
    };
    lease.metadata = ObjectMeta { owner_references: Some(vec![owner]), ..meta };
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(node.to_owned());
    spec.lease_duration_seconds = Some(40);
    spec.renew_time = Some(MicroTime(now));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_lease_keeps_its_version_and_names_its_node() {
        let mut found = Lease::default();
        found.metadata.resource_version = Some("7".to_owned());
        let lease = renewed(found, "win01", "uid-1", Timestamp::UNIX_EPOCH);
        insta::assert_snapshot!(serde_json::to_string_pretty(&lease).unwrap(), @r#"
        {
          "apiVersion": "coordination.k8s.io/v1",
          "kind": "Lease",
          "metadata": {
            "name": "win01",
            "namespace": "kube-node-lease",
            "ownerReferences": [
              {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "win01",
                "uid": "uid-1"
              }
            ],
            "resourceVersion": "7"
          },
          "spec": {
            "holderIdentity": "win01",
            "leaseDurationSeconds": 40,
            "renewTime": "1970-01-01T00:00:00.000000Z"
          }
        }
        "#);
    }
}
