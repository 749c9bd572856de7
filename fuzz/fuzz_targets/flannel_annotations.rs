//! What other nodes announce of their tunnels: a line each for backend, data and address.

#![no_main]

use std::collections::BTreeMap;

use fabric::flannel::{Announcement, announce_vxlan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let values = text.splitn(3, '\n');
    let names = ["backend-type", "backend-data", "public-ip"].map(|name| format!("flannel.alpha.coreos.com/{name}"));
    let annotations: BTreeMap<String, String> = names.into_iter().zip(values.map(str::to_owned)).collect();
    if let Announcement::Vxlan { vni, mac: Some(mac), public_ip } = Announcement::read(&annotations) {
        assert!((1..1 << 24).contains(&vni) && mac.0[0] & 1 == 0 && mac.0 != [0; 6]);
        if let Some(ip) = public_ip {
            assert!(!ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified());
            assert_eq!(Announcement::read(&announce_vxlan(vni, mac, ip)), Announcement::Vxlan { vni, mac: Some(mac), public_ip });
        }
    }
});
