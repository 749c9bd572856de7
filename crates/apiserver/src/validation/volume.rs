//! A pod's volumes (pkg/apis/core/validation: ValidateVolumes).

use super::field::{Errors, Field};
use super::{meta, names, signers, storage};
use kube_rules::Quantity;
use std::collections::{HashMap, HashSet};

/// The names of a pod's volumes, and whether a claim stands behind each.
pub type Volumes = HashMap<String, bool>;

/// The volumes of a pod; gives their names.
pub fn check(field: &Field, errors: &mut Errors) -> Volumes {
    let mut found = Volumes::new();
    for volume in field.items() {
        let name = volume.get("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else {
            let problems = names::dns_label(name.text());
            let valid = problems.is_empty();
            errors.invalid_each(&name, problems);
            if found.contains_key(name.text()) {
                errors.duplicate(&name, name.text());
            } else if valid {
                let claimed = ["persistentVolumeClaim", "ephemeral"].iter().any(|source| volume.get(source).is_set());
                found.insert(name.text().to_string(), claimed);
            }
        }
        source(&volume, errors);
    }
    found
}

fn source(volume: &Field, errors: &mut Errors) {
    let sources: Vec<&String> = volume.members().filter(|(name, value)| *name != "name" && !value.is_null()).map(|(name, _)| name).collect();
    let Some((first, others)) = sources.split_first() else {
        return errors.required(volume, "must specify a volume type");
    };
    for other in others {
        errors.forbidden(&volume.get(other), "may not specify more than 1 volume type");
    }
    let source = volume.get(first);
    match first.as_str() {
        "hostPath" => host_path(&source, errors),
        "emptyDir" => {
            let limit = source.get("sizeLimit");
            if Quantity::parse(limit.text()).is_ok_and(|size| size < Quantity::ZERO) {
                errors.forbidden(&limit, "SizeLimit field must be a valid resource quantity");
            }
        }
        "secret" => {
            if source.get("secretName").is_empty() {
                errors.required(&source.get("secretName"), "");
            }
            mode(&source.get("defaultMode"), errors);
            items(&source.get("items"), errors);
        }
        "configMap" => {
            if source.get("name").is_empty() {
                errors.required(&source.get("name"), "");
            }
            mode(&source.get("defaultMode"), errors);
            items(&source.get("items"), errors);
        }
        "downwardAPI" => {
            mode(&source.get("defaultMode"), errors);
            source.get("items").items().iter().for_each(|item| downward_item(item, errors));
        }
        "projected" => projected(&source, errors),
        "ephemeral" => {
            let template = source.get("volumeClaimTemplate");
            if template.is_set() {
                storage::claim_spec(&template.get("spec"), errors);
            } else {
                errors.required(&template, "");
            }
        }
        "persistentVolumeClaim" if source.get("claimName").is_empty() => errors.required(&source.get("claimName"), ""),
        _ => {}
    }
}

/// A path on the node.
pub fn host_path(source: &Field, errors: &mut Errors) {
    const TYPES: [&str; 7] = ["BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let (path, kind) = (source.get("path"), source.get("type"));
    if path.is_empty() {
        return errors.required(&path, "");
    }
    no_backsteps(&path, errors);
    if !kind.is_empty() && !TYPES.contains(&kind.text()) {
        let mut known = vec![""];
        known.extend(TYPES);
        errors.not_supported(&kind, &known);
    }
}

/// A path that never goes up.
pub fn no_backsteps(path: &Field, errors: &mut Errors) {
    if path.text().split('/').any(|part| part == "..") {
        errors.invalid(path, "must not contain '..'");
    }
}

/// A path below something: relative, and never up.
pub fn relative_path(path: &Field, errors: &mut Errors) {
    if path.text().starts_with('/') {
        errors.invalid(path, "must be a relative path");
    }
    no_backsteps(path, errors);
}

fn mode(field: &Field, errors: &mut Errors) {
    if field.number().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        errors.invalid(field, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

fn items(field: &Field, errors: &mut Errors) {
    for item in field.items() {
        if item.get("key").is_empty() {
            errors.required(&item.get("key"), "");
        }
        file(&item, errors);
    }
}

/// The `path` and `mode` of a projected file.
fn file(item: &Field, errors: &mut Errors) {
    let path = item.get("path");
    if path.is_empty() {
        errors.required(&path, "");
    } else {
        local_path(&path, errors);
    }
    mode(&item.get("mode"), errors);
}

/// A path below a volume whose names beginning with two dots are the agent's.
fn local_path(path: &Field, errors: &mut Errors) {
    relative_path(path, errors);
    if path.text().starts_with("..") && !path.text().starts_with("../") && path.text() != ".." {
        errors.invalid(path, "must not start with '..'");
    }
}

fn downward_item(item: &Field, errors: &mut Errors) {
    file(item, errors);
    let (field, resource) = (item.get("fieldRef"), item.get("resourceFieldRef"));
    match (field.is_set(), resource.is_set()) {
        (true, true) => errors.invalid_value(item, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"),
        (false, false) => errors.required(item, "one of fieldRef and resourceFieldRef is required"),
        _ => {}
    }
}

fn projected(source: &Field, errors: &mut Errors) {
    mode(&source.get("defaultMode"), errors);
    let mut paths = HashSet::new();
    for entry in source.get("sources").items() {
        let mut found = 0;
        for (kind, value) in entry.members().filter(|(_, value)| !value.is_null()) {
            let inner = entry.get(kind);
            found += 1;
            if found > 1 {
                errors.forbidden(&inner, "may not specify more than 1 volume type");
                continue;
            }
            one_path_each(source, kind, &inner, &mut paths, errors);
            match kind.as_str() {
                "secret" | "configMap" => {
                    if inner.get("name").is_empty() {
                        errors.required(&inner.get("name"), "");
                    }
                    items(&inner.get("items"), errors);
                }
                "downwardAPI" => inner.get("items").items().iter().for_each(|item| downward_item(item, errors)),
                "serviceAccountToken" => token(&inner, value.get("expirationSeconds").and_then(serde_json::Value::as_i64), errors),
                "clusterTrustBundle" => trust_bundle(&inner, errors),
                _ => {}
            }
        }
    }
}

/// No two sources write the same file, as far as their paths say.
fn one_path_each<'a>(volume: &Field, kind: &str, source: &Field<'a>, paths: &mut HashSet<&'a str>, errors: &mut Errors) {
    let mut add = |path: &'a str, shown: &str| {
        if !paths.insert(path) {
            errors.invalid_value(volume, shown, "conflicting duplicate paths");
        }
    };
    if kind == "clusterTrustBundle" {
        add(source.get("path").text(), source.get("path").text());
    }
    for path in source.get("items").items().iter().map(|item| item.get("path").text()).filter(|path| !path.is_empty()) {
        add(path, if kind == "downwardAPI" { path } else { source.get("name").text() });
    }
}

fn token(source: &Field, seconds: Option<i64>, errors: &mut Errors) {
    let lifetime = source.get("expirationSeconds");
    match seconds {
        Some(seconds) if seconds < 600 => errors.invalid(&lifetime, "may not specify a duration less than 10 minutes"),
        Some(seconds) if seconds > 1 << 32 => errors.invalid(&lifetime, "may not specify a duration larger than 2^32 seconds"),
        _ => {}
    }
    if source.get("path").is_empty() {
        errors.required(&source.get("path"), "");
    } else {
        relative_path(&source.get("path"), errors);
    }
}

/// Certificates of authorities: a bundle by its name, or a signer's by their labels.
fn trust_bundle(source: &Field, errors: &mut Errors) {
    let (name, signer, labels) = (source.get("name"), source.get("signerName"), source.get("labelSelector"));
    match (name.is_set(), signer.is_set()) {
        (true, true) => errors.invalid(source, "only one of name and signerName may be used"),
        (true, false) => {
            if name.is_empty() {
                errors.required(&name, "must be a valid object name");
            }
            for problem in signers::bundle_name(name.text(), &signers::signer_of(name.text())) {
                errors.invalid(&name, format!("not a valid clustertrustbundlename: {problem}"));
            }
            if labels.is_set() {
                errors.invalid(&labels, "labelSelector must be unset if name is specified");
            }
        }
        (false, true) => {
            if signer.is_empty() {
                errors.required(&signer, "must be a valid signer name");
            }
            signers::name(&signer, errors);
            meta::selector(&labels, errors);
        }
        (false, false) => errors.required(source, "either name or signerName must be specified"),
    }
    let path = source.get("path");
    if path.is_empty() {
        errors.required(&path, "");
    } else {
        local_path(&path, errors);
    }
}
