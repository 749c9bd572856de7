//! What becomes of fields that nobody knows: the option `fieldValidation`.

use super::call::Call;
use crate::status::ApiError;
use serde_json::Value;

/// `fieldValidation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

pub fn field_validation(call: &Call) -> Result<FieldValidation, ApiError> {
    match call.query.get("fieldValidation").unwrap_or_default() {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => {
            let message = format!(
                "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            );
            Err(ApiError::new(422, "Invalid", message))
        }
    }
}

/// Sorts what was found in a typed object (`unknown field "spec.x"`, `duplicate field "a[0].b"`) as upstream's decoder finds it: by the
/// place in the document where the field first stands. What names no field of it comes first.
pub fn in_document_order(document: &Value, found: &mut [String]) {
    found.sort_by_cached_key(|text| text.split('"').nth(1).and_then(|path| place(document, path)));
}

/// The position of a field among its siblings, after those of what it is in.
fn place(document: &Value, path: &str) -> Option<Vec<usize>> {
    let (mut value, mut place, mut rest) = (document, Vec::new(), path);
    while !rest.is_empty() {
        (value, rest) = match rest.strip_prefix('[') {
            Some(inside) => {
                let (index, rest) = inside.split_once(']')?;
                let index = index.parse().ok()?;
                place.push(index);
                (value.get(index)?, rest)
            }
            None => {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                let name = &rest[..end];
                place.push(value.as_object()?.keys().position(|key| key == name)?);
                (value.get(name)?, &rest[end..])
            }
        };
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_stand_in_the_order_of_the_document() {
        let document = json!({"a": 1, "spec": {"unknown": 1, "replicas": 2, "list": [{"x": 1}, {"y": 1}]}, "z": 1});
        let mut found: Vec<String> = [
            "duplicate field \"z\"",
            "duplicate field \"spec.list[1].y\"",
            "unknown field \"spec.list[0].x\"",
            "duplicate field \"spec.replicas\"",
            "unknown field \"spec.unknown\"",
            "something else",
        ]
        .map(String::from)
        .to_vec();
        let mut wanted = found.clone();
        wanted.reverse();
        in_document_order(&document, &mut found);
        assert_eq!(found, wanted);
        assert_eq!(place(&document, "spec.list[9].x"), None);
        assert_eq!(place(&document, "spec.list[x]"), None);
    }
}
