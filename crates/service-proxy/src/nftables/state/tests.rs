use std::net::{Ipv4Addr, Ipv6Addr};

use cluster::Key;
use proptest::prelude::*;

use super::*;
use crate::table::{BackendAddress, Backends, Kind, Protocol};

/// A kernel that refuses what nf_tables refuses: adding what is there, removing what is not.
fn apply(kernel: &mut BTreeMap<(Set, ElementKey), ElementData>, delta: &Delta) {
    for (set, content) in &delta.remove {
        for (key, data) in content {
            assert_eq!(kernel.remove(&(*set, *key)).as_ref(), Some(data), "removes what is there: {set:?} {key:?}");
        }
    }
    for (set, content) in &delta.add {
        for (key, data) in content {
            assert_eq!(kernel.insert((*set, *key), *data), None, "adds what is not there: {set:?} {key:?}");
        }
    }
}

fn address(v6: bool, n: u8) -> IpAddr {
    if v6 { Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into() } else { Ipv4Addr::new(10, 0, 0, n).into() }
}

prop_compose! {
    fn vip()(at in 0u8..6, v6 in any::<bool>(), ends in prop::collection::vec((100u8..104, any::<bool>()), 0..4), affinity in prop::option::of(60u32..62), keep in any::<bool>(), sources in prop::option::of(prop::collection::vec(8u8..10, 0..3))) -> (VipKey, Vip) {
        let mut backends: Vec<BackendAddress> = ends.into_iter().map(|(n, local)| BackendAddress { address: address(v6, n), port: 80, local }).collect();
        backends.sort();
        backends.dedup_by_key(|b| b.address);
        let family = if v6 { IpFamily::V6 } else { IpFamily::V4 };
        let (listen, kind) = match at {
            0 => (VipAddress::Node(family), Kind::NodePort),
            // One of the node's own addresses.
            1 => (VipAddress::Ip(address(v6, 1)), Kind::ExternalIp),
            2 => (VipAddress::Ip(address(v6, 2)), Kind::LoadBalancer),
            n => (VipAddress::Ip(address(v6, n)), Kind::ClusterIp),
        };
        let backends: Backends = backends.into();
        let inside = keep.then(|| backends.clone());
        let sources = sources.filter(|_| at == 2).map(|bits| bits.into_iter().map(|bits| ipnet::IpNet::new(address(v6, 0), bits).unwrap().trunc()).collect::<BTreeSet<_>>().into_iter().collect());
        (VipKey { address: listen, protocol: Protocol::Tcp, port: 80 }, Vip { backends, inside, keep_client: keep, affinity, sources, ..Vip::new("s", kind) })
    }
}

proptest! {
    #[test]
    fn any_sequence_of_changes_ends_where_a_full_pass_would(changes in prop::collection::vec((0u8..4, prop::collection::vec(vip(), 0..3)), 1..30), batch in 1usize..4, ips in 1usize..5) {
        let all = [address(false, 1), address(true, 1), address(false, 9), address(true, 9)];
        let context = NetworkContext { node_ips: all[..ips].to_vec(), masquerade_all: false };
        let (mut table, mut kernel) = (Table::default(), BTreeMap::new());
        let mut programmed = Programmed::of(&table, context.clone());
        for chunk in changes.chunks(batch) {
            let mut dirty = BTreeSet::new();
            for (name, vips) in chunk {
                let changed = table.set_service(&Key::new("ns", name.to_string()), vips.clone());
                dirty.extend(changed.into_iter().map(|change| change.key));
            }
            apply(&mut kernel, &programmed.delta(&table, &dirty));
            programmed.take(&table, &dirty);
            let full: BTreeMap<_, _> = all_elements(&table, &context).into_iter().flat_map(|(set, items)| items.into_iter().map(move |(key, data)| ((set, key), data))).collect();
            prop_assert_eq!(&kernel, &full);
            prop_assert!(programmed.delta(&table, &dirty).is_empty());
        }
    }
}

#[test]
fn full_pass_removes_foreign_elements() {
    let key = |n: u8| ElementKey::of(&[10, 96, 0, n]).unwrap();
    let data = |n: u8| ElementData::of(&[n]).unwrap();
    let mut delta = Delta::default();
    let set = Role::Vips.of(IpFamily::V4);
    delta.compare(set, vec![(key(1), data(7)), (key(2), data(1)), (key(3), data(1))], vec![(key(2), data(1)), (key(3), data(2)), (key(4), data(1))]);
    assert_eq!(delta.remove[&set], [(key(1), data(7)), (key(3), data(1))], "changed data is removed and added");
    assert_eq!(delta.add[&set], [(key(3), data(2)), (key(4), data(1))]);
    assert_eq!(delta.len(), 4);
}
