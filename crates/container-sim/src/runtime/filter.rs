//! Filters of CRI's list calls: labels, and the beginning of an id.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

/// Whether `labels` hold everything that `selector` asks for.
pub(crate) fn selected<S: BuildHasher>(labels: &HashMap<String, String, S>, selector: &HashMap<String, String, S>) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// The object that an id or its unambiguous beginning means.
pub(crate) fn by_prefix<'a, T>(objects: &'a BTreeMap<String, T>, id: &str) -> Option<&'a T> {
    if id.is_empty() {
        return None;
    }
    let mut found = objects.range(id.to_owned()..).take_while(|(known, _)| known.starts_with(id));
    match (found.next(), found.next()) {
        (Some((known, object)), second) if second.is_none() || known == id => Some(object),
        _ => None,
    }
}
