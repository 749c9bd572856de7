//! What is accepted with a warning (upstream: the strategies' WarningsOnCreate and WarningsOnUpdate).

use kube_cel::formats::qualified_name;
use serde_json::Value;

use crate::formats;
use crate::schema::Schema;

/// Finalizers of Kubernetes itself, which have no domain.
const STANDARD: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Formats that nobody checks, when a definition has not had them before.
pub fn of_definition(definition: &Value, old: Option<&Value>) -> Vec<String> {
    let before = old.map(unknown_formats).unwrap_or_default();
    let mut found = unknown_formats(definition);
    found.retain(|format| !before.contains(format));
    found.iter().map(|format| format!("unrecognized format {format:?}")).collect()
}

fn unknown_formats(definition: &Value) -> Vec<String> {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let mut found = Vec::new();
    for schema in versions.filter_map(|version| Schema::parse(&version["schema"]["openAPIV3Schema"]).ok()) {
        collect(&schema, &mut found);
    }
    found
}

fn collect(schema: &Schema, found: &mut Vec<String>) {
    if !schema.format.is_empty() && !formats::is_known(&schema.ty, &schema.format) {
        found.push(schema.format.clone());
    }
    schema.children().for_each(|child| collect(child, found));
}

/// Finalizers that an object did not have and that other writers may take for theirs.
pub fn of_object(object: &Value, old: Option<&Value>) -> Vec<String> {
    let finalizers = |object: &Value| -> Vec<String> {
        let list = object["metadata"]["finalizers"].as_array();
        list.into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let before = old.map(finalizers).unwrap_or_default();
    let mut added: Vec<String> = finalizers(object).into_iter().filter(|name| !before.contains(name)).collect();
    added.sort();
    added.dedup();
    added.iter().flat_map(|name| finalizer(name)).collect()
}

fn finalizer(name: &str) -> Vec<String> {
    let mut found: Vec<String> = qualified_name(name).into_iter().map(|problem| format!("metadata.finalizers: {name:?}: {problem}")).collect();
    if !name.contains('/') && !STANDARD.contains(&name) {
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        found.push(format!(
            "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn new_unknown_formats_are_named() {
        let definition = |format: &str| {
            let schema = json!({"type": "object", "properties": {"a": {"type": "string", "format": format}, "n": {"type": "integer", "format": "int32"},
                "b": {"type": "array", "items": {"type": "string", "format": "date-time"}}}});
            json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}})
        };
        assert_eq!(of_definition(&definition("colour"), None), [r#"unrecognized format "colour""#]);
        assert!(of_definition(&definition("k8s-short-name"), None).is_empty());
        assert!(of_definition(&definition("colour"), Some(&definition("colour"))).is_empty());
        assert_eq!(of_definition(&definition("int32"), None), [r#"unrecognized format "int32""#]);
    }

    #[test]
    fn added_finalizers_should_have_a_domain_and_a_path() {
        let object = |names: &[&str]| json!({"metadata": {"finalizers": names}});
        let warned = |names: &[&str], old: &[&str]| of_object(&object(names), Some(&object(old)));
        assert!(warned(&["example.com/hold", "orphan", "old"], &["old"]).is_empty());
        assert_eq!(
            warned(&["hold"], &[]),
            [r#"metadata.finalizers: "hold": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"#]
        );
        assert!(warned(&["example.com"], &[])[0].contains("including a path (/)"));
    }
}
