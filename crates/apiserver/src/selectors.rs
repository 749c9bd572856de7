//! Label and field selectors: parsed from query strings and from `metav1.LabelSelector`, matched against objects
//! (apimachinery/pkg/labels/selector.go, pkg/fields/selector.go).

use crate::kinds::KindInfo;
use crate::object;
use crate::status::ApiError;
use serde_json::Value;

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

/// A parsed label selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

impl LabelSelector {
    /// Parses `a=b,c in (d,e),!f`.
    pub fn parse(source: &str) -> Result<Self, ApiError> {
        let bad = |why: &str| ApiError::bad_request(format!("unable to parse requirement: {why}"));
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(source) {
            let part = part.trim();
            if !part.is_empty() {
                requirements.push(parse_requirement(part).map_err(|why| bad(&why))?);
            }
        }
        Ok(Self(requirements))
    }

    /// Reads a `metav1.LabelSelector`; an operator that there is not matches nothing.
    pub fn from_value(selector: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let equal = object::lookup(selector, &["matchLabels"]).and_then(Value::as_object).into_iter().flatten();
        let mut requirements: Vec<Requirement> = equal.map(|(key, value)| Requirement::In(key.clone(), vec![text(value)])).collect();
        for expression in object::list(selector, &["matchExpressions"]) {
            let key = object::text(expression, &["key"]).to_string();
            let values = object::list(expression, &["values"]).iter().map(text).collect();
            requirements.push(match object::text(expression, &["operator"]) {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::Missing(key),
                _ => return None,
            });
        }
        Some(Self(requirements))
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object's labels satisfy every requirement.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = object::lookup(object, &["metadata", "labels"]);
        let value = |key: &String| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => value(key).is_some_and(|found| values.iter().any(|value| value == found)),
            Requirement::NotIn(key, values) => value(key).is_none_or(|found| values.iter().all(|value| value != found)),
            Requirement::Exists(key) => value(key).is_some(),
            Requirement::Missing(key) => value(key).is_none(),
            Requirement::Greater(key, bound) => value(key).and_then(|found| found.parse::<i64>().ok()).is_some_and(|found| found > *bound),
            Requirement::Less(key, bound) => value(key).and_then(|found| found.parse::<i64>().ok()).is_some_and(|found| found < *bound),
        })
    }
}

fn split_outside_parentheses(source: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (position, character) in source.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&source[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&source[start..]);
    parts
}

fn parse_requirement(part: &str) -> Result<Requirement, String> {
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::Missing(label_key(key)?));
    }
    if let Some(open) = part.find('(') {
        let values = part[open + 1..].strip_suffix(')').ok_or_else(|| format!("found '{part}', expected: ')'"))?;
        let values = values.split(',').map(|value| value.trim().to_string()).collect();
        let mut words = part[..open].split_whitespace();
        let key = label_key(words.next().unwrap_or_default())?;
        return match words.next() {
            Some("in") => Ok(Requirement::In(key, values)),
            Some("notin") => Ok(Requirement::NotIn(key, values)),
            other => Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.unwrap_or_default())),
        };
    }
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer: {text}"));
    for (operator, build) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = part.split_once(operator) {
            let (key, values) = (label_key(key)?, vec![label_value(value)?]);
            return Ok(if build { Requirement::In(key, values) } else { Requirement::NotIn(key, values) });
        }
    }
    if let Some((key, value)) = part.split_once('>') {
        return Ok(Requirement::Greater(label_key(key)?, number(value)?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return Ok(Requirement::Less(label_key(key)?, number(value)?));
    }
    Ok(Requirement::Exists(label_key(part)?))
}

fn label_key(key: &str) -> Result<String, String> {
    let key = key.trim();
    let allowed = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    if key.is_empty() || !key.chars().all(allowed) {
        return Err(format!(
            "<nil>: Invalid value: {key:?}: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        ));
    }
    Ok(key.to_string())
}

fn label_value(value: &str) -> Result<String, String> {
    let value = value.trim();
    if value.contains(['=', '!', ' ']) {
        return Err(format!("found '{value}', expected: ',' or 'end of string'"));
    }
    Ok(value.to_string())
}

/// A parsed field selector: (path, value, equal).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(String, String, bool)>);

impl FieldSelector {
    /// Parses `metadata.name=a,spec.nodeName!=b` whatever the kind: what authorization looks at.
    pub fn terms(source: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in source.split(',').filter(|part| !part.is_empty()) {
            let term = [("!=", false), ("==", true), ("=", true)]
                .into_iter()
                .find_map(|(operator, equal)| part.split_once(operator).map(|(path, value)| (path, value, equal)));
            let Some((path, value, equal)) = term else {
                return Err(ApiError::bad_request(format!("invalid selector: '{source}'; can't understand '{part}'")));
            };
            terms.push((path.to_string(), value.replace("\\,", ",").replace("\\=", "="), equal));
        }
        Ok(Self(terms))
    }

    /// The same, and refuses fields that the kind does not support.
    pub fn parse(source: &str, kind: &KindInfo) -> Result<Self, ApiError> {
        let selector = Self::terms(source)?;
        for (path, ..) in &selector.0 {
            if !supported(kind).contains(&path.as_str()) {
                let message = format!(
                    "Unable to find {:?} that match label selector \"\", field selector {source:?}: field label not supported: {path}",
                    kind_version(kind)
                );
                tracing::debug!(message, "field selector refused");
                return Err(ApiError::bad_request(format!("field label not supported: {path}")));
            }
        }
        Ok(selector)
    }

    /// The selector, narrowed to the object of that name.
    pub fn named(mut self, name: &str) -> Result<Self, ApiError> {
        match self.required("metadata.name") {
            Some(selected) if selected != name => Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name")),
            Some(_) => Ok(self),
            None => {
                self.0.push(("metadata.name".to_string(), name.to_string(), true));
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
        self.0.iter().find(|(field, _, equal)| *equal && field == path).map(|(_, value, _)| value.as_str())
    }

    /// Whether the object's fields satisfy every term.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(path, wanted, equal)| (field(object, path) == *wanted) == *equal)
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

    fn labelled(labels: Value) -> Value {
        json!({"metadata": {"labels": labels}})
    }

    #[test]
    fn label_selectors_match_as_upstream() {
        let object = labelled(json!({"app": "web", "tier": "front", "n": "3"}));
        let cases = [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (a,web)", true),
            ("app notin (a, web)", false),
            ("missing notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("n>2", true),
            ("n<2", false),
        ];
        for (selector, expected) in cases {
            assert_eq!(LabelSelector::parse(selector).unwrap().matches(&object), expected, "{selector}");
        }
        assert!(LabelSelector::parse("app in (a").is_err());
        assert!(LabelSelector::parse("a b=c").is_err());
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
