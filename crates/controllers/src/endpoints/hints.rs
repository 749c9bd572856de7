//! Topology hints of endpoints: from which zones and nodes each is preferred (upstream: `k8s.io/endpointslice` `trafficdist`,
//! `topologycache`). Pure.

use std::collections::BTreeMap;

use kube_rules::Labels;

use super::rows::{Group, Member};
use crate::view::NodeRow;

/// The most that one endpoint may get beyond its share.
const OVERLOAD: f64 = 0.2;
const ZONE: &str = "topology.kubernetes.io/zone";

/// The zones and nodes whose clients prefer an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hints {
    pub zones: Vec<String>,
    pub nodes: Vec<String>,
}

/// How a Service wants its traffic distributed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Distribution {
    /// No hints.
    #[default]
    Anywhere,
    /// `trafficDistribution: PreferClose` or `PreferSameZone`.
    SameZone,
    /// `trafficDistribution: PreferSameNode`.
    SameNode,
    /// The annotation `service.kubernetes.io/topology-mode: Auto`: zones get endpoints by their share of processors.
    Auto,
}

impl Distribution {
    pub fn new(annotations: Option<&Labels>, wanted: Option<&str>) -> Self {
        let annotation = |name: &str| annotations.and_then(|all| all.get(name));
        let mode = annotation("service.kubernetes.io/topology-aware-hints").or_else(|| annotation("service.kubernetes.io/topology-mode"));
        if mode.is_some_and(|mode| mode == "Auto" || mode == "auto") {
            return Self::Auto;
        }
        match wanted {
            Some("PreferClose" | "PreferSameZone") => Self::SameZone,
            Some("PreferSameNode") => Self::SameNode,
            _ => Self::Anywhere,
        }
    }
}

/// Each zone's share of the processors of ready nodes; none when a node does not say its zone or its processors, or there is one zone.
pub(super) type Shares = Option<BTreeMap<String, f64>>;

/// What of a node decides about the shares.
pub(super) fn shares_of(node: &NodeRow) -> (Option<&String>, i64, bool) {
    (node.labels.get(ZONE), node.cpu_millis, node.condition("Ready").is_some_and(|ready| ready.status == "True"))
}

pub(super) fn shares<'a>(nodes: impl Iterator<Item = &'a NodeRow>) -> Shares {
    let mut by_zone: BTreeMap<String, i64> = BTreeMap::new();
    let is_master =
        |node: &NodeRow| ["control-plane", "master"].iter().any(|role| node.labels.contains_key(&format!("node-role.kubernetes.io/{role}")));
    for node in nodes.filter(|node| !is_master(node)) {
        let (zone, cpu, is_ready) = shares_of(node);
        if !is_ready {
            continue;
        }
        let zone = zone.filter(|zone| !zone.is_empty())?;
        if cpu <= 0 {
            return None;
        }
        *by_zone.entry(zone.clone()).or_default() += cpu;
    }
    let total: i64 = by_zone.values().sum();
    (by_zone.len() >= 2).then(|| by_zone.into_iter().map(|(zone, cpu)| (zone, cpu as f64 / total as f64)).collect())
}

/// Gives every endpoint its hints. Answers, for the annotation, why a family of addresses has none.
pub(super) fn assign(groups: &mut [Group], distribution: Distribution, shares: &Shares) -> Vec<String> {
    match distribution {
        Distribution::Anywhere => Vec::new(),
        Distribution::SameZone | Distribution::SameNode => {
            let by_node = distribution == Distribution::SameNode;
            for member in groups.iter_mut().flat_map(|group| &mut group.members).filter(|member| member.ready) {
                member.hints.zones = member.zone.iter().cloned().collect();
                member.hints.nodes = member.node.iter().filter(|_| by_node).cloned().collect();
            }
            Vec::new()
        }
        Distribution::Auto => {
            let mut families: Vec<String> = groups.iter().map(|group| group.family.clone()).collect();
            families.sort();
            families.dedup();
            families
                .into_iter()
                .filter_map(|family| assign_shares(groups, &family, shares).err().map(|why| format!("{why}, addressType: {family}")))
                .collect()
        }
    }
}

/// Events about the annotation that distributes by zones, as (whether it is a warning, reason, message): why it has no effect, or that it has
/// one from now on, or no longer. `had` says whether it had one, and is brought up to date.
pub(super) fn events(had: &mut bool, distribution: Distribution, refused: &[String], families: &[String]) -> Vec<(bool, &'static str, String)> {
    let before = std::mem::replace(had, distribution == Distribution::Auto && refused.is_empty());
    if !refused.is_empty() {
        return refused.iter().map(|why| (true, "TopologyAwareHintsDisabled", why.clone())).collect();
    }
    // Upstream tells of the first family alone, too.
    let family = families.first().map_or("IPv4", String::as_str);
    match (before, *had) {
        (false, true) => {
            let message = format!("Topology Aware Hints has been enabled, addressType: {family}");
            vec![(false, "TopologyAwareHintsEnabled", message)]
        }
        (true, false) => {
            let message = format!("Topology Aware Hints has been disabled, addressType: {family}");
            vec![(true, "TopologyAwareHintsDisabled", message)]
        }
        _ => Vec::new(),
    }
}

/// Endpoints of their own zone first; zones with too many then give some to zones with too few.
fn assign_shares(groups: &mut [Group], family: &str, shares: &Shares) -> Result<(), String> {
    let mut ready: Vec<&mut Member> =
        groups.iter_mut().filter(|group| group.family == family).flat_map(|group| &mut group.members).filter(|member| member.ready).collect();
    let wanted = allocate(ready.len(), shares)?;
    let mut given: BTreeMap<String, usize> = BTreeMap::new();
    for member in &ready {
        let zone = member.zone.clone().filter(|zone| !zone.is_empty()).ok_or("One or more endpoints do not have a zone specified")?;
        *given.entry(zone).or_default() += 1;
    }
    let (mut giving, mut receiving) = balance(&wanted, &given);
    for member in &mut ready {
        let Some(own) = member.zone.clone() else { continue };
        let receiver = receiving.keys().next().cloned();
        let zone = match (giving.get_mut(&own), receiver) {
            (Some(left), Some(receiver)) if *left > 0 => {
                *left -= 1;
                if let Some(open) = receiving.get_mut(&receiver) {
                    *open -= 1;
                }
                receiving.retain(|_, open| *open > 0);
                receiver
            }
            _ => own,
        };
        member.hints.zones = vec![zone];
    }
    Ok(())
}

/// How many endpoints each zone should have.
fn allocate(endpoints: usize, shares: &Shares) -> Result<BTreeMap<String, f64>, String> {
    let Some(shares) = shares else {
        return Err("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes".to_owned());
    };
    let numbers = format!("({endpoints} endpoints, {} zones)", shares.len());
    if shares.len() > endpoints {
        return Err(format!("Insufficient number of endpoints {numbers}"));
    }
    let mut wanted = BTreeMap::new();
    let mut least = 0.0;
    for (zone, share) in shares {
        let desired = share * endpoints as f64;
        let minimum = (desired / (1.0 + OVERLOAD)).ceil();
        least += minimum;
        wanted.insert(zone.clone(), desired.max(minimum));
    }
    if least > endpoints as f64 {
        return Err(format!("Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {numbers}"));
    }
    Ok(wanted)
}

type Counts = BTreeMap<String, usize>;

/// How many endpoints zones give away, and how many they receive.
fn balance(wanted: &BTreeMap<String, f64>, given: &Counts) -> (Counts, Counts) {
    let surplus = |zone: &String, wanted: f64| given.get(zone).copied().unwrap_or_default() as f64 - wanted;
    let mut much: BTreeMap<String, f64> = wanted.iter().map(|(zone, wanted)| (zone.clone(), surplus(zone, *wanted))).collect();
    let (mut giving, mut receiving) = (Counts::new(), Counts::new());
    loop {
        let most = much.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, number)| (zone.clone(), *number));
        let least = much.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, number)| (zone.clone(), -*number));
        let (Some((giver, give)), Some((receiver, receive))) = (most, least) else { break };
        if (give < 1.0 && receive < 1.0) || give < 0.5 || receive < 0.5 {
            break;
        }
        *giving.entry(giver.clone()).or_default() += 1;
        *receiving.entry(receiver.clone()).or_default() += 1;
        *much.entry(giver).or_default() -= 1.0;
        *much.entry(receiver).or_default() += 1.0;
    }
    (giving, receiving)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Service};
    use serde_json::{Value, json};

    use super::*;
    use crate::view::ServiceRow;

    fn member(name: &str, zone: &str, ready: bool) -> Member {
        Member {
            address: name.to_owned(),
            ready,
            serving: ready,
            terminating: false,
            hostname: None,
            node: Some(format!("node-{zone}")),
            zone: (!zone.is_empty()).then(|| zone.to_owned()),
            pod: name.to_owned(),
            uid: name.to_owned(),
            hints: Hints::default(),
        }
    }

    /// One letter an endpoint: its zone, in capitals when it is not ready; a dot has none.
    fn groups(zones: &str) -> Vec<Group> {
        let one = |(index, zone): (usize, char)| {
            let name = zone.to_ascii_lowercase().to_string();
            member(&format!("p{index}"), if zone == '.' { "" } else { &name }, !zone.is_ascii_uppercase())
        };
        vec![Group { family: "IPv4".to_owned(), ports: Vec::new(), members: zones.chars().enumerate().map(one).collect() }]
    }

    fn zones(groups: &[Group]) -> String {
        groups[0].members.iter().map(|member| member.hints.zones.first().map_or("-", String::as_str)).collect()
    }

    fn evenly(zones: &str) -> Shares {
        Some(zones.chars().map(|zone| (zone.to_string(), 1.0 / zones.len() as f64)).collect())
    }

    #[test]
    fn a_service_says_how_it_is_distributed() {
        let of = |annotations: Value, wanted: Value| {
            let service: Service =
                serde_json::from_value(json!({"metadata": {"name": "a", "annotations": annotations}, "spec": {"trafficDistribution": wanted}}))
                    .unwrap();
            ServiceRow::new(&service).distribution
        };
        for (annotations, wanted, expected) in [
            (json!({}), Value::Null, Distribution::Anywhere),
            (json!({}), json!("PreferClose"), Distribution::SameZone),
            (json!({}), json!("PreferSameZone"), Distribution::SameZone),
            (json!({}), json!("PreferSameNode"), Distribution::SameNode),
            (json!({"service.kubernetes.io/topology-mode": "Auto"}), json!("PreferClose"), Distribution::Auto),
            (json!({"service.kubernetes.io/topology-aware-hints": "auto"}), Value::Null, Distribution::Auto),
            (
                json!({"service.kubernetes.io/topology-aware-hints": "Disabled", "service.kubernetes.io/topology-mode": "Auto"}),
                Value::Null,
                Distribution::Anywhere,
            ),
        ] {
            assert_eq!(of(annotations.clone(), wanted.clone()), expected, "{annotations} {wanted}");
        }
    }

    #[test]
    fn close_endpoints_are_those_of_the_zone_and_node() {
        let mut all = groups("aB.");
        assert!(assign(&mut all, Distribution::SameZone, &None).is_empty());
        assert_eq!(zones(&all), "a--");
        assert!(all[0].members.iter().all(|member| member.hints.nodes.is_empty()));
        let mut all = groups("aB.");
        assign(&mut all, Distribution::SameNode, &None);
        let nodes: Vec<_> = all[0].members.iter().map(|member| member.hints.nodes.join(",")).collect();
        assert_eq!((zones(&all).as_str(), nodes), ("a--", vec!["node-a".to_owned(), String::new(), "node-".to_owned()]));
    }

    #[test]
    fn zones_get_endpoints_by_their_share() {
        let few = "Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4";
        let over = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones), addressType: IPv4";
        let unknown = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4";
        for (endpoints, shares, expected) in [
            ("aabb", evenly("ab"), Ok("aabb")),
            ("aaaa", evenly("ab"), Ok("bbaa")),
            ("aabbB", evenly("ab"), Ok("aabb-")),
            ("aaabbb", evenly("abc"), Ok("caacbb")),
            ("a", evenly("ab"), Err(few)),
            ("aab", evenly("ab"), Err(over)),
            ("aabb", None, Err(unknown)),
            ("aab.", evenly("ab"), Err("One or more endpoints do not have a zone specified, addressType: IPv4")),
        ] {
            let mut all = groups(endpoints);
            let said = assign(&mut all, Distribution::Auto, &shares);
            match expected {
                Ok(hints) => assert_eq!((zones(&all).as_str(), said.len()), (hints, 0), "{endpoints}"),
                Err(why) => {
                    assert_eq!(said, [why], "{endpoints}");
                    assert!(all[0].members.iter().all(|member| member.hints == Hints::default()), "{endpoints}");
                }
            }
        }
    }

    #[test]
    fn hints_are_told_when_they_come_and_go() {
        let families = ["IPv6".to_owned(), "IPv4".to_owned()];
        let refused = ["Nodes only ready in one zone, addressType: IPv6".to_owned()];
        let enabled = "TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv6";
        let disabled = "TopologyAwareHintsDisabled: Topology Aware Hints has been disabled, addressType: IPv6";
        let why = "TopologyAwareHintsDisabled: Nodes only ready in one zone, addressType: IPv6";
        let mut had = false;
        for (what, distribution, refused, expected) in [
            ("no annotation", Distribution::Anywhere, &[][..], vec![]),
            ("refused", Distribution::Auto, &refused, vec![why]),
            ("enabled", Distribution::Auto, &[], vec![enabled]),
            ("still", Distribution::Auto, &[], vec![]),
            ("refused again", Distribution::Auto, &refused, vec![why]),
            ("and gone", Distribution::Anywhere, &[], vec![]),
            ("enabled again", Distribution::Auto, &[], vec![enabled]),
            ("another way", Distribution::SameZone, &[], vec![disabled]),
            ("for good", Distribution::Anywhere, &[], vec![]),
        ] {
            let told = events(&mut had, distribution, refused, &families);
            let told: Vec<String> = told.iter().map(|(_, reason, message)| format!("{reason}: {message}")).collect();
            assert_eq!(told, expected, "{what}");
        }
    }

    #[test]
    fn shares_are_those_of_ready_nodes() {
        let node = |zone: &str, cpu: &str, ready: &str, labels: &[&str]| {
            let mut all: serde_json::Map<String, Value> = labels.iter().map(|label| (label.to_string(), json!(""))).collect();
            all.insert(ZONE.to_owned(), zone.into());
            let status = json!({"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]});
            NodeRow::new(&serde_json::from_value::<Node>(json!({"metadata": {"name": "n", "labels": all}, "status": status})).unwrap())
        };
        let of = |nodes: &[NodeRow]| {
            shares(nodes.iter()).map(|shares| shares.into_iter().map(|(zone, share)| format!("{zone}{share}")).collect::<Vec<_>>())
        };
        let master = ["node-role.kubernetes.io/control-plane"];
        let two = [node("a", "1", "True", &[]), node("b", "3", "True", &[]), node("", "8", "False", &[]), node("", "8", "True", &master)];
        assert_eq!(of(&two), Some(vec!["a0.25".to_owned(), "b0.75".to_owned()]));
        assert_eq!(of(&two[..1]), None, "one zone");
        assert_eq!(of(&[node("a", "1", "True", &[]), node("", "1", "True", &[])]), None, "a node without a zone");
        assert_eq!(of(&[node("a", "1", "True", &[]), node("b", "0", "True", &[])]), None, "a node without processors");
    }
}
