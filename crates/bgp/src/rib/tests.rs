//! Tests of the tables: which route is the best, and who is told what.

use super::*;
use crate::wire::{Reach, Segment};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn path(change: impl FnOnce(&mut Path)) -> Arc<Path> {
    let attributes = Attributes { as_path: vec![Segment::Sequence(vec![64600])], local_pref: Some(100), ..Attributes::default() };
    let mut path =
        Path { attributes, next_hop: ip("10.0.0.9"), from: ip("10.0.0.9"), from_id: "10.0.0.9".parse().unwrap(), external: false, client: false };
    change(&mut path);
    Arc::new(path)
}

#[test]
fn rules_decide_in_their_order() {
    // Each is better than the one before, whatever else they say.
    let mut ladder = vec![
        path(|path| path.from = ip("10.0.0.10")),
        path(|_| {}),
        path(|path| path.from_id = "10.0.0.8".parse().unwrap()),
        path(|path| path.attributes.originator = "10.0.0.7".parse().ok()),
        path(|path| (path.external, path.attributes.med) = (true, Some(0))),
    ];
    ladder.insert(0, path(|path| (path.from, path.attributes.clusters) = (ip("10.0.0.9"), vec!["1.1.1.1".parse().unwrap()])));
    ladder.insert(0, path(|path| path.attributes.med = Some(1)));
    ladder.insert(0, path(|path| path.attributes.origin = 2));
    ladder.insert(0, path(|path| path.attributes.as_path = vec![Segment::Sequence(vec![64600, 1])]));
    ladder.insert(0, path(|path| path.attributes.local_pref = Some(99)));
    ladder.push(path(|path| path.attributes.local_pref = Some(101)));
    for pair in ladder.windows(2) {
        let better = Some(pair[1].clone());
        assert_eq!(select::best(pair.iter()), better);
        assert_eq!(select::best(pair.iter().rev()), better, "whatever the order");
    }
}

#[test]
fn metrics_of_different_neighbours_are_not_compared() {
    let other = path(|path| (path.attributes.med, path.attributes.as_path) = (Some(9), vec![Segment::Sequence(vec![64700])]));
    let low = path(|path| (path.attributes.med, path.from_id) = (Some(1), "10.0.0.99".parse().unwrap()));
    assert_eq!(select::best([&low, &other].into_iter()), Some(other.clone()));
}

fn rules() -> Rules {
    Rules {
        peer: ip("10.0.0.5"),
        peer_id: "10.0.0.5".parse().unwrap(),
        external: false,
        client: false,
        keep_next_hop: false,
        asn: 64512,
        cluster: None,
        local_pref: 200,
        next_hop_v4: Some(ip("10.0.0.1")),
        next_hop_v6: None,
        forward: vec![net("192.168.0.0/16")],
    }
}

#[test]
fn own_routes_are_told_as_ours() {
    let inside = rules().own(&net("192.168.1.0/24")).unwrap();
    assert_eq!((inside.next_hop, inside.attributes.local_pref, inside.attributes.path_length()), (ip("10.0.0.1"), Some(200), 0));
    let outside = Rules { external: true, ..rules() }.own(&net("192.168.1.0/24")).unwrap();
    assert_eq!(
        (outside.attributes.local_pref, outside.attributes.med, outside.attributes.as_path),
        (None, Some(0), vec![Segment::Sequence(vec![64512])])
    );
    assert_eq!(rules().own(&net("fd00::/64")), None, "there is no next hop of that family");
}

#[test]
fn reflectors_alone_pass_on_inside_the_as() {
    let prefix = net("192.168.1.0/24");
    let cluster = "1.1.1.1".parse().ok();
    let inside = path(|path| path.attributes.as_path.clear());
    assert_eq!(tell(&rules(), &prefix, &inside), None);
    assert_eq!(tell(&Rules { cluster, ..rules() }, &prefix, &inside), None, "between two that are no clients");
    let told = tell(&Rules { cluster, client: true, ..rules() }, &prefix, &inside).unwrap();
    assert_eq!(told.next_hop, inside.next_hop, "packets do not pass the reflector");
    assert_eq!((told.attributes.originator, told.attributes.clusters), ("10.0.0.9".parse().ok(), vec!["1.1.1.1".parse().unwrap()]));
    let of_client = path(|path| path.client = true);
    assert!(tell(&Rules { cluster, ..rules() }, &prefix, &of_client).is_some());
    let back = path(|path| (path.client, path.attributes.originator) = (true, "10.0.0.5".parse().ok()));
    assert_eq!(tell(&Rules { cluster, client: true, ..rules() }, &prefix, &back), None, "not to where it comes from");
    assert_eq!(tell(&Rules { cluster, peer: ip("10.0.0.9"), ..rules() }, &prefix, &of_client), None);
}

#[test]
fn routes_pass_between_ases() {
    let prefix = net("192.168.1.0/24");
    let outside = path(|path| (path.external, path.attributes.local_pref) = (true, Some(7)));
    let told = tell(&rules(), &prefix, &outside).unwrap();
    assert_eq!((told.next_hop, told.attributes.local_pref), (ip("10.0.0.1"), Some(100)), "what another AS prefers counts for nothing");
    let told = tell(&Rules { external: true, ..rules() }, &prefix, &outside).unwrap();
    assert_eq!(told.attributes.as_path, [Segment::Sequence(vec![64512, 64600])]);
    assert_eq!((told.attributes.local_pref, told.attributes.med, told.next_hop), (None, Some(100), ip("10.0.0.1")));
    let kept = tell(&Rules { external: true, keep_next_hop: true, ..rules() }, &prefix, &outside).unwrap();
    assert_eq!(kept.next_hop, ip("10.0.0.9"));
    assert!(!rules().forwards(&net("10.9.0.0/16")) && rules().forwards(&prefix));
}

fn source(last: u8) -> Source {
    Source { peer: IpAddr::from([10, 0, 0, last]), id: [10, 0, 0, last].into(), external: false, client: false }
}

fn limits() -> Limits {
    Limits {
        asn: 64512,
        id: "10.0.0.1".parse().unwrap(),
        cluster: "1.1.1.1".parse().ok(),
        own_as_allowed: 0,
        own_addresses: vec![ip("10.0.0.1")],
        families: [Family::V4].into(),
        most: 3,
    }
}

fn announce(prefixes: &[&str], next_hop: &str) -> Update {
    let reach = Reach { next_hop: ip(next_hop), prefixes: prefixes.iter().map(|prefix| net(prefix)).collect() };
    Update { announced: vec![reach], ..Update::default() }
}

#[test]
fn routes_that_cannot_be_are_not_taken_and_withdraw_what_was_there() {
    let prefix = "192.168.1.0/24";
    let (mut rib, good) = (Rib::default(), announce(&[prefix], "10.0.0.9"));
    let with = |change: fn(&mut Attributes)| {
        let mut update = good.clone();
        change(&mut update.attributes);
        update
    };
    let bad = [
        announce(&[prefix], "10.0.0.1"),
        announce(&[prefix], "0.0.0.0"),
        announce(&[prefix], "224.0.0.1"),
        announce(&[prefix], "fd00::1"),
        with(|attributes| attributes.prepend(64512)),
        with(|attributes| attributes.originator = "10.0.0.1".parse().ok()),
        with(|attributes| attributes.clusters = vec!["2.2.2.2".parse().unwrap(), "1.1.1.1".parse().unwrap()]),
    ];
    for update in bad {
        assert_eq!(rib.update(&source(9), &limits(), good.clone()).unwrap(), [net(prefix)].into());
        assert_eq!(rib.update(&source(9), &limits(), update.clone()).unwrap(), [net(prefix)].into(), "{update:?}");
        assert!(rib.best().is_empty());
    }
    let own_as = with(|attributes| attributes.prepend(64512));
    assert_eq!(rib.update(&source(9), &Limits { own_as_allowed: 1, ..limits() }, own_as).unwrap().len(), 1);
    let from_outside = with(|attributes| (attributes.originator, attributes.local_pref) = ("10.0.0.1".parse().ok(), Some(7)));
    assert_eq!(rib.update(&Source { external: true, ..source(9) }, &limits(), from_outside).unwrap().len(), 1);
    let held = &rib.best()[&net(prefix)].attributes;
    assert_eq!((held.originator, held.local_pref), (None, None), "another AS says nothing of the inside of ours");
    let too_many = announce(&["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"], "10.0.0.9");
    assert_eq!(rib.update(&source(9), &limits(), too_many), Err(TooMany(3)));
}

#[test]
fn stale_routes_stay_until_the_peer_has_told_everything() {
    let (mut rib, both) = (Rib::default(), [Family::V4].into());
    let second = std::time::Duration::from_secs(1);
    rib.update(&source(9), &limits(), announce(&["192.168.1.0/24", "192.168.2.0/24"], "10.0.0.9")).unwrap();
    assert!(rib.lost(ip("10.0.0.9"), &both, second * 60).is_empty());
    assert_eq!((rib.best().len(), rib.deadline()), (2, Some(second * 60)));
    assert!(rib.returned(ip("10.0.0.9"), &both, second * 300).is_empty());
    assert!(rib.update(&source(9), &limits(), announce(&["192.168.1.0/24"], "10.0.0.9")).unwrap().is_empty(), "nothing changes for packets");
    let end = Update { end_of_rib: Some(Family::V4), ..Update::default() };
    assert_eq!(rib.update(&source(9), &limits(), end).unwrap(), [net("192.168.2.0/24")].into(), "what it did not tell again goes");
    assert_eq!((rib.best().len(), rib.deadline()), (1, None));

    rib.lost(ip("10.0.0.9"), &both, second * 60);
    assert!(rib.expire(second * 59).is_empty());
    assert_eq!(rib.expire(second * 60), [net("192.168.1.0/24")].into());

    rib.update(&source(9), &limits(), announce(&["192.168.1.0/24"], "10.0.0.9")).unwrap();
    rib.lost(ip("10.0.0.9"), &both, second * 60);
    assert_eq!(rib.returned(ip("10.0.0.9"), &BTreeSet::new(), second * 300).len(), 1, "it did not forward meanwhile");
    rib.update(&source(9), &limits(), announce(&["192.168.1.0/24"], "10.0.0.9")).unwrap();
    assert_eq!(rib.lost(ip("10.0.0.9"), &BTreeSet::new(), second).len(), 1);
    assert!(rib.best().is_empty());
}

#[test]
fn own_prefixes_are_never_learned() {
    let mut rib = Rib::default();
    rib.update(&source(9), &limits(), announce(&["192.168.1.0/24"], "10.0.0.9")).unwrap();
    assert_eq!(rib.set_own([net("192.168.1.0/24")].into()), [net("192.168.1.0/24")].into());
    assert!(rib.best().is_empty());
    rib.set_own(BTreeSet::new());
    assert_eq!(rib.best().len(), 1);
}
