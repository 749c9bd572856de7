use super::*;

fn table() -> Names {
    let mut names = Names::new("cluster.local").unwrap();
    names.set_namespace("shop", true);
    let port = |name: &str, number| Port { name: name.into(), protocol: "TCP".into(), number };
    let web = ServiceRow { target: Target::Addresses(vec!["10.96.0.20".parse().unwrap()]), ports: vec![port("http", 80)] };
    names.set_service(&Key::new("shop", "web"), Some(&web), &[]);
    let db = ServiceRow { target: Target::Endpoints, ports: vec![] };
    let endpoint = |address: &str, hostname: Option<&str>| Endpoint { address: address.parse().unwrap(), hostname: hostname.map(str::to_owned) };
    let slice = SliceRow {
        service: "db".into(),
        ports: vec![port("sql", 1433)],
        endpoints: vec![endpoint("192.168.1.4", Some("db-0")), endpoint("192.168.2.5", None)],
    };
    names.set_service(&Key::new("shop", "db"), Some(&db), &[Arc::new(slice)]);
    let old = ServiceRow { target: Target::Alias("legacy.example.com".into()), ports: vec![] };
    names.set_service(&Key::new("shop", "old"), Some(&old), &[]);
    names
}

fn show(names: &Names, name: &str) -> String {
    match names.lookup(&Name::from_ascii(name).unwrap()) {
        Lookup::Foreign => "foreign".into(),
        Lookup::Absent => "absent".into(),
        Lookup::Records(records) => {
            let each = records.iter().map(|data| match data {
                Data::Address(address) => address.to_string(),
                Data::Service { port, weight, target } => format!("{weight} {port} {target}"),
                Data::Alias(name) | Data::Pointer(name) | Data::Server(name) => name.to_string(),
                Data::Text(text) => (*text).to_owned(),
            });
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn names_of_every_form_resolve() {
    let names = table();
    for (name, expected) in [
        ("web.shop.svc.cluster.local.", "10.96.0.20, 100 80 web.shop.svc.cluster.local."),
        ("WEB.Shop.SVC.Cluster.Local.", "10.96.0.20, 100 80 web.shop.svc.cluster.local."),
        ("_http._tcp.web.shop.svc.cluster.local.", "100 80 web.shop.svc.cluster.local."),
        ("_tcp.web.shop.svc.cluster.local.", ""),
        ("_https._tcp.web.shop.svc.cluster.local.", "absent"),
        ("db-0.db.shop.svc.cluster.local.", "192.168.1.4"),
        ("192-168-2-5.db.shop.svc.cluster.local.", "192.168.2.5"),
        ("_sql._tcp.db.shop.svc.cluster.local.", "50 1433 db-0.db.shop.svc.cluster.local., 50 1433 192-168-2-5.db.shop.svc.cluster.local."),
        ("old.shop.svc.cluster.local.", "legacy.example.com."),
        ("10-1-2-3.shop.pod.cluster.local.", "10.1.2.3"),
        ("fd00--1.shop.pod.cluster.local.", "fd00::1"),
        ("10-1-2.shop.pod.cluster.local.", "absent"),
        ("10-1-2-3.elsewhere.pod.cluster.local.", "absent"),
        ("shop.svc.cluster.local.", ""),
        ("elsewhere.svc.cluster.local.", "absent"),
        ("svc.cluster.local.", ""),
        ("pod.cluster.local.", ""),
        ("cluster.local.", "ns.dns.cluster.local."),
        ("dns-version.cluster.local.", "1.1.0"),
        ("nothing.shop.svc.cluster.local.", "absent"),
        ("web.shop.cluster.local.", "absent"),
        ("20.0.96.10.in-addr.arpa.", "web.shop.svc.cluster.local."),
        ("4.1.168.192.in-addr.arpa.", "db-0.db.shop.svc.cluster.local."),
        ("5.2.168.192.in-addr.arpa.", "192-168-2-5.db.shop.svc.cluster.local."),
        ("168.192.in-addr.arpa.", ""),
        ("9.9.9.9.in-addr.arpa.", "absent"),
        ("example.com.", "foreign"),
        ("notcluster.local.", "foreign"),
        ("local.", "foreign"),
        (".", "foreign"),
    ] {
        assert_eq!(show(&names, name), expected, "{name}");
    }
    let both = show(&names, "db.shop.svc.cluster.local.");
    assert!(both.starts_with("192.168.1.4, 50 1433") && both.contains("192.168.2.5"), "{both}");
}

#[test]
fn names_of_a_deleted_service_are_removed() {
    let mut names = table();
    let web = names.owned[&Key::new("shop", "web")].clone();
    for service in ["web", "db", "old"] {
        names.set_service(&Key::new("shop", service), None, &[]);
    }
    for name in web {
        assert_eq!(show(&names, &format!("{name}.")), "absent", "{name}");
    }
    assert!(names.records.is_empty() && names.below.is_empty() && names.owned.is_empty(), "nothing is left behind: {names:?}");
}

#[test]
fn two_services_may_share_an_address_backwards() {
    let mut names = table();
    let twin = ServiceRow { target: Target::Addresses(vec!["10.96.0.20".parse().unwrap()]), ports: vec![] };
    names.set_service(&Key::new("shop", "twin"), Some(&twin), &[]);
    assert_eq!(show(&names, "20.0.96.10.in-addr.arpa."), "web.shop.svc.cluster.local., twin.shop.svc.cluster.local.");
    names.set_service(&Key::new("shop", "web"), None, &[]);
    assert_eq!(show(&names, "20.0.96.10.in-addr.arpa."), "twin.shop.svc.cluster.local.");
}

#[test]
fn impossible_domains_are_refused() {
    assert!(Names::new("").is_err());
    assert!(Names::new(".").is_err());
    assert!(Names::new("a..b").is_err());
    assert!(Names::new("Cluster.Local.").is_ok());
}
