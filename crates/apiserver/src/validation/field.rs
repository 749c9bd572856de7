//! A value together with its path, and the list that errors go to: what every check works with.

use super::{ErrorKind, FieldError};
use serde_json::Value;

/// A value in an object, and where it is. A missing value is null.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// The path, as errors name it.
    pub path: String,
    pub value: &'a Value,
}

impl<'a> Field<'a> {
    /// The object itself.
    pub fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value }
    }

    /// The member of this name.
    pub fn get(&self, name: &str) -> Field<'a> {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Field { path, value: self.value.get(name).unwrap_or(&Value::Null) }
    }

    /// A member of a map: `path[key]`.
    pub fn key(&self, key: &str) -> Field<'a> {
        Field { path: format!("{}[{key}]", self.path), value: self.value.get(key).unwrap_or(&Value::Null) }
    }

    /// The item at this place: `path[index]`.
    pub fn index(&self, index: usize) -> Field<'a> {
        Field { path: format!("{}[{index}]", self.path), value: self.value.get(index).unwrap_or(&Value::Null) }
    }

    /// A list's items.
    pub fn items(&self) -> Vec<Field<'a>> {
        (0..self.value.as_array().map_or(0, Vec::len)).map(|index| self.index(index)).collect()
    }

    /// A map's members by key, with the map's own path.
    pub fn members(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.value.as_object().into_iter().flatten()
    }

    /// The text; empty when there is none.
    pub fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    /// The whole number.
    pub fn number(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub fn is_true(&self) -> bool {
        self.value.as_bool().unwrap_or_default()
    }

    /// Whether there is a value.
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Whether there is nothing in it: null, empty text, list or map.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        }
    }
}

/// The errors found so far.
#[derive(Debug, Default)]
pub struct Errors {
    list: Vec<FieldError>,
    warnings: Vec<String>,
}

impl Errors {
    /// The errors in the order they were found.
    pub fn into_list(self) -> Vec<FieldError> {
        self.list
    }

    /// The errors, and the warnings for the client.
    pub fn into_parts(self) -> (Vec<FieldError>, Vec<String>) {
        (self.list, self.warnings)
    }

    /// Adds what is accepted and still not as it should be.
    pub fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds any error.
    pub fn push(&mut self, error: FieldError) {
        self.list.push(error);
    }

    /// Adds these errors.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        self.list.extend(errors);
    }

    /// The field is missing.
    pub fn required(&mut self, field: &Field, detail: &str) {
        self.push(FieldError::new(ErrorKind::Required, &field.path, None, detail));
    }

    /// The field's value is wrong.
    pub fn invalid(&mut self, field: &Field, detail: impl Into<String>) {
        self.push(FieldError::new(ErrorKind::Invalid, &field.path, field.value.clone(), detail));
    }

    /// The field's value is wrong in each of these ways.
    pub fn invalid_each(&mut self, field: &Field, details: Vec<String>) {
        details.into_iter().for_each(|detail| self.invalid(field, detail));
    }

    /// A value is wrong that is shown in another form.
    pub fn invalid_value(&mut self, field: &Field, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(FieldError::new(ErrorKind::Invalid, &field.path, value.into(), detail));
    }

    /// Something in the field's value is wrong; the value is not shown.
    pub fn invalid_omitted(&mut self, field: &Field, detail: impl Into<String>) {
        self.push(FieldError::new(ErrorKind::Invalid, &field.path, None, detail));
    }

    /// The field may not be set or changed.
    pub fn forbidden(&mut self, field: &Field, detail: impl Into<String>) {
        self.push(FieldError::new(ErrorKind::Forbidden, &field.path, None, detail));
    }

    /// The field's value stands elsewhere too.
    pub fn duplicate(&mut self, field: &Field, value: impl Into<Value>) {
        self.push(FieldError::new(ErrorKind::Duplicate, &field.path, value.into(), ""));
    }

    /// The field's value names something that does not exist.
    pub fn not_found(&mut self, field: &Field) {
        self.push(FieldError::new(ErrorKind::NotFound, &field.path, field.value.clone(), ""));
    }

    /// The field has at most `limit` bytes.
    pub fn too_long(&mut self, field: &Field, limit: usize) {
        self.push(FieldError::new(ErrorKind::TooLong, &field.path, None, format!("may not be more than {limit} bytes")));
    }

    /// The list has at most `limit` items.
    pub fn too_many(&mut self, field: &Field, count: usize, limit: usize) {
        self.push(FieldError::new(ErrorKind::TooMany, &field.path, Value::from(count), format!("must have at most {limit} items")));
    }

    /// The field's value is none of these.
    pub fn not_supported(&mut self, field: &Field, known: &[&str]) {
        let known: Vec<String> = known.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", known.join(", "));
        self.push(FieldError::new(ErrorKind::NotSupported, &field.path, field.value.clone(), detail));
    }

    /// The field must have one of these values.
    pub fn one_of(&mut self, field: &Field, known: &[&str]) {
        if field.is_empty() {
            self.required(field, "");
        } else if !known.contains(&field.text()) {
            self.not_supported(field, known);
        }
    }

    /// The field, when it is set, has one of these values.
    pub fn one_of_if_set(&mut self, field: &Field, known: &[&str]) {
        if field.is_set() {
            self.one_of(field, known);
        }
    }

    /// The number, when it is set, is at least 0.
    pub fn not_negative(&mut self, field: &Field) {
        if field.number().is_some_and(|number| number < 0) {
            self.invalid(field, "must be greater than or equal to 0");
        }
    }

    /// The field may not change.
    pub fn immutable(&mut self, new: &Field, old: &Field) {
        if new.value != old.value {
            self.invalid(new, "field is immutable");
        }
    }
}
