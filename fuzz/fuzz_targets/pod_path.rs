//! Paths of pods on both systems: a path that is accepted cannot leave its root and prints as itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use kube_rules::{NodeOs, PodPath};

fuzz_target!(|text: &str| {
    for os in [NodeOs::Linux, NodeOs::Windows { build: 20348 }] {
        if let Ok(path) = PodPath::parse(os, text) {
            for component in path.components() {
                assert!(!component.is_empty() && component != "." && component != ".." && !component.contains('/'), "{component:?}");
                assert!(!os.is_windows() || !component.contains(['\\', ':']), "{component:?}");
            }
            let again = PodPath::parse(os, &path.to_string()).expect("a path that was printed can be read");
            assert_eq!(again, path);
        }
        let root = PodPath::root(os.is_windows().then_some('C'));
        if let Ok(joined) = root.join(text) {
            assert!(joined.starts_with(&root));
        }
    }
});
