//! Label and field selectors on objects as JSON, and the fields that each kind selects by; the rules are `kube_rules::selector`.

use crate::kinds::KindInfo;
use crate::object;
use crate::status::ApiError;
use kube_rules::Selector;
use serde_json::Value;
use std::fmt;

/// A label selector that is matched against objects as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Selector);

impl LabelSelector {
    /// Parses `a=b,c in (d,e),!f`.
    pub fn parse(source: &str) -> Result<Self, ApiError> {
        Selector::parse(source).map(Self).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// Compiles a `metav1.LabelSelector`; one that upstream refuses matches nothing.
    pub fn from_value(selector: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let labels = object::lookup(selector, &["matchLabels"]).and_then(Value::as_object).into_iter().flatten();
        let expressions = object::list(selector, &["matchExpressions"]).iter().map(|expression| {
            let values: Vec<String> = object::list(expression, &["values"]).iter().map(text).collect();
            (object::text(expression, &["key"]), object::text(expression, &["operator"]), values)
        });
        Self(Selector::from_parts(labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())), expressions))
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object's labels satisfy every requirement.
    pub fn matches(&self, object: &Value) -> bool {
        self.matches_labels(object::lookup(object, &["metadata", "labels"]))
    }

    /// Whether these labels satisfy every requirement.
    pub fn matches_labels(&self, labels: Option<&Value>) -> bool {
        self.0.matches_by(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A field selector that is matched against objects as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(kube_rules::FieldSelector);

impl FieldSelector {
    /// Parses `metadata.name=a,spec.nodeName!=b` whatever the kind: what authorization looks at.
    pub fn terms(source: &str) -> Result<Self, ApiError> {
        kube_rules::FieldSelector::parse(source).map(Self).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// The same, and refuses fields that the kind does not support.
    pub fn parse(source: &str, kind: &KindInfo) -> Result<Self, ApiError> {
        let selector = Self::terms(source)?;
        if let Some(path) = selector.0.paths().find(|path| !supported(kind).contains(path)) {
            let message = format!(
                "Unable to find {:?} that match label selector \"\", field selector {source:?}: field label not supported: {path}",
                kind_version(kind)
            );
            tracing::debug!(message, "field selector refused");
            return Err(ApiError::bad_request(format!("field label not supported: {path}")));
        }
        Ok(selector)
    }

    /// The selector, narrowed to the object of that name.
    pub fn named(mut self, name: &str) -> Result<Self, ApiError> {
        match self.required("metadata.name") {
            Some(selected) if selected != name => Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name")),
            Some(_) => Ok(self),
            None => {
                self.0.require("metadata.name", name);
                Ok(self)
            }
        }
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value that `path` must equal, when the selector says so.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.0.required(path)
    }

    /// Whether the object's fields satisfy every term.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.matches_by(|path| field(object, path))
    }
}

fn kind_version(kind: &KindInfo) -> String {
    if kind.group.is_empty() {
        format!("/{}, Resource={}", kind.version, kind.plural)
    } else {
        format!("{}/{}, Resource={}", kind.group, kind.version, kind.plural)
    }
}

/// The fields of a kind that may be selected by, beside metadata.name and metadata.namespace
/// (pkg/apis/core/v1/conversion.go and the strategies' ToSelectableFields).
fn supported(kind: &KindInfo) -> &'static [&'static str] {
    const META: &[&str] = &["metadata.name", "metadata.namespace"];
    match (kind.group, kind.plural) {
        ("", "pods") => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["metadata.name", "metadata.namespace", "spec.unschedulable"],
        ("", "namespaces") => &["metadata.name", "metadata.namespace", "status.phase"],
        ("", "secrets") => &["metadata.name", "metadata.namespace", "type"],
        ("", "services") => &["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") => &["metadata.name", "metadata.namespace", "status.replicas"],
        ("apps", "replicasets") => &["metadata.name", "metadata.namespace", "status.replicas"],
        ("batch", "jobs") => &["metadata.name", "metadata.namespace", "status.successful"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["metadata.name", "metadata.namespace", "spec.signerName"],
        ("" | "events.k8s.io", "events") => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reportingController",
        ],
        _ => META,
    }
}

fn field(object: &Value, path: &str) -> String {
    let value = match path {
        "source" => object::lookup(object, &["source", "component"]),
        "reportingComponent" => object::lookup(object, &["reportingComponent"]),
        "status.successful" => object::lookup(object, &["status", "succeeded"]),
        _ => {
            let members: Vec<&str> = path.split('.').collect();
            object::lookup(object, &members).or_else(|| match members.as_slice() {
                ["reportingController"] => object::lookup(object, &["reportingComponent"]),
                ["regarding", rest] => object::lookup(object, &["involvedObject", rest]),
                _ => None,
            })
        }
    };
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None if matches!(path, "spec.unschedulable" | "spec.hostNetwork") => "false".to_string(),
        None if matches!(path, "status.replicas" | "status.successful") => "0".to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selectors_match_the_labels_of_an_object() {
        let object = json!({"metadata": {"labels": {"app": "web"}}});
        assert!(LabelSelector::parse("app=web").unwrap().matches(&object));
        assert!(!LabelSelector::parse("app in (db)").unwrap().matches(&object));
        assert!(LabelSelector::parse("!app").unwrap().matches(&json!({"metadata": {}})));
        assert!(LabelSelector::parse("app in (a").unwrap_err().message.starts_with("unable to parse requirement: "));
        let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]});
        assert!(LabelSelector::from_value(&selector).matches(&object));
        let invalid = json!({"matchExpressions": [{"key": "tier", "operator": "Nonsense"}]});
        assert!(!LabelSelector::from_value(&invalid).matches(&object));
    }

    #[test]
    fn field_selectors_know_their_kind() {
        let pods = crate::kinds::by_resource("", "v1", "pods").unwrap();
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
        let matches = |selector: &str| FieldSelector::parse(selector, pods).unwrap().matches(&pod);
        assert!(matches("spec.nodeName=n1,status.phase!=Failed"));
        assert!(!matches("spec.nodeName="));
        assert!(matches("status.podIP="));
        assert_eq!(FieldSelector::parse("spec.foo=1", pods).unwrap_err().message, "field label not supported: spec.foo");
        assert_eq!(FieldSelector::parse("metadata.name=x", pods).unwrap().required("metadata.name"), Some("x"));
    }
}
