//! Answers of webhooks: any bytes are an answer or an error, and a patch leaves an object or an error within bounds.

#![no_main]

use admission::json_patch::Patch;
use admission::webhook::{Version, parse_response};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|input: (&[u8], &[u8])| {
    for version in [Version::V1, Version::V1beta1] {
        for mutating in [true, false] {
            if let Ok(response) = parse_response(input.0, version, "u", mutating) {
                assert!(mutating || response.patch.is_empty());
            }
        }
    }
    let Ok(patch) = Patch::parse(input.1) else { return };
    let document = json!({"a": [0, {"b": "c"}], "d": {"e~/": null}});
    if let Ok(patched) = patch.apply(&document) {
        // What was applied can be written and read again.
        let text = patched.to_string();
        assert!(text.len() < (8 << 20) + input.1.len());
        assert_eq!(patch.apply(&document).map(|again| again.to_string()), Ok(text));
    }
});
