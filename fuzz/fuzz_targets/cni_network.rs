//! CNI network configurations, with every part a plug-in asks for.

#![no_main]

use cni::spec::{NetworkList, valid_id};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(network) = NetworkList::parse(data) else { return };
    assert!(valid_id(&network.name) && !network.plugins.is_empty());
    for plugin in &network.plugins {
        let _ = (plugin.runtime_config(), plugin.dns(), plugin.prev_result(), plugin.ipam_type(), plugin.has_capability("portMappings"));
    }
});
