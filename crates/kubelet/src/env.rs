//! The environment of a container (upstream kubelet_pods.go makeEnvironmentVariables): envFrom,
//! then env in order with expansion, then service variables where nothing else set the name.

pub(crate) mod file;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, FileKeySelector, Pod, ResourceFieldSelector};
use kube_rules::{Amounts, Quantity, expand};

use crate::sources::{Fetched, Kind};
use file::{Files, NoFile};

/// What a container's environment is made of.
pub(crate) struct Input<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub sources: &'a Fetched,
    pub files: &'a Files,
    pub services: &'a BTreeMap<String, String>,
    pub facts: &'a Facts,
}

/// Values of the downward API that the pod object does not hold yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
    pub allocatable: Amounts,
}

/// A field or resource that the downward API does not have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource: {0}")]
    Resource(String),
}

/// Why a container's environment cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvError {
    #[error("{} {name:?} not found", kind.lower())]
    SourceMissing { kind: Kind, name: String },
    #[error("couldn't find key {key} in {} {namespace}/{name}", kind.name())]
    KeyMissing { key: String, kind: Kind, namespace: String, name: String },
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    VolumeMissing(String),
    #[error("couldn't parse env file")]
    File,
    #[error("environment variable key {key:?} not found in file {file:?}")]
    FileKeyMissing { key: String, file: String },
    #[error("the variable's valueFrom is of an unknown kind")]
    UnknownSource,
}

/// Variables in order, and the names that were left out because they cannot be names.
#[derive(Debug, PartialEq)]
pub(crate) struct Environment {
    pub vars: Vec<(String, String)>,
    pub skipped: Vec<String>,
}

/// The objects an environment needs: (kind, name).
pub(crate) fn references(container: &Container) -> Vec<(Kind, String)> {
    let mut out = Vec::new();
    for from in container.env_from.iter().flatten() {
        out.extend(from.config_map_ref.iter().map(|r| (Kind::ConfigMap, r.name.clone())));
        out.extend(from.secret_ref.iter().map(|r| (Kind::Secret, r.name.clone())));
    }
    for source in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
        out.extend(source.config_map_key_ref.iter().map(|r| (Kind::ConfigMap, r.name.clone())));
        out.extend(source.secret_key_ref.iter().map(|r| (Kind::Secret, r.name.clone())));
    }
    out
}

/// Builds the environment.
pub(crate) fn environment(input: &Input<'_>) -> Result<Environment, EnvError> {
    let mut vars: Vec<(String, String)> = Vec::new();
    let mut skipped = Vec::new();
    for from in input.container.env_from.iter().flatten() {
        let (kind, name, optional) = match (&from.config_map_ref, &from.secret_ref) {
            (Some(r), _) => (Kind::ConfigMap, &r.name, r.optional),
            (None, Some(r)) => (Kind::Secret, &r.name, r.optional),
            (None, None) => continue,
        };
        let Some(data) = input.sources.get(&(kind, name.clone())).cloned().flatten() else {
            if optional == Some(true) {
                continue;
            }
            return Err(EnvError::SourceMissing { kind, name: name.clone() });
        };
        for (key, value) in data.items.iter().filter(|(key, _)| !data.binary.contains(*key)) {
            let key = format!("{}{key}", from.prefix.as_deref().unwrap_or_default());
            if is_env_name(&key) {
                set(&mut vars, key, String::from_utf8_lossy(value).into_owned());
            } else {
                skipped.push(key);
            }
        }
    }
    for var in input.container.env.iter().flatten() {
        if let Some(value) = value_of(input, var, &vars)? {
            set(&mut vars, var.name.clone(), value);
        }
    }
    for (name, value) in input.services {
        if !vars.iter().any(|(n, _)| n == name) {
            vars.push((name.clone(), value.clone()));
        }
    }
    Ok(Environment { vars, skipped })
}

fn set(vars: &mut Vec<(String, String)>, name: String, value: String) {
    match vars.iter_mut().find(|(n, _)| *n == name) {
        Some(place) => place.1 = value,
        None => vars.push((name, value)),
    }
}

fn value_of(input: &Input<'_>, var: &EnvVar, vars: &[(String, String)]) -> Result<Option<String>, EnvError> {
    let Some(source) = &var.value_from else {
        let lookup = |name: &str| {
            let set = vars.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
            set.or_else(|| input.services.get(name).cloned())
        };
        return Ok(Some(expand(var.value.as_deref().unwrap_or_default(), lookup)));
    };
    from_source(input, source)
}

fn from_source(input: &Input<'_>, source: &EnvVarSource) -> Result<Option<String>, EnvError> {
    if let Some(field) = &source.field_ref {
        return Ok(Some(field_value(input.pod, input.facts, &field.field_path)?));
    }
    if let Some(field) = &source.resource_field_ref {
        return Ok(Some(resource_value(input.pod, Some(&input.container.name), field, &input.facts.allocatable)?));
    }
    if let Some(selector) = &source.file_key_ref {
        return of_file(input, selector);
    }
    let (kind, name, key, optional) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(r), _) => (Kind::ConfigMap, &r.name, &r.key, r.optional),
        (None, Some(r)) => (Kind::Secret, &r.name, &r.key, r.optional),
        (None, None) => return Err(EnvError::UnknownSource),
    };
    let optional = optional == Some(true);
    let Some(data) = input.sources.get(&(kind, name.clone())).cloned().flatten() else {
        return if optional { Ok(None) } else { Err(EnvError::SourceMissing { kind, name: name.clone() }) };
    };
    match data.items.get(key).filter(|_| !data.binary.contains(key)) {
        Some(value) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
        None if optional => Ok(None),
        None => {
            let namespace = input.pod.metadata.namespace.clone().unwrap_or_default();
            Err(EnvError::KeyMissing { key: key.clone(), kind, namespace, name: name.clone() })
        }
    }
}

/// A variable of a file. As upstream, one that is empty counts as none, and an optional key does not make the file optional.
fn of_file(input: &Input<'_>, selector: &FileKeySelector) -> Result<Option<String>, EnvError> {
    let missing = || EnvError::VolumeMissing(selector.volume_name.clone());
    let file = match input.files.get(&file::place(selector)) {
        None | Some(Err(NoFile::Volume)) => return Err(missing()),
        Some(Err(NoFile::Unreadable)) => return Err(EnvError::File),
        Some(Ok(file)) => file,
    };
    let value = file.variables.value(&selector.key).map_err(|error| {
        tracing::warn!(file = file.place, %error, "a file of variables cannot be read");
        EnvError::File
    })?;
    match value.is_empty() {
        false => Ok(Some(value)),
        true if selector.optional == Some(true) => Ok(None),
        true => Err(EnvError::FileKeyMissing { key: selector.key.clone(), file: file.place.clone() }),
    }
}

/// C_IDENTIFIER relaxed as upstream: printable ASCII without `=`, not starting with a digit
/// only when strict; the relaxed rule is what 1.36 applies.
fn is_env_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=')
}

/// A downward API field.
pub(crate) fn field_value(pod: &Pod, facts: &Facts, path: &str) -> Result<String, DownwardError> {
    field(pod, facts, path).ok_or_else(|| DownwardError::Field(path.to_owned()))
}

fn field(pod: &Pod, facts: &Facts, path: &str) -> Option<String> {
    let meta = &pod.metadata;
    let text = |s: &Option<String>| Some(s.clone().unwrap_or_default());
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return None,
        };
        return Some(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let spec = pod.spec.as_ref();
    match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => Some(format_map(meta.labels.as_ref())),
        "metadata.annotations" => Some(format_map(meta.annotations.as_ref())),
        "spec.nodeName" => text(&spec?.node_name),
        "spec.serviceAccountName" => text(&spec?.service_account_name),
        "status.hostIP" => Some(facts.host_ips.first().cloned().unwrap_or_default()),
        "status.hostIPs" => Some(facts.host_ips.join(",")),
        "status.podIP" => Some(facts.pod_ips.first().cloned().unwrap_or_default()),
        "status.podIPs" => Some(facts.pod_ips.join(",")),
        _ => None,
    }
}

/// `key="value"` lines, sorted, with Go's quoting.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect();
    lines.join("\n")
}

/// A container resource in units of its divisor; limits that are not set read the node's
/// allocatable amount.
pub(crate) fn resource_value(
    pod: &Pod,
    container: Option<&str>,
    field: &ResourceFieldSelector,
    allocatable: &Amounts,
) -> Result<String, DownwardError> {
    resource(pod, container, field, allocatable).ok_or_else(|| DownwardError::Resource(field.resource.clone()))
}

fn resource(pod: &Pod, container: Option<&str>, field: &ResourceFieldSelector, allocatable: &Amounts) -> Option<String> {
    let name = field.container_name.as_deref().filter(|n| !n.is_empty()).or(container)?;
    let spec = pod.spec.as_ref()?;
    let c = crate::pod::containers(spec).map(|(_, c)| c).find(|c| c.name == name)?;
    let (side, resource) = field.resource.split_once('.')?;
    let r = c.resources.as_ref();
    let map = match side {
        "limits" => r.and_then(|r| r.limits.as_ref()),
        "requests" => r.and_then(|r| r.requests.as_ref()),
        _ => return None,
    };
    let set = map.and_then(|m| m.get(resource)).and_then(|q| Quantity::parse(&q.0).ok());
    let amount = match (side, set) {
        (_, Some(q)) => q,
        ("limits", None) => allocatable.get(resource).copied().unwrap_or(Quantity::ZERO),
        _ => Quantity::ZERO,
    };
    let divisor = field.divisor.as_ref().and_then(|d| Quantity::parse(&d.0).ok());
    let divisor = divisor.filter(|d| !d.is_zero()).unwrap_or(Quantity::from_units(1));
    Some(amount.div_ceil(divisor).to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::sources::Data;

    fn data(items: &[(&str, &str)]) -> Option<Arc<Data>> {
        let items = items.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect();
        Some(Arc::new(Data { items, ..Data::default() }))
    }

    fn env(container: serde_json::Value) -> Result<Environment, EnvError> {
        let mut container = container;
        container["name"] = "c".into();
        container["resources"] = json!({"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "web", "tier": "x"}},
            "spec": {"nodeName": "win01", "containers": [container]}
        }))
        .unwrap();
        let binary = Data { items: [("BIN".to_owned(), vec![1])].into(), binary: ["BIN".to_owned()].into(), ..Data::default() };
        let sources = Fetched::from([
            ((Kind::ConfigMap, "bin".into()), Some(Arc::new(binary))),
            ((Kind::ConfigMap, "cm".into()), data(&[("A", "cm-a"), ("B", "cm-b"), ("bad=key", "x")])),
            ((Kind::Secret, "s".into()), data(&[("A", "secret-a")])),
            ((Kind::Secret, "absent".into()), None),
        ]);
        let services = BTreeMap::from([("KUBERNETES_SERVICE_HOST".to_owned(), "10.96.0.1".to_owned()), ("A".to_owned(), "from-service".to_owned())]);
        let facts = Facts {
            pod_ips: vec!["10.0.0.5".into()],
            host_ips: vec!["10.240.0.11".into()],
            allocatable: Amounts::from([("cpu".to_owned(), Quantity::from_units(8))]),
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let file =
            |content: &str| Ok(file::File { place: "/pods/u/volumes/v/env".into(), variables: file::Variables::read(content.as_bytes(), |_| true) });
        let files = Files::from([
            (("v".into(), "env".into()), file("A='file-a'\nEMPTY=''\n")),
            (("v".into(), "broken".into()), file("A")),
            (("v".into(), "absent".into()), Err(NoFile::Unreadable)),
            (("w".into(), "env".into()), Err(NoFile::Volume)),
        ]);
        environment(&Input { pod: &pod, container, sources: &sources, files: &files, services: &services, facts: &facts })
    }

    fn shown(container: serde_json::Value) -> String {
        let e = env(container).unwrap();
        e.vars.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn order_and_expansion() {
        let both = json!({"envFrom": [{"configMapRef": {"name": "cm"}}, {"prefix": "S_", "secretRef": {"name": "s"}}],
            "env": [{"name": "X", "value": "$(A)/$(KUBERNETES_SERVICE_HOST)/$(LATER)/$$(A)"}, {"name": "LATER", "value": "1"}, {"name": "B", "value": "over"}]});
        assert_eq!(shown(both.clone()), "A=cm-a B=over S_A=secret-a X=cm-a/10.96.0.1/$(LATER)/$(A) LATER=1 KUBERNETES_SERVICE_HOST=10.96.0.1");
        assert_eq!(env(both).unwrap().skipped, ["bad=key"]);
    }

    #[test]
    fn fields_and_resources() {
        let field = |path: &str| json!({"name": "F", "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let resource = |r: &str, d: &str| json!({"name": "R", "valueFrom": {"resourceFieldRef": {"resource": r, "divisor": d}}});
        for (var, want) in [
            (field("metadata.name"), "F=p"),
            (field("metadata.labels['app']"), "F=web"),
            (field("spec.nodeName"), "F=win01"),
            (field("status.podIP"), "F=10.0.0.5"),
            (field("status.hostIP"), "F=10.240.0.11"),
            (resource("limits.memory", "1Mi"), "R=64"),
            (resource("requests.cpu", "1m"), "R=250"),
            (resource("requests.cpu", "0"), "R=1"),
            (resource("limits.cpu", "1"), "R=8"),
        ] {
            assert!(shown(json!({"env": [var]})).starts_with(want), "{want}");
        }
        assert!(env(json!({"env": [field("spec.nope")]})).is_err());
    }

    #[test]
    fn variables_of_files() {
        let var = |volume: &str, path: &str, key: &str, optional: bool| {
            let selector = json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
            env(json!({"env": [{"name": "E", "valueFrom": {"fileKeyRef": selector}}]}))
                .map(|environment| environment.vars.into_iter().find(|(name, _)| name == "E").map(|(_, value)| value))
                .map_err(|error| error.to_string())
        };
        assert_eq!(var("v", "env", "A", false), Ok(Some("file-a".into())));
        for key in ["EMPTY", "NONE"] {
            let message = format!("environment variable key {key:?} not found in file \"/pods/u/volumes/v/env\"");
            assert_eq!(var("v", "env", key, false), Err(message));
            assert_eq!(var("v", "env", key, true), Ok(None));
        }
        for path in ["broken", "absent"] {
            assert_eq!(var("v", path, "A", true), Err("couldn't parse env file".into()));
        }
        assert_eq!(var("w", "env", "A", true), Err("cannot find the volume \"w\" referenced by FileKeyRef".into()));
    }

    #[test]
    fn missing_sources() {
        let key = |name: &str, key: &str, optional: bool| json!({"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": optional}}}]});
        assert_eq!(env(key("absent", "k", false)).unwrap_err().to_string(), "secret \"absent\" not found");
        assert_eq!(env(key("s", "k", false)).unwrap_err().to_string(), "couldn't find key k in Secret ns/s");
        assert!(env(key("absent", "k", true)).unwrap().vars.iter().all(|(n, _)| n != "E"));
        assert!(env(key("s", "k", true)).is_ok());
        assert_eq!(shown(json!({"envFrom": [{"configMapRef": {"name": "bin"}}]})), shown(json!({})), "as upstream, binary data makes no variables");
        let binary = json!({"env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "bin", "key": "BIN"}}}]});
        assert_eq!(env(binary).unwrap_err().to_string(), "couldn't find key BIN in ConfigMap ns/bin");
        assert!(env(json!({"envFrom": [{"secretRef": {"name": "absent"}}]})).is_err());
        assert!(env(json!({"envFrom": [{"secretRef": {"name": "absent", "optional": true}}]})).is_ok());
    }
}
