//! Tests of what is read of Calico's configuration.

use serde_json::json;

use super::*;

fn read(annotations: &[(&str, &str)]) -> Announced {
    Announced::read(&annotations.iter().map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned())).collect())
}

#[test]
fn annotations_are_read_and_written_as_calico_does() {
    let calicos = [("IPv4Address", "10.0.0.1/24"), ("IPv6Address", "fd00::1/64"), ("ASNumber", "64513"), ("RouteReflectorClusterID", "244.0.0.1")];
    let announced = read(&calicos);
    assert_eq!((announced.asn, announced.cluster, announced.unread.len()), (Some(64513), "244.0.0.1".parse().ok(), 0));
    assert_eq!(announced.address("10.9.9.9".parse().unwrap()), "10.0.0.1".parse().ok());
    assert_eq!(announced.address("fd09::".parse().unwrap()), "fd00::1".parse().ok());
    let ours = announce(&["10.0.0.1/24".parse().unwrap(), "fd00::1/64".parse().unwrap()], Some(64513));
    let lines: Vec<String> = ours.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(lines, ["projectcalico.org/ASNumber=64513", "projectcalico.org/IPv4Address=10.0.0.1/24", "projectcalico.org/IPv6Address=fd00::1/64"]);
    assert!(announced.says(&Announced::read(&ours)), "nothing is left to write");
    assert!(!Announced::default().says(&Announced::read(&ours)));
    assert!(announced.says(&Announced::default()));
    assert_eq!(read(&[("ASNumber", "1.10")]).asn, Some(65546));
    assert_eq!(read(&[]), Announced::default());
}

#[test]
fn hostile_annotations_count_as_absent_and_are_named() {
    let hostile = [("IPv4Address", "fd00::1/64"), ("IPv6Address", "::/0"), ("ASNumber", "0"), ("RouteReflectorClusterID", "x")];
    let announced = read(&hostile);
    assert_eq!(announced, Announced { unread: vec!["IPv4Address", "IPv6Address", "ASNumber", "RouteReflectorClusterID"], ..Announced::default() });
    for (name, value) in [
        ("IPv4Address", "127.0.0.1"),
        ("IPv4Address", "0.0.0.0"),
        ("IPv4Address", "10.0.0.1/33"),
        ("IPv4Address", "autodetect"),
        ("ASNumber", "4294967296"),
        ("ASNumber", "1.65536"),
        ("ASNumber", "-1"),
    ] {
        assert_eq!(read(&[(name, value)]).unread, [name], "{value}");
    }
}

#[test]
fn peers_are_read() {
    let peer = |spec| ResourcePeer::read(&spec);
    let router = peer(json!({"peerIP": "10.0.0.1", "asNumber": 64600, "node": "win01", "keepOriginalNextHop": true, "maxRestartTime": "1m30s",
        "numAllowedLocalASNumbers": 2, "password": {"secretKeyRef": {"name": "a", "key": "b"}}, "ttlSecurity": 1}));
    let router = router.unwrap();
    assert_eq!(router.remote, Remote::Address { ip: "10.0.0.1".parse().unwrap(), port: 179, asn: 64600 });
    assert_eq!((router.node.as_deref(), router.keep_next_hop, router.own_as_allowed, router.longest_restart), (Some("win01"), true, 2, Some(90)));
    assert_eq!((router.password, router.unused), (true, vec!["ttlSecurity"]));
    for (text, ip, port) in [("10.0.0.1:1179", "10.0.0.1", 1179), ("fd00::1", "fd00::1", 179), ("[fd00::1]:1179", "fd00::1", 1179)] {
        let read = peer(json!({"peerIP": text, "asNumber": "1.1"})).unwrap();
        assert_eq!(read.remote, Remote::Address { ip: ip.parse().unwrap(), port, asn: 65537 });
    }
    let nodes = peer(json!({"nodeSelector": "!has(rr)", "peerSelector": "has(rr)"})).unwrap();
    assert!(matches!(nodes.remote, Remote::Nodes(_)) && nodes.nodes.selects(&BTreeMap::new()));
    for (spec, reason) in [
        (json!(null), "it has neither peerIP nor peerSelector"),
        (json!({"peerIP": "10.0.0.1", "peerSelector": "all()", "asNumber": 1}), "it has both peerIP and peerSelector"),
        (json!({"peerIP": "10.0.0.1"}), "asNumber is missing, or no AS number"),
        (json!({"peerIP": "127.0.0.1", "asNumber": 1}), "peerIP \"127.0.0.1\" is no address of a host"),
        (json!({"peerIP": "router", "asNumber": 1}), "peerIP \"router\" is no address of a host"),
        (json!({"peerSelector": "a ="}), "peerSelector is no selector: \"=\" was not expected at byte 2"),
        (json!({"peerSelector": "all()", "node": "a", "nodeSelector": "all()"}), "it has both node and nodeSelector"),
    ] {
        assert_eq!(peer(spec).unwrap_err(), reason);
    }
}

#[test]
fn configurations_and_pools_are_read() {
    assert_eq!(Configuration::read(&json!(null)), Configuration::default());
    let read = Configuration::read(&json!({"asNumber": 64513, "nodeToNodeMeshEnabled": false, "listenPort": 1179, "nodeMeshMaxRestartTime": "60s",
        "nodeMeshPassword": {"secretKeyRef": {}}, "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}], "communities": []}));
    let expected = Configuration {
        asn: Some(64513),
        mesh: false,
        port: 1179,
        longest_restart: Some(60),
        mesh_password: true,
        unused: vec!["serviceClusterIPs"],
    };
    assert_eq!(read, expected);
    let pool = |spec| Pool::read(&spec);
    let plain = pool(json!({"cidr": "192.168.0.0/16", "ipipMode": "Never", "vxlanMode": "Never"})).unwrap();
    assert_eq!((plain.tunnel, plain.disabled, plain.silent), (None, false, false));
    assert_eq!(pool(json!({"cidr": "192.168.0.0/16", "ipipMode": "CrossSubnet"})).unwrap().tunnel, Some(("ipipMode", "CrossSubnet".into())));
    assert!(pool(json!({"cidr": "192.168.0.0/16", "disabled": true, "disableBGPExport": true})).is_ok_and(|pool| pool.disabled && pool.silent));
    assert_eq!(pool(json!({})).unwrap_err(), "its cidr is no network");
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_without_harm(text in ".{0,60}") {
        let announced = read(&[("IPv4Address", &text), ("ASNumber", &text), ("RouteReflectorClusterID", &text)]);
        assert!(announced.ipv4.is_none_or(|net| is_host(net.addr())));
        let _ = Selector::parse(&text);
        let _ = ResourcePeer::read(&json!({"peerIP": text, "asNumber": text, "nodeSelector": text, "maxRestartTime": text}));
        let _ = Configuration::read(&json!({"asNumber": text, "nodeMeshMaxRestartTime": text}));
        let _ = Pool::read(&json!({"cidr": text, "ipipMode": text}));
    }
}
