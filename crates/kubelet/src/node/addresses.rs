//! The addresses that the Node shows (upstream pkg/kubelet/nodestatus/setters.go `NodeAddress`).

use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeStatus;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::{AddressSource, FindAddress};

/// The node's own addresses, the primary one first; those that were found on the machine, and not given, follow it.
pub(crate) struct Addresses {
    now: watch::Sender<Vec<IpAddr>>,
    find: Option<FindAddress>,
}

impl Addresses {
    pub(crate) fn new(ips: Vec<IpAddr>, find: Option<FindAddress>) -> Self {
        Addresses { now: watch::Sender::new(ips), find }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.now.borrow().iter().map(ToString::to_string).collect()
    }

    /// Says when they change.
    pub(crate) fn changes(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.now.subscribe()
    }

    /// Looks at the machine's address again.
    pub(super) async fn refresh(&self) {
        let Some(find) = self.find.clone() else { return };
        // It may ask name servers.
        let found = tokio::task::spawn_blocking(move || find()).await.ok().flatten();
        self.now.send_if_modified(|ips| {
            let Some(new) = moved(ips, found) else { return false };
            tracing::info!(from = ?ips, to = %new, "the machine has another address, and so has the Node");
            *ips = vec![new];
            true
        });
    }
}

/// The address that takes the place of the node's. A machine that has none just now, or one of the other family alone, keeps what it has: it
/// may only have lost its route for a moment, and pods have addresses of the node's family.
fn moved(ips: &[IpAddr], found: Option<IpAddr>) -> Option<IpAddr> {
    let same_family = |ip: &IpAddr| ips.first().is_none_or(|first| first.is_ipv6() == ip.is_ipv6());
    found.filter(|ip| ips.first() != Some(ip)).filter(same_family)
}

/// The annotation that tells a cloud's controllers which addresses somebody chose for the node.
pub(super) const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

/// The addresses for the status; None where it keeps those that it has. `ips` are the agent's own.
pub(super) fn shown(source: AddressSource, ips: &[String], name: &str, old: &NodeStatus) -> Option<Vec<Value>> {
    let internal = |ip: &String| json!({"type": "InternalIP", "address": ip});
    let own = match source {
        AddressSource::Cloud { .. } if old.addresses.as_ref().is_some_and(|all| !all.is_empty()) => return None,
        // The cloud says them: what the machine says of itself may be another address.
        AddressSource::Cloud { given: false } => &[],
        AddressSource::Agent | AddressSource::Cloud { given: true } => ips,
    };
    Some(own.iter().map(internal).chain([json!({"type": "Hostname", "address": name})]).collect())
}

/// The value of [`PROVIDED`]; None where the Node must not have it.
pub(super) fn provided(source: AddressSource, ips: &[String]) -> Option<String> {
    (source == AddressSource::Cloud { given: true }).then(|| ips.join(","))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeAddress;

    use super::*;

    #[tokio::test]
    async fn an_address_moves_within_its_family_and_is_kept_meanwhile() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let has = [ip("10.0.0.5")];
        for (found, new) in [("10.0.0.5", None), ("10.0.0.6", Some("10.0.0.6")), ("fd00::5", None)] {
            assert_eq!(moved(&has, Some(ip(found))), new.map(ip), "{found}");
        }
        assert_eq!(moved(&has, None), None);
        assert_eq!(moved(&[], Some(ip("fd00::5"))), Some(ip("fd00::5")));
        let addresses = Addresses::new(has.to_vec(), Some(std::sync::Arc::new(move || Some(ip("10.0.0.7")))));
        let mut changes = addresses.changes();
        addresses.refresh().await;
        assert_eq!((addresses.all(), changes.has_changed().unwrap()), (vec!["10.0.0.7".to_owned()], true));
        changes.mark_unchanged();
        addresses.refresh().await;
        assert!(!changes.has_changed().unwrap());
    }

    #[test]
    fn a_clouds_controllers_have_the_last_word() {
        let of_cloud = NodeAddress { type_: "ExternalIP".into(), address: "203.0.113.9".into() };
        let known = NodeStatus { addresses: Some(vec![of_cloud]), ..NodeStatus::default() };
        let ips = ["10.0.0.5".to_owned(), "fd00::5".to_owned()];
        let texts = |source, old: &NodeStatus| {
            let shown = shown(source, &ips, "win01", old)?;
            Some(shown.iter().map(|a| format!("{} {}", a["type"].as_str().unwrap(), a["address"].as_str().unwrap())).collect::<Vec<_>>().join(", "))
        };
        let (given, found) = (AddressSource::Cloud { given: true }, AddressSource::Cloud { given: false });
        let all = Some("InternalIP 10.0.0.5, InternalIP fd00::5, Hostname win01".to_owned());
        let new = NodeStatus::default();
        assert_eq!([texts(AddressSource::Agent, &new), texts(AddressSource::Agent, &known)], [all.clone(), all.clone()]);
        assert_eq!([texts(given, &new), texts(given, &known)], [all, None]);
        assert_eq!([texts(found, &new), texts(found, &known)], [Some("Hostname win01".to_owned()), None]);
        let annotations = [AddressSource::Agent, given, found].map(|source| provided(source, &ips));
        assert_eq!(annotations, [None, Some("10.0.0.5,fd00::5".to_owned()), None]);
    }
}
