//! The logical network: what `master-init`, `minion-init` and `gateway-init` want, of OVN and of the local switch.
//!
//! One distributed router for the cluster, a switch for each node's pods, and the switch `join` between that router and the routers of
//! gateway hosts. Upstream: ovn-kubernetes' `overlay.py` and `overlay.go` of 2017 and 2018; [`crate::rows::OWNER`] and
//! [`crate::rows::KEY`] are added to its rows.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use ovsdb::{Datum, Operation, Replica};

use crate::cluster_rows::Protocol;
use crate::rows::{KEY, Ownership, Ref, Want};

/// The switch between the cluster's router and those of gateway hosts.
pub const JOIN: &str = "join";
/// The bridge to which pods are connected.
pub const INTEGRATION: &str = "br-int";
/// The MTU of pods.
pub const MTU: u16 = ovsdb::names::POD_MTU;
/// The key by which a node's switch says on which chassis the node's pods are.
pub const CHASSIS: &str = "mullion.io/chassis";
/// The cluster's router on [`JOIN`].
const JOIN_ROUTER: Ipv4Addr = Ipv4Addr::new(100, 64, 1, 1);
const JOIN_PREFIX: u8 = 24;

/// The `n`th address of a subnet, counted from its network address.
#[must_use]
pub fn nth(subnet: Ipv4Net, n: u32) -> Ipv4Addr {
    u32::from(subnet.network()).wrapping_add(n).into()
}

fn with_length(address: Ipv4Addr, length: u8) -> String {
    format!("{address}/{length}")
}

/// The cluster's router, by the mark that upstream gives it.
#[must_use]
pub fn cluster_router() -> Ref {
    Ref::external("Logical_Router", "k8s-cluster-router", "yes")
}

/// The load balancer of the cluster's Services of a protocol.
#[must_use]
pub fn cluster_balancer(protocol: Protocol) -> Ref {
    Ref::external("Load_Balancer", format!("k8s-cluster-lb-{protocol}"), "yes")
}

/// The load balancer of a gateway's router.
#[must_use]
pub fn gateway_balancer(protocol: Protocol, router: &str) -> Ref {
    Ref::external("Load_Balancer", format!("{}_lb_gateway_router", protocol.upper()), router)
}

/// The name of a gateway host's router.
#[must_use]
pub fn gateway_router(node: &str) -> String {
    format!("GR_{node}")
}

/// The name of a node's management port in its kernel, which has room for 15 characters.
#[must_use]
pub fn management_interface(node: &str) -> String {
    format!("k8s-{}", node.chars().take(11).collect::<String>())
}

/// The MAC address of a router's port: its own, or one of upstream's range that no other port has, the same for the same name.
fn router_mac(replica: &Replica, port: &str) -> String {
    let ports = replica.table("Logical_Router_Port");
    if let Some((_, row)) = Ref::named("Logical_Router_Port", port).find(replica) {
        return row.text("mac").to_owned();
    }
    // FNV-1a: what is wanted is spread, and the same result in every version.
    let hash = port.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let mac = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        format!("00:00:00:{a:02X}:{b:02X}:{c:02X}")
    };
    let is_free = |mac: &String| ports.rows().all(|(_, row)| !row.text("mac").eq_ignore_ascii_case(mac));
    (0..=0x00ff_ffff).map(|step| mac(hash.wrapping_add(step))).find(is_free).unwrap_or_else(|| mac(hash))
}

/// A router's port and the switch's port beside it.
fn link(replica: &Replica, router: Ref, port: &str, network: String, switch: &str, beside: &str) -> [Want; 2] {
    let mac = router_mac(replica, port);
    [
        Want::named("Logical_Router_Port", port).held_by(router, "ports").at_first("mac", mac.as_str()).with("networks", network),
        router_side(port, &mac, switch, beside),
    ]
}

/// A switch's port to a router.
fn router_side(port: &str, mac: &str, switch: &str, beside: &str) -> Want {
    Want::named("Logical_Switch_Port", beside)
        .held_by(Ref::named("Logical_Switch", switch), "ports")
        .with("type", "router")
        .with("addresses", mac)
        .entry("options", "router-port", port)
}

/// The owner of the rows of `master-init`.
#[must_use]
pub fn master_scope(node: &str) -> String {
    format!("master/{node}")
}

/// What the cluster has once: its router, its load balancers, the switch to gateways.
#[must_use]
pub fn master(replica: &Replica, node: &str) -> Vec<Want> {
    let router = Want::named("Logical_Router", node).entry("external_ids", "k8s-cluster-router", "yes");
    let balancer = |protocol: Protocol| {
        let want = Want::external("Load_Balancer", format!("k8s-cluster-lb-{protocol}"), "yes");
        want.with("protocol", protocol.to_string())
    };
    let network = with_length(JOIN_ROUTER, JOIN_PREFIX);
    let [port, beside] = link(replica, Ref::named("Logical_Router", node), &format!("rtoj-{node}"), network, JOIN, &format!("jtor-{node}"));
    let mut wants = vec![router];
    wants.extend(Protocol::ALL.map(balancer));
    wants.extend([Want::named("Logical_Switch", JOIN), port.entry("external_ids", "connect_to_join", "yes"), beside]);
    wants
}

/// The owner of a node's rows.
#[must_use]
pub fn node_scope(node: &str) -> String {
    format!("node/{node}")
}

/// A node's switch, its router's port, and the port of the node itself, whose MAC address the local switch gave it. `chassis`: the `system-id` of
/// that switch, where it has one.
#[must_use]
pub fn node(replica: &Replica, node: &str, subnet: Ipv4Net, mac: &str, chassis: Option<&str>) -> Vec<Want> {
    let gateway = with_length(nth(subnet, 1), subnet.prefix_len());
    let [port, beside] = link(replica, cluster_router(), &format!("rtos-{node}"), gateway.clone(), node, &format!("stor-{node}"));
    let switch = Want::named("Logical_Switch", node)
        .entry("other_config", "subnet", subnet.trunc().to_string())
        .entry("external_ids", "gateway_ip", gateway)
        .member("load_balancer", cluster_balancer(Protocol::Tcp))
        .member("load_balancer", cluster_balancer(Protocol::Udp));
    let switch = chassis.into_iter().fold(switch, |switch, chassis| switch.entry("external_ids", CHASSIS, chassis));
    let management = Want::named("Logical_Switch_Port", format!("k8s-{node}"))
        .held_by(Ref::named("Logical_Switch", node), "ports")
        .with("addresses", format!("{mac} {}", nth(subnet, 2)));
    vec![port, switch, beside, management]
}

/// The owner of a gateway host's rows.
#[must_use]
pub fn gateway_scope(node: &str) -> String {
    format!("gateway/{node}")
}

/// A gateway host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name.
    pub node: String,
    /// The addresses of all pods.
    pub cluster_subnet: Ipv4Net,
    /// Its address outside, with the length of its network's prefix.
    pub physical_ip: Ipv4Net,
    /// The interface or bridge with that address.
    pub interface: String,
    /// The MAC address of that.
    pub mac: String,
    /// The router outside.
    pub next_hop: Ipv4Addr,
    /// Subnets whose pods leave through this gateway.
    pub rampout: Vec<Ipv4Net>,
    /// The `system-id` of its Open vSwitch.
    pub chassis: String,
}

/// The gateway routers that there are: name, external address, whether it is the first.
pub(crate) fn gateways(replica: &Replica) -> Vec<(String, Ipv4Addr, bool)> {
    let gateway = |row: &ovsdb::Row| {
        let address = row.entry("external_ids", "physical_ip")?.split('/').next()?.parse().ok()?;
        Some((row.text("name").to_owned(), address, row.entry("external_ids", "first_gateway") == Some("yes")))
    };
    let mut found: Vec<_> = replica.table("Logical_Router").rows().filter_map(|(_, row)| gateway(row)).collect();
    found.sort();
    found
}

/// The address of a gateway's router on [`JOIN`]: its own, or the next that is free.
fn join_address(replica: &Replica, port: &str) -> Option<Ipv4Addr> {
    let address = |row: &ovsdb::Row| row.get("networks")?.strings().next()?.parse::<Ipv4Net>().ok().map(|net| net.addr());
    if let Some(own) = Ref::named("Logical_Router_Port", port).find(replica).and_then(|(_, row)| address(row)) {
        return Some(own);
    }
    let ports = replica.table("Logical_Router_Port");
    let taken: Vec<Ipv4Addr> = ports.rows().filter_map(|(_, row)| address(row)).collect();
    (2..255).map(|last| Ipv4Addr::new(100, 64, 1, last)).find(|free| !taken.contains(free))
}

fn route(router: Ref, key: String, prefix: impl ToString, hop: Ipv4Addr) -> Want {
    Want::external("Logical_Router_Static_Route", KEY, key)
        .held_by(router, "static_routes")
        .with("ip_prefix", prefix.to_string())
        .with("nexthop", hop.to_string())
}

/// Whose subnet a node's would overlap: that of another port of the cluster's router, with its name.
#[must_use]
pub fn overlap(replica: &Replica, node: &str, subnet: Ipv4Net) -> Option<(String, Ipv4Net)> {
    let (_, router) = cluster_router().find(replica)?;
    let own = format!("rtos-{node}");
    let ports = router.get("ports").into_iter().flat_map(Datum::uuids).filter_map(|uuid| replica.table("Logical_Router_Port").get(uuid));
    let others = ports.filter(|port| port.text("name") != own);
    let networks = others.flat_map(|port| {
        let networks = port.get("networks").into_iter().flat_map(Datum::strings).filter_map(|text| text.parse::<Ipv4Net>().ok());
        networks.map(|network| (port.text("name").to_owned(), network.trunc())).collect::<Vec<_>>()
    });
    networks.into_iter().find(|(_, network)| network.contains(&subnet.network()) || subnet.contains(&network.network()))
}

/// Waits for the ports with which a node's subnet was compared: two nodes that are set up at once must not get the same.
#[must_use]
pub fn node_guards(replica: &Replica) -> Vec<Operation> {
    let seen = cluster_router()
        .find(replica)
        .and_then(|(uuid, row)| Some(Operation::wait_row("Logical_Router", uuid, [("ports".to_owned(), row.get("ports")?.clone())].into())));
    Vec::from_iter(seen)
}

/// The router of another gateway host that is on that chassis.
#[must_use]
pub fn router_on<'a>(replica: &'a Replica, node: &str, chassis: &str) -> Option<&'a str> {
    let own = gateway_router(node);
    let routers = replica.table("Logical_Router").rows().filter(|(_, row)| row.entry("options", "chassis") == Some(chassis));
    routers.map(|(_, row)| row.text("name")).find(|name| *name != own)
}

/// Waits for what a gateway's address and its place among gateways are chosen from: two that are made at once must not choose alike.
#[must_use]
pub fn gateway_guards(replica: &Replica) -> Vec<Operation> {
    let seen = |at: Ref, column: &str| {
        let (uuid, row) = at.find(replica)?;
        Some(Operation::wait_row(at.table, uuid, [(column.to_owned(), row.get(column)?.clone())].into()))
    };
    [seen(Ref::named("Logical_Switch", JOIN), "ports"), seen(cluster_router(), "static_routes")].into_iter().flatten().collect()
}

/// A gateway host's router, its switches' ports and routes, and its load balancers. None: 100.64.1.0/24 is used up.
#[must_use]
pub fn gateway(replica: &Replica, gateway: &Gateway) -> Option<Vec<Want>> {
    let Gateway { node, cluster_subnet, physical_ip, interface, mac, next_hop, rampout, chassis } = gateway;
    let (router, external) = (gateway_router(node), format!("ext_{node}"));
    let (to_join, to_outside) = (format!("rtoj-{router}"), format!("rtoe-{router}"));
    let own = || Ref::named("Logical_Router", router.as_str());
    let join = join_address(replica, &to_join)?;
    let is_first = !gateways(replica).iter().any(|(name, _, first)| *first && *name != router);
    let mut wants = vec![
        Want::named("Logical_Router", router.as_str())
            .entry("options", "chassis", chassis)
            .entry("options", "lb_force_snat_ip", join.to_string())
            .entry("external_ids", "physical_ip", physical_ip.addr().to_string())
            .entry("external_ids", "first_gateway", if is_first { "yes" } else { "no" })
            .member("load_balancer", gateway_balancer(Protocol::Tcp, &router))
            .member("load_balancer", gateway_balancer(Protocol::Udp, &router)),
    ];
    wants.extend(Protocol::ALL.map(|protocol| {
        let want = Want::external("Load_Balancer", format!("{}_lb_gateway_router", protocol.upper()), router.as_str());
        want.with("protocol", protocol.to_string())
    }));
    wants.extend(link(replica, own(), &to_join, with_length(join, JOIN_PREFIX), JOIN, &format!("jtor-{router}")));
    wants.push(route(own(), format!("{router} {cluster_subnet}"), cluster_subnet, JOIN_ROUTER));
    if is_first {
        wants.push(route(cluster_router(), format!("{router} default"), "0.0.0.0/0", join));
    }
    wants.extend([
        Want::named("Logical_Switch", external.as_str()),
        Want::named("Logical_Switch_Port", format!("{interface}_{node}"))
            .held_by(Ref::named("Logical_Switch", external.as_str()), "ports")
            .with("addresses", "unknown"),
        Want::named("Logical_Router_Port", to_outside.as_str())
            .held_by(own(), "ports")
            .with("mac", mac.as_str())
            .with("networks", physical_ip.to_string()),
        router_side(&to_outside, mac, &external, &format!("etor-{router}")),
        route(own(), format!("{router} outside"), "0.0.0.0/0", *next_hop).with("output_port", to_outside.as_str()),
        Want::external("NAT", KEY, format!("{router} {cluster_subnet}"))
            .held_by(own(), "nat")
            .with("type", "snat")
            .with("external_ip", physical_ip.addr().to_string())
            .with("logical_ip", cluster_subnet.to_string()),
    ]);
    wants.extend(rampout.iter().map(|subnet| route(cluster_router(), format!("{router} from {subnet}"), subnet, join).with("policy", "src-ip")));
    Some(wants)
}

fn local_root() -> Ref {
    Ref { table: "Open_vSwitch", id: crate::rows::Id::Only }
}

/// An interface and its port on a bridge, of the same name.
fn local_port(bridge: &str, interface: Want) -> [Want; 2] {
    let crate::rows::Id::Name(name) = interface.at.id.clone() else { unreachable!("interfaces have names") };
    let port = Want::named("Port", name)
        .owned(interface.ownership)
        .held_by(Ref::named("Bridge", bridge), "ports")
        .member("interfaces", interface.at.clone());
    [interface, port]
}

/// Bridge `br-int`, which forwards nothing before OVN says what.
fn integration(datapath: &str) -> Vec<Want> {
    let bridge = Want::named("Bridge", INTEGRATION)
        .owned(Ownership::Shared)
        .held_by(local_root(), "bridges")
        .at_first("datapath_type", datapath)
        .with("fail_mode", "secure");
    let own = Want::named("Interface", INTEGRATION).owned(Ownership::Shared).at_first("type", "internal");
    let mut wants = vec![bridge];
    wants.extend(local_port(INTEGRATION, own));
    wants
}

/// What a node wants of its own switch: the bridge and the management port. `datapath`: `netdev`, `system` or empty for the default.
#[must_use]
pub fn local_node(node: &str, datapath: &str) -> Vec<Want> {
    let mut wants = integration(datapath);
    let management = Want::named("Interface", management_interface(node)).with("type", "internal").at_first("mtu_request", i64::from(MTU)).entry(
        "external_ids",
        "iface-id",
        format!("k8s-{node}"),
    );
    wants.extend(local_port(INTEGRATION, management));
    wants
}

/// How a gateway host is connected to the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outside {
    /// An interface of its own, which `br-int` takes.
    Interface(String),
    /// A bridge that has the host's address and its network card.
    Bridge {
        /// Its name.
        name: String,
        /// Its MAC address, which stays this one.
        mac: String,
    },
}

impl Outside {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Interface(name) | Self::Bridge { name, .. } => name,
        }
    }
}

/// What a gateway host wants of its own switch.
#[must_use]
pub fn local_gateway(node: &str, outside: &Outside, datapath: &str) -> Vec<Want> {
    let mut wants = integration(datapath);
    let iface_id = format!("{}_{node}", outside.name());
    match outside {
        Outside::Interface(name) => {
            let interface = Want::named("Interface", name.as_str()).entry("external_ids", "iface-id", iface_id);
            wants.extend(local_port(INTEGRATION, interface));
        }
        Outside::Bridge { name, mac } => {
            wants.push(Want::named("Bridge", name.as_str()).owned(Ownership::Shared).entry("other_config", "hwaddr", mac));
            let (near, far) = (format!("k8s-patch-{INTEGRATION}-{name}"), format!("k8s-patch-{name}-{INTEGRATION}"));
            let patch = |name: &str, peer: &str| Want::named("Interface", name).with("type", "patch").with("options", Datum::map([("peer", peer)]));
            wants.extend(local_port(INTEGRATION, patch(&near, &far).entry("external_ids", "iface-id", iface_id)));
            wants.extend(local_port(name, patch(&far, &near)));
        }
    }
    wants
}

#[cfg(test)]
mod tests;
