//! Configuration files of nodes and command lines of kube-proxy: what is read is written so that it reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use node_config::kube_proxy::flags::Options;
use node_config::{KubeProxyConfiguration, NodeConfig, document};

fuzz_target!(|text: &str| {
    if let Ok(parsed) = NodeConfig::read(text) {
        let again = NodeConfig::read(&parsed.config.to_yaml()).expect("a configuration that was written can be read");
        assert_eq!(again.config, parsed.config);
        assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    }
    // Not with a file: a name in the input would be read.
    let flags = text.split_whitespace().filter(|flag| !flag.contains("config")).map(str::to_owned);
    if let Ok(options) = Options::parse(flags) {
        let written = document::to_yaml(&options.config);
        document::read_text::<KubeProxyConfiguration>(&written).expect("a configuration that was written can be read");
    }
});
