//! JSON patches as upstream applies them (gopkg.in/evanphx/json-patch.v4): RFC 6902 with negative indexes; `replace` of a member that is not
//! there adds it.

use serde_json::{Map, Value};

/// A patch has at most so many operations.
pub const MAX_OPERATIONS: usize = 10_000;
/// All `copy` operations of a patch together copy at most so many bytes of JSON.
pub const MAX_COPIED: usize = 3 * 1024 * 1024;
/// A patched document is at most so deep.
const MAX_DEPTH: usize = 256;

/// Why a patch cannot be read or applied. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// A `test` operation found another value.
    #[error("testing value {0} failed: test failed")]
    TestFailed(String),
    #[error("{0}")]
    Other(String),
}

fn fail<T>(text: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Other(text.into()))
}

/// The operations of a patch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patch(Vec<Map<String, Value>>);

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Patch {
    /// Reads a patch.
    pub fn parse(text: &[u8]) -> Result<Self, PatchError> {
        Self::from_value(serde_json::from_slice(text).map_err(|error| PatchError::Other(error.to_string()))?)
    }

    /// A patch from JSON.
    pub fn from_value(value: Value) -> Result<Self, PatchError> {
        let operations = match value {
            Value::Null => Vec::new(),
            Value::Array(operations) => operations,
            other => return fail(format!("json: cannot unmarshal {} into Go value of type jsonpatch.Patch", kind_of(&other))),
        };
        if operations.len() > MAX_OPERATIONS {
            return fail(format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", operations.len()));
        }
        let operation = |value| match value {
            Value::Object(members) => Ok(members),
            Value::Null => Ok(Map::new()),
            other => fail(format!("json: cannot unmarshal {} into Go value of type jsonpatch.Operation", kind_of(&other))),
        };
        Ok(Self(operations.into_iter().map(operation).collect::<Result<_, _>>()?))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patch as JSON.
    pub fn to_value(&self) -> Value {
        self.0.iter().cloned().map(Value::Object).collect()
    }

    /// Applies all operations to an object or array, or none.
    pub fn apply(&self, document: &Value) -> Result<Value, PatchError> {
        let mut state = State { document: document.clone(), copied: 0 };
        for operation in &self.0 {
            state.apply(operation)?;
        }
        Ok(state.document)
    }
}

/// A text member of an operation.
fn member<'a>(operation: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    operation.get(name).and_then(Value::as_str)
}

fn path_of<'a>(operation: &'a Map<String, Value>, what: &str) -> Result<&'a str, PatchError> {
    member(operation, "path").map_or_else(|| fail(format!("{what} operation failed to decode path: missing value")), Ok)
}

fn from_of<'a>(operation: &'a Map<String, Value>, what: &str) -> Result<&'a str, PatchError> {
    let text = || format!("{what} operation failed to decode from: operation, missing from field: missing value");
    member(operation, "from").map_or_else(|| fail(text()), Ok)
}

fn unescape(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}

/// How deep a value is: 1 for a scalar.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 1,
    }
}

fn segments(path: &str) -> usize {
    path.split('/').count()
}

/// A place in an array: negative ones count from `len`.
fn index(key: &str, len: usize) -> Result<usize, String> {
    let number: i64 = key.parse().map_err(|_| format!("strconv.Atoi: parsing {key:?}: invalid syntax"))?;
    let place = if number < 0 { i64::try_from(len).unwrap_or(i64::MAX).saturating_add(number) } else { number };
    usize::try_from(place).map_err(|_| format!("Unable to access invalid index: {number}: invalid index referenced"))
}

fn existing(key: &str, len: usize) -> Result<usize, String> {
    let place = index(key, len)?;
    if place < len { Ok(place) } else { Err(format!("Unable to access invalid index: {place}: invalid index referenced")) }
}

struct State {
    document: Value,
    copied: usize,
}

/// The container that a path ends in, and the last key.
fn find<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut parts = path.split('/');
    parts.next()?;
    let mut keys: Vec<String> = parts.map(unescape).collect();
    let last = keys.pop()?;
    let mut at = document;
    for key in keys {
        at = match at {
            Value::Object(members) => members.get_mut(&key)?,
            Value::Array(items) => {
                let place = existing(&key, items.len()).ok()?;
                items.get_mut(place)?
            }
            _ => return None,
        };
    }
    if at.is_object() || at.is_array() { Some((at, last)) } else { None }
}

/// A member or item; a member that is not there counts as null.
fn get(container: &Value, key: &str) -> Result<Value, String> {
    match container {
        Value::Array(items) => existing(key, items.len()).map(|place| items[place].clone()),
        other => Ok(other.get(key).cloned().unwrap_or_default()),
    }
}

fn add(container: &mut Value, key: String, value: Value) -> Result<(), String> {
    match container {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            if key.parse::<i64>().is_err() {
                return Err(format!("value was not a proper array index: '{key}': strconv.Atoi: parsing {key:?}: invalid syntax"));
            }
            let place = existing(&key, items.len() + 1)?;
            items.insert(place, value);
        }
        other => {
            if let Some(members) = other.as_object_mut() {
                members.insert(key, value);
            }
        }
    }
    Ok(())
}

fn remove(container: &mut Value, key: &str) -> Result<Value, String> {
    match container {
        Value::Array(items) => existing(key, items.len()).map(|place| items.remove(place)),
        other => {
            let removed = other.as_object_mut().and_then(|members| members.shift_remove(key));
            removed.ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value"))
        }
    }
}

impl State {
    fn apply(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        match member(operation, "op").unwrap_or("unknown") {
            "add" => self.add(operation),
            "remove" => self.remove(operation),
            "replace" => self.replace(operation),
            "move" => self.relocate(operation),
            "test" => self.test(operation),
            "copy" => self.copy(operation),
            other => fail(format!("Unexpected kind: {other}")),
        }
    }

    /// A value fits where a path leads.
    fn fits(path: &str, value: &Value) -> Result<(), PatchError> {
        if segments(path) + depth(value) > MAX_DEPTH { fail(format!("exceeded max depth of {MAX_DEPTH}")) } else { Ok(()) }
    }

    fn add(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        let path = path_of(operation, "add")?;
        let value = operation.get("value").cloned().unwrap_or_default();
        Self::fits(path, &value)?;
        let Some((container, key)) = find(&mut self.document, path) else {
            return fail(format!("add operation does not apply: doc is missing path: \"{path}\": missing value"));
        };
        add(container, key, value).or_else(|why| fail(format!("error in add for path: '{path}': {why}")))
    }

    fn remove(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        let path = path_of(operation, "remove")?;
        let Some((container, key)) = find(&mut self.document, path) else {
            return fail(format!("remove operation does not apply: doc is missing path: \"{path}\": missing value"));
        };
        remove(container, &key).map(|_| ()).or_else(|why| fail(format!("error in remove for path: '{path}': {why}")))
    }

    fn replace(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        let path = member(operation, "path")
            .map_or_else(|| fail("replace operation failed to decode path: operation missing path field: missing value"), Ok)?;
        let value = operation.get("value").cloned().unwrap_or_default();
        Self::fits(path, &value)?;
        if path.is_empty() {
            if !value.is_object() && !value.is_array() {
                return fail("replace operation value must be object or array: %!w(<nil>)");
            }
            self.document = value;
            return Ok(());
        }
        let Some((container, key)) = find(&mut self.document, path) else {
            return fail(format!("replace operation does not apply: doc is missing path: {path}: missing value"));
        };
        match container {
            Value::Array(items) => match existing(&key, items.len()) {
                Ok(place) => items[place] = value,
                Err(_) => return fail(format!("replace operation does not apply: doc is missing key: {path}: missing value")),
            },
            other => {
                if let Some(members) = other.as_object_mut() {
                    members.insert(key, value);
                }
            }
        }
        Ok(())
    }

    fn relocate(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        let from = from_of(operation, "move")?;
        let Some((container, key)) = find(&mut self.document, from) else {
            return fail(format!("move operation does not apply: doc is missing from path: {from}: missing value"));
        };
        let value = remove(container, &key).or_else(|why| fail(format!("error in move for path: '{key}': {why}")))?;
        let path = path_of(operation, "move")?;
        if segments(path) > segments(from) {
            Self::fits(path, &value)?;
        }
        let Some((container, key)) = find(&mut self.document, path) else {
            return fail(format!("move operation does not apply: doc is missing destination path: {path}: missing value"));
        };
        add(container, key, value).or_else(|why| fail(format!("error in move for path: '{path}': {why}")))
    }

    fn test(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        let path = path_of(operation, "test")?;
        let wanted = operation.get("value").unwrap_or(&Value::Null);
        let found = if path.is_empty() {
            self.document.clone()
        } else {
            let Some((container, key)) = find(&mut self.document, path) else {
                return fail(format!("test operation does not apply: is missing path: {path}: missing value"));
            };
            get(container, &key).or_else(|why| fail(format!("error in test for path: '{path}': {why}")))?
        };
        if found == *wanted { Ok(()) } else { Err(PatchError::TestFailed(path.to_owned())) }
    }

    fn copy(&mut self, operation: &Map<String, Value>) -> Result<(), PatchError> {
        let from = from_of(operation, "copy")?;
        let Some((container, key)) = find(&mut self.document, from) else {
            return fail(format!("copy operation does not apply: doc is missing from path: {from}: missing value"));
        };
        let value = get(container, &key).or_else(|why| fail(format!("error in copy for from: '{from}': {why}")))?;
        let path = path_of(operation, "copy")?;
        Self::fits(path, &value)?;
        self.copied += value.to_string().len();
        if self.copied > MAX_COPIED {
            let copied = self.copied;
            return fail(format!("Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"));
        }
        let Some((container, key)) = find(&mut self.document, path) else {
            return fail(format!("copy operation does not apply: doc is missing destination path: {path}: missing value"));
        };
        add(container, key, value).or_else(|why| fail(format!("error while adding value during copy: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn apply(document: Value, patch: Value) -> Result<Value, String> {
        Patch::from_value(patch).and_then(|patch| patch.apply(&document)).map_err(|error| error.to_string())
    }

    #[test]
    fn operations_change_documents() {
        for (document, patch, expected) in [
            (json!({"a": 1}), json!([{"op": "add", "path": "/b", "value": [1]}]), json!({"a": 1, "b": [1]})),
            (json!({"a": [1, 3]}), json!([{"op": "add", "path": "/a/1", "value": 2}]), json!({"a": [1, 2, 3]})),
            (json!({"a": [1]}), json!([{"op": "add", "path": "/a/-", "value": 2}]), json!({"a": [1, 2]})),
            (json!({"a": [1, 2]}), json!([{"op": "add", "path": "/a/-1", "value": 3}]), json!({"a": [1, 2, 3]})),
            (json!({"a": [1, 2]}), json!([{"op": "remove", "path": "/a/-1"}]), json!({"a": [1]})),
            (json!({"a/b": {"c~d": 1}}), json!([{"op": "replace", "path": "/a~1b/c~0d", "value": 2}]), json!({"a/b": {"c~d": 2}})),
            (json!({}), json!([{"op": "replace", "path": "/a", "value": 2}]), json!({"a": 2})),
            (json!({"a": 1}), json!([{"op": "replace", "path": "", "value": {"b": 2}}]), json!({"b": 2})),
            (json!({"a": 1, "b": {}}), json!([{"op": "move", "from": "/a", "path": "/b/c"}]), json!({"b": {"c": 1}})),
            (json!({"a": [1]}), json!([{"op": "copy", "from": "/a", "path": "/b"}]), json!({"a": [1], "b": [1]})),
            (json!({"a": null}), json!([{"op": "test", "path": "/a", "value": null}, {"op": "test", "path": "/b"}]), json!({"a": null})),
            (json!({"a": {"b": [1, "x"]}}), json!([{"op": "test", "path": "/a", "value": {"b": [1, "x"]}}]), json!({"a": {"b": [1, "x"]}})),
            (json!({"a": 1}), Value::Null, json!({"a": 1})),
        ] {
            assert_eq!(apply(document, patch.clone()), Ok(expected), "{patch}");
        }
    }

    #[test]
    fn refusals_are_upstream_s() {
        for (document, patch, expected) in [
            (
                json!({}),
                json!([{"op": "add", "path": "/a/b", "value": 1}]),
                r#"add operation does not apply: doc is missing path: "/a/b": missing value"#,
            ),
            (
                json!({"a": 1}),
                json!([{"op": "add", "path": "/a/b", "value": 1}]),
                r#"add operation does not apply: doc is missing path: "/a/b": missing value"#,
            ),
            (json!({}), json!([{"op": "add", "value": 1}]), "add operation failed to decode path: missing value"),
            (
                json!({}),
                json!([{"op": "remove", "path": "/a"}]),
                "error in remove for path: '/a': Unable to remove nonexistent key: a: missing value",
            ),
            (
                json!({"a": [1]}),
                json!([{"op": "remove", "path": "/a/1"}]),
                "error in remove for path: '/a/1': Unable to access invalid index: 1: invalid index referenced",
            ),
            (
                json!({"a": [1]}),
                json!([{"op": "add", "path": "/a/-3", "value": 1}]),
                "error in add for path: '/a/-3': Unable to access invalid index: -3: invalid index referenced",
            ),
            (
                json!({"a": [1]}),
                json!([{"op": "replace", "path": "/a/5", "value": 1}]),
                "replace operation does not apply: doc is missing key: /a/5: missing value",
            ),
            (json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 2}]), "testing value /a failed: test failed"),
            (
                json!({}),
                json!([{"op": "move", "from": "/a", "path": "/b"}]),
                "error in move for path: 'a': Unable to remove nonexistent key: a: missing value",
            ),
            (json!({}), json!([{"op": "copy", "path": "/b"}]), "copy operation failed to decode from: operation, missing from field: missing value"),
            (json!({}), json!([{"path": "/b"}]), "Unexpected kind: unknown"),
            (json!({}), json!([{"op": "fly", "path": "/b"}]), "Unexpected kind: fly"),
            (json!({}), json!({"op": "add"}), "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
            (json!({}), json!(["add"]), "json: cannot unmarshal string into Go value of type jsonpatch.Operation"),
        ] {
            assert_eq!(apply(document, patch.clone()), Err(expected.to_owned()), "{patch}");
        }
    }

    #[test]
    fn a_failed_patch_changes_nothing_and_growth_has_bounds() {
        let doubling: Vec<Value> = (0..40).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"})).collect();
        let error = apply(json!({"a": ["0123456789"]}), doubling.into()).unwrap_err();
        assert!(error.starts_with("Unable to complete the copy, "), "{error}");
        let nesting: Vec<Value> = (0..300)
            .flat_map(|_| {
                [
                    json!({"op": "add", "path": "/b", "value": {}}),
                    json!({"op": "move", "from": "/a", "path": "/b/a"}),
                    json!({"op": "move", "from": "/b", "path": "/a"}),
                ]
            })
            .collect();
        assert_eq!(apply(json!({"a": {}}), nesting.into()), Err("exceeded max depth of 256".to_owned()));
        let many: Vec<Value> = (0..=MAX_OPERATIONS).map(|_| json!({})).collect();
        assert!(Patch::from_value(many.into()).is_err());
    }

    proptest! {
        #[test]
        fn patches_of_any_paths_never_panic(
            ops in proptest::collection::vec(("add|remove|replace|move|copy|test", "(/(a|b|-|-1|0|1|~1|)){0,3}", "(/(a|b|-|0|1)){0,3}"), 0..12)
        ) {
            let patch: Vec<Value> = ops.into_iter().map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": [1, {"a": 2}]})).collect();
            let _ = apply(json!({"a": [0, {"b": 1}], "b": {"a": 1}}), patch.into());
        }
    }
}
