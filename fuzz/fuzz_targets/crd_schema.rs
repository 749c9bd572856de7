//! Schemas of custom resources: any definition is judged and published, and what it accepts prunes and defaults the same way twice. Answers
//! of conversion webhooks: any document is one or an error, and keeps the objects' names.

#![no_main]

use crd::conversion::response;
use crd::definition::{set_defaults, validate};
use crd::publish::{OpenApi, schema as published};
use crd::resource::Version;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|input: (&str, &str)| {
    let (Ok(schema), Ok(object)) = (serde_json::from_str::<Value>(input.0), serde_json::from_str::<Value>(input.1)) else {
        return;
    };
    for openapi in [OpenApi::V2, OpenApi::V3] {
        let _ = published(&schema, false, openapi);
    }
    let sent = [json!({"apiVersion": "example.com/v1", "kind": "A", "metadata": {"name": "a"}})];
    for version in ["v1", "v1beta1"] {
        if let Ok(objects) = response(&object, version, "u", "example.com/v2", &sent) {
            assert_eq!(objects[0]["metadata"]["name"], "a");
        }
    }
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
    let version = Version::all(&definition).remove(0).compile();
    let mut once = object;
    version.decode(&mut once);
    let mut twice = once.clone();
    assert!(version.decode(&mut twice).is_empty());
    assert_eq!(once, twice);
    let _ = version.validate(&once);
    let _ = version.validate_update(&once, &once);
});
