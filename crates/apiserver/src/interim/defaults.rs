pub fn apply(_: &crate::kinds::KindInfo, _: &mut serde_json::Value) {}
