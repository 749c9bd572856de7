//! Lists of nodes and ranges of ports as the command line takes them.

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use node_config::PortRange;

fuzz_target!(|text: &str| {
    match node_config::node_spec::parse_list(text) {
        Ok(nodes) => {
            let names: BTreeSet<_> = nodes.iter().map(|node| &node.name).collect();
            assert_eq!(names.len(), nodes.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(range) = text.parse::<PortRange>() {
        assert_eq!(range.to_string().parse(), Ok(range));
    }
});
