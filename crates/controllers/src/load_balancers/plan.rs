//! Which address a Service of type LoadBalancer gets, keeps or gives back. Pure.

use std::{collections::HashSet, net::Ipv4Addr};

use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;

/// The class by which a Service asks for an address of the range; one without a class means it too.
pub(super) const CLASS: &str = "mullion.io/load-balancer";

/// What is kept of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Row {
    pub uid: String,
    pub version: String,
    /// It is of type LoadBalancer, and of our class.
    pub wanted: bool,
    /// It is of type LoadBalancer, and of somebody else's class.
    foreign: bool,
    /// `spec.loadBalancerIP`.
    asked: String,
    has_ipv4: bool,
    /// Addresses and names in `status.loadBalancer.ingress`.
    pub addresses: Vec<String>,
}

impl Row {
    pub fn new(service: &Service) -> Option<Self> {
        let spec = service.spec.clone().unwrap_or_default();
        let balanced = spec.type_.as_deref() == Some("LoadBalancer") && service.metadata.deletion_timestamp.is_none();
        let ours = spec.load_balancer_class.as_deref().is_none_or(|class| class == CLASS);
        let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
        let addresses: Vec<String> = ingress.into_iter().flatten().filter_map(|one| one.ip.clone().or_else(|| one.hostname.clone())).collect();
        if !balanced && addresses.is_empty() {
            return None;
        }
        Some(Self {
            uid: service.metadata.uid.clone().unwrap_or_default(),
            version: service.metadata.resource_version.clone().unwrap_or_default(),
            wanted: balanced && ours,
            foreign: balanced && !ours,
            asked: spec.load_balancer_ip.unwrap_or_default(),
            has_ipv4: spec.ip_families.is_none_or(|families| families.is_empty() || families.iter().any(|family| family == "IPv4")),
            addresses,
        })
    }

    /// The address of `range` that it has, whoever gave it.
    pub fn own_address(&self, range: Ipv4Net) -> Option<Ipv4Addr> {
        self.addresses.iter().filter_map(|address| address.parse().ok()).find(|address| range.contains(address))
    }
}

/// What to do about one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Give(Ipv4Addr),
    Release,
    /// It cannot have what it asks for.
    Refuse(String),
}

/// Whether it is one of the range's hosts.
fn is_host(range: Ipv4Net, address: Ipv4Addr) -> bool {
    range.contains(&address) && (range.prefix_len() >= 31 || (address != range.network() && address != range.broadcast()))
}

/// `taken`: addresses of other Services.
pub(super) fn plan(row: &Row, range: Ipv4Net, taken: &[Ipv4Addr]) -> Action {
    let own = row.own_address(range);
    if row.foreign || !row.wanted {
        return if own.is_some() && !row.foreign { Action::Release } else { Action::Nothing };
    }
    if !row.has_ipv4 {
        return Action::Refuse(format!("the Service has no IPv4 address, and --load-balancer-cidr {range} has no others"));
    }
    let taken: HashSet<Ipv4Addr> = taken.iter().copied().collect();
    let give = |address: Ipv4Addr| if row.addresses == [address.to_string()] { Action::Nothing } else { Action::Give(address) };
    if !row.asked.is_empty() {
        return match row.asked.parse::<Ipv4Addr>() {
            Ok(address) if !is_host(range, address) => Action::Refuse(format!("loadBalancerIP {address} is not in --load-balancer-cidr {range}")),
            Ok(address) if taken.contains(&address) => Action::Refuse(format!("loadBalancerIP {address} belongs to another Service")),
            Ok(address) => give(address),
            Err(_) => Action::Refuse(format!("loadBalancerIP {:?} is no IPv4 address", row.asked)),
        };
    }
    match own.filter(|address| !taken.contains(address)).or_else(|| range.hosts().find(|address| !taken.contains(address))) {
        Some(address) => give(address),
        None => Action::Refuse(format!(
            "no address is free in --load-balancer-cidr {range}: delete Services of type LoadBalancer, or choose a larger range"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(change: impl FnOnce(&mut Row)) -> Row {
        let mut row = Row { wanted: true, has_ipv4: true, ..Row::default() };
        change(&mut row);
        row
    }

    fn having(addresses: &[&str]) -> impl FnOnce(&mut Row) {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        move |row| row.addresses = addresses
    }

    #[test]
    fn a_service_gets_keeps_and_gives_back_its_address() {
        let range: Ipv4Net = "10.241.0.0/30".parse().unwrap();
        let ip = |last: u8| Ipv4Addr::new(10, 241, 0, last);
        let refused = |reason: &str| Action::Refuse(reason.to_owned());
        let full = "no address is free in --load-balancer-cidr 10.241.0.0/30: delete Services of type LoadBalancer, or choose a larger range";
        for (name, row, taken, expected) in [
            ("the first", service(|_| {}), &[][..], Action::Give(ip(1))),
            ("the next", service(|_| {}), &[ip(1)], Action::Give(ip(2))),
            ("none left", service(|_| {}), &[ip(1), ip(2)], refused(full)),
            ("keeps its own", service(having(&["10.241.0.2"])), &[], Action::Nothing),
            ("its own is another's too", service(having(&["10.241.0.2"])), &[ip(2)], Action::Give(ip(1))),
            ("one of another range", service(having(&["10.1.1.1"])), &[], Action::Give(ip(1))),
            ("asks", service(|row| row.asked = "10.241.0.2".into()), &[], Action::Give(ip(2))),
            (
                "asks for another",
                service(|row| (row.asked, row.addresses) = ("10.241.0.2".into(), vec!["10.241.0.1".into()])),
                &[],
                Action::Give(ip(2)),
            ),
            (
                "asks for a taken one",
                service(|row| row.asked = "10.241.0.2".into()),
                &[ip(2)],
                refused("loadBalancerIP 10.241.0.2 belongs to another Service"),
            ),
            (
                "asks for one elsewhere",
                service(|row| row.asked = "10.1.0.2".into()),
                &[],
                refused("loadBalancerIP 10.1.0.2 is not in --load-balancer-cidr 10.241.0.0/30"),
            ),
            (
                "asks for the network itself",
                service(|row| row.asked = "10.241.0.0".into()),
                &[],
                refused("loadBalancerIP 10.241.0.0 is not in --load-balancer-cidr 10.241.0.0/30"),
            ),
            ("asks for nonsense", service(|row| row.asked = "fd00::1".into()), &[], refused("loadBalancerIP \"fd00::1\" is no IPv4 address")),
            ("changed its type", service(|row| (row.wanted, row.addresses) = (false, vec!["10.241.0.1".into()])), &[], Action::Release),
            ("has somebody else's address", service(|row| (row.wanted, row.addresses) = (false, vec!["10.1.0.1".into()])), &[], Action::Nothing),
            (
                "is of another class",
                service(|row| (row.wanted, row.foreign, row.addresses) = (false, true, vec!["10.241.0.1".into()])),
                &[],
                Action::Nothing,
            ),
        ] {
            assert_eq!(plan(&row, range, taken), expected, "{name}");
        }
        let six = service(|row| row.has_ipv4 = false);
        assert_eq!(plan(&six, range, &[]), refused("the Service has no IPv4 address, and --load-balancer-cidr 10.241.0.0/30 has no others"));
    }

    #[test]
    fn class_and_type_say_whose_a_service_is() {
        let row = |spec: serde_json::Value| Row::new(&serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}, "spec": spec})).unwrap());
        assert_eq!(row(serde_json::json!({"type": "ClusterIP"})), None);
        for (class, wanted) in [(None, true), (Some(CLASS), true), (Some("example.com/other"), false)] {
            let found = row(serde_json::json!({"type": "LoadBalancer", "loadBalancerClass": class})).unwrap();
            assert_eq!((found.wanted, found.foreign), (wanted, !wanted), "{class:?}");
        }
    }
}
