//! Calico's configuration of BGP: a line each for an annotation's value and a selector, then the JSON of a resource's spec.

#![no_main]

use std::collections::BTreeMap;

use fabric::calico::{Announced, Configuration, Pool, ResourcePeer, Selector, announce, as_number};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let (value, selector, spec) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let names = ["IPv4Address", "IPv6Address", "ASNumber", "RouteReflectorClusterID"];
    let annotations: BTreeMap<String, String> = names.map(|name| (format!("projectcalico.org/{name}"), value.to_owned())).into();
    let announced = Announced::read(&annotations);
    let addresses: Vec<_> = [announced.ipv4, announced.ipv6].into_iter().flatten().collect();
    let written = Announced::read(&announce(&addresses, announced.asn));
    assert!(announced.says(&written) && written.asn == announced.asn && written.ipv4 == announced.ipv4 && written.ipv6 == announced.ipv6);
    assert_ne!(as_number(value), Some(0));
    if let Ok(selector) = Selector::parse(selector) {
        selector.selects(&BTreeMap::from([("rack".to_owned(), "a".to_owned())]));
    }
    if let Ok(spec) = serde_json::from_str(spec) {
        let _ = (ResourcePeer::read(&spec), Pool::read(&spec));
        assert_ne!(Configuration::read(&spec).port, 0);
    }
});
