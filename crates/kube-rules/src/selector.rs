//! Label and field selectors (upstream: `apimachinery/pkg/labels`, `pkg/fields`, `metav1.LabelSelectorAsSelector`).

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels or annotations of an object.
pub type Labels = BTreeMap<String, String>;

/// A selector text that cannot be parsed. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A label selector with a requirement that cannot be parsed.
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    /// A field selector with a term that has no operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        selector: String,
        /// The part without an operator.
        term: String,
    },
    /// A backslash in a field selector before a character that needs none.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A comma or an equals sign without a backslash in the value of a field selector.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(char),
}

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Equals(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
    /// A requirement that upstream refuses to compile. Nothing satisfies it.
    Invalid,
}

impl Requirement {
    /// Upstream: `labels.NewRequirement`.
    fn new(key: &str, operator: &str, values: &[String]) -> Self {
        let number = || match values {
            [one] => one.parse().ok(),
            _ => None,
        };
        let test = match operator {
            "In" | "NotIn" if values.is_empty() => Test::Invalid,
            "Exists" | "DoesNotExist" if !values.is_empty() => Test::Invalid,
            "In" => Test::In(values.to_vec()),
            "NotIn" => Test::NotIn(values.to_vec()),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::DoesNotExist,
            "Gt" => number().map_or(Test::Invalid, Test::GreaterThan),
            "Lt" => number().map_or(Test::Invalid, Test::LessThan),
            _ => Test::Invalid,
        };
        Self { key: key.to_owned(), test }
    }

    fn equals(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), test: Test::Equals(value.to_owned()) }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Equals(one) => value == Some(one),
            Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Test::LessThan(bound) => number().is_some_and(|number| number < *bound),
            Test::Invalid => false,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let sorted = |values: &[String]| {
            let mut values = values.to_vec();
            values.sort_unstable();
            values.join(",")
        };
        match &self.test {
            Test::Equals(value) => write!(f, "{key}={value}"),
            Test::In(values) => write!(f, "{key} in ({})", sorted(values)),
            Test::NotIn(values) => write!(f, "{key} notin ({})", sorted(values)),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Test::LessThan(bound) => write!(f, "{key}<{bound}"),
            Test::Exists | Test::Invalid => f.write_str(key),
        }
    }
}

/// A compiled label selector: every requirement must hold. The empty selector matches everything; one with a requirement that upstream
/// refuses to compile matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector(Vec<Requirement>);

impl Selector {
    /// A selector from a `metav1.LabelSelector`.
    pub fn new(selector: &LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
        let expressions = selector.match_expressions.iter().flatten();
        Self::from_parts(labels, expressions.map(|one| (one.key.as_str(), one.operator.as_str(), one.values.as_deref().unwrap_or_default())))
    }

    /// A selector from an optional `metav1.LabelSelector`: none matches nothing.
    pub fn optional(selector: Option<&LabelSelector>) -> Self {
        selector.map_or_else(Self::nothing, Self::new)
    }

    /// A selector from the parts of a `metav1.LabelSelector`: (key, value) of `matchLabels` and (key, operator, values) of
    /// `matchExpressions`.
    pub fn from_parts<'a, V: AsRef<[String]>>(
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        expressions: impl Iterator<Item = (&'a str, &'a str, V)>,
    ) -> Self {
        let exact = labels.map(|(key, value)| Requirement::equals(key, value));
        // `Gt` and `Lt` compare labels of nodes; a `metav1.LabelSelector` has no such operators.
        let known = |operator: &str| matches!(operator, "In" | "NotIn" | "Exists" | "DoesNotExist");
        let more = expressions.map(|(key, operator, values)| Requirement::new(key, if known(operator) { operator } else { "" }, values.as_ref()));
        Self(exact.chain(more).collect())
    }

    /// A selector from a plain map, such as a Service's or a pod's `nodeSelector`.
    pub fn from_labels(labels: &Labels) -> Self {
        Self(labels.iter().map(|(key, value)| Requirement::equals(key, value)).collect())
    }

    /// A selector from `matchExpressions` of a node selector term: (key, operator, values).
    pub(crate) fn from_node_expressions<'a>(expressions: impl Iterator<Item = (&'a str, &'a str, &'a [String])>) -> Self {
        Self(expressions.map(|(key, operator, values)| Requirement::new(key, operator, values)).collect())
    }

    /// A selector that matches nothing.
    pub fn nothing() -> Self {
        Self(vec![Requirement { key: String::new(), test: Test::Invalid }])
    }

    /// Parses `a=b,c in (d,e),!f`, as `kubectl -l` and the query parameter `labelSelector` write it.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text).into_iter().map(str::trim).filter(|part| !part.is_empty()) {
            requirements.push(parse_requirement(part).map_err(SelectorError::Requirement)?);
        }
        Ok(Self(requirements))
    }

    /// A selector that matches what both match.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Whether it has no requirement, and so matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these labels satisfy it.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    /// Whether labels that `label` looks up satisfy it.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|one| one.matches(label(&one.key)))
    }
}

impl fmt::Display for Selector {
    /// As `metav1.FormatLabelSelector` writes it, sorted by key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut requirements: Vec<&Requirement> = self.0.iter().collect();
        requirements.sort_by_key(|one| &one.key);
        for (index, requirement) in requirements.into_iter().enumerate() {
            write!(f, "{}{requirement}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
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
    let requirement = |key: &str, test: Test| Ok(Requirement { key: label_key(key)?, test });
    if let Some(key) = part.strip_prefix('!') {
        return requirement(key, Test::DoesNotExist);
    }
    if let Some(open) = part.find('(') {
        let values = part[open + 1..].strip_suffix(')').ok_or_else(|| format!("found '{part}', expected: ')'"))?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_string()).collect();
        let mut words = part[..open].split_whitespace();
        let key = label_key(words.next().unwrap_or_default())?;
        values.iter().enumerate().try_for_each(|(index, value)| check_value(&key, index, value))?;
        return match words.next() {
            Some("in") => Ok(Requirement { key, test: Test::In(values) }),
            Some("notin") => Ok(Requirement { key, test: Test::NotIn(values) }),
            other => Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.unwrap_or_default())),
        };
    }
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer: {text}"));
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = part.split_once(operator) {
            let value = label_value(value)?;
            check_value(label_key(key)?.as_str(), 0, &value)?;
            return requirement(key, if equal { Test::Equals(value) } else { Test::NotIn(vec![value]) });
        }
    }
    if let Some((key, value)) = part.split_once('>') {
        return requirement(key, Test::GreaterThan(number(value)?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return requirement(key, Test::LessThan(number(value)?));
    }
    requirement(part, Test::Exists)
}

const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
                    'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                     alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                     '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with \
                         an alphanumeric character (e.g. 'example.com', regex used for validation is \
                         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Letters, digits and `-_.`, the first and the last a letter or digit.
fn is_name(text: &str) -> bool {
    let ends = |character: Option<char>| character.is_some_and(|character| character.is_ascii_alphanumeric());
    let inside = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    ends(text.chars().next()) && ends(text.chars().next_back()) && text.chars().all(inside)
}

fn is_subdomain(text: &str) -> bool {
    let small = |label: &str| is_name(label) && !label.contains(|character: char| character == '_' || character.is_ascii_uppercase());
    text.len() <= 253 && text.split('.').all(small)
}

/// A trimmed key that labels can have (apimachinery/pkg/api/validate/content `IsLabelKey`).
fn label_key(key: &str) -> Result<String, String> {
    let key = key.trim();
    let refused = |why: String| Err(format!("<nil>: Invalid value: {key:?}: {why}"));
    let name = match key.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            return refused(format!("a qualified name {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"));
        }
        Some(("", _)) => return refused("prefix part must be non-empty".into()),
        Some((prefix, _)) if !is_subdomain(prefix) => return refused(format!("prefix part {SUBDOMAIN}")),
        Some((_, name)) => name,
        None => key,
    };
    match name.len() {
        0 => refused(format!("name part must be non-empty; name part {NAME}")),
        64.. => refused("name part must be no more than 63 bytes".into()),
        _ if !is_name(name) => refused(format!("name part {NAME}")),
        _ => Ok(key.to_string()),
    }
}

/// Whether labels can have the value.
fn check_value(key: &str, index: usize, value: &str) -> Result<(), String> {
    let refused = |why: &str| Err(format!("values[{index}][{key}]: Invalid value: {value:?}: {why}"));
    match value.len() {
        0 => Ok(()),
        64.. => refused("must be no more than 63 bytes"),
        _ if !is_name(value) => refused(VALUE),
        _ => Ok(()),
    }
}

fn label_value(value: &str) -> Result<String, String> {
    let value = value.trim();
    if value.contains(['=', '!', ' ']) {
        return Err(format!("found '{value}', expected: ',' or 'end of string'"));
    }
    Ok(value.to_string())
}

/// One term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

/// A parsed field selector: every term must hold. Which fields a kind supports is its API's to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

impl FieldSelector {
    /// Parses `metadata.name=a,spec.nodeName!=b` (upstream: `fields.ParseSelector`).
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text).into_iter().filter(|term| !term.is_empty()) {
            let operator = |(position, _)| ["!=", "==", "="].into_iter().find(|one| term[position..].starts_with(one)).map(|one| (position, one));
            let Some((position, operator)) = term.char_indices().find_map(operator) else {
                return Err(SelectorError::Term { selector: text.to_owned(), term: term.to_owned() });
            };
            let value = unescape(&term[position + operator.len()..])?;
            terms.push(FieldTerm { path: term[..position].to_owned(), value, equal: operator != "!=" });
        }
        Ok(Self(terms))
    }

    /// The paths of all terms.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|term| term.path.as_str())
    }

    /// Adds the term that `path` equals `value`.
    pub fn require(&mut self, path: &str, value: &str) {
        self.0.push(FieldTerm { path: path.to_owned(), value: value.to_owned(), equal: true });
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value that `path` must equal, when the selector says so.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|term| term.equal && term.path == path).map(|term| term.value.as_str())
    }

    /// Whether fields that `field` looks up satisfy every term; a missing field is the empty text.
    pub fn matches_by(&self, field: impl Fn(&str) -> String) -> bool {
        self.0.iter().all(|term| (field(&term.path) == term.value) == term.equal)
    }
}

/// The parts between commas that no backslash precedes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut escaped, mut start, mut parts) = (false, 0, Vec::new());
    for (position, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Upstream: `fields.UnescapeValue`.
fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => plain.push(escaped),
                Some(other) => return Err(SelectorError::Escape(format!("\\{other}"))),
                None => return Err(SelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(SelectorError::Unescaped(character)),
            other => plain.push(other),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

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
    fn operators_match_labels() {
        for (operator, values, present, absent) in [
            ("In", &["web", "db"][..], true, false),
            ("In", &["db"], false, false),
            ("NotIn", &["db"], true, true),
            ("NotIn", &["web"], false, true),
            ("Exists", &[], true, false),
            ("DoesNotExist", &[], false, true),
        ] {
            let selector = Selector::new(&expression(operator, values));
            assert_eq!(selector.matches(&labels(&[("tier", "web")])), present, "{operator} {values:?} on web");
            assert_eq!(selector.matches(&labels(&[("other", "web")])), absent, "{operator} {values:?} on nothing");
        }
    }

    #[test]
    fn requirements_that_upstream_refuses_match_nothing() {
        for (operator, values) in
            [("Nonsense", &[][..]), ("In", &[]), ("NotIn", &[]), ("Exists", &["web"]), ("DoesNotExist", &["web"]), ("Gt", &["1"])]
        {
            let selector = Selector::new(&expression(operator, values));
            for tier in ["web", "5", ""] {
                assert!(!selector.matches(&labels(&[("tier", tier)])), "{operator} {values:?} on {tier}");
            }
            assert!(!selector.matches(&labels(&[])), "{operator} {values:?} on no label");
        }
    }

    #[test]
    fn empty_selector_matches_all_and_missing_selector_none() {
        assert!(Selector::default().matches(&labels(&[])));
        assert!(Selector::optional(Some(&LabelSelector::default())).matches(&labels(&[])));
        assert!(!Selector::optional(None).matches(&labels(&[("a", "b")])));
        assert!(!Selector::nothing().is_empty());
    }

    #[test]
    fn keys_and_values_are_those_of_labels() {
        let long = "a".repeat(64);
        for (text, why) in [
            ("-a=b", "<nil>: Invalid value: \"-a\": name part must consist of"),
            ("a/b/c", "<nil>: Invalid value: \"a/b/c\": a qualified name must consist of"),
            ("/a", "<nil>: Invalid value: \"/a\": prefix part must be non-empty"),
            ("A_/a", "<nil>: Invalid value: \"A_/a\": prefix part a lowercase RFC 1123 subdomain"),
            ("a/", "<nil>: Invalid value: \"a/\": name part must be non-empty"),
            (&long, "name part must be no more than 63 bytes"),
            ("a=-", "values[0][a]: Invalid value: \"-\": a valid label must be an empty string or consist of"),
            ("a in (b,c/d)", "values[1][a]: Invalid value: \"c/d\""),
            (&format!("a={long}"), "must be no more than 63 bytes"),
        ] {
            let error = Selector::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("unable to parse requirement: ") && error.contains(why), "{text}: {error}");
        }
        for text in ["a=", "a.b/C_d.e=X-1", "a in (,b)", "example.com/a"] {
            assert!(Selector::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn selector_texts_match_as_upstream() {
        let labels = labels(&[("app", "web"), ("tier", "front"), ("n", "3")]);
        for (selector, expected) in [
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
            ("tier>2", false),
        ] {
            assert_eq!(Selector::parse(selector).unwrap().matches(&labels), expected, "{selector}");
        }
        for wrong in ["app in (a", "a b=c", "a=b=c", "n>x", "=x"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn selector_is_printed_as_format_label_selector() {
        let text = |text: &str| Selector::parse(text).unwrap().to_string();
        assert_eq!(text("b=2,a=1,c in (y,x)"), "a=1,b=2,c in (x,y)");
        assert_eq!(text("z,!m,k notin (b,a)"), "k notin (a,b),!m,z");
        assert_eq!(Selector::new(&expression("In", &["web"])).to_string(), "tier in (web)");
    }

    #[test]
    fn field_selectors_are_parsed_as_upstream() {
        let fields = |path: &str| match path {
            "metadata.name" => "a".to_owned(),
            "message" => "x,y=z\\".to_owned(),
            _ => String::new(),
        };
        let matches = |text: &str| FieldSelector::parse(text).unwrap().matches_by(fields);
        assert!(matches(""));
        assert!(matches("metadata.name=a,spec.nodeName!=b"));
        assert!(matches("metadata.name==a"));
        assert!(matches("spec.nodeName="));
        assert!(!matches("metadata.name!=a"));
        assert!(matches(r"message=x\,y\=z\\"), "escaped separators belong to the value");
        let error = |text: &str| FieldSelector::parse(text).unwrap_err().to_string();
        assert_eq!(error("metadata.name"), "invalid selector: 'metadata.name'; can't understand 'metadata.name'");
        assert_eq!(error("a=b!=c"), "invalid field selector: unescaped character in value: =");
        assert_eq!(error(r"a=\b"), r"invalid field selector: invalid escape sequence: \b");
        assert_eq!(FieldSelector::parse("a=1,b!=2").unwrap().required("b"), None);
        assert_eq!(FieldSelector::parse("a=1,b!=2").unwrap().required("a"), Some("1"));
    }
}
