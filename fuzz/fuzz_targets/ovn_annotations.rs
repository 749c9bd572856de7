//! What a pod's annotations say of its network on OVN: today's form and, behind a line's end, that of 2017 and 2018.

#![no_main]

use std::collections::BTreeMap;

use cni::ovn::PodNetwork;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let names = ["k8s.ovn.org/pod-networks", "ovn"];
    let annotations: BTreeMap<String, String> = names.iter().map(|name| (*name).to_owned()).zip(text.splitn(2, '\n').map(str::to_owned)).collect();
    let without_today = annotations.iter().filter(|(name, _)| *name == "ovn").map(|(name, text)| (name.clone(), text.clone())).collect();
    for annotations in [&annotations, &without_today] {
        if let Ok(Some(network)) = PodNetwork::read(annotations) {
            assert!(!network.addresses.is_empty() && network.mac[0] & 1 == 0 && network.mac != [0; 6]);
            assert!(network.gateways.iter().all(|gateway| !gateway.is_unspecified() && !gateway.is_multicast()));
            assert!(network.routes.iter().all(|(to, by)| to.addr().is_ipv4() == by.is_ipv4() && to.trunc() == *to));
        }
    }
});
