//! Reads and checks policies.

use super::{GroupResources, Level, Policy, Rule, Stage};
use kube_rules::{ErrorKind, FieldError};
use serde::Deserialize;
use serde_json::Value;

/// Largest file: more than any policy needs.
const LARGEST: usize = 1 << 20;

const LEVELS: [(&str, Level); 4] =
    [("None", Level::None), ("Metadata", Level::Metadata), ("Request", Level::Request), ("RequestResponse", Level::RequestResponse)];
const STAGES: [(&str, Stage); 4] = [
    ("RequestReceived", Stage::RequestReceived),
    ("ResponseStarted", Stage::ResponseStarted),
    ("ResponseComplete", Stage::ResponseComplete),
    ("Panic", Stage::Panic),
];

/// Why a text is no policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("cannot read the audit policy: it has {0} bytes; a policy has at most {LARGEST}")]
    TooLarge(usize),
    #[error("cannot read the audit policy: it is no YAML of the kind Policy")]
    Malformed(#[from] serde_yaml_ng::Error),
    #[error("cannot use the audit policy: it is {kind:?} of {api_version:?}; write kind Policy of apiVersion audit.k8s.io/v1")]
    Foreign { api_version: String, kind: String },
    #[error("cannot use the audit policy: it has no rules; add one, such as {{level: Metadata}}")]
    NoRules,
    #[error("cannot use the audit policy: {}", list(.0))]
    Invalid(Vec<FieldError>),
}

fn list(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The document as it is written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    api_version: String,
    kind: String,
    rules: Option<Vec<RuleDocument>>,
    omit_stages: Option<Vec<String>>,
    omit_managed_fields: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuleDocument {
    level: String,
    users: Option<Vec<String>>,
    user_groups: Option<Vec<String>>,
    verbs: Option<Vec<String>>,
    resources: Option<Vec<GroupResources>>,
    namespaces: Option<Vec<String>>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Option<Vec<String>>,
    omit_stages: Option<Vec<String>>,
    omit_managed_fields: Option<bool>,
}

const MEMBERS: [&str; 6] = ["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
const RULE_MEMBERS: [&str; 9] =
    ["level", "users", "userGroups", "verbs", "resources", "namespaces", "nonResourceURLs", "omitStages", "omitManagedFields"];
const RESOURCE_MEMBERS: [&str; 3] = ["group", "resources", "resourceNames"];

pub(super) fn read(text: &str) -> Result<(Policy, Vec<String>), PolicyError> {
    if text.len() > LARGEST {
        return Err(PolicyError::TooLarge(text.len()));
    }
    let value: Value = serde_yaml_ng::from_str(text)?;
    let document: Document = serde_yaml_ng::from_str(text)?;
    if document.api_version != "audit.k8s.io/v1" || document.kind != "Policy" {
        return Err(PolicyError::Foreign { api_version: document.api_version, kind: document.kind });
    }
    let mut errors = Vec::new();
    let omit_stages = stages(document.omit_stages, "omitStages", &mut errors);
    let rules: Vec<Rule> = document
        .rules
        .unwrap_or_default()
        .into_iter()
        .enumerate()
        .map(|(index, rule)| self::rule(rule, &format!("rules[{index}]"), &mut errors))
        .collect();
    if !errors.is_empty() {
        return Err(PolicyError::Invalid(errors));
    }
    if rules.is_empty() {
        return Err(PolicyError::NoRules);
    }
    Ok((Policy { rules, omit_stages, omit_managed_fields: document.omit_managed_fields }, unknown(&value)))
}

/// Members that no policy has, by path.
fn unknown(document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |value: &Value, path: &str, known: &[&str]| {
        let members = value.as_object().into_iter().flatten().map(|(name, _)| name).filter(|name| !known.contains(&name.as_str()));
        found.extend(members.map(|name| format!("{path}{name}")));
    };
    add(document, "", &MEMBERS);
    for (index, rule) in document["rules"].as_array().into_iter().flatten().enumerate() {
        add(rule, &format!("rules[{index}]."), &RULE_MEMBERS);
        for (inner, group) in rule["resources"].as_array().into_iter().flatten().enumerate() {
            add(group, &format!("rules[{index}].resources[{inner}]."), &RESOURCE_MEMBERS);
        }
    }
    found
}

fn rule(document: RuleDocument, path: &str, errors: &mut Vec<FieldError>) -> Rule {
    let level = LEVELS.iter().find(|(name, _)| *name == document.level).map(|(_, level)| *level);
    match level {
        Some(_) => {}
        None if document.level.is_empty() => errors.push(FieldError::new(ErrorKind::Required, format!("{path}.level"), None, "")),
        None => {
            let known = LEVELS.map(|(name, _)| format!("{name:?}")).join(", ");
            let detail = format!("supported values: {known}");
            errors.push(FieldError::new(ErrorKind::NotSupported, format!("{path}.level"), Value::from(document.level.as_str()), detail));
        }
    }
    let rule = Rule {
        level: level.unwrap_or(Level::None),
        users: document.users.unwrap_or_default(),
        user_groups: document.user_groups.unwrap_or_default(),
        verbs: document.verbs.unwrap_or_default(),
        resources: document.resources.unwrap_or_default(),
        namespaces: document.namespaces.unwrap_or_default(),
        non_resource_urls: document.non_resource_urls.unwrap_or_default(),
        omit_stages: Vec::new(),
        omit_managed_fields: document.omit_managed_fields,
    };
    urls(&rule.non_resource_urls, path, errors);
    resources(&rule.resources, path, errors);
    let omit_stages = stages(document.omit_stages, &format!("{path}.omitStages"), errors);
    let names_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
    if names_resources && !rule.non_resource_urls.is_empty() {
        let detail = "rules cannot apply to both regular resources and non-resource URLs";
        errors.push(FieldError::invalid(&format!("{path}.nonResourceURLs"), rule.non_resource_urls.clone().into(), detail));
    }
    Rule { omit_stages, ..rule }
}

fn urls(urls: &[String], path: &str, errors: &mut Vec<FieldError>) {
    for (index, url) in urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        let mut wrong = |detail: &str| errors.push(FieldError::invalid(&format!("{path}.nonResourceURLs[{index}]"), url.as_str().into(), detail));
        if !url.starts_with('/') {
            wrong("non-resource URL rules must begin with a '/' character");
        }
        if url.find('*').is_some_and(|at| at + 1 < url.len()) {
            wrong("non-resource URL wildcards '*' must be the final character of the rule");
        }
    }
}

fn resources(groups: &[GroupResources], path: &str, errors: &mut Vec<FieldError>) {
    let path = format!("{path}.resources");
    for group in groups {
        if !group.group.is_empty() && group.group != "*" && !is_subdomain(&group.group) {
            let detail = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an \
                          alphanumeric character (e.g. 'example.com', regex used for validation is \
                          '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
            errors.push(FieldError::invalid(&format!("{path}.group"), group.group.as_str().into(), detail));
        }
        if !group.resource_names.is_empty() && group.resources.is_empty() {
            let detail = "using resourceNames requires at least one resource";
            errors.push(FieldError::invalid(&format!("{path}.resourceNames"), group.resource_names.clone().into(), detail));
        }
    }
}

fn is_subdomain(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()].iter().all(|byte| byte.is_some_and(|byte| letter(*byte)));
        ends && bytes.iter().all(|byte| letter(*byte) || *byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn stages(names: Option<Vec<String>>, path: &str, errors: &mut Vec<FieldError>) -> Vec<Stage> {
    let mut found = Vec::new();
    for (index, name) in names.unwrap_or_default().into_iter().enumerate() {
        match STAGES.iter().find(|(known, _)| *known == name) {
            Some((_, stage)) => found.push(*stage),
            None => {
                let detail = format!("allowed stages are {}", STAGES.map(|(known, _)| known).join(","));
                errors.push(FieldError::invalid(&format!("{path}[{index}]"), name.into(), &detail));
            }
        }
    }
    found
}
