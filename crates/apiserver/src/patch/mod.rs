//! The patch formats but apply, each a pure function from an object and a patch document to the patched object.

#[cfg(test)]
mod tests;

use crate::fields;
use crate::http::json::DEEPEST;
use crate::kind::Kind;
use json_patch::PatchOperation;
use serde_json::Value;

/// Why a patch cannot be applied. Texts are upstream's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The document is no patch of its format.
    #[error("{0}")]
    Malformed(String),
    /// The document has too many operations.
    #[error("{0}")]
    TooLarge(String),
    /// The patch does not fit the object.
    #[error("{0}")]
    NotApplicable(String),
}

/// Longest JSON patch (handlers/patch.go `maxJSONPatchOperations`).
const MOST_OPERATIONS: usize = 10_000;

/// How many bytes a patch may copy in all (`AccumulatedCopySizeLimit`).
const MOST_COPIED: usize = 3 << 20;

/// Applies an RFC 6902 patch. All operations apply, or none.
pub fn json(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Value::Array(operations) = patch else {
        let found = if patch.is_object() { "object" } else { "value" };
        return Err(PatchError::Malformed(format!("json: cannot unmarshal {found} into Go value of type jsonpatch.Patch")));
    };
    if operations.len() > MOST_OPERATIONS {
        let found = operations.len();
        return Err(PatchError::TooLarge(format!("The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {found}")));
    }
    if operations.iter().any(|operation| !operation.is_object()) {
        return Err(PatchError::Malformed("json: cannot unmarshal value into Go value of type jsonpatch.Operation".into()));
    }
    let (mut patched, mut copied) = (object.clone(), 0);
    for operation in operations {
        if tests_absence(&patched, operation) {
            continue;
        }
        let name = operation["op"].as_str().unwrap_or("unknown");
        let parsed: PatchOperation =
            serde_json::from_value(operation.clone()).map_err(|_| PatchError::NotApplicable(format!("Unexpected kind: {name}")))?;
        if let PatchOperation::Copy(copy) = &parsed {
            copied += patched.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            if copied > MOST_COPIED {
                let why =
                    format!("Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MOST_COPIED}");
                return Err(PatchError::NotApplicable(why));
            }
        }
        if reach(&patched, &parsed) > DEEPEST {
            return Err(PatchError::NotApplicable(format!("{name} operation does not apply: exceeded max depth")));
        }
        // What is half-way changed by an error is thrown away here: nothing has to be undone.
        json_patch::patch_unsafe(&mut patched, &[parsed]).map_err(|_| PatchError::NotApplicable(json_error(name, operation)))?;
    }
    Ok(patched)
}

/// Whether an operation tests for null a member that an object does not have. RFC 6902 has that fail, upstream's library lets it pass, and
/// kube-rs relies on it before it adds the first finalizer.
fn tests_absence(document: &Value, operation: &Value) -> bool {
    let is_test = operation["op"] == "test" && operation["value"].is_null();
    let Some((parent, member)) = operation["path"].as_str().filter(|_| is_test).and_then(|path| path.rsplit_once('/')) else { return false };
    let member = member.replace("~1", "/").replace("~0", "~");
    document.pointer(parent).and_then(Value::as_object).is_some_and(|parent| !parent.contains_key(&member))
}

/// How deep the document is, below the root, where an operation has put its value: what a reader or `Drop` can bear is checked before it
/// is made. A value that moves up or sideways takes the document no deeper.
fn reach(document: &Value, operation: &PatchOperation) -> usize {
    let at = |path: &str| path.matches('/').count();
    let found = |path: &str| document.pointer(path).map_or(0, depth);
    match operation {
        PatchOperation::Add(add) => at(add.path.as_str()) + depth(&add.value),
        PatchOperation::Replace(replace) => at(replace.path.as_str()) + depth(&replace.value),
        PatchOperation::Copy(copy) => at(copy.path.as_str()) + found(copy.from.as_str()),
        PatchOperation::Move(moved) if at(moved.path.as_str()) > at(moved.from.as_str()) => at(moved.path.as_str()) + found(moved.from.as_str()),
        _ => 0,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// The JSON patch library's words (evanphx/json-patch) for an operation that failed.
fn json_error(name: &str, operation: &Value) -> String {
    let path = operation["path"].as_str().unwrap_or_default();
    match name {
        "test" => format!("testing path {path} failed: test failed"),
        "replace" => format!("replace operation does not apply: doc is missing key: {path}: missing value"),
        "remove" => format!("remove operation does not apply: doc is missing path: {path:?}: missing value"),
        "move" | "copy" => {
            let from = operation["from"].as_str().unwrap_or_default();
            format!("{name} operation does not apply: doc is missing from path: {from}: missing value")
        }
        _ => format!("{name} operation does not apply: doc is missing path: {path:?}: missing value"),
    }
}

/// Applies an RFC 7386 merge patch, which fits any object.
pub fn merge(object: &Value, patch: &Value) -> Value {
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    patched
}

/// Applies a strategic merge patch to an object of a type of `schema/types.txt`: for what is no kind. One that is not there has no merge keys.
pub fn strategic_as(name: &str, object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let tree = crate::schema::tree();
    let of = tree.find(name).unwrap_or_else(|| tree.type_at(kube_schema::schema::Schema::DEDUCED));
    kube_schema::strategic::apply(of, object, patch).map_err(|error| PatchError::Malformed(error.0))
}

/// Applies a strategic merge patch by upstream's merge keys for the kind.
pub fn strategic(kind: &Kind, object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let own = kind.own_tree();
    kube_schema::strategic::apply(fields::type_of(kind, own.as_deref()), object, patch).map_err(|error| PatchError::Malformed(error.0))
}
