//! Schemas of custom resources: any definition is judged, and what it accepts prunes and defaults the same way twice.

#![no_main]

use crd::definition::{set_defaults, validate};
use crd::resource::Version;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|input: (&str, &str)| {
    let (Ok(schema), Ok(object)) = (serde_json::from_str::<Value>(input.0), serde_json::from_str::<Value>(input.1)) else {
        return;
    };
    let mut definition = json!({
        "metadata": {"name": "as.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "as", "kind": "A"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    set_defaults(&mut definition);
    if !validate(&definition, None).is_empty() {
        return;
    }
    let version = Version::all(&definition).remove(0);
    let mut once = object;
    version.decode(&mut once);
    let mut twice = once.clone();
    assert!(version.decode(&mut twice).is_empty());
    assert_eq!(once, twice);
    let _ = version.validate(&once);
    let _ = version.validate_update(&once, &once);
});
