//! Node selectors: `nodeSelector`, node affinity of pods and volumes
//! (upstream: `component-helpers/scheduling/corev1/nodeaffinity`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelector as ApiNodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use crate::selector::{Labels, Selector};

/// A requirement on a field of a node. Upstream knows one field, `metadata.name`; any other is the empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldRequirement {
    Equals {
        key: String,
        value: String,
    },
    NotEquals {
        key: String,
        value: String,
    },
    /// Any operator but `In` and `NotIn`, or any number of values but one: the term matches no node.
    Invalid,
}

impl FieldRequirement {
    fn new(requirement: &NodeSelectorRequirement) -> Self {
        let key = requirement.key.clone();
        match (requirement.operator.as_str(), requirement.values.as_deref()) {
            ("In", Some([value])) => Self::Equals { key, value: value.clone() },
            ("NotIn", Some([value])) => Self::NotEquals { key, value: value.clone() },
            _ => Self::Invalid,
        }
    }

    fn matches(&self, name: &str) -> bool {
        let field = |key: &str| if key == "metadata.name" { name } else { "" };
        match self {
            Self::Equals { key, value } => field(key) == value,
            Self::NotEquals { key, value } => field(key) != value,
            Self::Invalid => false,
        }
    }
}

/// A compiled term of a node selector: its expressions on labels and its requirements on fields must all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTerm {
    labels: Selector,
    fields: Vec<FieldRequirement>,
}

impl NodeTerm {
    pub fn new(term: &NodeSelectorTerm) -> Self {
        let expressions = term.match_expressions.iter().flatten();
        let expressions = expressions.map(|one| (one.key.as_str(), one.operator.as_str(), one.values.as_deref().unwrap_or_default()));
        Self { labels: Selector::from_node_expressions(expressions), fields: term.match_fields.iter().flatten().map(FieldRequirement::new).collect() }
    }

    /// The only node that the term can match by its fields: none without such a field, an empty set if two fields contradict each other.
    fn names(&self) -> Option<BTreeSet<&str>> {
        let named = self.fields.iter().filter_map(|one| match one {
            FieldRequirement::Equals { key, value } if key == "metadata.name" => Some(BTreeSet::from([value.as_str()])),
            _ => None,
        });
        named.reduce(|all, more| all.intersection(&more).copied().collect())
    }

    /// Whether a node of this name with these labels satisfies it. An empty term matches no node.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.matches_labels(labels) && self.fields.iter().all(|one| one.matches(name))
    }

    /// The same for a node of which only labels are known: requirements on fields are not looked at.
    fn matches_labels(&self, labels: &Labels) -> bool {
        let empty = self.labels.is_empty() && self.fields.is_empty();
        let valid = !self.fields.contains(&FieldRequirement::Invalid);
        !empty && valid && self.labels.matches(labels)
    }
}

/// A compiled node selector: one of its terms must match. Without terms it matches no node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSelector(Vec<NodeTerm>);

impl NodeSelector {
    /// Compiles a node selector.
    pub fn new(selector: &ApiNodeSelector) -> Self {
        Self(selector.node_selector_terms.iter().map(NodeTerm::new).collect())
    }

    /// Whether a node of this name with these labels satisfies one of the terms.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.0.iter().any(|term| term.matches(name, labels))
    }

    /// The names of the only nodes that can match, if every term names nodes. Empty: the terms contradict themselves.
    pub fn names(&self) -> Option<BTreeSet<&str>> {
        let terms: Option<Vec<_>> = self.0.iter().map(NodeTerm::names).collect();
        terms.filter(|terms| !terms.is_empty()).map(|terms| terms.into_iter().flatten().collect())
    }

    /// Whether a node with these labels reaches a volume of this node affinity. Upstream's `CheckNodeAffinity` for volumes passes labels
    /// without a node name, so terms on fields do not restrict the volume.
    pub fn matches_volume(&self, labels: &Labels) -> bool {
        self.0.iter().any(|term| term.matches_labels(labels))
    }
}

impl From<Vec<NodeTerm>> for NodeSelector {
    fn from(terms: Vec<NodeTerm>) -> Self {
        Self(terms)
    }
}

/// What a pod requires of its node: `nodeSelector` and the required node affinity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequiredNodeAffinity {
    /// `spec.nodeSelector`.
    pub selector: Selector,
    /// `requiredDuringSchedulingIgnoredDuringExecution`, if there is one.
    pub required: Option<NodeSelector>,
}

impl RequiredNodeAffinity {
    /// Compiles a pod's requirements (upstream: `GetRequiredNodeAffinity`).
    pub fn new(spec: &PodSpec) -> Self {
        let affinity = spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
        let required = affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
        Self { selector: spec.node_selector.as_ref().map(Selector::from_labels).unwrap_or_default(), required: required.map(NodeSelector::new) }
    }

    /// Whether a node of this name with these labels satisfies both.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.selector.matches(labels) && self.required.as_ref().is_none_or(|required| required.matches(name, labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn requirement(key: &str, operator: &str, values: &[&str]) -> NodeSelectorRequirement {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        NodeSelectorRequirement { key: key.into(), operator: operator.into(), values: Some(values) }
    }

    fn term(expressions: &[(&str, &str, &[&str])], fields: &[(&str, &str, &[&str])]) -> NodeTerm {
        let all = |list: &[(&str, &str, &[&str])]| {
            (!list.is_empty()).then(|| list.iter().map(|(key, operator, values)| requirement(key, operator, values)).collect())
        };
        NodeTerm::new(&NodeSelectorTerm { match_expressions: all(expressions), match_fields: all(fields) })
    }

    #[test]
    fn terms_compare_numbers_and_names() {
        let term = term(&[("build", "Gt", &["17763"])], &[("metadata.name", "In", &["win01"])]);
        assert!(term.matches("win01", &labels(&[("build", "20348")])));
        assert!(!term.matches("win02", &labels(&[("build", "20348")])));
        assert!(!term.matches("win01", &labels(&[("build", "17763")])));
        assert!(!term.matches("win01", &labels(&[("build", "ltsc2022")])));
        assert!(!term.matches("win01", &labels(&[])));
    }

    #[test]
    fn empty_terms_and_selectors_match_no_node() {
        assert!(!term(&[], &[]).matches("win01", &labels(&[])));
        assert!(!NodeSelector::new(&ApiNodeSelector::default()).matches("win01", &labels(&[])));
    }

    #[test]
    fn invalid_terms_match_no_node_and_leave_the_others_alone() {
        let node = labels(&[("n", "5")]);
        for invalid in [
            term(&[("n", "Gt", &["4", "3"])], &[]),
            term(&[("n", "Gt", &["four"])], &[]),
            term(&[("n", "In", &[])], &[]),
            term(&[("n", "Nonsense", &["5"])], &[]),
            term(&[], &[("metadata.name", "In", &["win01", "win02"])]),
            term(&[], &[("metadata.name", "Exists", &[])]),
        ] {
            assert!(!invalid.matches("win01", &node), "{invalid:?}");
            assert!(!NodeSelector::from(vec![invalid.clone()]).matches_volume(&node), "{invalid:?}");
            assert!(NodeSelector::from(vec![invalid, term(&[("n", "Lt", &["6"])], &[])]).matches("win01", &node));
        }
    }

    #[test]
    fn field_requirements_know_only_the_name() {
        let node = labels(&[]);
        assert!(term(&[], &[("metadata.name", "NotIn", &["win02"])]).matches("win01", &node));
        assert!(!term(&[], &[("metadata.name", "NotIn", &["win01"])]).matches("win01", &node));
        assert!(!term(&[], &[("metadata.uid", "In", &["x"])]).matches("win01", &node));
        assert!(term(&[], &[("metadata.uid", "NotIn", &["x"])]).matches("win01", &node), "as upstream: an unknown field is empty");
    }

    #[test]
    fn field_requirements_of_a_volume_do_not_restrict_it() {
        let by_name = NodeSelector::from(vec![term(&[], &[("metadata.name", "In", &["win01"])])]);
        assert!(by_name.matches_volume(&labels(&[])));
        let both = NodeSelector::from(vec![term(&[("zone", "In", &["a"])], &[("metadata.name", "In", &["win01"])])]);
        assert!(both.matches_volume(&labels(&[("zone", "a")])));
        assert!(!both.matches_volume(&labels(&[("zone", "b")])));
    }

    #[test]
    fn pods_require_selector_and_affinity() {
        let spec: PodSpec = serde_json::from_value(serde_json::json!({"containers": [], "nodeSelector": {"os": "windows"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["win09"]}]}]}}}}))
        .unwrap();
        let affinity = RequiredNodeAffinity::new(&spec);
        assert!(affinity.matches("win01", &labels(&[("os", "windows"), ("zone", "a")])));
        assert!(affinity.matches("win09", &labels(&[("os", "windows")])));
        assert!(!affinity.matches("win01", &labels(&[("os", "windows")])));
        assert!(!affinity.matches("win09", &labels(&[("os", "linux")])));
        assert!(RequiredNodeAffinity::default().matches("any", &labels(&[])));
    }
}
