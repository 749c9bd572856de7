//! Table of the cluster's DNS names: pure, changed one Service at a time.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use cluster::Key;
use hickory_proto::{ProtoError, rr::Name};

use crate::rows::{Endpoint, Port, ServiceRow, SliceRow, Target};

/// Why a text is no cluster domain.
#[derive(Debug, thiserror::Error)]
pub enum ZoneError {
    /// It does not follow the rules for names.
    #[error("it does not follow the rules for domain names")]
    Syntax(#[from] ProtoError),
    /// It is the root.
    #[error("it is empty")]
    Empty,
}

/// One record, its owner apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Data {
    /// A or AAAA.
    Address(IpAddr),
    /// SRV.
    Service { port: u16, weight: u16, target: Name },
    /// CNAME.
    Alias(Name),
    /// TXT.
    Text(&'static str),
    /// PTR.
    Pointer(Name),
    /// NS.
    Server(Name),
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The name exists; these are all its records, of any type, perhaps none.
    Records(Vec<Data>),
    /// The name is ours to know and does not exist.
    Absent,
    /// The name belongs to someone else.
    Foreign,
}

/// All names of a cluster.
#[derive(Debug)]
pub(crate) struct Names {
    domain: Name,
    /// Lower-case, without the final dot: `cluster.local`.
    suffix: String,
    namespaces: HashSet<String>,
    records: HashMap<String, Vec<(Arc<Key>, Data)>>,
    /// How many names with records are below each name.
    below: HashMap<String, usize>,
    /// The names to which each Service gave records.
    owned: HashMap<Key, BTreeSet<String>>,
}

impl Names {
    /// An empty table for this domain.
    ///
    /// # Errors
    /// When `domain` is no domain name below the root.
    pub fn new(domain: &str) -> Result<Self, ZoneError> {
        let mut name = Name::from_ascii(domain)?.to_lowercase();
        name.set_fqdn(true);
        if name.is_root() {
            return Err(ZoneError::Empty);
        }
        let suffix = text(&name);
        Ok(Self { domain: name, suffix, namespaces: HashSet::new(), records: HashMap::new(), below: HashMap::new(), owned: HashMap::new() })
    }

    /// The cluster's domain.
    pub fn domain(&self) -> &Name {
        &self.domain
    }

    /// A namespace exists now, or no longer.
    pub fn set_namespace(&mut self, namespace: &str, exists: bool) {
        if exists {
            self.namespaces.insert(namespace.to_owned());
        } else {
            self.namespaces.remove(namespace);
        }
    }

    /// A Service is this now, or gone; `slices` are those of a headless one.
    pub fn set_service(&mut self, key: &Key, service: Option<&ServiceRow>, slices: &[Arc<SliceRow>]) {
        for name in self.owned.remove(key).unwrap_or_default() {
            self.remove(&name, key);
        }
        let Some(service) = service else { return };
        let owner = Arc::new(key.clone());
        for (name, data) in records(&self.suffix, key, service, slices) {
            self.add(&owner, name, data);
        }
    }

    fn add(&mut self, owner: &Arc<Key>, name: String, data: Data) {
        let records = self.records.entry(name.clone()).or_default();
        let first = records.is_empty();
        if !records.iter().any(|(key, other)| key == owner && *other == data) {
            records.push((owner.clone(), data));
        }
        if first {
            for parent in parents(&name) {
                *self.below.entry(parent.to_owned()).or_default() += 1;
            }
        }
        self.owned.entry((**owner).clone()).or_default().insert(name);
    }

    fn remove(&mut self, name: &str, owner: &Key) {
        let Some(records) = self.records.get_mut(name) else { return };
        records.retain(|(key, _)| **key != *owner);
        if !records.is_empty() {
            return;
        }
        self.records.remove(name);
        for parent in parents(name) {
            if let Some(count) = self.below.get_mut(parent) {
                *count -= 1;
                if *count == 0 {
                    self.below.remove(parent);
                }
            }
        }
    }

    /// Looks up `name`, case-insensitively.
    pub fn lookup(&self, name: &Name) -> Lookup {
        let name = text(&name.to_lowercase());
        let inside = name == self.suffix || name.strip_suffix(&self.suffix).is_some_and(|rest| rest.ends_with('.'));
        let reverse = is_reverse(&name);
        if !inside && !reverse {
            return Lookup::Foreign;
        }
        if let Some(records) = self.records.get(&name) {
            return Lookup::Records(records.iter().map(|(_, data)| data.clone()).collect());
        }
        if inside {
            let relative = name.strip_suffix(&self.suffix).unwrap_or_default().trim_end_matches('.');
            if let Some(records) = self.built_in(relative) {
                return Lookup::Records(records);
            }
        }
        let between = self.below.contains_key(&name) || matches!(name.as_str(), "in-addr.arpa" | "ip6.arpa");
        if between { Lookup::Records(Vec::new()) } else { Lookup::Absent }
    }

    /// Names that follow from the domain and the namespaces alone.
    fn built_in(&self, relative: &str) -> Option<Vec<Data>> {
        let mut labels = relative.rsplit('.');
        match (labels.next()?, labels.next(), labels.next(), labels.next()) {
            ("", None, ..) => Some(vec![Data::Server(self.server())]),
            ("dns-version", None, ..) => Some(vec![Data::Text("1.1.0")]),
            ("svc" | "pod" | "dns", None, ..) => Some(Vec::new()),
            ("dns", Some("ns"), None, _) => Some(Vec::new()),
            ("svc" | "pod", Some(namespace), None, _) => self.namespaces.contains(namespace).then(Vec::new),
            ("pod", Some(namespace), Some(address), None) if self.namespaces.contains(namespace) => {
                pod_address(address).map(|address| vec![Data::Address(address)])
            }
            _ => None,
        }
    }

    /// The name of the server itself (CoreDNS's `ns.dns.` when it knows no Service of its own).
    pub fn server(&self) -> Name {
        below(&self.domain, "ns.dns")
    }
}

fn text(name: &Name) -> String {
    let mut text = name.to_ascii();
    if text.ends_with('.') {
        text.pop();
    }
    text
}

/// `name` below `domain`; the root when the two together are too long to be a name.
fn below(domain: &Name, name: &str) -> Name {
    Name::from_ascii(name).and_then(|name| name.append_domain(domain)).unwrap_or_else(|_| Name::root())
}

/// The names above a name, nearest first.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(name.split_once('.').map(|(_, rest)| rest), |name| name.split_once('.').map(|(_, rest)| rest))
}

/// Whether a name is one under which an address is looked up.
pub(crate) fn is_for_an_address(name: &Name) -> bool {
    is_reverse(&text(&name.to_lowercase()))
}

fn is_reverse(name: &str) -> bool {
    ["in-addr.arpa", "ip6.arpa"].iter().any(|zone| name == *zone || name.strip_suffix(zone).is_some_and(|rest| rest.ends_with('.')))
}

/// The address in a pod's name: `10-1-2-3`, or an IPv6 address with dashes for colons.
fn pod_address(label: &str) -> Option<IpAddr> {
    let dots = label.replace('-', ".").parse::<Ipv4Addr>();
    dots.map(IpAddr::V4).or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6)).ok()
}

/// The name under which an address is looked up.
fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let nibbles = address.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

/// All records of one Service, as `(lower-case name, data)`.
fn records(suffix: &str, key: &Key, service: &ServiceRow, slices: &[Arc<SliceRow>]) -> Vec<(String, Data)> {
    let own = format!("{}.{}.svc.{suffix}", key.name, key.ns);
    let Ok(own_name) = Name::from_ascii(format!("{own}.")) else { return Vec::new() };
    match &service.target {
        Target::Alias(target) => {
            let target = Name::from_ascii(target).map(|mut name| {
                name.set_fqdn(true);
                name
            });
            target.map(|target| vec![(own, Data::Alias(target))]).unwrap_or_default()
        }
        Target::Addresses(addresses) => {
            let mut all: Vec<_> = addresses.iter().map(|address| (own.clone(), Data::Address(*address))).collect();
            all.extend(addresses.iter().map(|address| (reverse_name(*address), Data::Pointer(own_name.clone()))));
            all.extend(service_records(&own, &service.ports, 100, &own_name));
            all
        }
        Target::Endpoints => headless(&own, slices),
    }
}

/// SRV records of ports: below the name for each named port, and at the name itself for all.
fn service_records(own: &str, ports: &[Port], weight: u16, target: &Name) -> Vec<(String, Data)> {
    let mut all = Vec::new();
    for port in ports {
        let data = Data::Service { port: port.number, weight, target: target.clone() };
        if !port.name.is_empty() {
            all.push((format!("_{}._{}.{own}", port.name, port.protocol).to_lowercase(), data.clone()));
        }
        all.push((own.to_owned(), data));
    }
    all
}

fn headless(own: &str, slices: &[Arc<SliceRow>]) -> Vec<(String, Data)> {
    let count = slices.iter().map(|slice| slice.endpoints.len()).sum::<usize>().max(1);
    // CoreDNS shares 100 among the endpoints, with at least 1 each.
    let weight = u16::try_from(100 / count).unwrap_or_default().max(1);
    let mut all = Vec::new();
    for slice in slices {
        for endpoint in &slice.endpoints {
            let name = format!("{}.{own}", endpoint_label(endpoint));
            let Ok(target) = Name::from_ascii(format!("{name}.")) else { continue };
            all.push((own.to_owned(), Data::Address(endpoint.address)));
            all.push((name, Data::Address(endpoint.address)));
            all.push((reverse_name(endpoint.address), Data::Pointer(target.clone())));
            all.extend(service_records(own, &slice.ports, weight, &target));
        }
    }
    all
}

fn endpoint_label(endpoint: &Endpoint) -> String {
    match &endpoint.hostname {
        Some(hostname) => hostname.to_lowercase(),
        None => endpoint.address.to_string().replace(['.', ':'], "-"),
    }
}

#[cfg(test)]
mod tests;
