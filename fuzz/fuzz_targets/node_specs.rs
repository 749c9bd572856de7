//! Lists of nodes as the command line takes them.

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match node_config::node_spec::parse_list(text) {
        Ok(nodes) => {
            let names: BTreeSet<_> = nodes.iter().map(|node| &node.name).collect();
            assert_eq!(names.len(), nodes.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
