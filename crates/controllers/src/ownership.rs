//! Controller references: claim, adopt and release objects (upstream: `pkg/controller/controller_ref_manager.go`).

use std::fmt;

use cluster::{is_conflict, is_not_found};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::view::Controller;

/// Result of a claim on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is ours already.
    Mine,
    /// It has no controller and matches.
    Adopt,
    /// It is ours but matches no longer.
    Release,
    /// It is none of our business.
    Foreign,
}

/// `owner` controls the object now; ours is `uid`; `leaving`: the object or we are being deleted, so nothing is adopted or released.
pub(crate) fn claim(owner: Option<&Controller>, uid: &str, matches: bool, leaving: bool) -> Claim {
    match owner {
        Some(owner) if owner.uid == uid => {
            if matches {
                Claim::Mine
            } else if leaving {
                Claim::Foreign
            } else {
                Claim::Release
            }
        }
        Some(_) => Claim::Foreign,
        None if matches && !leaving => Claim::Adopt,
        None => Claim::Foreign,
    }
}

/// Makes `owner` the controller of an object, unless it was replaced meanwhile.
pub(crate) async fn adopt<K>(api: &Api<K>, name: &str, uid: &str, owner: &OwnerReference) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug,
{
    patch(api, name, json!({"metadata": {"uid": uid, "ownerReferences": [owner]}})).await
}

/// Removes our reference from an object.
pub(crate) async fn release<K>(api: &Api<K>, name: &str, uid: &str, our_uid: &str) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug,
{
    patch(api, name, json!({"metadata": {"uid": uid, "ownerReferences": [{"$patch": "delete", "uid": our_uid}]}})).await
}

async fn patch<K, P>(api: &Api<K>, name: &str, patch: P) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug,
    P: Serialize + fmt::Debug,
{
    match api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        // It went away or is another object now: nothing is left to do.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
        other => other.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims() {
        let ours = Controller { version: "apps/v1".into(), kind: "ReplicaSet".into(), name: "web".into(), uid: "me".into() };
        let theirs = Controller { uid: "other".into(), ..ours.clone() };
        for (owner, matches, leaving, expected) in [
            (Some(&ours), true, false, Claim::Mine),
            (Some(&ours), true, true, Claim::Mine),
            (Some(&ours), false, false, Claim::Release),
            (Some(&ours), false, true, Claim::Foreign),
            (Some(&theirs), true, false, Claim::Foreign),
            (None, true, false, Claim::Adopt),
            (None, true, true, Claim::Foreign),
            (None, false, false, Claim::Foreign),
        ] {
            assert_eq!(claim(owner, "me", matches, leaving), expected, "{owner:?} {matches} {leaving}");
        }
    }
}
