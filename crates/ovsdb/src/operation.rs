//! Operations of transactions (RFC 7047, section 5.2), and what comes of them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::schema::Support;
use crate::value::{Datum, excerpt};

/// Columns to write.
type Columns = BTreeMap<String, Datum>;

/// How a condition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Less than.
    Less,
    /// At most.
    AtMost,
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// At least.
    AtLeast,
    /// Greater than.
    Greater,
    /// Has all of these elements.
    Includes,
    /// Has none of these elements.
    Excludes,
}

impl Function {
    fn as_str(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::AtLeast => ">=",
            Self::Greater => ">",
            Self::Includes => "includes",
            Self::Excludes => "excludes",
        }
    }
}

/// A condition on a column; the rows that satisfy all of an operation's are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The column, or `_uuid`.
    pub column: String,
    /// How it compares.
    pub function: Function,
    /// With what.
    pub value: Datum,
}

impl Condition {
    /// Of one row.
    #[must_use]
    pub fn row(uuid: Uuid) -> Self {
        Self { column: "_uuid".into(), function: Function::Equal, value: uuid.into() }
    }

    /// Of rows whose column has this value.
    pub fn equal(column: &str, value: impl Into<Datum>) -> Self {
        Self { column: column.into(), function: Function::Equal, value: value.into() }
    }

    /// Of rows whose column has these elements.
    #[must_use]
    pub fn includes(column: &str, value: Datum) -> Self {
        Self { column: column.into(), function: Function::Includes, value }
    }

    fn to_json(&self) -> Value {
        json!([self.column, self.function.as_str(), self.value.to_json()])
    }
}

/// How a mutation changes a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutator {
    /// Numbers are added.
    Add,
    /// Elements come; keys that are there keep their values.
    Insert,
    /// Elements go; of a map's, keys or whole pairs.
    Delete,
}

/// A change of one column that does not depend on the rest of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The column.
    pub column: String,
    /// How it changes.
    pub mutator: Mutator,
    /// By what.
    pub value: Datum,
}

impl Mutation {
    /// A mutation.
    #[must_use]
    pub fn new(column: &str, mutator: Mutator, value: Datum) -> Self {
        Self { column: column.into(), mutator, value }
    }

    fn to_json(&self) -> Value {
        let mutator = match self.mutator {
            Mutator::Add => "+=",
            Mutator::Insert => "insert",
            Mutator::Delete => "delete",
        };
        json!([self.column, mutator, self.value.to_json()])
    }
}

/// When a `wait` is content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The rows are those given.
    Equal,
    /// They are others.
    NotEqual,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new row. One that no other row refers to vanishes at once, unless its table is a root.
    Insert {
        /// The table.
        table: String,
        /// The name by which other operations of the transaction refer to it.
        name: Option<String>,
        /// Its columns.
        row: Columns,
    },
    /// Rows, by conditions.
    Select {
        /// The table.
        table: String,
        /// Which rows.
        conditions: Vec<Condition>,
        /// Which columns.
        columns: Vec<String>,
    },
    /// Columns of rows get other values.
    Update {
        /// The table.
        table: String,
        /// Which rows.
        conditions: Vec<Condition>,
        /// The columns.
        row: Columns,
    },
    /// Columns of rows change by elements.
    Mutate {
        /// The table.
        table: String,
        /// Which rows.
        conditions: Vec<Condition>,
        /// The changes.
        mutations: Vec<Mutation>,
    },
    /// Rows go.
    Delete {
        /// The table.
        table: String,
        /// Which rows.
        conditions: Vec<Condition>,
    },
    /// The transaction fails unless these rows are so now.
    Wait {
        /// The table.
        table: String,
        /// Which rows.
        conditions: Vec<Condition>,
        /// How they are compared.
        until: Until,
        /// Which columns are compared.
        columns: Vec<String>,
        /// With which rows.
        rows: Vec<Columns>,
    },
    /// The transaction fails unless this client holds the lock.
    Assert {
        /// The lock.
        lock: String,
    },
    /// A line in the server's log of the database.
    Comment(String),
}

impl Operation {
    /// Fails the transaction unless a row's columns have these values.
    #[must_use]
    pub fn wait_row(table: &str, uuid: Uuid, row: Columns) -> Self {
        let (columns, conditions) = (row.keys().cloned().collect(), vec![Condition::row(uuid)]);
        Self::Wait { table: table.into(), conditions, until: Until::Equal, columns, rows: vec![row] }
    }

    /// Fails the transaction if there are such rows.
    #[must_use]
    pub fn wait_none(table: &str, conditions: Vec<Condition>) -> Self {
        let columns = conditions.iter().map(|condition| condition.column.clone()).collect();
        Self::Wait { table: table.into(), conditions, until: Until::Equal, columns, rows: Vec::new() }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Insert { .. } => "insert",
            Self::Select { .. } => "select",
            Self::Update { .. } => "update",
            Self::Mutate { .. } => "mutate",
            Self::Delete { .. } => "delete",
            Self::Wait { .. } => "wait",
            Self::Assert { .. } => "assert",
            Self::Comment(_) => "comment",
        }
    }

    fn table(&self) -> &str {
        match self {
            Self::Insert { table, .. }
            | Self::Select { table, .. }
            | Self::Update { table, .. }
            | Self::Mutate { table, .. }
            | Self::Delete { table, .. }
            | Self::Wait { table, .. } => table,
            Self::Assert { .. } | Self::Comment(_) => "",
        }
    }

    /// Its JSON form, without columns that the server lacks.
    fn to_json(&self, support: &Support) -> Value {
        let table = self.table();
        let there = |column: &String| !support.lacks(table, column);
        let row = |row: &Columns| row.iter().filter(|(name, _)| there(name)).map(|(name, value)| (name.clone(), value.to_json())).collect();
        let row = |columns: &Columns| -> Value { Value::Object(row(columns)) };
        let conditions = |all: &[Condition]| all.iter().map(Condition::to_json).collect::<Vec<_>>();
        let names = |all: &[String]| all.iter().filter(|name| there(name)).cloned().collect::<Vec<_>>();
        match self {
            Self::Insert { name: Some(name), row: columns, .. } => json!({"op": "insert", "table": table, "uuid-name": name, "row": row(columns)}),
            Self::Insert { name: None, row: columns, .. } => json!({"op": "insert", "table": table, "row": row(columns)}),
            Self::Select { conditions: which, columns, .. } => {
                json!({"op": "select", "table": table, "where": conditions(which), "columns": names(columns)})
            }
            Self::Update { conditions: which, row: columns, .. } => {
                json!({"op": "update", "table": table, "where": conditions(which), "row": row(columns)})
            }
            Self::Mutate { conditions: which, mutations, .. } => {
                let mutations: Vec<Value> = mutations.iter().filter(|change| there(&change.column)).map(Mutation::to_json).collect();
                json!({"op": "mutate", "table": table, "where": conditions(which), "mutations": mutations})
            }
            Self::Delete { conditions: which, .. } => json!({"op": "delete", "table": table, "where": conditions(which)}),
            Self::Wait { conditions: which, until, columns, rows, .. } => {
                let until = if *until == Until::Equal { "==" } else { "!=" };
                let rows: Vec<Value> = rows.iter().map(row).collect();
                json!({"op": "wait", "timeout": 0, "table": table, "where": conditions(which), "columns": names(columns), "until": until, "rows": rows})
            }
            Self::Assert { lock } => json!({"op": "assert", "lock": lock}),
            Self::Comment(text) => json!({"op": "comment", "comment": text}),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match self {
            Self::Assert { lock } => write!(f, " {lock}"),
            Self::Comment(_) => Ok(()),
            _ => write!(f, " {}", self.table()),
        }
    }
}

/// Operations that all take effect, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// In their order.
    pub operations: Vec<Operation>,
}

impl Transaction {
    /// The parameters of `transact`.
    #[must_use]
    pub fn to_json(&self, database: &str, support: &Support) -> Value {
        let operations = self.operations.iter().map(|operation| operation.to_json(support));
        Value::Array(std::iter::once(json!(database)).chain(operations).collect())
    }

    /// Reads the server's answer: an outcome for each operation.
    ///
    /// # Errors
    /// The transaction was refused, or the answer is none.
    pub fn outcomes(&self, answer: &Value) -> Result<Vec<Outcome>, Refused> {
        let other = |details: String| Refused { operation: "transaction".into(), index: 0, error: "bad answer".into(), details };
        let items = answer.as_array().ok_or_else(|| other(excerpt(answer)))?;
        let mut outcomes = Vec::new();
        for (index, item) in items.iter().enumerate() {
            // After the last operation stands what went wrong with all of them together.
            let operation = self.operations.get(index).map_or_else(|| "commit".to_owned(), ToString::to_string);
            if let Some(error) = item.get("error").and_then(Value::as_str) {
                let details = item.get("details").and_then(Value::as_str).unwrap_or_default();
                return Err(Refused { operation, index, error: short(error), details: short(details) });
            }
            outcomes.push(Outcome::parse(item).ok_or_else(|| other(excerpt(item)))?);
        }
        outcomes.truncate(self.operations.len());
        if outcomes.len() < self.operations.len() {
            return Err(other(format!("{} answers to {} operations", outcomes.len(), self.operations.len())));
        }
        Ok(outcomes)
    }
}

/// The beginning of a foreign text.
fn short(text: &str) -> String {
    text.chars().take(400).collect()
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a `wait`, an `assert` or a comment: it held.
    Done,
    /// Of an insertion: the new row.
    Row(Uuid),
    /// Of a change: so many rows were meant.
    Count(u64),
    /// Of a `select`: read them with [`Support::row`].
    Rows(Vec<Map<String, Value>>),
}

impl Outcome {
    fn parse(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        if let Some(uuid) = object.get("uuid") {
            return Some(Self::Row(uuid.get(1)?.as_str()?.parse().ok()?));
        }
        if let Some(count) = object.get("count") {
            return Some(Self::Count(count.as_u64()?));
        }
        if let Some(rows) = object.get("rows") {
            return Some(Self::Rows(rows.as_array()?.iter().map(|row| row.as_object().cloned()).collect::<Option<_>>()?));
        }
        Some(Self::Done)
    }
}

/// Why a transaction was refused. Nothing of it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the database refused the transaction at operation {index} ({operation}): {error}{}{details}", if .details.is_empty() { "" } else { ": " })]
pub struct Refused {
    /// Which operation, counted from 0.
    pub index: usize,
    /// Its name and table.
    pub operation: String,
    /// The server's word for it.
    pub error: String,
    /// The server's explanation.
    pub details: String,
}

impl Refused {
    /// Whether rows were not as expected: another client was first. Look at them again.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.error == "timed out"
    }

    /// Whether this client does not hold the lock.
    #[must_use]
    pub fn is_not_owner(&self) -> bool {
        self.error == "not owner"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{AtomType, ColumnUse, Schema, TableUse};

    fn columns(pairs: &[(&str, &str)]) -> Columns {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Datum::from(*value))).collect()
    }

    fn support() -> Support {
        const USES: &[TableUse] = &[TableUse {
            name: "ACL",
            required: true,
            columns: &[ColumnUse::required("name", AtomType::String), ColumnUse::optional("tier", AtomType::Integer)],
        }];
        let schema = json!({"name": "X", "tables": {"ACL": {"columns": {"name": {"type": "string"}}}}});
        Schema::parse(&schema).unwrap().supports(USES).unwrap()
    }

    #[test]
    fn every_operation_has_the_form_of_the_specification() {
        let uuid = Uuid::from_u128(10);
        let id = json!(["uuid", "00000000-0000-0000-0000-00000000000a"]);
        let row = || Condition::row(uuid);
        let cases = [
            (
                Operation::Insert { table: "LS".into(), name: Some("row0".into()), row: columns(&[("name", "a")]) },
                json!({"op": "insert", "table": "LS", "uuid-name": "row0", "row": {"name": "a"}}),
            ),
            (
                Operation::Select { table: "LS".into(), conditions: vec![Condition::equal("name", "a")], columns: vec!["_uuid".into()] },
                json!({"op": "select", "table": "LS", "where": [["name", "==", "a"]], "columns": ["_uuid"]}),
            ),
            (
                Operation::Update { table: "LS".into(), conditions: vec![row()], row: columns(&[("name", "b")]) },
                json!({"op": "update", "table": "LS", "where": [["_uuid", "==", id]], "row": {"name": "b"}}),
            ),
            (
                Operation::Mutate {
                    table: "LS".into(),
                    conditions: vec![Condition::includes("ids", Datum::map([("k", "v")]))],
                    mutations: vec![Mutation::new("ports", Mutator::Insert, crate::Atom::Named("row0".into()).into())],
                },
                json!({"op": "mutate", "table": "LS", "where": [["ids", "includes", ["map", [["k", "v"]]]]],
                       "mutations": [["ports", "insert", ["named-uuid", "row0"]]]}),
            ),
            (
                Operation::Delete { table: "LS".into(), conditions: vec![row()] },
                json!({"op": "delete", "table": "LS", "where": [["_uuid", "==", id]]}),
            ),
            (
                Operation::wait_row("LS", uuid, columns(&[("name", "a")])),
                json!({"op": "wait", "timeout": 0, "table": "LS", "where": [["_uuid", "==", id]], "columns": ["name"], "until": "==", "rows": [{"name": "a"}]}),
            ),
            (
                Operation::wait_none("LS", vec![Condition::equal("name", "a")]),
                json!({"op": "wait", "timeout": 0, "table": "LS", "where": [["name", "==", "a"]], "columns": ["name"], "until": "==", "rows": []}),
            ),
            (Operation::Assert { lock: "l".into() }, json!({"op": "assert", "lock": "l"})),
            (Operation::Comment("why".into()), json!({"op": "comment", "comment": "why"})),
        ];
        for (operation, expected) in cases {
            assert_eq!(operation.to_json(&Support::default()), expected, "{operation}");
        }
    }

    #[test]
    fn columns_that_the_server_lacks_are_not_written() {
        let row = || [("name".to_owned(), Datum::from("a")), ("tier".to_owned(), Datum::from(1))].into();
        let transaction = Transaction {
            operations: vec![
                Operation::Insert { table: "ACL".into(), name: None, row: row() },
                Operation::wait_row("ACL", Uuid::nil(), row()),
                Operation::Mutate {
                    table: "ACL".into(),
                    conditions: Vec::new(),
                    mutations: vec![Mutation::new("tier", Mutator::Add, Datum::from(1))],
                },
            ],
        };
        let text = transaction.to_json("X", &support()).to_string();
        assert!(text.contains("\"name\":\"a\"") && !text.contains("tier"), "{text}");
    }

    #[test]
    fn answers_are_outcomes_or_say_which_operation_failed() {
        let wait = Operation::wait_row("LS", Uuid::nil(), columns(&[("name", "a")]));
        let insert = Operation::Insert { table: "LS".into(), name: None, row: Columns::new() };
        let transaction = Transaction { operations: vec![wait, insert] };
        let uuid = "00000000-0000-0000-0000-00000000000a";
        let done = transaction.outcomes(&json!([{}, {"uuid": ["uuid", uuid]}])).unwrap();
        assert_eq!(done, [Outcome::Done, Outcome::Row(uuid.parse().unwrap())]);
        let refused = transaction.outcomes(&json!([{"error": "timed out", "details": "\"where\" clause test failed"}, null])).unwrap_err();
        assert!(refused.is_outdated() && !refused.is_not_owner());
        assert_eq!(refused.to_string(), "the database refused the transaction at operation 0 (wait LS): timed out: \"where\" clause test failed");
        // What is wrong with all together comes last.
        let refused = transaction.outcomes(&json!([{}, {"uuid": ["uuid", uuid]}, {"error": "constraint violation"}])).unwrap_err();
        assert_eq!((refused.index, &*refused.operation), (2, "commit"));
        assert_eq!(refused.to_string(), "the database refused the transaction at operation 2 (commit): constraint violation");
        for wrong in [json!({}), json!([{}]), json!([{}, null]), json!([{}, {"uuid": "x"}])] {
            assert_eq!(transaction.outcomes(&wrong).unwrap_err().error, "bad answer", "{wrong}");
        }
    }
}
