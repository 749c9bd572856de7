//! Key folding: Go programs match JSON keys without regard to case, so `Nameservers`, `Policies` and `GW` are
//! common in the wild. Only the levels that CNI owns are folded; policy documents stay byte for byte.

use serde_json::{Map, Value};

/// Renames keys of `value` that differ from one of `known` only by case. An exactly spelled key wins over a
/// folded one.
pub(crate) fn fold(value: &mut Value, known: &[&str]) {
    if let Value::Object(map) = value {
        fold_map(map, known);
    }
}

/// As [`fold`], for a map.
pub(crate) fn fold_map(map: &mut Map<String, Value>, known: &[&str]) {
    let renames: Vec<(String, &str)> = map
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
        .filter_map(|key| known.iter().find(|k| k.eq_ignore_ascii_case(key)).map(|k| (key.clone(), *k)))
        .collect();
    for (from, to) in renames {
        let moved = map.shift_remove(&from);
        if let (Some(moved), false) = (moved, map.contains_key(to)) {
            map.insert(to.to_owned(), moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn folds_case_and_keeps_the_exact_spelling() {
        let mut value = json!({"Nameservers": ["1.1.1.1"], "search": ["a"], "Search": ["b"], "other": 1});
        fold(&mut value, &["nameservers", "search"]);
        assert_eq!(value, json!({"search": ["a"], "other": 1, "nameservers": ["1.1.1.1"]}));
    }
}
