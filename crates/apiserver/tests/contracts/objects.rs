//! Objects of every kind, made of the templates in `objects.yaml`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The definition of the custom kind that the server serves beside the built-in ones.
pub fn definition() -> Value {
    let counts = json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "text": {"type": "string"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gadgets.contract.example.com"},
        "spec": {
            "group": "contract.example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": counts, "status": counts}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            }],
        },
    })
}

static TEMPLATES: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = authority.self_signed(&key).unwrap().pem();
    let text = include_str!("objects.yaml").replace("REQUEST", &STANDARD.encode(request)).replace("AUTHORITY", &json!(authority).to_string());
    serde_yaml_ng::from_str(&text).expect("the templates are YAML")
});

/// An object of a kind without `apiVersion` and `kind`. Objects of one kind whose numbers (0 to 99) differ are different objects.
///
/// # Panics
/// When `objects.yaml` has no template: a kind that is served needs one.
pub fn object(group: &str, plural: &str, namespace: &str, number: usize) -> Value {
    let key = if group.is_empty() { plural.to_string() } else { format!("{group}/{plural}") };
    let template = TEMPLATES.get(&key).unwrap_or_else(|| panic!("objects.yaml has no template of {key}"));
    let name = format!("contract-{number}");
    // No network of the cluster's Services begins with 10.100 or more.
    let text = template.to_string().replace("NAMESPACE", namespace).replace("NAME", &name).replace("NUMBER", &format!("{}", 100 + number));
    let mut object: Value = serde_json::from_str(&text).unwrap();
    let given = object.as_object_mut().unwrap().shift_remove("$name");
    let mut metadata = json!({"name": given.unwrap_or_else(|| name.into()), "labels": {"contract": "yes"}});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    object["metadata"] = metadata;
    object
}

/// Whether objects of the kind may have any name.
pub fn is_named_freely(group: &str, plural: &str) -> bool {
    let key = if group.is_empty() { plural.to_string() } else { format!("{group}/{plural}") };
    TEMPLATES.get(&key).is_none_or(|template| template.get("$name").is_none())
}
