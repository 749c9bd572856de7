//! Definitions: defaults and validation of `CustomResourceDefinition` objects
//! (upstream: pkg/apis/apiextensions/validation and v1/defaults.go).

use kube_cel::formats::{dns1035_label, dns1123_subdomain};
use serde_json::{Map, Value, json};

use crate::field::{Errors, FieldError, child, duplicate, forbidden, invalid, key, required, too_many, unsupported};
use crate::names::is_established;
use crate::openapi;
use crate::path;
use crate::schema::{Additional, Schema};

/// Upstream's limit of selectable fields of a version.
const MAX_SELECTABLE: usize = 8;
const APPROVED: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength \
MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example \
XPreserveUnknownFields XValidations]";

/// Sets what upstream defaults: `singular`, `listKind`, `conversion`, the port of its service, `storedVersions`.
pub fn set_defaults(definition: &mut Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&definition["spec"]["names"]["kind"]);
    let empty = |value: &Value| value.as_str().is_none_or(str::is_empty);
    if let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) {
        if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut)
            && !kind.is_empty()
        {
            if names.get("singular").is_none_or(empty) {
                names.insert("singular".into(), json!(kind.to_lowercase()));
            }
            if names.get("listKind").is_none_or(empty) {
                names.insert("listKind".into(), json!(format!("{kind}List")));
            }
        }
        if spec.get("conversion").is_none_or(Value::is_null) {
            spec.insert("conversion".into(), json!({"strategy": "None"}));
        }
        let service = spec
            .get_mut("conversion")
            .and_then(|conversion| conversion.get_mut("webhook")?.get_mut("clientConfig")?.get_mut("service")?.as_object_mut());
        if let Some(service) = service {
            service.entry("port").or_insert_with(|| json!(443));
        }
    }
    let versions = definition["spec"]["versions"].as_array();
    let storage = versions.into_iter().flatten().find(|version| version["storage"] == true);
    let storage = storage.map(|version| version["name"].clone());
    let stored = definition["status"]["storedVersions"].as_array().is_some_and(|stored| !stored.is_empty());
    if let (Some(name), false, Some(map)) = (storage, stored, definition.as_object_mut()) {
        let status = map.entry("status").or_insert_with(|| Value::Object(Map::new()));
        if let Some(status) = status.as_object_mut() {
            status.insert("storedVersions".into(), json!([name]));
        }
    }
}

struct Definition<'v> {
    spec: &'v Value,
    versions: Vec<&'v Value>,
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

impl<'v> Definition<'v> {
    fn new(definition: &'v Value) -> Self {
        let spec = &definition["spec"];
        Definition { spec, versions: spec["versions"].as_array().into_iter().flatten().collect() }
    }

    /// Where errors of a member stand: upstream moves what all versions have alike to the top.
    fn shared(&self, member: &str) -> bool {
        let first = self.versions.first().map(|version| &version[member]);
        first.is_some_and(|first| !first.is_null() && self.versions.iter().all(|version| version[member] == *first))
    }

    fn at(&self, member: &str, top: &str, index: usize) -> String {
        if self.shared(member) { format!("spec.{top}") } else { format!("spec.versions[{index}].{member}") }
    }
}

/// The errors of a new definition, or of a changed one when there is an old one. `metadata` is judged by the server.
pub fn validate(definition: &Value, old: Option<&Value>) -> Errors {
    let parsed = Definition::new(definition);
    let mut errors = Errors::new();
    let spec = parsed.spec;
    if old.is_none() {
        let name = text(&definition["metadata"], "name");
        let wanted = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
        if name != wanted {
            errors.push(invalid("metadata.name", name, r#"must be spec.names.plural+"."+spec.group"#));
        }
    }
    group_and_scope(spec, &mut errors);
    for (index, version) in parsed.versions.iter().enumerate() {
        if version["schema"]["openAPIV3Schema"].is_null() {
            let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(required(path, ""));
        }
    }
    versions(&parsed, old, &mut errors);
    spec_names(spec, &mut errors);
    names(&spec["names"], "spec.names", &mut errors);
    conversion(spec, &mut errors);
    if let Some(old) = old {
        immutable(definition, old, &mut errors);
    }
    names(&definition["status"]["acceptedNames"], "status.acceptedNames", &mut errors);
    stored_versions(definition, &parsed, &mut errors);
    approval(definition, old, &mut errors);
    let preserved = |definition: &Value| definition["spec"]["preserveUnknownFields"] == true;
    if preserved(definition) && !old.is_some_and(preserved) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(invalid("spec.preserveUnknownFields", true, detail));
    }
    errors
}

fn joined(problems: Vec<String>) -> Option<String> {
    (!problems.is_empty()).then(|| problems.join(","))
}

fn group_and_scope(spec: &Value, errors: &mut Errors) {
    let group = text(spec, "group");
    if group.is_empty() {
        errors.push(required("spec.group", ""));
    } else if let Some(problems) = joined(dns1123_subdomain(group)) {
        errors.push(invalid("spec.group", group, problems));
    } else if !group.contains('.') {
        errors.push(invalid("spec.group", group, "should be a domain with at least one dot"));
    }
    enumeration("spec.scope", text(spec, "scope"), &["Cluster", "Namespaced"], errors);
}

fn enumeration(path: &str, value: &str, accepted: &[&str], errors: &mut Errors) {
    if value.is_empty() {
        errors.push(required(path, ""));
    } else if !accepted.contains(&value) {
        errors.push(unsupported(path, value, accepted));
    }
}

fn versions(definition: &Definition, old: Option<&Value>, errors: &mut Errors) {
    let mut names: Vec<&str> = Vec::new();
    let mut unique = true;
    for (index, version) in definition.versions.iter().enumerate() {
        let name = text(version, "name");
        unique &= !names.contains(&name);
        names.push(name);
        let at = format!("spec.versions[{index}]");
        if let Some(problems) = joined(dns1035_label(name)) {
            errors.push(invalid(child(&at, "name"), name, problems));
        }
        deprecation(version, &at, errors);
        let first = |member: &str| index == 0 || !definition.shared(member);
        if first("schema") {
            let schema = &version["schema"]["openAPIV3Schema"];
            let unchanged = old.is_some_and(|old| old_schema(old, name) == Some(schema));
            let at = child(&definition.at("schema", "validation", index), "openAPIV3Schema");
            let status = definition.versions.iter().any(|version| !version["subresources"]["status"].is_null());
            schema_of(schema, &at, status, unchanged, errors);
        }
        if first("subresources") {
            let at = definition.at("subresources", "subresources", index);
            scale(&version["subresources"]["scale"], &at, errors);
        }
        if first("additionalPrinterColumns") {
            let at = definition.at("additionalPrinterColumns", "additionalPrinterColumns", index);
            let columns = version["additionalPrinterColumns"].as_array();
            for (index, found) in columns.into_iter().flatten().enumerate() {
                column(found, &key(&at, index), errors);
            }
        }
        if first("selectableFields") {
            let at = definition.at("selectableFields", "selectableFields", index);
            let old = old.and_then(|old| old_version(old, name)).map(|old| &old["selectableFields"]);
            selectable(version, old, &at, errors);
        }
    }
    let all = || definition.spec["versions"].clone();
    if !unique {
        errors.push(invalid("spec.versions", all(), "must contain unique version names"));
    }
    if definition.versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        errors.push(invalid("spec.versions", all(), "must have exactly one version marked as storage version"));
    }
}

fn old_version<'v>(old: &'v Value, name: &str) -> Option<&'v Value> {
    old["spec"]["versions"].as_array()?.iter().find(|version| version["name"] == name)
}

fn old_schema<'v>(old: &'v Value, name: &str) -> Option<&'v Value> {
    old_version(old, name).map(|version| &version["schema"]["openAPIV3Schema"])
}

fn deprecation(version: &Value, at: &str, errors: &mut Errors) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut report = |detail: String| errors.push(invalid(child(at, "deprecationWarning"), warning, detail));
    if version["deprecated"] != true {
        report("can only be set for deprecated versions".into());
        return;
    }
    if warning.len() > 256 {
        report("must be <= 256 characters long".into());
    }
    if warning.is_empty() {
        report("must not be an empty string".into());
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        let detail = "must only contain printable UTF-8 characters; non-printable character found at index";
        report(format!("{detail} {index}"));
    }
}

fn schema_of(json: &Value, at: &str, status: bool, unchanged: bool, errors: &mut Errors) {
    if json.is_null() {
        return;
    }
    let schema = match Schema::parse(json) {
        Ok(schema) => schema,
        Err(reason) => {
            errors.push(invalid(at, "", reason));
            return;
        }
    };
    if status {
        if !schema.ty.is_empty() && schema.ty != "object" {
            let detail = r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
            errors.push(invalid(child(at, "type"), schema.ty.as_str(), detail));
        } else if forbidden_at_root(&schema) {
            let detail = format!("only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled");
            errors.push(invalid(at, json.clone(), detail));
        }
    }
    if schema.nullable {
        errors.push(forbidden(child(at, "nullable"), "nullable cannot be true at the root"));
    }
    errors.extend(openapi::validate(at, &schema, unchanged));
}

/// Whether the root has members that are lost when `status` is validated alone.
fn forbidden_at_root(schema: &Schema) -> bool {
    schema.nullable
        || schema.default.is_some()
        || matches!(schema.additional, Some(Additional::Schema(_) | Additional::Allowed(_)))
        || schema.embedded
        || schema.int_or_string
        || schema.list_type.is_some()
        || schema.map_type.is_some()
        || !schema.list_map_keys.is_empty()
        || schema.max_properties.is_some()
        || schema.min_properties.is_some()
        || !schema.enums.is_empty()
        || !(schema.all_of.is_empty() && schema.any_of.is_empty() && schema.one_of.is_empty())
        || schema.not.is_some()
        || !schema.refused.is_empty()
}

fn simple_path(path: &str, at: &str) -> Option<FieldError> {
    (!path.starts_with('.')).then(|| invalid(at, path, "must be a simple json path starting with ."))
}

fn scale(scale: &Value, at: &str, errors: &mut Errors) {
    if !scale.is_object() {
        return;
    }
    for (member, prefix, detail) in [
        ("specReplicasPath", ".spec.", "should be a json path under .spec"),
        ("statusReplicasPath", ".status.", "should be a json path under .status"),
    ] {
        let (path, at) = (text(scale, member), format!("{at}.scale.{member}"));
        if path.is_empty() {
            errors.push(required(at, ""));
        } else if let Some(error) = simple_path(path, &at) {
            errors.push(error);
        } else if !path.starts_with(prefix) {
            errors.push(invalid(at, path, detail));
        }
    }
    let (path, at) = (text(scale, "labelSelectorPath"), format!("{at}.scale.labelSelectorPath"));
    if path.is_empty() {
        return;
    }
    if let Some(error) = simple_path(path, &at) {
        errors.push(error);
    } else if !path.starts_with(".spec.") && !path.starts_with(".status.") {
        errors.push(invalid(at, path, "should be a json path under either .spec or .status"));
    }
}

fn column(column: &Value, at: &str, errors: &mut Errors) {
    if text(column, "name").is_empty() {
        errors.push(required(child(at, "name"), ""));
    }
    let (ty, format, path) = (text(column, "type"), text(column, "format"), text(column, "jsonPath"));
    let wanted = format!("must be one of {}", COLUMN_TYPES.join(","));
    if ty.is_empty() {
        errors.push(required(child(at, "type"), wanted));
    } else if !COLUMN_TYPES.contains(&ty) {
        errors.push(invalid(child(at, "type"), ty, wanted));
    }
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(invalid(child(at, "format"), format, detail));
    }
    if path.is_empty() {
        errors.push(required(child(at, "JSONPath"), ""));
    } else {
        errors.extend(simple_path(path, &child(at, "JSONPath")));
    }
}

fn selectable(version: &Value, old: Option<&Value>, at: &str, errors: &mut Errors) {
    let Some(fields) = version["selectableFields"].as_array().filter(|fields| !fields.is_empty()) else { return };
    let Ok(schema) = Schema::parse(&version["schema"]["openAPIV3Schema"]) else { return };
    let mut unique: Vec<String> = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let (path, at) = (text(field, "jsonPath"), child(&key(at, index), "jsonPath"));
        if path.is_empty() {
            errors.push(required(at, ""));
            continue;
        }
        let (shown, found) = match path::in_schema(path, &schema, false) {
            Ok(found) => found,
            Err(reason) => {
                errors.push(invalid(at, path, format!("is an invalid path: {reason}")));
                continue;
            }
        };
        if shown.split(['.', '[']).next() == Some("metadata") {
            errors.push(invalid(&at, path, "must not point to fields in metadata"));
        }
        if !matches!(found.ty.as_str(), "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(invalid(&at, path, detail));
        }
        if unique.contains(&shown) {
            errors.push(duplicate(at, path));
        } else {
            unique.push(shown);
        }
    }
    if unique.len() > MAX_SELECTABLE && old != Some(&version["selectableFields"]) {
        errors.push(too_many(at, unique.len() as u64, MAX_SELECTABLE as u64));
    }
}

fn spec_names(spec: &Value, errors: &mut Errors) {
    for member in ["plural", "singular", "kind", "listKind"] {
        if text(&spec["names"], member).is_empty() {
            errors.push(required(format!("spec.names.{member}"), ""));
        }
    }
}

fn names(names: &Value, at: &str, errors: &mut Errors) {
    for member in ["plural", "singular"] {
        let name = text(names, member);
        if let Some(problems) = joined(dns1035_label(name)).filter(|_| !name.is_empty()) {
            errors.push(invalid(child(at, member), name, problems));
        }
    }
    for member in ["kind", "listKind"] {
        let name = text(names, member);
        if let Some(problems) = joined(dns1035_label(&name.to_lowercase())).filter(|_| !name.is_empty()) {
            let detail = format!("may have mixed case, but should otherwise match: {problems}");
            errors.push(invalid(child(at, member), name, detail));
        }
    }
    let list = |member: &str, errors: &mut Errors| {
        let found = names[member].as_array().into_iter().flatten().filter_map(Value::as_str);
        for (index, name) in found.enumerate() {
            if let Some(problems) = joined(dns1035_label(name)) {
                errors.push(invalid(key(&child(at, member), index), name, problems));
            }
        }
    };
    list("shortNames", errors);
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        errors.push(invalid(child(at, "listKind"), kind, "kind and listKind may not be the same"));
    }
    list("categories", errors);
}

fn conversion(spec: &Value, errors: &mut Errors) {
    let conversion = &spec["conversion"];
    if conversion.is_null() {
        return;
    }
    let at = "spec.conversion";
    let strategy = text(conversion, "strategy");
    enumeration("spec.conversion.strategy", strategy, &["None", "Webhook"], errors);
    let config = &conversion["webhook"]["clientConfig"];
    let config_at = format!("{at}.webhookClientConfig");
    if strategy != "Webhook" {
        if !config.is_null() {
            errors.push(forbidden(config_at, "should not be set when strategy is not set to Webhook"));
        }
        if conversion["webhook"]["conversionReviewVersions"].as_array().is_some_and(|found| !found.is_empty()) {
            let path = format!("{at}.conversionReviewVersions");
            errors.push(forbidden(path, "should not be set when strategy is not set to Webhook"));
        }
        return;
    }
    match (config["url"].as_str(), config["service"].as_object()) {
        _ if config.is_null() => errors.push(required(&config_at, "required when strategy is set to Webhook")),
        (Some(_), Some(_)) | (None, None) => {
            errors.push(required(&config_at, "exactly one of url or service is required"));
        }
        (Some(url), None) => webhook_url(url, &child(&config_at, "url"), errors),
        (None, Some(service)) => {
            let at = child(&config_at, "service");
            for member in ["name", "namespace"] {
                if service.get(member).and_then(Value::as_str).is_none_or(str::is_empty) {
                    errors.push(required(child(&at, member), ""));
                }
            }
            let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
            if !(1..=65535).contains(&port) {
                let detail = "port is not valid: must be between 1 and 65535, inclusive";
                errors.push(invalid(child(&at, "port"), port, detail));
            }
        }
    }
    review_versions(&conversion["webhook"]["conversionReviewVersions"], errors);
}

fn webhook_url(url: &str, at: &str, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let parsed = match kube_cel::urls::parse(url) {
        Ok(parsed) => parsed,
        Err(reason) => {
            errors.push(required(at, format!("url must be a valid URL: {reason}{FORM}")));
            return;
        }
    };
    if parsed.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(invalid(at, parsed.scheme.as_str(), detail));
    }
    if parsed.host.is_empty() {
        errors.push(invalid(at, "", format!("host must be specified{FORM}")));
    }
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some((user, _)) = authority.rsplit_once('@') {
        errors.push(invalid(at, user, "user information is not permitted in the URL"));
    }
    if let Some((_, fragment)) = url.split_once('#').filter(|(_, fragment)| !fragment.is_empty()) {
        errors.push(invalid(at, fragment, "fragments are not permitted in the URL"));
    }
    if let Some((_, query)) = url.split_once('?').filter(|(_, query)| !query.is_empty()) {
        errors.push(invalid(at, query, "query parameters are not permitted in the URL"));
    }
}

fn review_versions(versions: &Value, errors: &mut Errors) {
    let at = "spec.conversion.conversionReviewVersions";
    let found: Vec<&str> = versions.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if found.is_empty() {
        errors.push(required(at, ""));
        return;
    }
    for (index, version) in found.iter().enumerate() {
        if found[..index].contains(version) {
            errors.push(invalid(key(at, index), *version, "duplicate version"));
            continue;
        }
        errors.extend(dns1035_label(version).into_iter().map(|problem| invalid(key(at, index), *version, problem)));
    }
    if !found.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        errors.push(invalid(at, versions.clone(), "must include at least one of v1, v1beta1"));
    }
}

fn immutable(definition: &Value, old: &Value, errors: &mut Errors) {
    let mut members = vec!["/group", "/names/plural"];
    if is_established(old) {
        members.extend(["/scope", "/names/kind"]);
    }
    for member in members {
        let new = definition["spec"].pointer(member).cloned().unwrap_or_default();
        if Some(&new) != old["spec"].pointer(member) {
            errors.push(invalid(format!("spec{}", member.replace('/', ".")), new, "field is immutable"));
        }
    }
}

fn stored_versions(definition: &Value, parsed: &Definition, errors: &mut Errors) {
    let at = "status.storedVersions";
    let stored = &definition["status"]["storedVersions"];
    let found: Vec<&str> = stored.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if found.is_empty() {
        let shown = if stored.is_null() { json!([]) } else { stored.clone() };
        errors.push(invalid(at, shown, "must have at least one stored version"));
        return;
    }
    for version in parsed.versions.iter().filter(|version| version["storage"] == true) {
        let name = text(version, "name");
        if !found.contains(&name) {
            errors.push(invalid(at, stored.clone(), format!("must have the storage version {name}")));
        }
    }
    for (index, name) in found.iter().enumerate() {
        if !parsed.versions.iter().any(|version| text(version, "name") == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            errors.push(invalid(key(at, index), *name, detail));
        }
    }
}

/// The approval that groups of Kubernetes itself need.
fn approval(definition: &Value, old: Option<&Value>, errors: &mut Errors) {
    let group = text(&definition["spec"], "group");
    let note = |definition: &Value| definition["metadata"]["annotations"][APPROVED].as_str().map(str::to_owned);
    let found = note(definition);
    if !is_protected(group) || old.is_some_and(|old| note(old) == found) {
        return;
    }
    let at = format!("metadata.annotations[{APPROVED}]");
    match Approval::of(definition) {
        (Approval::Missing, detail) => errors.push(required(at, detail)),
        (Approval::Invalid, detail) => errors.push(invalid(at, found.unwrap_or_default(), detail)),
        (Approval::Approved | Approval::Bypassed, _) => {}
    }
}

/// Whether the group is one of Kubernetes itself.
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|own| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// What the annotation of a definition says of its approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approval {
    Missing,
    Invalid,
    Bypassed,
    Approved,
}

impl Approval {
    /// The state, and upstream's words about it.
    pub(crate) fn of(definition: &Value) -> (Self, String) {
        let note = text(&definition["metadata"]["annotations"], APPROVED);
        let must = format!("protected groups must have approval annotation {APPROVED:?}");
        let see = "see https://github.com/kubernetes/enhancements/pull/1111";
        if note.is_empty() {
            return (Approval::Missing, format!("{must}, {see}"));
        }
        if note.starts_with("unapproved") {
            return (Approval::Bypassed, format!("not approved: {note:?}"));
        }
        if kube_cel::urls::parse(note).is_ok_and(|url| !url.host.is_empty() && !url.scheme.is_empty()) {
            return (Approval::Approved, format!("approved in {note}"));
        }
        (Approval::Invalid, format!("{must} with either a URL or a reason starting with \"unapproved\", {see}"))
    }
}
