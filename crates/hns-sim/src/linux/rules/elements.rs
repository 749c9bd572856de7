//! Sets and maps, and the elements that facts are.

use std::net::IpAddr;

use hcn::Protocol;
use ipnet::IpNet;
use nft::{Batch, DataType, Element, Family, Key, SetSpec};

use super::chains::*;
use super::hops::{HOPS, KEPT_BACKENDS, KEPT_SOURCES, POD_HOPS};
use super::{FAMILIES, table};
use crate::fact::{BALANCED, Fact, NatClass, ONLY_DESTINATIONS, Seen, Selector, Vip};
use crate::linux::tunnels;

pub(super) fn add_sets(batch: &mut Batch, family: Family) {
    use DataType::{IfName, InetProto, InetService, Mark};
    let address = if family == Family::Ip { DataType::Ipv4Addr } else { DataType::Ipv6Addr };
    for set in [
        SetSpec::map(FRONTENDS, [address, InetProto, InetService], [Mark]),
        SetSpec::map(BACKENDS, [address, InetProto, InetService, Mark], [address, InetService]),
        SetSpec::map(KEPT_BACKENDS, [address, InetProto, InetService, Mark], [Mark]),
        SetSpec::map(KEPT_SOURCES, [address, InetProto, InetService], [Mark]),
        SetSpec::map(HOPS, [Mark], [address]),
        SetSpec::map(POD_HOPS, [address, address], [Mark]).interval(),
        SetSpec::vmap(PICKS, [Mark]),
        SetSpec::vmap(HOST_PICKS, [Mark]),
        SetSpec::map(SOURCES, [Mark], [address]),
        SetSpec::map(OUTBOUND, [address], [Mark]),
        SetSpec::map(OUTBOUND_TO, [address], [Mark]),
        SetSpec::set(EXCEPTIONS, [Mark, address]).interval(),
        SetSpec::set(DESTINATIONS, [Mark, address]).interval(),
        SetSpec::set(MASQUERADED, [address]).interval(),
        SetSpec::set(GUARDED, [IfName]),
        SetSpec::set(HOSTLESS, [IfName]),
        SetSpec::set(CLOSED, [IfName]),
        SetSpec::set(HOST_PATHS, [address, address]).interval(),
        SetSpec::set(HOST_ADDRESSES, [address]),
        SetSpec::set(OVERLAY_LINKS, [IfName]),
        SetSpec::set(TUNNELS, [IfName]),
        SetSpec::set(OVERLAY_PREFIXES, [address]).interval(),
        SetSpec::map(PROXIED, [address, InetProto, address], [address, InetService]).interval(),
        SetSpec::set(UNPROXIED, [address, address]).interval(),
        SetSpec::set(FINGERPRINT, [Mark, Mark]),
        SetSpec::set(VERSION, [Mark, Mark]),
        SetSpec::vmap(ACCESS_IN, [address]),
        SetSpec::vmap(ACCESS_OUT, [address]),
    ] {
        batch.add_set(&table(family), &set);
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

fn frontend_key(frontend: &Vip) -> Key {
    Key::new().ip(frontend.address).proto(number(frontend.protocol)).port(frontend.port)
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

/// The sets of a fact and its elements there.
pub(super) fn elements(fact: &Fact) -> Vec<(Family, String, Element)> {
    let named = |set: &str, link: &str| FAMILIES.map(|family| (family, set.to_owned(), Element::new(Key::new().ifname(link)))).into();
    let (family, set, element) = match fact {
        Fact::Guarded { bridge } => return named(GUARDED, bridge),
        Fact::Closed { bridge } => return named(CLOSED, bridge),
        Fact::Hostless { bridge } => return named(HOSTLESS, bridge),
        Fact::OverlayLink { link } => return named(OVERLAY_LINKS, link),
        Fact::Tunnel { name, .. } => return named(TUNNELS, name),
        Fact::TunnelMac { tunnel, mac } => (Family::Netdev, tunnels::MACS, Element::new(Key::new().ifname(tunnel).mac(mac.0))),
        Fact::BridgeAddress { address: own, .. } => (family_of(own.addr()), HOST_ADDRESSES, Element::new(address(own.addr()))),
        Fact::HostPath { address: pod, destination } => (family_of(*pod), HOST_PATHS, area(destination, || address(*pod))),
        Fact::OverlayPrefix(prefix) => (family_of(prefix.addr()), OVERLAY_PREFIXES, Element::net(*prefix)),
        Fact::Masquerade(prefix) => (family_of(prefix.addr()), MASQUERADED, Element::net(*prefix)),
        Fact::Source { class, address: source } => (family_of(*source), SOURCES, Element::new(mark_key(*class)).data(address(*source))),
        Fact::Exception { class, destination } => (family_of(destination.addr()), EXCEPTIONS, class_and_net(*class, destination)),
        Fact::Destination { class, destination } => (family_of(destination.addr()), DESTINATIONS, class_and_net(*class, destination)),
        Fact::Outbound { address: pod, class } => {
            let map = if class & ONLY_DESTINATIONS == 0 { OUTBOUND } else { OUTBOUND_TO };
            (family_of(*pod), map, Element::new(address(*pod)).data(mark_key(*class)))
        }
        Fact::Unproxied { address: pod, destination } => (family_of(*pod), UNPROXIED, area(destination, || address(*pod))),
        Fact::Proxied { address: pod, protocol, destination, proxy: (to, port) } => {
            let element = area(destination, || address(*pod).proto(number(*protocol)));
            (family_of(*pod), PROXIED, element.data(address(*to).port(*port)))
        }
        Fact::Member { set, prefix } => return vec![(family_of(prefix.addr()), set.clone(), Element::net(*prefix))],
        Fact::Backend { vip: frontend, slot, address: to, port } => {
            let key = frontend_key(frontend).mark(u32::from(*slot));
            (family_of(frontend.address), BACKENDS, Element::new(key).data(address(*to).port(*port)))
        }
        Fact::Vip { vip: frontend, selector: pick } => return frontend_elements(frontend, *pick),
        Fact::KeptBackend { vip: frontend, slot, hop } => {
            let key = frontend_key(frontend).mark(u32::from(*slot));
            (family_of(frontend.address), KEPT_BACKENDS, Element::new(key).data(mark_key(hop.mark())))
        }
        Fact::Hop(hop) => (family_of(hop.address), HOPS, Element::new(mark_key(hop.mark())).data(address(hop.address))),
        Fact::PodHop { address: pod, destination, hop } => {
            (family_of(*pod), POD_HOPS, area(destination, || address(*pod)).data(mark_key(hop.mark())))
        }
        _ => return Vec::new(),
    };
    vec![(family, set.to_owned(), element)]
}

/// The frontend's way of picking; and, where it keeps destinations, its class of source, which no mark carries then.
fn frontend_elements(frontend: &Vip, pick: Selector) -> Vec<(Family, String, Element)> {
    let element = |data: NatClass| Element::new(frontend_key(frontend)).data(mark_key(data));
    let family = family_of(frontend.address);
    let class = match pick.seen {
        Seen::Client => None,
        Seen::Class(class) => Some(class),
        Seen::Link => Some(BALANCED),
    };
    let kept = class.filter(|_| pick.kept).map(|class| (family, KEPT_SOURCES.to_owned(), element(class)));
    [(family, FRONTENDS.to_owned(), element(code(pick)))].into_iter().chain(kept).collect()
}
