//! Label and field selectors on objects as JSON; the rules are `kube_rules::selector`.

mod part;

use crate::object;
use crate::status::ApiError;
use kube_rules::Selector;
use part::Part;
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

/// A field that field selectors may name, and where an object has its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    /// As selectors name it.
    pub path: String,
    /// The members that lead to the value; the first place that has one counts.
    pub places: Vec<Vec<String>>,
    /// The value of an object that has none.
    pub default: String,
}

impl SelectableField {
    /// The field at a dotted path; an object without it has "".
    pub fn new(path: &str) -> Self {
        let place = path.split('.').map(str::to_string).collect();
        Self { path: path.to_string(), places: vec![place], default: String::new() }
    }

    /// The value is elsewhere.
    #[must_use]
    pub fn at(mut self, members: &[&str]) -> Self {
        self.places = vec![members.iter().map(ToString::to_string).collect()];
        self
    }

    /// Where else to look.
    #[must_use]
    pub fn or_at(mut self, members: &[&str]) -> Self {
        self.places.push(members.iter().map(ToString::to_string).collect());
        self
    }

    /// The value of an object that has none.
    #[must_use]
    pub fn or(mut self, default: &str) -> Self {
        self.default = default.to_string();
        self
    }
}

/// As much of an object as selectors look at, for those who ask many of them about the same object.
#[derive(Debug, PartialEq, Eq)]
pub struct Outline {
    labels: Box<[(Box<str>, Box<str>)]>,
    /// By the paths that selectors name.
    fields: Box<[(Box<str>, Box<str>)]>,
}

impl Outline {
    /// Of an object that may be selected by these fields, its name and its namespace.
    pub fn of(object: &Value, supported: &[SelectableField]) -> Self {
        let labels = object::lookup(object, &["metadata", "labels"]).and_then(Value::as_object).into_iter().flatten();
        let names = ["metadata.name", "metadata.namespace"].map(SelectableField::new);
        Self {
            labels: labels.filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into()))).collect(),
            fields: names.iter().chain(supported).map(|field| (field.path.as_str().into(), value(field, object).into())).collect(),
        }
    }

    /// The same of an encoded object.
    pub fn read(object: &[u8], supported: &[SelectableField]) -> Self {
        let mut part = Part::of(supported.iter().flat_map(|field| &field.places).map(Vec::as_slice));
        [["metadata", "labels"], ["metadata", "name"], ["metadata", "namespace"]].into_iter().for_each(|path| part.add(path.into_iter()));
        Self::of(&part.read(object), supported)
    }

    /// Whether both selectors match the object.
    pub fn matches(&self, labels: &LabelSelector, fields: &FieldSelector) -> bool {
        let find = |list: &'_ [(Box<str>, Box<str>)], key: &str| list.iter().position(|(found, _)| **found == *key);
        let label = |key: &str| find(&self.labels, key).map(|place| &*self.labels[place].1);
        let field = |path: &str| find(&self.fields, path).map(|place| self.fields[place].1.to_string()).unwrap_or_default();
        labels.0.matches_by(label) && fields.terms.matches_by(field)
    }
}

/// A field selector that is matched against objects as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: kube_rules::FieldSelector,
    /// The fields that the terms name, when the kind is known.
    fields: Vec<SelectableField>,
}

impl FieldSelector {
    /// Parses `metadata.name=a,spec.nodeName!=b` whatever the kind: what authorization looks at.
    pub fn terms(source: &str) -> Result<Self, ApiError> {
        kube_rules::FieldSelector::parse(source)
            .map(|terms| Self { terms, fields: Vec::new() })
            .map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// The same, and refuses fields that are neither supported nor names.
    pub fn parse(source: &str, supported: &[SelectableField]) -> Result<Self, ApiError> {
        let mut selector = Self::terms(source)?;
        let mut unknown = None;
        for path in selector.terms.paths() {
            match field_of(supported, path) {
                Some(field) => selector.fields.push(field),
                None => unknown = unknown.or(Some(path)),
            }
        }
        if let Some(path) = unknown {
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
                self.terms.require("metadata.name", name);
                self.fields.push(SelectableField::new("metadata.name"));
                Ok(self)
            }
        }
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that `path` must equal, when the selector says so.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.terms.required(path)
    }

    /// Whether the object's fields satisfy every term.
    pub fn matches(&self, object: &Value) -> bool {
        self.terms.matches_by(|path| self.fields.iter().find(|field| field.path == path).map(|field| value(field, object)).unwrap_or_default())
    }
}

/// The field of this path, if objects may be selected by it.
fn field_of(supported: &[SelectableField], path: &str) -> Option<SelectableField> {
    if matches!(path, "metadata.name" | "metadata.namespace") {
        return Some(SelectableField::new(path));
    }
    supported.iter().find(|field| field.path == path).cloned()
}

/// The value of a field in an object.
fn value(field: &SelectableField, object: &Value) -> String {
    let found = field.places.iter().find_map(|place| {
        let members: Vec<&str> = place.iter().map(String::as_str).collect();
        object::lookup(object, &members)
    });
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => field.default.clone(),
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
    fn an_outline_is_selected_as_its_object_is() {
        let pods = crate::kinds::by_resource("", "v1", "pods").unwrap();
        let pod = json!({"metadata": {"name": "a", "namespace": "b", "labels": {"app": "web", "tier": ""}}, "spec": {"nodeName": "n1"}});
        let outline = Outline::of(&pod, &pods.selectable_fields);
        assert_eq!(Outline::read(pod.to_string().as_bytes(), &pods.selectable_fields), outline);
        let labels = ["", "app=web", "app!=web", "tier", "!tier", "!other", "other", "app in (web,db),other notin (x)"];
        let fields = ["", "spec.nodeName=n1", "spec.nodeName!=n1", "metadata.name=a,metadata.namespace=b", "status.phase=", "status.phase!=Running"];
        for (label, field) in labels.iter().flat_map(|label| fields.map(|field| (label, field))) {
            let (labels, fields) = (LabelSelector::parse(label).unwrap(), FieldSelector::parse(field, &pods.selectable_fields).unwrap());
            assert_eq!(outline.matches(&labels, &fields), labels.matches(&pod) && fields.matches(&pod), "{label} and {field}");
        }
    }

    #[test]
    fn field_selectors_know_their_kind() {
        let pods = crate::kinds::by_resource("", "v1", "pods").unwrap();
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
        let matches = |selector: &str| FieldSelector::parse(selector, &pods.selectable_fields).unwrap().matches(&pod);
        assert!(matches("spec.nodeName=n1,status.phase!=Failed"));
        assert!(!matches("spec.nodeName="));
        assert!(matches("status.podIP="));
        assert_eq!(FieldSelector::parse("spec.foo=1", &pods.selectable_fields).unwrap_err().message, "field label not supported: spec.foo");
        assert_eq!(FieldSelector::parse("metadata.name=x", &pods.selectable_fields).unwrap().required("metadata.name"), Some("x"));
    }
}
