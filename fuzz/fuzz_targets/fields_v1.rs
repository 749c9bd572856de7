//! fieldsV1: whatever is read is written so that it reads the same.

#![no_main]

use kube_schema::set::FieldSet;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Ok(fields) = serde_json::from_slice::<Value>(data) else { return };
    match FieldSet::from_json(&fields) {
        Ok(set) => {
            assert_eq!(FieldSet::from_json(&set.to_json()).as_ref(), Ok(&set));
            assert!(set.difference(&set).is_empty());
            assert_eq!(set.union(&set), set);
            assert_eq!(set.intersection(&set), set);
            assert!(set.paths().iter().all(|path| set.has(path)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
