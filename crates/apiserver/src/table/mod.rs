//! Objects as tables, the form in which kubectl asks for them (pkg/printers/internalversion/printers.go). Columns of priority 1 are shown
//! with `-o wide`; every row has them all.

pub mod text;

use crate::names::Names;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: Cow<'static, str>,
    pub format: Cow<'static, str>,
    /// Absent: what follows from the name.
    pub description: Option<String>,
    pub priority: i32,
}

impl Column {
    /// A column that is always shown.
    pub const fn new(name: &'static str, kind: &'static str, format: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), kind: Cow::Borrowed(kind), format: Cow::Borrowed(format), description: None, priority: 0 }
    }
}

pub const NAME: Column = Column::new("Name", "string", "name");
pub const AGE: Column = Column::new("Age", "string", "");

pub const fn text(name: &'static str) -> Column {
    Column::new(name, "string", "")
}

pub const fn number(name: &'static str) -> Column {
    Column::new(name, "integer", "")
}

pub const fn flag(name: &'static str) -> Column {
    Column::new(name, "boolean", "")
}

/// The column is shown with `-o wide`.
pub const fn wide(mut column: Column) -> Column {
    column.priority = 1;
    column
}

/// The cell of [`NAME`].
pub fn name(object: &Value) -> Value {
    text::get(object, "/metadata/name").into()
}

/// The cell of [`AGE`].
pub fn age(object: &Value, now: Timestamp) -> Value {
    text::since(object, "/metadata/creationTimestamp", now).into()
}

type Cells = Arc<dyn Fn(&Value, Timestamp) -> Vec<Value> + Send + Sync>;
type Condition = Arc<dyn Fn(&Value) -> Option<Value> + Send + Sync>;

/// How a kind's table is made.
#[derive(Clone)]
pub struct Printer {
    columns: Vec<Column>,
    cells: Cells,
    condition: Option<Condition>,
}

impl Printer {
    /// The columns, and the cells of an object's row; ages count to the time.
    pub fn new(columns: impl Into<Vec<Column>>, cells: impl Fn(&Value, Timestamp) -> Vec<Value> + Send + Sync + 'static) -> Self {
        Self { columns: columns.into(), cells: Arc::new(cells), condition: None }
    }

    /// The same with a condition for rows whose objects are over.
    #[must_use]
    pub fn with_condition(mut self, condition: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        self.condition = Some(Arc::new(condition));
        self
    }
}

impl Default for Printer {
    /// What kinds have that say nothing else.
    fn default() -> Self {
        Self::new([NAME, Column::new("Created At", "date", "")], |object, _| {
            vec![name(object), text::get(object, "/metadata/creationTimestamp").into()]
        })
    }
}

/// `columnDefinitions` and `rows` of a `meta.k8s.io/v1` Table; the caller adds each row's object. Ages count to `now`.
pub fn render(names: &Names, printer: &Printer, items: &[Value], now: Timestamp) -> Value {
    let columns: Vec<Value> = printer.columns.iter().map(|column| definition(names, column)).collect();
    let rows: Vec<Value> = items
        .iter()
        .map(|item| {
            let mut row = json!({"cells": (printer.cells)(item, now)});
            if let Some(conditions) = printer.condition.as_ref().and_then(|condition| condition(item)) {
                row["conditions"] = json!([conditions]);
            }
            row
        })
        .collect();
    json!({"columnDefinitions": columns, "rows": rows})
}

fn definition(names: &Names, column: &Column) -> Value {
    let description = match (&column.description, &*column.name) {
        (Some(description), _) => description.clone(),
        (None, "Name") => format!("Name must be unique within {}.", if names.namespaced { "a namespace" } else { "the cluster" }),
        (None, "Age" | "Created At") => "The time since the object was created on the server.".to_string(),
        (None, other) => format!("{other} of the {}.", names.kind),
    };
    json!({"name": column.name, "type": column.kind, "format": column.format, "description": description, "priority": column.priority})
}
