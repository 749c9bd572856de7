//! Tests of the built-in kinds.

mod defaults;
mod strategy;
mod tables;

use super::*;
use crate::kind::Storage;

#[test]
fn every_kind_is_unique_and_has_its_names() {
    let mut seen = std::collections::HashSet::new();
    for kind in builtin().all() {
        assert!(seen.insert((&kind.group, &kind.version, &kind.plural)), "{} twice", kind.plural);
        assert!(kind.schema_type().unwrap().ends_with(&format!(".{}", kind.kind)), "{kind:?}");
        assert!(!kind.singular.is_empty());
        assert!(kind.verbs.is_sorted() && kind.subresources.iter().all(|subresource| subresource.verbs.is_sorted()), "{kind:?}");
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            // Kept as it comes: crate `crd` names what may not be there.
            assert!(!kind.described_by.is_empty());
        } else if !matches!(kind.storage, Storage::Computed) {
            assert!(crate::schema::types::find(kind.schema_type().unwrap()).is_some(), "{kind:?}");
            assert!(!kind.described_by.is_empty(), "{kind:?} has no schema");
        }
    }
}

#[test]
fn kinds_are_found_by_resource() {
    let found = by_resource("apps", "v1", "deployments").unwrap();
    assert_eq!((found.kind.as_str(), found.api_version().as_str()), ("Deployment", "apps/v1"));
    assert!(by_resource("extensions", "v1beta1", "deployments").is_none());
    assert!(by_resource("authorization.k8s.io", "v1", "subjectaccessreviews").is_none(), "reviews are not stored");
}

#[test]
fn groups_are_in_upstream_s_order() {
    let groups: Vec<&str> = builtin().groups().iter().map(|group| group.name.as_str()).collect();
    assert_eq!(&groups[..2], ["", "apps"]);
    assert_eq!(groups.last(), Some(&"metrics.k8s.io"));
    assert_eq!(builtin().of_group_version("authentication.k8s.io", "v1")[0].singular, "selfsubjectreview");
}

#[test]
fn categories_are_upstream_s() {
    let of = |category: &str| {
        let kinds = builtin().all().filter(|kind| kind.categories.iter().any(|own| own == category));
        kinds.map(|kind| kind.plural.as_str()).collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
    };
    let all = "cronjobs daemonsets deployments horizontalpodautoscalers jobs pods replicasets replicationcontrollers services statefulsets";
    assert_eq!(of("all"), all);
    let extensions = "customresourcedefinitions mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations \
                      validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations";
    assert_eq!(of("api-extensions"), extensions);
}
