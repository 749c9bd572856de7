//! The roles and bindings that exist from the first start (plugin/pkg/auth/authorizer/rbac/bootstrappolicy; those named `mullion:` are
//! ours), read from a table.

use serde_json::{Map, Value, json};

const TABLE: &str = include_str!("bootstrap/policy.txt");
const RBAC: &str = "rbac.authorization.k8s.io";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// The objects of the table, with the plural names of their kinds: ClusterRoles, Roles, ClusterRoleBindings, RoleBindings.
pub fn objects() -> Vec<(&'static str, Value)> {
    let mut objects: Vec<(&'static str, Value)> = Vec::new();
    for line in lines() {
        if let Some(role) = line.strip_prefix("role ") {
            objects.push(role_of(role));
        } else if let Some(binding) = line.strip_prefix("binding ") {
            objects.extend(binding_of(binding));
        } else if let Some((_, role)) = objects.last_mut()
            && let Some(rules) = role["rules"].as_array_mut()
        {
            rules.push(rule_of(line.trim()));
        }
    }
    objects
}

/// The lines without comments, continued ones put together.
fn lines() -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match lines.last_mut() {
            Some(last) if line.starts_with("      ") => *last = format!("{last} {}", line.trim()),
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().map(|word| if word == "\"\"" { "" } else { word }).collect()
}

fn metadata(name: &str) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    });
    if let Some((namespace, name)) = name.split_once('/') {
        metadata["namespace"] = namespace.into();
        metadata["name"] = name.into();
    }
    metadata
}

fn object(kind: &str, name: &str) -> Value {
    let kind = if name.contains('/') { kind.to_owned() } else { format!("Cluster{kind}") };
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata(name)})
}

/// `NAME [part-of ROLES] [whole SELF]`.
fn role_of(text: &str) -> (&'static str, Value) {
    let (text, whole) = text.split_once(" whole ").unwrap_or((text, ""));
    let (name, parts) = text.split_once(" part-of ").unwrap_or((text, ""));
    let mut role = object("Role", name);
    for part in words(parts) {
        role["metadata"]["labels"][format!("{AGGREGATE}{part}")] = "true".into();
    }
    role["rules"] = json!([]);
    if !whole.is_empty() {
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {format!("{AGGREGATE}{whole}"): "true"}}]});
    }
    (if name.contains('/') { "roles" } else { "clusterroles" }, role)
}

/// `VERBS | GROUPS | RESOURCES [| NAMES]`, or `VERBS | - | PATHS`.
fn rule_of(text: &str) -> Value {
    let mut parts = text.split('|').map(words);
    let mut next = || parts.next().unwrap_or_default();
    let (verbs, groups, things, names) = (next(), next(), next(), next());
    let mut rule = Map::from_iter([("verbs".to_owned(), json!(verbs))]);
    if groups == ["-"] {
        rule.insert("nonResourceURLs".into(), json!(things));
        return rule.into();
    }
    rule.insert("apiGroups".into(), json!(groups));
    rule.insert("resources".into(), json!(things));
    if !names.is_empty() {
        rule.insert("resourceNames".into(), json!(names));
    }
    rule.into()
}

/// `NAME -> ROLE: SUBJECTS`.
fn binding_of(text: &str) -> Option<(&'static str, Value)> {
    let (name, text) = text.split_once(" -> ")?;
    let (role, subjects) = text.rsplit_once(": ").or_else(|| Some((text.strip_suffix(':')?, "")))?;
    let is_local = name.contains('/');
    let mut binding = object("RoleBinding", name);
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": if is_local { "Role" } else { "ClusterRole" }, "name": role});
    let subjects: Vec<Value> = subjects.split(", ").filter_map(subject_of).collect();
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    Some((if is_local { "rolebindings" } else { "clusterrolebindings" }, binding))
}

/// `User NAME`, `Group NAME`, `ServiceAccount NAMESPACE/NAME`.
fn subject_of(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(' ')?;
    Some(match (kind, name.split_once('/')) {
        ("ServiceAccount", Some((namespace, name))) => json!({"kind": kind, "name": name, "namespace": namespace}),
        _ => json!({"apiGroup": RBAC, "kind": kind, "name": name}),
    })
}

#[cfg(test)]
mod tests;
