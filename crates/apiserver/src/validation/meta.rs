//! Object metadata, labels and label selectors (apimachinery pkg/api/validation, pkg/apis/meta/v1/validation).

use super::field::{Errors, Field};
use super::names;
use crate::names::Names;
use crate::selectors::LabelSelector;

const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// The metadata of a new object.
pub fn check(names_of: &Names, rule: &dyn Fn(&str) -> Vec<String>, root: &Field, errors: &mut Errors) {
    let meta = root.get("metadata");
    let prefix = meta.get("generateName");
    if !prefix.is_empty() {
        // A name follows, so one trailing dash is fine.
        let masked = prefix.text().strip_suffix('-').map_or_else(|| prefix.text().to_string(), |text| format!("{text}a"));
        errors.invalid_each(&prefix, rule(&masked));
    }
    let name = meta.get("name");
    if name.is_empty() {
        errors.required(&name, "name or generateName is required");
    } else {
        errors.invalid_each(&name, rule(name.text()));
    }
    let namespace = meta.get("namespace");
    if !names_of.namespaced && !namespace.is_empty() {
        errors.forbidden(&namespace, "not allowed on this type");
    } else if names_of.namespaced && namespace.is_empty() {
        errors.required(&namespace, "");
    } else if names_of.namespaced {
        errors.invalid_each(&namespace, names::dns_label(namespace.text()));
    }
    common(&meta, errors);
}

/// The metadata of a changed object.
pub fn check_update(new: &Field, old: &Field, errors: &mut Errors) {
    let (meta, before) = (new.get("metadata"), old.get("metadata"));
    let deleting = before.get("deletionTimestamp").is_set();
    let (finalizers, had) = (meta.get("finalizers"), before.get("finalizers"));
    if deleting {
        let had: Vec<&str> = had.items().iter().map(Field::text).collect();
        let mut added: Vec<&str> = finalizers.items().iter().map(Field::text).filter(|name| !had.contains(name)).collect();
        if !added.is_empty() {
            added.sort_unstable();
            let added: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            let list = format!("[]string{{{}}}", added.join(", "));
            errors.forbidden(&finalizers, format!("no new finalizers can be added if the object is being deleted, found new finalizers {list}"));
        }
    }
    for member in ["name", "namespace", "uid", "creationTimestamp"] {
        errors.immutable(&meta.get(member), &before.get(member));
    }
    let changed = ["labels", "annotations", "ownerReferences", "finalizers"].iter().any(|member| meta.get(member).value != before.get(member).value);
    if changed {
        common(&meta, errors);
    }
}

fn common(meta: &Field, errors: &mut Errors) {
    labels(&meta.get("labels"), errors);
    annotations(&meta.get("annotations"), errors);
    owners(&meta.get("ownerReferences"), errors);
    let finalizers = meta.get("finalizers");
    for finalizer in finalizers.items() {
        let field = Field { path: finalizers.path.clone(), value: finalizer.value };
        errors.invalid_each(&field, names::qualified(finalizer.text()));
    }
}

pub fn labels(field: &Field, errors: &mut Errors) {
    for (key, value) in field.members() {
        for problem in names::qualified(key) {
            errors.invalid_value(field, key.as_str(), problem);
        }
        for problem in names::label_value(value.as_str().unwrap_or_default()) {
            errors.invalid_value(field, value.clone(), problem);
        }
    }
}

pub fn annotations(field: &Field, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in field.members() {
        size += key.len() + value.as_str().unwrap_or_default().len();
        for problem in names::qualified(&key.to_lowercase()) {
            errors.invalid_value(field, key.as_str(), problem);
        }
    }
    if size > ANNOTATIONS_LIMIT {
        errors.too_long(field, ANNOTATIONS_LIMIT);
    }
}

fn owners(field: &Field, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for owner in field.items() {
        for (member, problem) in
            [("apiVersion", "version must not be empty"), ("kind", "must not be empty"), ("name", "must not be empty"), ("uid", "must not be empty")]
        {
            let found = Field { path: format!("{}.{member}", field.path), value: owner.get(member).value };
            if found.is_empty() {
                errors.invalid_value(&found, "", problem);
            }
        }
        if owner.get("controller").is_true() {
            let name = format!("{}/{}", owner.get("kind").text(), owner.get("name").text());
            match &controller {
                Some(first) => errors.invalid(
                    field,
                    format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"),
                ),
                None => controller = Some(name),
            }
        }
    }
}

pub fn selector(field: &Field, errors: &mut Errors) {
    labels(&field.get("matchLabels"), errors);
    for requirement in field.get("matchExpressions").items() {
        let (operator, values) = (requirement.get("operator"), requirement.get("values"));
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => errors.required(&values, "must be specified when `operator` is 'In' or 'NotIn'"),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(&operator, "not a valid selector operator"),
        }
        let key = requirement.get("key");
        errors.invalid_each(&key, names::qualified(key.text()));
        for value in values.items() {
            errors.invalid_each(&value, names::label_value(value.text()));
        }
    }
}

/// Whether a valid label selector selects an object with these labels.
pub fn selects(selector: &Field, labels: &Field) -> bool {
    LabelSelector::from_value(selector.value).matches_labels(Some(labels.value))
}

/// A path below a domain: `acme.io/foo` (`IsDomainPrefixedPath`).
pub fn domain_path(field: &Field, errors: &mut Errors) {
    if field.text().is_empty() {
        return errors.required(field, "");
    }
    let Some((host, path)) = field.text().split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        return errors.invalid(field, "must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    for problem in names::dns_subdomain(host) {
        errors.invalid_value(field, host, problem);
    }
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
        errors.invalid_value(field, path, r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')");
    }
}
