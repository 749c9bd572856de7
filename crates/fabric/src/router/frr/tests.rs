use super::*;

#[test]
fn routes_are_read_from_zebras_table() {
    let text = r#"{"10.240.0.0/24": [{"prefix": "10.240.0.0/24", "protocol": "connected", "selected": true,
            "nexthops": [{"directlyConnected": true, "interfaceIndex": 2, "active": true}]}],
        "192.168.1.0/24": [{"prefix": "192.168.1.0/24", "protocol": "static", "selected": true, "tag": 77,
            "nexthops": [{"ip": "10.240.0.12", "interfaceIndex": 2, "active": true}, {"ip": "10.240.0.13", "interfaceIndex": 2}]},
            {"prefix": "192.168.1.0/24", "protocol": "bgp", "nexthops": [{"ip": "10.240.0.7", "active": true}]}],
        "192.168.2.0/24": [{"prefix": "192.168.2.0/24", "protocol": "static", "selected": true, "tag": 7,
            "nexthops": [{"ip": "10.240.0.14", "interfaceIndex": 2, "active": true}]}],
        "odd": [{"prefix": "x"}, 7], "no list": 1}"#;
    let route = |dst: &str, via: &str, ours| HostRoute { dst: dst.parse().unwrap(), via: via.parse().ok(), oif: 2, on_link: false, metric: 0, ours };
    assert_eq!(
        parse(text).unwrap(),
        [route("10.240.0.0/24", "", false), route("192.168.1.0/24", "10.240.0.12", true), route("192.168.2.0/24", "10.240.0.14", false)]
    );
    assert!(parse("% Unknown command").is_err());
}

#[test]
fn commands_name_family_and_tag() {
    let route = |dst: &str, via: &str| HostRoute { dst: dst.parse().unwrap(), via: via.parse().ok(), oif: 2, on_link: false, metric: 0, ours: true };
    assert_eq!(command("", &route("192.168.1.0/24", "10.240.0.12")).unwrap(), "ip route 192.168.1.0/24 10.240.0.12 tag 77");
    assert_eq!(command("no ", &route("fd00:1::/64", "fd00::12")).unwrap(), "no ipv6 route fd00:1::/64 fd00::12 tag 77");
}
