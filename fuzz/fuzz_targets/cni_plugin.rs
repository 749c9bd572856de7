//! Configurations of each CNI plug-in, as a runtime gives them: read, and nothing done.

#![no_main]

use cni::PLUGINS;
use cni::plugin::read_config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for plugin in PLUGINS {
        let _ = read_config(plugin, data);
    }
});
