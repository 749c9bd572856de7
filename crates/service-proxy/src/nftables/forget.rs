//! Connections and clients that still go where nobody answers any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use linux_sys::conntrack::{self, Conntrack, Flow};
use linux_sys::netlink::NetlinkError;
use nft::{Data, Desired, Engine, NftError, Plan};

use super::elements::{NetworkContext, Role, Set, elements};
use super::layout::{Names, table};
use crate::table::{IpFamily, Protocol, Table, Vip, VipAddress, VipKey};

/// The backends that may answer at addresses that UDP clients send to.
pub type Answerers = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// Those of the VIPs of `keys`. One that is gone has nobody.
pub fn answerers<'a>(keys: impl IntoIterator<Item = &'a VipKey>, table: &Table, context: &NetworkContext) -> Answerers {
    let mut map = Answerers::new();
    for key in keys.into_iter().filter(|key| key.protocol == Protocol::Udp) {
        let backends: BTreeSet<SocketAddr> = table.get(key).map(|vip| targets(vip)).unwrap_or_default();
        let ips = match key.address {
            VipAddress::Ip(ip) => vec![ip],
            VipAddress::Node(family) => context.node_ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family).collect(),
        };
        map.extend(ips.into_iter().map(|ip| (SocketAddr::new(ip, key.port), backends.clone())));
    }
    map
}

fn targets(vip: &Vip) -> BTreeSet<SocketAddr> {
    let inside = vip.inside.as_deref().unwrap_or_default();
    vip.backends.iter().chain(inside).map(|b| SocketAddr::new(b.address, b.port)).collect()
}

/// Whether the flow goes to a Service, and to none of its backends.
fn is_stale(answerers: &Answerers, flow: &Flow) -> bool {
    answerers.get(&flow.destination).is_some_and(|targets| !targets.contains(&flow.reply_source))
}

/// Has the kernel forget flows of UDP to Services that nobody answers any more, so that clients that go on sending are led
/// elsewhere. Returns how many.
pub fn flows(answerers: &Answerers) -> Result<usize, NetlinkError> {
    if answerers.is_empty() {
        return Ok(0);
    }
    let stale = |flow: &Flow| is_stale(answerers, flow);
    Conntrack::open()?.forget_where(conntrack::UDP, stale)
}

/// Takes away clients that stick to a backend which is none (any more) of their VIP's, so that they get another one.
pub fn clients(engine: &Engine, sticky: &BTreeSet<Set>, desired: &Table, context: &NetworkContext) -> Result<usize, NftError> {
    let mut count = 0;
    for set in sticky {
        let Role::Sticky(seconds) = set.role else { continue };
        let map = Names(set.family).affinity(seconds);
        let there = engine.nft().elements(&table(), &map)?;
        if there.is_empty() {
            continue;
        }
        let targets = sticky_targets(desired, context, *set);
        for client in there {
            let Some(Data::Value(target)) = &client.data else { continue };
            let vip = client.key.get(address_len(set.family)..).unwrap_or_default();
            if targets.get(vip).is_some_and(|targets| targets.contains(target)) {
                continue;
            }
            let mut gone = Desired::new(table());
            gone.used_set(Names(set.family).clients(seconds)).push(client);
            match engine.apply(Plan::between(vec![gone], vec![])) {
                // It ended by itself meanwhile.
                Err(error) if error.is_not_found() => {}
                other => other.map(|_| count += 1)?,
            }
        }
    }
    Ok(count)
}

fn address_len(family: IpFamily) -> usize {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    }
}

/// The backends of each VIP whose clients stick as `set` says, as bytes of elements.
fn sticky_targets(desired: &Table, context: &NetworkContext, set: Set) -> BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> {
    let mut map: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let sticky = desired.iter().filter(|(key, vip)| key.family() == set.family && vip.affinity.is_some());
    for (key, vip) in sticky {
        let items = elements(key, vip, context, |_| true);
        if !items.iter().any(|(other, ..)| *other == set) {
            continue;
        }
        for (_, slot, target) in items.iter().filter(|(other, ..)| other.role == Role::Slots) {
            // Without the slot's number.
            map.entry(slot[..slot.len() - 4].to_vec()).or_default().insert(target.to_vec());
        }
    }
    map
}

/// Whether 127.0.0.1 is one of these.
pub fn has_localhost(ips: &[IpAddr]) -> bool {
    ips.iter().any(IpAddr::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{BackendAddress, Kind};

    #[test]
    fn flows_are_stale_when_their_backend_is_no_answerer() {
        let dns = VipKey { address: VipAddress::Ip("10.96.0.10".parse().unwrap()), protocol: Protocol::Udp, port: 53 };
        let gone = VipKey { port: 54, ..dns };
        let tcp = VipKey { protocol: Protocol::Tcp, port: 55, ..dns };
        let node = VipKey { address: VipAddress::Node(IpFamily::V4), port: 30053, ..dns };
        let backend = |n: u8| BackendAddress { address: IpAddr::from([10, 1, 0, n]), port: 53, local: false };
        let vip = Vip { backends: [backend(2)].into(), inside: Some([backend(3)].into()), ..Vip::new("default/dns:53", Kind::ClusterIp) };
        let mut table = Table::default();
        table.set_service(&cluster::Key::new("default", "dns"), vec![(dns, vip.clone()), (node, vip)]);
        let context = NetworkContext { node_ips: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()], masquerade_all: false };
        let answerers = answerers(&[dns, gone, tcp, node], &table, &context);
        for (destination, reply_source, expected) in [
            ("10.96.0.10:53", "10.1.0.2:53", false),
            ("10.96.0.10:53", "10.1.0.3:53", false),
            ("10.96.0.10:53", "10.1.0.4:53", true),
            ("10.96.0.10:53", "10.96.0.10:53", true),
            ("10.96.0.10:54", "10.1.0.2:53", true),
            ("10.96.0.10:55", "10.1.0.4:53", false),
            ("10.0.0.5:30053", "10.1.0.4:53", true),
            ("10.0.0.6:30053", "10.1.0.4:53", false),
        ] {
            let at = |text: &str| text.parse::<SocketAddr>().unwrap();
            let client = at("10.1.0.9:4000");
            let flow = Flow { protocol: 17, source: client, destination: at(destination), reply_source: at(reply_source), reply_destination: client };
            assert_eq!(is_stale(&answerers, &flow), expected, "{destination} {reply_source}");
        }
    }
}
