//! Tests of kinds as values: sets of them, keys, the order of versions.

use super::*;

fn set(kinds: &[(&str, &str, &str)]) -> Kinds {
    Kinds::new(kinds.iter().map(|(group, version, plural)| Arc::new(Kind::open(group, version, "Thing", plural))))
}

#[test]
fn groups_and_versions_have_upstream_s_order() {
    let kinds = set(&[
        ("z.example.com", "v1", "things"),
        ("batch", "v1beta1", "things"),
        ("batch", "v1", "things"),
        ("batch", "v2alpha1", "things"),
        ("batch", "v10", "things"),
        ("a.example.com", "odd", "things"),
        ("apps", "v1", "things"),
    ]);
    let now = kinds.now();
    let groups: Vec<(&str, String)> = now.groups().iter().map(|group| (group.name.as_str(), group.versions.join(" "))).collect();
    let expected = [("apps", "v1"), ("batch", "v10 v1 v1beta1 v2alpha1"), ("a.example.com", "odd"), ("z.example.com", "v1")];
    assert_eq!(groups, expected.map(|(group, versions)| (group, versions.to_string())));
    assert_eq!(now.preferred("batch", "things").unwrap().version, "v10");
}

#[test]
fn a_replaced_set_leaves_readers_what_they_have() {
    let kinds = set(&[("example.com", "v1", "things")]);
    let before = kinds.now();
    kinds.add(Kind::open("example.com", "v1", "Thing", "things").cluster());
    kinds.add(Kind::open("example.com", "v2", "Thing", "things"));
    assert!(before.find("example.com", "v1", "things").unwrap().namespaced && before.find("example.com", "v2", "things").is_none());
    assert!(!kinds.find("example.com", "v1", "things").unwrap().namespaced);
    assert_eq!((before.generation(), kinds.now().generation(), kinds.now().all().count()), (0, 2, 2));
    kinds.remove("example.com", "v1", "things");
    assert!(kinds.find("example.com", "v1", "things").is_none());
}

#[test]
fn keys_name_group_resource_namespace_and_object() {
    let kind = Kind::open("", "v1", "Thing", "things");
    assert_eq!(
        (kind.prefix("").as_str(), kind.prefix("a").as_str(), kind.key("a", "b").as_str()),
        ("core/things/", "core/things/a/", "core/things/a/b")
    );
    let kind = Kind::open("example.com", "v1", "Thing", "things").cluster();
    assert_eq!((kind.prefix("a").as_str(), kind.key("a", "b").as_str()), ("example.com/things/", "example.com/things//b"));
}

#[test]
fn a_status_is_checked_by_its_own_rules_when_it_has_some() {
    let plain = Kind::open("example.com", "v1", "Thing", "things").status().validate(|new, _, errors| errors.required(&new.get("spec"), "content"));
    let own = plain.clone().validate_status(|new, _, errors| errors.required(&new.get("status"), "status"));
    let object = serde_json::json!({"metadata": {"name": "a", "namespace": "b"}});
    let texts = |kind: &Kind, part| kind.errors_of_update(part, &object, &object).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&plain, Part::Status), ["spec: Required value: content"]);
    assert_eq!(texts(&own, Part::Status), ["status: Required value: status"]);
    assert_eq!(texts(&own, Part::Main), ["spec: Required value: content"]);
}
