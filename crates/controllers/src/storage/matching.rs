//! Matching of volumes to claims: pure (upstream: `component-helpers/storage/volume` `FindMatchingVolume`, `checkVolumeSatisfyClaim`).

use std::{collections::HashSet, sync::Arc};

use cluster::Key;

use super::rows::{ClaimRow, VolumeRow};
use kube_rules::Labels;

/// A volume and its name.
pub(crate) type Named = (Key, Arc<VolumeRow>);

/// Where a volume is looked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    Anywhere,
    /// Only a volume reserved for the claim counts: the scheduler will choose among others.
    Reserved,
    /// On a node with these labels.
    Node(&'a Labels),
}

/// The best volume for a claim: one reserved for it, else the smallest of those with the fewest access modes.
pub(crate) fn find<'a>(key: &Key, claim: &ClaimRow, volumes: &'a [Named], place: Place<'_>, taken: &HashSet<String>) -> Option<&'a Named> {
    let has_modes = |volume: &VolumeRow| claim.modes.iter().all(|mode| volume.modes.contains(mode));
    let reaches = |volume: &VolumeRow| !matches!(place, Place::Node(labels) if !volume.reaches(labels));
    let possible = |(name, volume): &&Named| {
        !taken.contains(&name.name) && !volume.deleting && volume.mode == claim.mode && volume.size >= claim.size && has_modes(volume)
    };
    if let Some(reserved) = volumes.iter().filter(possible).find(|(_, volume)| volume.is_for(key, claim)) {
        return reaches(&reserved.1).then_some(reserved);
    }
    if matches!(place, Place::Reserved) {
        return None;
    }
    let free = |(_, volume): &&Named| {
        volume.claim.is_none()
            && claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels))
            && volume.class == claim.class
            && reaches(volume)
    };
    volumes.iter().filter(possible).filter(free).min_by_key(|(name, volume)| (volume.modes.len(), volume.size, name.clone()))
}

/// Why a volume that a claim asks for by name does not suit it.
pub(crate) fn mismatch(claim: &ClaimRow, volume: &VolumeRow) -> Option<&'static str> {
    if volume.size < claim.size {
        Some("requested PV is too small")
    } else if volume.class != claim.class {
        Some("storageClassName does not match")
    } else if volume.mode != claim.mode {
        Some("incompatible volumeMode")
    } else if !claim.modes.iter().all(|mode| volume.modes.contains(mode)) {
        Some("incompatible accessMode")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

    use super::*;
    use crate::storage::{
        rows::ClaimRef,
        testing::{claim, volume},
    };
    use kube_rules::NodeTerm;

    #[test]
    fn smallest_matching_volume_is_found() {
        let on_win01 = || {
            let hostname = NodeSelectorRequirement { key: "host".into(), operator: "In".into(), values: Some(vec!["win01".into()]) };
            Some(vec![NodeTerm::new(&NodeSelectorTerm { match_expressions: Some(vec![hostname]), match_fields: None })].into())
        };
        let reserved = |name: &str, uid: &str| Some(ClaimRef { key: Key::new("a", name), uid: uid.into() });
        let (win01, win02) = (Labels::from([("host".into(), "win01".into())]), Labels::from([("host".into(), "win02".into())]));
        let all = [
            volume("small", |row| row.size = 1),
            volume("large", |row| row.size = 50),
            volume("fits", |row| row.size = 10),
            volume("many", |row| {
                row.size = 10;
                row.modes.push("ReadWriteMany".into());
            }),
            volume("local", |row| {
                row.class = "local".into();
                row.affinity = on_win01();
            }),
            volume("kept", |row| {
                row.size = 100;
                row.claim = reserved("vip", "");
            }),
            volume("other", |row| row.claim = reserved("data", "someone")),
            volume("going", |row| row.deleting = true),
            volume("labelled", |row| {
                row.size = 100;
                row.labels.insert("tier".into(), "gold".into());
            }),
        ];
        let gold = Selector::from_labels(&Labels::from([("tier".into(), "gold".into())]));
        use kube_rules::Selector;
        let none = HashSet::new();
        for (what, name, row, place, expected) in [
            ("the smallest that is large enough", "data", claim(|row| row.size = 5), Place::Anywhere, Some("fits")),
            ("more modes only if they are needed", "data", claim(|row| row.modes = vec!["ReadWriteMany".into()]), Place::Anywhere, Some("many")),
            ("none is large enough", "data", claim(|row| row.size = 500), Place::Anywhere, None),
            ("its labels", "data", claim(|row| row.selector = Some(gold.clone())), Place::Anywhere, Some("labelled")),
            ("the one reserved for it", "vip", claim(|_| {}), Place::Anywhere, Some("kept")),
            ("nothing else before there is a pod", "data", claim(|_| {}), Place::Reserved, None),
            ("but what is reserved", "vip", claim(|_| {}), Place::Reserved, Some("kept")),
            ("its class, on the right node", "data", claim(|row| row.class = "local".into()), Place::Node(&win01), Some("local")),
            ("not on another", "data", claim(|row| row.class = "local".into()), Place::Node(&win02), None),
            ("no class of that name", "data", claim(|row| row.class = "fast".into()), Place::Anywhere, None),
            ("another mode", "data", claim(|row| row.mode = "Block".into()), Place::Anywhere, None),
        ] {
            let found = find(&Key::new("a", name), &row, &all, place, &none).map(|(name, _)| name.name.as_str());
            assert_eq!(found, expected, "{what}");
        }
        let taken = HashSet::from(["fits".to_owned()]);
        let found = find(&Key::new("a", "data"), &claim(|row| row.size = 5), &all, Place::Anywhere, &taken);
        assert_eq!(found.unwrap().0.name, "large", "what is taken is left out");
    }

    #[test]
    fn mismatch_of_a_named_volume_is_reported() {
        for (row, expected) in [
            (claim(|_| {}), None),
            (claim(|row| row.size = 1000), Some("requested PV is too small")),
            (claim(|row| row.class = "fast".into()), Some("storageClassName does not match")),
            (claim(|row| row.mode = "Block".into()), Some("incompatible volumeMode")),
            (claim(|row| row.modes = vec!["ReadOnlyMany".into()]), Some("incompatible accessMode")),
        ] {
            assert_eq!(mismatch(&row, &volume("v", |_| {}).1), expected);
        }
    }
}
