//! What a creation starts with, and what an update may change.

use crate::kind::{Kind, Part};
use serde_json::{Value, json};
use std::sync::Arc;

fn kind(group: &str, version: &str, plural: &str) -> &'static Arc<Kind> {
    crate::kinds::by_resource(group, version, plural).unwrap()
}

#[test]
fn a_new_pod_is_pending_whatever_it_says() {
    let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {"phase": "Running"}});
    kind("", "v1", "pods").prepare_new(&mut pod);
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(pod["metadata"]["generation"], 1);
}

#[test]
fn parts_change_only_what_is_theirs() {
    let deployments = kind("apps", "v1", "deployments");
    let old = json!({"metadata": {"name": "a", "generation": 1}, "spec": {"replicas": 1}, "status": {"replicas": 1}});
    let changed = json!({"metadata": {"name": "a", "generation": 1}, "spec": {"replicas": 2}, "status": {"replicas": 2}});
    let mut main = changed.clone();
    deployments.prepare_replacement(Part::Main, &old, &mut main);
    assert_eq!((&main["spec"], &main["status"], &main["metadata"]["generation"]), (&changed["spec"], &old["status"], &json!(2)));
    let mut status = changed.clone();
    deployments.prepare_replacement(Part::Status, &old, &mut status);
    assert_eq!((&status["spec"], &status["status"], &status["metadata"]["generation"]), (&old["spec"], &changed["status"], &json!(1)));
}

#[test]
fn daemon_sets_count_their_templates() {
    let sets = kind("apps", "v1", "daemonsets");
    let mut set = json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": {}}, "minReadySeconds": 1}});
    sets.prepare_new(&mut set);
    let counted = |set: &Value| set["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone();
    assert_eq!(counted(&set), "1");
    let mut other = set.clone();
    other["metadata"]["annotations"] = json!({"own": "kept"});
    other["spec"]["minReadySeconds"] = 2.into();
    sets.prepare_replacement(Part::Main, &set, &mut other);
    assert_eq!((counted(&other), &other["metadata"]["generation"]), (json!("1"), &json!(2)));
    other["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    sets.prepare_replacement(Part::Main, &set, &mut other);
    assert_eq!((counted(&other), &other["metadata"]["annotations"]["own"]), (json!("2"), &json!("kept")));
}

#[test]
fn namespaces_carry_their_name_and_finalizer() {
    let namespaces = kind("", "v1", "namespaces");
    let mut namespace = json!({"metadata": {"name": "a"}});
    namespaces.prepare_new(&mut namespace);
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    let mut emptied = namespace.clone();
    emptied["spec"]["finalizers"] = json!([]);
    let mut main = emptied.clone();
    namespaces.prepare_replacement(Part::Main, &namespace, &mut main);
    assert_eq!(main["spec"]["finalizers"], json!(["kubernetes"]));
    namespaces.prepare_replacement(Part::Other("finalize"), &namespace, &mut emptied);
    assert_eq!(emptied["spec"]["finalizers"], json!([]));
}

#[test]
fn string_data_becomes_data() {
    let mut secret = json!({"metadata": {"name": "a"}, "data": {"a": "AA=="}, "stringData": {"b": "hi"}});
    kind("", "v1", "secrets").prepare_new(&mut secret);
    assert_eq!(secret["data"], json!({"a": "AA==", "b": "aGk="}));
    assert!(secret.get("stringData").is_none());
}
