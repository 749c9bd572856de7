//! Configuration files of nodes, their drop-ins, and command lines of kubelet and kube-proxy: what is read is written so that it reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use node_config::kube_proxy::flags::Options;
use node_config::kubelet::EvictionHard;
use node_config::kubelet::drop_ins::{self, DropIn};
use node_config::node::flags::{self, Program};
use node_config::{KubeProxyConfiguration, KubeletConfiguration, NodeConfig, document};

fuzz_target!(|text: &str| {
    if let Ok(parsed) = NodeConfig::read(text) {
        let again = NodeConfig::read(&parsed.config.to_yaml()).expect("a configuration that was written can be read");
        assert_eq!(again.config, parsed.config);
        assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    }
    // Not with a file: a name in the input would be read.
    let flags = text.split_whitespace().filter(|flag| !flag.contains("config")).map(str::to_owned);
    if let Ok(options) = flags::Options::parse(Program::Node, flags.clone()) {
        // A flag's zero is a value, and a member's the default: what is written is read, but may mean the default.
        NodeConfig::read(&options.config.to_yaml()).expect("a configuration of flags can be read");
    }
    // The parts of the text as files, one merged into the other.
    let files: Vec<_> = text.split("%%").map(|text| DropIn { path: "fuzz.conf".into(), text: text.to_owned() }).collect();
    if let Ok(merged) = drop_ins::merge(None, &files, &EvictionHard::default())
        && let Ok(parsed) = document::read::<KubeletConfiguration>(&merged)
    {
        let again = document::read::<KubeletConfiguration>(&document::to_document(&parsed.config)).expect("a merged configuration can be read");
        assert_eq!(again.config, parsed.config);
    }
    if let Ok(options) = Options::parse(flags) {
        let written = document::to_yaml(&options.config);
        document::read_text::<KubeProxyConfiguration>(&written).expect("a configuration that was written can be read");
    }
});
