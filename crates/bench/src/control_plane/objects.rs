//! The objects of the benchmarks, about as large as those that people have.

use serde_json::{Value, json};

/// The namespace of what is created in numbers.
pub const NAMESPACE: &str = "bench";

/// The namespace, and the ServiceAccount that pods in it need.
pub fn namespace() -> [(&'static str, Value); 2] {
    [
        ("/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})),
        ("/api/v1/namespaces/bench/serviceaccounts", json!({"metadata": {"name": "default"}})),
    ]
}

/// A ConfigMap with half a kilobyte of data.
pub fn config_map(n: usize) -> String {
    let text = "level: info\nformat: json\n".repeat(20);
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("settings-{n:05}"), "labels": {"app": "bench"}},
        "data": {"settings.yaml": text}})
    .to_string()
}

/// A pod as a ReplicaSet makes it. Another scheduler than the cluster's is to find a node for it, so that it stays as it is.
pub fn pod(n: usize) -> String {
    let probe = json!({"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("web-6d4cf56db6-{n:05}"), "labels": {"app.kubernetes.io/name": "web", "pod-template-hash": "6d4cf56db6"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
        },
        "spec": {
            "schedulerName": "nobody", "automountServiceAccountToken": false, "nodeSelector": {"kubernetes.io/os": "linux"},
            "containers": [{
                "name": "web", "image": "registry.example/web:1.27", "args": ["--listen=:8080", "--verbose"],
                "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"name": "http", "containerPort": 8080}], "readinessProbe": probe, "livenessProbe": probe,
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "volumeMounts": [{"name": "settings", "mountPath": "/etc/web"}],
            }],
            "volumes": [{"name": "settings", "configMap": {"name": "web"}}],
        },
    })
    .to_string()
}

/// How many levels of objects a custom resource has, and how many members each.
const LEVELS: usize = 3;
const MEMBERS: usize = 6;

fn members(level: usize) -> Value {
    let mut properties = serde_json::Map::new();
    for n in 0..MEMBERS {
        let text = format!("What the member number {n} on level {level} is for, in a sentence as long as generated documentation has them.");
        properties.insert(format!("text{n}"), json!({"type": "string", "description": text, "maxLength": 253}));
        properties.insert(format!("count{n}"), json!({"type": "integer", "format": "int32", "minimum": 0, "description": text}));
    }
    properties.insert("conditions".into(), conditions());
    if level + 1 < LEVELS {
        for name in ["template", "strategy"] {
            properties.insert(name.into(), members(level + 1));
        }
    }
    json!({"type": "object", "properties": properties, "required": ["text0"],
        "x-kubernetes-validations": [{"rule": "self.text0.size() > 0", "message": "text0 is needed"}]})
}

fn conditions() -> Value {
    let text = |text: &str| json!({"type": "string", "description": text, "maxLength": 32768});
    let condition = json!({"type": "object", "required": ["type", "status"], "properties": {
        "type": text("type of condition in CamelCase"), "status": text("one of True, False, Unknown"), "reason": text("a programmatic identifier"),
        "message": text("a human readable message"), "lastTransitionTime": {"type": "string", "format": "date-time"}}});
    json!({"type": "array", "maxItems": 16, "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
}

/// The definition of a custom resource: some 150 fields with descriptions, 20 KB.
pub fn definition(n: usize) -> Value {
    let (plural, kind) = (format!("things{n}"), format!("Thing{n}"));
    let schema = json!({"type": "object", "properties": {
        "spec": members(0), "status": {"type": "object", "properties": {"conditions": conditions()}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.group{}.bench.example", n % 10)},
        "spec": {
            "group": format!("group{}.bench.example", n % 10), "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Text", "type": "string", "jsonPath": ".spec.text0"}]}],
        },
    })
}

/// A custom object of definition `n`: the path of its collection, and itself.
pub fn custom(n: usize) -> (String, Value) {
    let group = format!("group{}.bench.example", n % 10);
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": format!("Thing{n}"), "metadata": {"name": "one"},
        "spec": {"text0": "some", "count1": 3, "template": {"text0": "more"}}});
    (format!("/apis/{group}/v1/namespaces/{NAMESPACE}/things{n}"), object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_as_large_as_their_descriptions_say() {
        assert!((500..800).contains(&config_map(1).len()), "{}", config_map(1).len());
        assert!((900..1_100).contains(&pod(1).len()), "{}", pod(1).len());
        let definition = definition(1);
        let length = definition.to_string().len();
        assert!((15_000..25_000).contains(&length), "{length}");
        let fields = definition.to_string().matches("\"type\":").count();
        assert!((130..250).contains(&fields), "{fields}");
    }

    #[test]
    fn a_custom_object_is_of_its_definition() {
        let (path, object) = custom(37);
        let definition = definition(37);
        assert_eq!(object["kind"], definition["spec"]["names"]["kind"]);
        assert!(path.contains(definition["spec"]["group"].as_str().unwrap()));
        assert!(path.ends_with(definition["spec"]["names"]["plural"].as_str().unwrap()));
    }
}
