//! What a ServiceCIDR needs next: pure.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};

pub(super) const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
pub(super) const READY: &str = "Ready";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// The condition Ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// Row of a ServiceCIDR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub networks: Vec<IpNet>,
    /// Since when it is being deleted.
    pub deleted: Option<Timestamp>,
    pub held: bool,
    pub ready: Option<Condition>,
}

impl Row {
    pub fn new(cidr: &ServiceCIDR) -> Self {
        let mut conditions = cidr.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.rfind(|condition| condition.type_ == READY).map(|condition| Condition {
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        });
        Self {
            networks: cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()).filter_map(|network| network.parse().ok()).collect(),
            deleted: cidr.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            held: cidr.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER),
            ready,
        }
    }

    /// Whether one of the networks of both lies in the other.
    pub fn overlaps(&self, other: &Row) -> bool {
        self.networks.iter().any(|one| other.networks.iter().any(|other| one.contains(&other.network()) || other.contains(&one.network())))
    }

    /// Whether Services may have this address from it: neither a network's own address nor, of IPv4, the broadcast address.
    pub fn contains(&self, address: &IpAddr) -> bool {
        let usable = |network: &IpNet| *address != network.network() && (address.is_ipv6() || *address != network.broadcast());
        self.networks.iter().any(|network| network.contains(address) && usable(network))
    }

    fn covers(&self, network: &IpNet) -> bool {
        self.networks.iter().any(|own| own.contains(network))
    }
}

/// The address of an IPAddress that the API server's allocator has made.
pub(super) fn address(ip: &IPAddress) -> Option<IpAddr> {
    let manager = ip.metadata.labels.as_ref()?.get(MANAGED_BY)?;
    if manager == ALLOCATOR { ip.metadata.name.as_ref()?.parse().ok() } else { None }
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Adds the finalizer.
    Hold,
    /// Removes the finalizer.
    Release,
    /// Writes the condition.
    Say(Condition),
    /// Looks again after this time.
    Wait(Duration),
}

/// The steps for a ServiceCIDR beside all `others`.
pub(super) fn plan<'a>(row: &Row, others: &[&Row], addresses: impl Iterator<Item = &'a IpAddr>, now: Timestamp, grace: Duration) -> Vec<Step> {
    let (holds, condition) = match row.deleted {
        None => ((!row.held).then_some(Step::Hold), said("True", "", "Kubernetes Service CIDR is ready")),
        Some(since) if may_go(row, others, addresses) => {
            let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            let left = grace.saturating_sub(age);
            let step = if left.is_zero() { Step::Release } else { Step::Wait(left) };
            return if row.held { vec![step] } else { Vec::new() };
        }
        Some(_) => {
            let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            (None, said("False", "Terminating", message))
        }
    };
    let says = (row.ready.as_ref() != Some(&condition)).then_some(Step::Say(condition));
    holds.into_iter().chain(says).collect()
}

fn said(status: &str, reason: &str, message: &str) -> Condition {
    Condition { status: status.to_owned(), reason: reason.to_owned(), message: message.to_owned() }
}

/// Whether no address is left alone: all its networks lie in others, or each address in it does.
fn may_go<'a>(row: &Row, others: &[&Row], mut addresses: impl Iterator<Item = &'a IpAddr>) -> bool {
    let is_covered = row.networks.iter().all(|network| others.iter().any(|other| other.covers(network)));
    is_covered || !addresses.any(|address| row.contains(address) && !others.iter().any(|other| other.contains(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn row(networks: &[&str]) -> Row {
        Row {
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
            deleted: None,
            held: true,
            ready: Some(said("True", "", "Kubernetes Service CIDR is ready")),
        }
    }

    fn steps(row: &Row, others: &[&Row], addresses: &[&str]) -> Vec<Step> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        plan(row, others, addresses.iter(), Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(30), GRACE)
    }

    #[test]
    fn new_ones_are_held_and_ready() {
        let fresh = Row { held: false, ready: None, ..row(&["10.0.0.0/24"]) };
        let ready = Step::Say(said("True", "", "Kubernetes Service CIDR is ready"));
        assert_eq!(steps(&fresh, &[], &[]), [Step::Hold, ready.clone()]);
        assert_eq!(steps(&row(&["10.0.0.0/24"]), &[], &["10.0.0.9"]), []);
        let other_text = Row { ready: Some(said("True", "", "Kubernetes default Service CIDR is ready")), ..row(&["10.0.0.0/24"]) };
        assert_eq!(steps(&other_text, &[], &[]), [ready]);
    }

    /// Upstream's table of `canDeleteCIDR`.
    #[test]
    fn a_deleted_one_stays_while_addresses_need_it() {
        let gone = |networks: &[&str]| Row { deleted: Some(Timestamp::UNIX_EPOCH), ..row(networks) };
        let terminating = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        let stays = vec![Step::Say(said("False", "Terminating", terminating))];
        let goes = vec![Step::Release];
        let dual = ["192.168.0.0/24", "2001:db2::/64"];
        for (case, own, others, addresses, expected) in [
            ("empty", &dual[..], vec![], vec![], &goes),
            ("an IPv4 address", &dual, vec![], vec!["192.168.0.24"], &stays),
            ("an IPv6 address", &dual, vec![], vec!["2001:db2::24"], &stays),
            ("an address outside", &dual, vec![], vec!["10.0.0.1"], &goes),
            ("the broadcast address", &dual, vec![], vec!["192.168.0.255"], &goes),
            ("the same networks again", &dual, vec![row(&dual)], vec!["192.168.0.24"], &goes),
            ("a wider network", &dual[..1], vec![row(&["192.168.0.0/16"])], vec!["192.168.0.24"], &goes),
            ("a wider network of one family", &dual, vec![row(&["192.168.0.0/16"])], vec!["192.168.0.24"], &goes),
            ("a narrower network with the address", &dual[..1], vec![row(&["192.168.0.0/27"])], vec!["192.168.0.24"], &goes),
            ("a narrower network without it", &dual[..1], vec![row(&["192.168.0.0/27"])], vec!["192.168.0.40"], &stays),
        ] {
            let others: Vec<&Row> = others.iter().collect();
            assert_eq!(&steps(&gone(own), &others, &addresses), expected, "{case}");
        }
        let said_so = Row { ready: Some(said("False", "Terminating", terminating)), ..gone(&dual) };
        assert_eq!(steps(&said_so, &[], &["192.168.0.24"]), [], "it is said once");
    }

    #[test]
    fn api_servers_get_time_to_see_a_deletion() {
        let just = Row { deleted: Some(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(27)), ..row(&["10.0.0.0/24"]) };
        assert_eq!(steps(&just, &[], &[]), [Step::Wait(Duration::from_secs(7))]);
        let released = Row { held: false, ..just };
        assert_eq!(steps(&released, &[], &[]), []);
    }

    #[test]
    fn only_the_allocator_s_addresses_count() {
        let ip =
            |manager: &str| serde_json::from_value(serde_json::json!({"metadata": {"name": "10.0.0.9", "labels": {MANAGED_BY: manager}}})).unwrap();
        assert_eq!(address(&ip("ipallocator.k8s.io")), "10.0.0.9".parse().ok());
        assert_eq!(address(&ip("somebody")), None);
    }
}
