//! Manifests of static pods: what is taken has names that are safe in paths, and the same manifest gives the same pod.

#![no_main]

use kube_rules::static_pod::{Origin, pods};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = serde_json::from_slice(bytes) else { return };
    for origin in [Origin::File("/m/a.yaml"), Origin::Url("http://h/p")] {
        let Ok(all) = pods(&document, origin, "node") else { continue };
        for pod in &all {
            let meta = &pod.metadata;
            for text in [&meta.name, &meta.namespace, &meta.uid].map(|text| text.as_deref().expect("it has a name")) {
                assert!(!text.is_empty() && !text.contains(['/', '\\']) && !text.starts_with('.'), "{text:?}");
            }
        }
        assert_eq!(pods(&document, origin, "node").expect("it was read before"), all);
    }
});
