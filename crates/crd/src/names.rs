//! Which names a definition gets, and the conditions `NamesAccepted` and `Established`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::definition::{Approval, is_protected};

/// The names that the other definitions of the group were given.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub resources: BTreeSet<String>,
    pub kinds: BTreeSet<String>,
}

/// What the status of a definition should say.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub accepted_names: Value,
    /// `NamesAccepted`, then `Established`, without times.
    pub conditions: [Condition; 2],
}

#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub ty: &'static str,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn texts<'v>(value: &'v Value, name: &str) -> Vec<&'v str> {
    value[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

impl Taken {
    /// Adds the accepted names of a definition.
    pub fn add(&mut self, definition: &Value) {
        let names = &definition["status"]["acceptedNames"];
        let resources = [text(names, "plural"), text(names, "singular")];
        self.resources.extend(resources.into_iter().chain(texts(names, "shortNames")).map(str::to_owned));
        self.kinds.extend([text(names, "kind"), text(names, "listKind")].map(str::to_owned));
    }
}

fn free(wanted: &str, accepted: &str, taken: &BTreeSet<String>) -> Result<(), String> {
    if wanted == accepted || !taken.contains(wanted) { Ok(()) } else { Err(format!("{wanted:?} is already in use")) }
}

/// Plans the status of a definition: the names it gets, and its conditions.
pub fn plan(definition: &Value, taken: &Taken) -> Plan {
    let wanted = &definition["spec"]["names"];
    let accepted = &definition["status"]["acceptedNames"];
    let mut names = accepted.as_object().cloned().unwrap_or_default();
    let mut conflict: Option<(&str, String)> = None;
    let members = [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("shortNames", "ShortNamesConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ];
    for (member, reason, taken) in members {
        let outcome =
            if member == "shortNames" { short_names(wanted, accepted, taken) } else { free(text(wanted, member), text(accepted, member), taken) };
        match outcome {
            Ok(()) if wanted[member].is_null() => {
                names.remove(member);
            }
            Ok(()) => {
                names.insert(member.to_owned(), wanted[member].clone());
            }
            Err(message) => conflict = Some((reason, message)),
        }
    }
    match &wanted["categories"] {
        Value::Null => names.remove("categories"),
        categories => names.insert("categories".into(), categories.clone()),
    };
    for member in ["kind", "plural"] {
        names.entry(member).or_insert_with(|| json!(""));
    }
    let fine = conflict.is_none();
    let (reason, message) = conflict.unwrap_or(("NoConflicts", "no conflicts found".into()));
    let accepted = Condition { ty: "NamesAccepted", status: fine, reason: reason.into(), message };
    let established = established(definition, fine);
    Plan { accepted_names: Value::Object(names), conditions: [accepted, established] }
}

fn short_names(wanted: &Value, accepted: &Value, taken: &BTreeSet<String>) -> Result<(), String> {
    let known = texts(accepted, "shortNames");
    let new = texts(wanted, "shortNames").into_iter().filter(|name| !known.contains(name));
    let errors: Vec<String> = new.filter_map(|name| free(name, "", taken).err()).collect();
    match errors.as_slice() {
        [] => Ok(()),
        [error] => Err(error.clone()),
        errors => Err(format!("[{}]", errors.join(", "))),
    }
}

/// A definition stays established; else it becomes so when its names were accepted.
fn established(definition: &Value, names_accepted: bool) -> Condition {
    let condition =
        |status: bool, reason: &str, message: &str| Condition { ty: "Established", status, reason: reason.into(), message: message.into() };
    if is_established(definition) || names_accepted {
        condition(true, "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        condition(false, "NotAccepted", "not all names are accepted")
    }
}

/// The condition `KubernetesAPIApprovalPolicyConformant`, of definitions in groups of Kubernetes itself.
pub fn approval(definition: &Value) -> Option<Condition> {
    if !is_protected(text(&definition["spec"], "group")) {
        return None;
    }
    let (state, message) = Approval::of(definition);
    let reason = match state {
        Approval::Missing => "MissingAnnotation",
        Approval::Invalid => "InvalidAnnotation",
        Approval::Bypassed => "UnapprovedAnnotation",
        Approval::Approved => "ApprovedAnnotation",
    };
    let ty = "KubernetesAPIApprovalPolicyConformant";
    Some(Condition { ty, status: state == Approval::Approved, reason: reason.into(), message })
}

/// Whether the status says so.
pub fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|found| text(found, "type") == "Established" && text(found, "status") == "True")
}
