//! Cells of tables: `additionalPrinterColumns`.

use serde_json::{Value, json};

use crate::path;

/// A column of a table, from one of `additionalPrinterColumns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    pub ty: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub json_path: String,
}

impl Column {
    pub fn parse(json: &Value) -> Column {
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        Column {
            name: text("name"),
            ty: text("type"),
            format: text("format"),
            description: text("description"),
            priority: json["priority"].as_i64().unwrap_or(0),
            json_path: text("jsonPath"),
        }
    }

    /// The cell of an object. Dates are given as they stand; `age` turns them into text.
    pub fn cell(&self, object: &Value, age: &dyn Fn(&str) -> String) -> Value {
        let found = path::find(object, &self.json_path);
        let Some(first) = found.first() else { return Value::Null };
        match self.ty.as_str() {
            "integer" => match first {
                Value::Number(number) if number.is_f64() => json!(number.as_f64().unwrap_or_default() as i64),
                Value::Number(_) => (*first).clone(),
                _ => Value::Null,
            },
            "number" => first.as_f64().map_or(Value::Null, |number| json!(number)),
            "boolean" => first.as_bool().map_or(Value::Null, Value::Bool),
            "string" => {
                let texts: Vec<String> = found.iter().map(|value| text(value)).collect();
                json!(texts.join(","))
            }
            "date" => match first {
                Value::String(text) => json!(age(text)),
                _ => Value::Null,
            },
            _ => Value::Null,
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
