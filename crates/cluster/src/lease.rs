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

const NAMESPACE: &str = "kube-node-lease";

/// Keeps the node's Lease in `kube-node-lease` fresh, owned by the Node with the UID that `owner_uid` says at the time (a Node that was deleted
/// and made again has another one): it lasts for so many seconds, and is renewed four times as often. Never returns: drop the future to stop.
pub async fn keep_node_lease(client: Client, node: &str, owner_uid: impl Fn() -> String, seconds: u32) {
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let renewal = Duration::from_secs(seconds.into()) / 4;
    let mut backoff = Backoff::new(Duration::from_millis(100), renewal);
    let mut held = None;
    loop {
        let owner_uid = &owner_uid();
        // A connection that died quietly must not cost the lease.
        let holder = Holder { node, owner_uid, seconds };
        let renewed = Box::pin(renew(&leases, &holder, held.take()));
        let attempt = tokio::time::timeout(renewal, renewed).await;
        match attempt.unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into()))) {
            Ok(mut lease) => {
                // An update without managedFields keeps those that the server has.
                lease.metadata.managed_fields = None;
                held = Some(lease);
                backoff.reset();
                tokio::time::sleep(renewal).await;
            }
            Err(error) => {
                let delay = backoff.next_delay();
                tracing::warn!(node, error = %error.as_report(), ?delay, "renewing the node lease failed; trying again");
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Whose lease it is.
struct Holder<'a> {
    node: &'a str,
    owner_uid: &'a str,
    seconds: u32,
}

/// Writes the lease over the one held, or reads or creates it first.
async fn renew(leases: &Api<Lease>, holder: &Holder<'_>, held: Option<Lease>) -> kube::Result<Lease> {
    let (post, node) = (PostParams::default(), holder.node);
    if let Some(held) = held {
        match leases.replace(node, &post, &renewed(held, holder, Timestamp::now())).await {
            Err(error) if is_conflict(&error) || is_not_found(&error) => {}
            other => return other,
        }
    }
    match leases.get_opt(node).await? {
        Some(found) => leases.replace(node, &post, &renewed(found, holder, Timestamp::now())).await,
        None => leases.create(&post, &renewed(Lease::default(), holder, Timestamp::now())).await,
    }
}

/// The lease as it should read at `now`.
fn renewed(mut lease: Lease, holder: &Holder<'_>, now: Timestamp) -> Lease {
    let Holder { node, owner_uid, seconds } = *holder;
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
    spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(now));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_follows_its_node() {
        let holder = |owner_uid| Holder { node: "win01", owner_uid, seconds: 40 };
        let owners = |lease: &Lease| lease.metadata.owner_references.iter().flatten().map(|owner| owner.uid.clone()).collect::<Vec<_>>();
        let lease = renewed(Lease::default(), &holder("uid-1"), Timestamp::UNIX_EPOCH);
        assert_eq!(owners(&renewed(lease, &holder("uid-2"), Timestamp::UNIX_EPOCH)), ["uid-2"]);
    }

    #[test]
    fn a_renewed_lease_keeps_its_version_and_names_its_node() {
        let mut found = Lease::default();
        found.metadata.resource_version = Some("7".to_owned());
        let lease = renewed(found, &Holder { node: "win01", owner_uid: "uid-1", seconds: 40 }, Timestamp::UNIX_EPOCH);
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
