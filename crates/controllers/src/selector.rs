//! Label selectors and node selector terms: pure matching (upstream: `apimachinery/pkg/labels`, `component-helpers/scheduling/corev1/nodeaffinity`).

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::NodeSelectorTerm, apimachinery::pkg::apis::meta::v1::LabelSelector};

/// Labels or annotations of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
    /// An operator or value that nothing satisfies.
    Never,
}

impl Requirement {
    fn new(key: &str, operator: &str, values: &[String]) -> Self {
        let number = || values.first().and_then(|value| value.parse().ok());
        let test = match operator {
            "In" => Test::In(values.to_vec()),
            "NotIn" => Test::NotIn(values.to_vec()),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::Absent,
            "Gt" => number().map_or(Test::Never, Test::Above),
            "Lt" => number().map_or(Test::Never, Test::Below),
            _ => Test::Never,
        };
        Self { key: key.to_owned(), test }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
            Test::Never => false,
        }
    }
}

/// A compiled selector: every requirement must hold. The empty selector matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selector(Vec<Requirement>);

impl Selector {
    /// A selector from a workload's `spec.selector`.
    pub fn new(selector: &LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten();
        let expressions = selector.match_expressions.iter().flatten();
        let exact = labels.map(|(key, value)| Requirement::new(key, "In", std::slice::from_ref(value)));
        let more = expressions.map(|one| Requirement::new(&one.key, &one.operator, one.values.as_deref().unwrap_or_default()));
        Self(exact.chain(more).collect())
    }

    /// A selector from a plain map, such as a Service's or a pod's `nodeSelector`.
    pub fn from_labels(labels: &Labels) -> Self {
        Self(labels.iter().map(|(key, value)| Requirement::new(key, "In", std::slice::from_ref(value))).collect())
    }

    /// A selector that matches nothing.
    pub fn nothing() -> Self {
        Self(vec![Requirement { key: String::new(), test: Test::Never }])
    }

    /// A selector that matches what both match.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Whether it asks for nothing, and so matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these labels satisfy it.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|one| one.matches(labels.get(&one.key).map(String::as_str)))
    }
}

/// A term of a node affinity: its expressions on labels and its fields (only `metadata.name`) must all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeTerm {
    labels: Selector,
    fields: Vec<Requirement>,
}

impl NodeTerm {
    /// A compiled term.
    pub fn new(term: &NodeSelectorTerm) -> Self {
        let compile = |requirements: &Option<Vec<k8s_openapi::api::core::v1::NodeSelectorRequirement>>| {
            let requirements = requirements.iter().flatten();
            requirements.map(|one| Requirement::new(&one.key, &one.operator, one.values.as_deref().unwrap_or_default())).collect::<Vec<_>>()
        };
        Self { labels: Selector(compile(&term.match_expressions)), fields: compile(&term.match_fields) }
    }

    /// Whether a node of this name with these labels satisfies it. An empty term matches no node, as upstream has it.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        let empty = self.labels.is_empty() && self.fields.is_empty();
        let fields = self.fields.iter().all(|one| one.key == "metadata.name" && one.matches(Some(name)));
        !empty && fields && self.labels.matches(labels)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::NodeSelectorRequirement, apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement};

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn expression(operator: &str, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let one = LabelSelectorRequirement { key: "tier".into(), operator: operator.into(), values: Some(values) };
        LabelSelector { match_labels: None, match_expressions: Some(vec![one]) }
    }

    #[test]
    fn operators() {
        for (operator, values, present, absent) in [
            ("In", &["web", "db"][..], true, false),
            ("In", &["db"], false, false),
            ("NotIn", &["db"], true, true),
            ("NotIn", &["web"], false, true),
            ("Exists", &[], true, false),
            ("DoesNotExist", &[], false, true),
            ("Nonsense", &[], false, false),
        ] {
            let selector = Selector::new(&expression(operator, values));
            assert_eq!(selector.matches(&labels(&[("tier", "web")])), present, "{operator} {values:?} on web");
            assert_eq!(selector.matches(&labels(&[("other", "web")])), absent, "{operator} {values:?} on nothing");
        }
    }

    #[test]
    fn the_empty_selector_matches_all_and_the_empty_node_term_none() {
        assert!(Selector::default().matches(&labels(&[])));
        assert!(!NodeTerm::new(&NodeSelectorTerm::default()).matches("win01", &labels(&[])));
    }

    #[test]
    fn node_terms_compare_numbers_and_names() {
        let requirement = |key: &str, operator: &str, value: &str| NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(vec![value.into()]),
        };
        let term = NodeTerm::new(&NodeSelectorTerm {
            match_expressions: Some(vec![requirement("build", "Gt", "17763")]),
            match_fields: Some(vec![requirement("metadata.name", "In", "win01")]),
        });
        assert!(term.matches("win01", &labels(&[("build", "20348")])));
        assert!(!term.matches("win02", &labels(&[("build", "20348")])));
        assert!(!term.matches("win01", &labels(&[("build", "17763")])));
        assert!(!term.matches("win01", &labels(&[("build", "ltsc2022")])));
    }
}
