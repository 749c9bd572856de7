//! What becomes of fields that nobody knows: the option `fieldValidation`.

use super::call::Call;
use crate::status::ApiError;

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
