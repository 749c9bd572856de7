//! Sets and maps, and the elements that rules are.

use std::net::IpAddr;

use hcn::Protocol;
use ipnet::IpNet;
use nft::{DataType, Desired, Element, Family, Key, SetSpec};

use super::FAMILIES;
use super::chains::*;
use super::hops::{HOPS, KEPT_BACKENDS, KEPT_SOURCES, POD_HOPS};
use crate::fact::{BALANCED, NatClass, ONLY_DESTINATIONS, Rule, Seen, Selector, Vip};
use crate::linux::tunnels;

/// The fixed sets and maps, but for the fingerprint.
const FIXED: [&str; 26] = [
    VIPS,
    BACKENDS,
    KEPT_BACKENDS,
    KEPT_SOURCES,
    HOPS,
    POD_HOPS,
    SELECTORS,
    HOST_SELECTORS,
    SOURCES,
    OUTBOUND,
    OUTBOUND_TO,
    EXCEPTIONS,
    DESTINATIONS,
    MASQUERADED,
    GUARDED,
    HOSTLESS,
    CLOSED,
    HOST_PATHS,
    HOST_ADDRESSES,
    OVERLAY_LINKS,
    TUNNELS,
    OVERLAY_PREFIXES,
    PROXIED,
    UNPROXIED,
    ACCESS_IN,
    ACCESS_OUT,
];

/// Declares the fixed sets and maps.
pub(super) fn declare_sets(table: &mut Desired, family: Family) {
    for name in FIXED {
        // VIPs lead packets into the table.
        table.set(spec(family, name)).rank(u8::from(name != VIPS));
    }
}

/// The kind of a set or map of ours.
pub(in super::super) fn spec(family: Family, name: &str) -> SetSpec {
    use DataType::{EtherAddr, IfName, InetProto, InetService, Ipv4Addr, Ipv6Addr, Mark};
    let address = if family == Family::Ip6 { Ipv6Addr } else { Ipv4Addr };
    match name {
        VIPS => SetSpec::map(name, [address, InetProto, InetService], [Mark]),
        BACKENDS => SetSpec::map(name, [address, InetProto, InetService, Mark], [address, InetService]),
        KEPT_BACKENDS => SetSpec::map(name, [address, InetProto, InetService, Mark], [Mark]),
        KEPT_SOURCES => SetSpec::map(name, [address, InetProto, InetService], [Mark]),
        HOPS | SOURCES => SetSpec::map(name, [Mark], [address]),
        POD_HOPS => SetSpec::map(name, [address, address], [Mark]).interval(),
        SELECTORS | HOST_SELECTORS => SetSpec::vmap(name, [Mark]),
        OUTBOUND | OUTBOUND_TO => SetSpec::map(name, [address], [Mark]),
        EXCEPTIONS | DESTINATIONS => SetSpec::set(name, [Mark, address]).interval(),
        GUARDED | HOSTLESS | CLOSED | OVERLAY_LINKS | TUNNELS => SetSpec::set(name, [IfName]),
        HOST_PATHS | UNPROXIED => SetSpec::set(name, [address, address]).interval(),
        HOST_ADDRESSES => SetSpec::set(name, [address]),
        PROXIED => SetSpec::map(name, [address, InetProto, address], [address, InetService]).interval(),
        FINGERPRINT => SetSpec::set(name, [Mark, Mark]),
        ACCESS_IN | ACCESS_OUT => SetSpec::vmap(name, [address]),
        tunnels::MACS => SetSpec::set(name, [IfName, EtherAddr]),
        // Networks: those of translations and overlays, and those that access rules name.
        _ => SetSpec::set(name, [address]).interval(),
    }
}

pub(super) fn mark_key(mark: u32) -> Key {
    Key::new().mark(mark)
}

pub(in super::super) fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

fn number(Protocol(protocol): Protocol) -> u8 {
    u8::try_from(protocol).unwrap_or(0)
}

fn vip_key(vip: &Vip) -> Key {
    Key::new().ip(vip.address).proto(number(vip.protocol)).port(vip.port)
}

/// An element for each of a prefix's addresses behind something else.
fn area(prefix: &IpNet, before: impl Fn() -> Key) -> Element {
    Element::area(before().ip(prefix.network()), before().ip(prefix.broadcast()))
}

fn class_and_net(class: NatClass, net: &IpNet) -> Element {
    area(net, || mark_key(class))
}

fn address(address: IpAddr) -> Key {
    Key::new().ip(address)
}

/// The sets of a rule and its elements there.
pub(super) fn elements(rule: &Rule) -> Vec<(Family, String, Element)> {
    let named = |set: &str, link: &str| FAMILIES.map(|family| (family, set.to_owned(), Element::new(Key::new().ifname(link)))).into();
    let (family, set, element) = match rule {
        Rule::Guarded { bridge } => return named(GUARDED, bridge),
        Rule::Closed { bridge } => return named(CLOSED, bridge),
        Rule::Hostless { bridge } => return named(HOSTLESS, bridge),
        Rule::OverlayLink { link } => return named(OVERLAY_LINKS, link),
        Rule::TunnelLink { tunnel } => return named(TUNNELS, tunnel),
        Rule::TunnelMac { tunnel, mac } => (Family::Netdev, tunnels::MACS, Element::new(Key::new().ifname(tunnel).mac(mac.0))),
        Rule::HostAddress(own) => (family_of(*own), HOST_ADDRESSES, Element::new(address(*own))),
        Rule::HostPath { address: pod, destination } => (family_of(*pod), HOST_PATHS, area(destination, || address(*pod))),
        Rule::OverlayPrefix(prefix) => (family_of(prefix.addr()), OVERLAY_PREFIXES, Element::net(*prefix)),
        Rule::Masquerade(prefix) => (family_of(prefix.addr()), MASQUERADED, Element::net(*prefix)),
        Rule::Source { class, address: source } => (family_of(*source), SOURCES, Element::new(mark_key(*class)).data(address(*source))),
        Rule::Exception { class, destination } => (family_of(destination.addr()), EXCEPTIONS, class_and_net(*class, destination)),
        Rule::Destination { class, destination } => (family_of(destination.addr()), DESTINATIONS, class_and_net(*class, destination)),
        Rule::Outbound { address: pod, class } => {
            let map = if class & ONLY_DESTINATIONS == 0 { OUTBOUND } else { OUTBOUND_TO };
            (family_of(*pod), map, Element::new(address(*pod)).data(mark_key(*class)))
        }
        Rule::Unproxied { address: pod, destination } => (family_of(*pod), UNPROXIED, area(destination, || address(*pod))),
        Rule::Proxied { address: pod, protocol, destination, proxy: (to, port) } => {
            let element = area(destination, || address(*pod).proto(number(*protocol)));
            (family_of(*pod), PROXIED, element.data(address(*to).port(*port)))
        }
        Rule::Member { set, prefix } => return vec![(family_of(prefix.addr()), set.clone(), Element::net(*prefix))],
        Rule::Backend { vip, slot, address: to, port } => {
            let key = vip_key(vip).mark(u32::from(*slot));
            (family_of(vip.address), BACKENDS, Element::new(key).data(address(*to).port(*port)))
        }
        Rule::Vip { vip, selector } => return vip_elements(vip, *selector),
        Rule::KeptBackend { vip, slot, hop } => {
            let key = vip_key(vip).mark(u32::from(*slot));
            (family_of(vip.address), KEPT_BACKENDS, Element::new(key).data(mark_key(hop.mark())))
        }
        Rule::HopAddress(hop) => (family_of(hop.address), HOPS, Element::new(mark_key(hop.mark())).data(address(hop.address))),
        Rule::PodHop { address: pod, destination, hop } => {
            (family_of(*pod), POD_HOPS, area(destination, || address(*pod)).data(mark_key(hop.mark())))
        }
        _ => return Vec::new(),
    };
    vec![(family, set.to_owned(), element)]
}

/// The backend selector of a VIP; and, where it keeps destinations, its class of source, which no mark carries then.
fn vip_elements(vip: &Vip, selector: Selector) -> Vec<(Family, String, Element)> {
    let element = |data: NatClass| Element::new(vip_key(vip)).data(mark_key(data));
    let family = family_of(vip.address);
    let class = match selector.seen {
        Seen::Client => None,
        Seen::Class(class) => Some(class),
        Seen::Link => Some(BALANCED),
    };
    let kept = class.filter(|_| selector.kept).map(|class| (family, KEPT_SOURCES.to_owned(), element(class)));
    [(family, VIPS.to_owned(), element(code(selector)))].into_iter().chain(kept).collect()
}
