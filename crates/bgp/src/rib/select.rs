//! Which of several routes to one prefix is the best: RFC 4271, section 9.1.2.2, with RFC 4456, section 9.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Path;

/// Of routes of other ASes, which carry no preference.
pub(super) const PREFERENCE: u32 = 100;

pub(super) fn best<'a>(paths: impl Iterator<Item = &'a Arc<Path>>) -> Option<Arc<Path>> {
    let all: Vec<&Arc<Path>> = paths.collect();
    let first = |path: &&&Arc<Path>| {
        let attributes = &path.attributes;
        let preference = attributes.local_pref.filter(|_| !path.external).unwrap_or(PREFERENCE);
        (Reverse(preference), attributes.path_length(), attributes.origin)
    };
    let least = all.iter().map(|path| first(&path)).min()?;
    let mut left: Vec<&&Arc<Path>> = all.iter().filter(|path| first(path) == least).collect();
    // Metrics of different neighbours say nothing of each other.
    let worse = |path: &Arc<Path>, than: &Arc<Path>| {
        path.attributes.neighbour() == than.attributes.neighbour() && path.attributes.med.unwrap_or(0) > than.attributes.med.unwrap_or(0)
    };
    let candidates = left.clone();
    left.retain(|path| !candidates.iter().any(|other| worse(path, other)));
    let last = |path: &&&&Arc<Path>| {
        let id = path.attributes.originator.unwrap_or(path.from_id);
        (!path.external, id, path.attributes.clusters.len(), path.from)
    };
    left.iter().min_by_key(last).map(|path| (**path).clone())
}
