//! flannel's net-conf.json: what is read is something that Windows nodes can have.

#![no_main]

use fabric::flannel::{Backend, NetConf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(conf) = NetConf::parse(data) else { return };
    assert!(conf.network.addr().is_ipv4() && conf.network == conf.network.trunc());
    if let Backend::Vxlan(vxlan) = conf.backend {
        assert!((4096..=65_535).contains(&vxlan.vni) && vxlan.port == 4789 && vxlan.mtu != Some(0));
    }
});
