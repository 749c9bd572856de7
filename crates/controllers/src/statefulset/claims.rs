//! Owners of claims, by which the garbage collector deletes them (upstream: `isClaimOwnerUpToDate`, `updateClaimOwnerRefForSetAndPod`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::rows::{Retention, SetView};
use crate::view::controller_reference;

/// A pod whose claims are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfPod<'a> {
    pub name: &'a str,
    /// Empty while it is not created.
    pub uid: &'a str,
    /// Its ordinal is not wanted.
    pub surplus: bool,
}

fn is_pod(owner: &OwnerReference, pod: OfPod<'_>) -> bool {
    (owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str()) == ("v1", "Pod", pod.name)
}

fn is_set(owner: &OwnerReference, set: &SetView) -> bool {
    (owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str()) == ("apps/v1", "StatefulSet", set.name.as_str())
}

/// The claim belongs to an earlier pod of this name and goes with it.
pub(super) fn is_stale(owners: &[OwnerReference], pod: OfPod<'_>) -> bool {
    owners.iter().find(|owner| is_pod(owner, pod)).is_some_and(|owner| owner.uid != pod.uid)
}

/// Another controller keeps the claim, though our policy wants to.
pub(super) fn is_contested(owners: &[OwnerReference], set: &SetView, pod: OfPod<'_>) -> bool {
    if set.retention == Retention::default() {
        return false;
    }
    owners.iter().any(|owner| {
        if is_set(owner, set) {
            owner.uid != set.uid
        } else if is_pod(owner, pod) {
            owner.uid != pod.uid
        } else {
            owner.controller == Some(true)
        }
    })
}

/// The owners that the policy asks for.
pub(super) fn policy_owner(set: &SetView, pod: OfPod<'_>) -> Option<OwnerReference> {
    let Retention { delete_with_set, delete_with_pod } = set.retention;
    if delete_with_pod && pod.surplus {
        return Some(controller_reference("v1", "Pod", pod.name, pod.uid));
    }
    delete_with_set.then(|| controller_reference("apps/v1", "StatefulSet", &set.name, &set.uid))
}

/// The owners that the claim should have, if it has others.
pub(super) fn new_owners(owners: &[OwnerReference], set: &SetView, pod: OfPod<'_>) -> Option<Vec<OwnerReference>> {
    let stale_set = owners.iter().find(|owner| is_set(owner, set)).is_some_and(|owner| owner.uid != set.uid);
    if stale_set || is_stale(owners, pod) {
        // An earlier StatefulSet's claim, which the garbage collector sees to.
        return None;
    }
    let ours = |owner: &OwnerReference| owner.uid == set.uid || (owner.uid == pod.uid && !pod.uid.is_empty());
    let mut wanted: Vec<OwnerReference> = owners.iter().filter(|owner| !is_set(owner, set) && !is_pod(owner, pod)).cloned().collect();
    if is_contested(owners, set, pod) {
        return owners.iter().any(ours).then_some(wanted);
    }
    let policy = policy_owner(set, pod);
    let is_right = |owner: &OwnerReference| owner.controller == Some(true) && policy.as_ref().is_some_and(|wanted| wanted.uid == owner.uid);
    let present: Vec<&OwnerReference> = owners.iter().filter(|owner| ours(owner)).collect();
    if present.len() == usize::from(policy.is_some()) && present.into_iter().all(is_right) {
        return None;
    }
    wanted.extend(policy);
    Some(wanted)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;

    use super::*;

    #[test]
    fn owners_follow_the_policy() {
        let set_owner = || controller_reference("apps/v1", "StatefulSet", "web", "set");
        let pod_owner = || controller_reference("v1", "Pod", "web-1", "pod");
        let plain = |mut owner: OwnerReference| {
            owner.controller = None;
            owner
        };
        let other = || controller_reference("v1", "Pod", "web-1", "earlier");
        let foreign = || controller_reference("example.com/v1", "Database", "db", "db");
        for (what, with_set, with_pod, surplus, owners, expected) in [
            ("kept", false, false, false, vec![], None),
            ("kept from now on", false, false, false, vec![set_owner()], Some(vec![])),
            ("goes with the set", true, false, false, vec![], Some(vec![set_owner()])),
            ("does already", true, false, false, vec![set_owner()], None),
            ("as controller", true, false, false, vec![plain(set_owner())], Some(vec![set_owner()])),
            ("with the pod, when that goes", false, true, false, vec![], None),
            ("with the pod, which goes", false, true, true, vec![], Some(vec![pod_owner()])),
            ("the pod came back", false, true, false, vec![pod_owner()], Some(vec![])),
            ("both, wanted", true, true, false, vec![pod_owner()], Some(vec![set_owner()])),
            ("both, not wanted", true, true, true, vec![set_owner()], Some(vec![pod_owner()])),
            ("both, done", true, true, true, vec![pod_owner()], None),
            ("an earlier pod's", true, true, false, vec![other()], None),
            ("someone else's", true, false, false, vec![foreign()], None),
            ("someone else's and ours", true, false, false, vec![foreign(), set_owner()], Some(vec![foreign()])),
            ("another owner stays", true, false, false, vec![plain(foreign())], Some(vec![plain(foreign()), set_owner()])),
        ] {
            let mut set = SetView::new(&StatefulSet::default(), &Default::default());
            (set.name, set.uid) = ("web".into(), "set".into());
            set.retention = Retention { delete_with_set: with_set, delete_with_pod: with_pod };
            let pod = OfPod { name: "web-1", uid: "pod", surplus };
            assert_eq!(new_owners(&owners, &set, pod), expected, "{what}");
            assert_eq!(is_stale(&owners, pod), what == "an earlier pod's", "{what}");
        }
    }
}
