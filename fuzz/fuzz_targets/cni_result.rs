//! CNI results in any version: the current version carries everything that was read.

#![no_main]

use cni::spec::{AddResult, SpecVersion};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(document) = serde_json::from_slice(data) else { return };
    for default in [SpecVersion::V0_1_0, SpecVersion::V0_3_0, SpecVersion::V1_0_0, SpecVersion::CURRENT] {
        let Ok(result) = AddResult::from_json(&document, default) else { continue };
        let printed = result.to_json(SpecVersion::CURRENT);
        let again = AddResult::from_json(&printed, SpecVersion::CURRENT).expect("a result that was printed can be read");
        assert_eq!(again, result, "{printed}");
        for older in [SpecVersion::V0_1_0, SpecVersion::V0_3_0, SpecVersion::V1_0_0] {
            AddResult::from_json(&result.to_json(older), older).expect("an older version's result can be read");
        }
    }
});
