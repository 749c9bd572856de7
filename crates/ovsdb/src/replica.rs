//! A copy of tables, kept by what monitors tell (RFC 7047, section 4.1.6; ovsdb-server(7), sections 4.1.12 to 4.1.15).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::schema::{ColumnType, Support};
use crate::value::Datum;

/// Why an update does not fit what is known: the copy has to be fetched anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's update of {table} does not fit what it sent before: {reason}")]
pub struct Inconsistent {
    table: String,
    reason: String,
}

/// A row: the columns that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    columns: BTreeMap<Arc<str>, Datum>,
}

impl Row {
    /// A column's value. None: the column is not used, or the server has it not.
    #[must_use]
    pub fn get(&self, column: &str) -> Option<&Datum> {
        self.columns.get(column)
    }

    /// The text of a column of one; empty where there is none.
    #[must_use]
    pub fn text(&self, column: &str) -> &str {
        self.get(column).and_then(Datum::as_str).unwrap_or_default()
    }

    /// The value of a key of a map of texts.
    #[must_use]
    pub fn entry(&self, column: &str, key: &str) -> Option<&str> {
        self.get(column)?.get(key)
    }

    fn bytes(&self) -> usize {
        self.columns.values().map(Datum::bytes).sum()
    }

    /// Its columns, by name.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Datum)> {
        self.columns.iter().map(|(name, value)| (&**name, value))
    }
}

/// The rows of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    rows: BTreeMap<Uuid, Arc<Row>>,
}

impl Table {
    /// Its rows, by UUID.
    pub fn rows(&self) -> impl Iterator<Item = (Uuid, &Row)> {
        self.rows.iter().map(|(uuid, row)| (*uuid, &**row))
    }

    /// A row.
    #[must_use]
    pub fn get(&self, uuid: Uuid) -> Option<&Row> {
        self.rows.get(&uuid).map(|row| &**row)
    }

    /// How many rows it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A copy of the tables that a client uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    tables: BTreeMap<Arc<str>, Arc<Table>>,
    size: Size,
}

/// How much a copy holds, or may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Rows of all tables.
    pub rows: usize,
    /// Bytes of their values, about.
    pub bytes: usize,
}

impl Size {
    /// The usual limit: ten rows for each of 100,000 pods.
    pub const LIMIT: Self = Self { rows: 1_000_000, bytes: 512 << 20 };

    /// Whether it is within a limit.
    #[must_use]
    pub fn fits(self, limit: Self) -> bool {
        self.rows <= limit.rows && self.bytes <= limit.bytes
    }
}

const NO_TABLE: &Table = &Table { rows: BTreeMap::new() };

impl Replica {
    /// A table; one that the server has not is empty.
    #[must_use]
    pub fn table(&self, name: &str) -> &Table {
        self.tables.get(name).map_or(NO_TABLE, |table| &**table)
    }

    /// How much it holds.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// A copy made of JSON rows, for tests and for plans that are printed without a server: `{table: {uuid: row}}`.
    ///
    /// # Errors
    /// A value is of another type than the schema says.
    pub fn from_json(tables: &Value, support: &Support) -> Result<Self, Inconsistent> {
        let mut replica = Self::default();
        for (table, rows) in object(tables, "all tables")? {
            for (uuid, row) in object(rows, table)? {
                replica.set(support, table, uuid, row, true)?;
            }
        }
        Ok(replica)
    }

    /// Applies what `monitor` answers or `update` tells: `<table-updates>`.
    ///
    /// # Errors
    /// It does not fit what is known.
    pub fn update(&mut self, updates: &Value, support: &Support) -> Result<(), Inconsistent> {
        for (table, rows) in object(updates, "all tables")? {
            for (uuid, change) in object(rows, table)? {
                match (change.get("old"), change.get("new")) {
                    (old, Some(new)) => self.set(support, table, uuid, new, old.is_none())?,
                    (Some(_), None) => self.remove(table, uuid)?,
                    (None, None) => return Err(inconsistent(table, "a change of a row has neither old nor new")),
                }
            }
        }
        Ok(())
    }

    /// Applies what `monitor_cond` answers, or `update2` and `update3` tell: `<table-updates2>`.
    ///
    /// # Errors
    /// It does not fit what is known.
    pub fn update2(&mut self, updates: &Value, support: &Support) -> Result<(), Inconsistent> {
        for (table, rows) in object(updates, "all tables")? {
            for (uuid, change) in object(rows, table)? {
                if let Some(row) = change.get("initial").or_else(|| change.get("insert")) {
                    self.set(support, table, uuid, row, true)?;
                } else if let Some(row) = change.get("modify") {
                    self.modify(support, table, uuid, row)?;
                } else if change.get("delete").is_some() {
                    self.remove(table, uuid)?;
                } else {
                    return Err(inconsistent(table, "a change of a row is of no known kind"));
                }
            }
        }
        Ok(())
    }

    fn rows_of(&mut self, table: &str) -> &mut BTreeMap<Uuid, Arc<Row>> {
        if !self.tables.contains_key(table) {
            self.tables.insert(table.into(), Arc::default());
        }
        let table = self.tables.get_mut(table).expect("it was just inserted");
        &mut Arc::make_mut(table).rows
    }

    /// A row as it is whole; columns that are not told have their defaults.
    fn set(&mut self, support: &Support, table: &str, uuid: &str, row: &Value, new: bool) -> Result<(), Inconsistent> {
        let (id, kinds, row) = (parse_uuid(table, uuid)?, kinds(support, table)?, object(row, table)?);
        let told = |name: &Arc<str>, kind: &ColumnType| match row.get(&**name) {
            Some(value) => Datum::parse(value, kind).map_err(|error| inconsistent(table, format!("column {name}: {error}"))),
            None => Ok(Datum::default_of(kind)),
        };
        let columns = kinds.iter().map(|(name, kind)| Ok((name.clone(), told(name, kind)?))).collect::<Result<_, _>>()?;
        let row = Row { columns };
        self.size.rows += 1;
        self.size.bytes += row.bytes();
        let before = self.rows_of(table).insert(id, Arc::new(row));
        if let Some(before) = &before {
            self.forget(before);
        }
        match (before.is_some(), new) {
            (true, true) => Err(inconsistent(table, format!("row {uuid} is new and was there"))),
            (false, false) => Err(inconsistent(table, format!("row {uuid} has changed and was not there"))),
            _ => Ok(()),
        }
    }

    fn modify(&mut self, support: &Support, table: &str, uuid: &str, changes: &Value) -> Result<(), Inconsistent> {
        let (id, kinds, changes) = (parse_uuid(table, uuid)?, kinds(support, table)?, object(changes, table)?);
        let told = |(name, value): (&String, &Value)| {
            let (name, kind) = kinds.get_key_value(name.as_str())?;
            let change = Datum::parse(value, kind).map_err(|error| inconsistent(table, format!("column {name}: {error}")));
            Some(change.map(|change| (name, kind, change)))
        };
        let changes: Vec<_> = changes.iter().filter_map(told).collect::<Result<_, _>>()?;
        let Some(row) = self.rows_of(table).get_mut(&id) else {
            return Err(inconsistent(table, format!("row {uuid} has changed and was not there")));
        };
        let row = Arc::make_mut(row);
        let before = row.bytes();
        for (name, kind, change) in changes {
            row.columns.entry(name.clone()).or_insert_with(|| Datum::default_of(kind)).changed_by(change, kind);
        }
        let after = row.bytes();
        self.size.bytes = self.size.bytes - before + after;
        Ok(())
    }

    fn forget(&mut self, row: &Row) {
        self.size.rows -= 1;
        self.size.bytes -= row.bytes();
    }

    fn remove(&mut self, table: &str, uuid: &str) -> Result<(), Inconsistent> {
        let id = parse_uuid(table, uuid)?;
        match self.rows_of(table).remove(&id) {
            Some(row) => {
                self.forget(&row);
                Ok(())
            }
            None => Err(inconsistent(table, format!("row {uuid} is deleted and was not there"))),
        }
    }
}

fn inconsistent(table: &str, reason: impl Into<String>) -> Inconsistent {
    Inconsistent { table: table.chars().take(64).collect(), reason: reason.into() }
}

fn object<'a>(value: &'a Value, table: &str) -> Result<&'a Map<String, Value>, Inconsistent> {
    value.as_object().ok_or_else(|| inconsistent(table, "there is no object where one has to be"))
}

fn parse_uuid(table: &str, text: &str) -> Result<Uuid, Inconsistent> {
    text.parse().map_err(|_| inconsistent(table, "a row has no UUID"))
}

fn kinds<'a>(support: &'a Support, table: &str) -> Result<&'a BTreeMap<Arc<str>, ColumnType>, Inconsistent> {
    support.tables.get(table).ok_or_else(|| inconsistent(table, "nobody asked for this table"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::{AtomType, ColumnUse, Schema, TableUse};

    const A: &str = "00000000-0000-0000-0000-00000000000a";
    const B: &str = "00000000-0000-0000-0000-00000000000b";

    const USES: &[TableUse] = &[TableUse {
        name: "T",
        required: true,
        columns: &[ColumnUse::required("name", AtomType::String), ColumnUse::texts("ids"), ColumnUse::required("set", AtomType::Integer)],
    }];

    fn support() -> Support {
        let columns = json!({
            "name": {"type": "string"},
            "ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
            "set": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
        });
        let schema = json!({"name": "Test", "version": "1", "tables": {"T": {"columns": columns}}});
        Schema::parse(&schema).unwrap().supports(USES).unwrap()
    }

    fn printed(replica: &Replica) -> Vec<String> {
        let row = |(uuid, row): (Uuid, &Row)| {
            let columns: Vec<String> = row.columns().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{:x} {}", uuid.as_u128(), columns.join(" "))
        };
        replica.table("T").rows().map(row).collect()
    }

    #[test]
    fn conditional_monitors_tell_differences() {
        let (support, mut replica) = (support(), Replica::default());
        let mut told = |updates: Value| {
            let done = replica.update2(&json!({"T": updates}), &support);
            (printed(&replica), done.map_err(|error| error.to_string()))
        };
        // Columns with their defaults are left out.
        let initial = json!({A: {"initial": {"name": "a", "ids": ["map", [["k", "1"]]]}}, B: {"insert": {"set": 5}}});
        assert_eq!(told(initial), (vec!["a ids={k=1} name=a set=[]".into(), "b ids={} name=\"\" set=5".into()], Ok(())));
        let modify =
            json!({A: {"modify": {"name": "z", "ids": ["map", [["k", "2"], ["l", "3"]]], "foreign": 1}}, B: {"modify": {"set": ["set", [5, 6]]}}});
        assert_eq!(told(modify), (vec!["a ids={k=2, l=3} name=z set=[]".into(), "b ids={} name=\"\" set=6".into()], Ok(())));
        assert_eq!(told(json!({A: {"delete": null}})).0, ["b ids={} name=\"\" set=6"]);
        for (wrong, reason) in [
            (json!({A: {"modify": {}}}), "has changed and was not there"),
            (json!({A: {"delete": null}}), "is deleted and was not there"),
            (json!({B: {"insert": {}}}), "is new and was there"),
            (json!({B: {"replace": {}}}), "no known kind"),
            (json!({"b": {"insert": {}}}), "no UUID"),
            (json!({B: {"modify": {"set": "x"}}}), "column set: \"x\" is no value of type set of integer"),
        ] {
            let found = told(wrong.clone()).1.unwrap_err();
            assert!(found.contains(reason), "{wrong}: {found}");
        }
    }

    #[test]
    fn plain_monitors_tell_whole_rows() {
        let (support, mut replica) = (support(), Replica::default());
        replica.update(&json!({"T": {A: {"new": {"name": "a", "ids": ["map", []], "set": 1}}}}), &support).unwrap();
        replica.update(&json!({"T": {A: {"old": {"name": "a"}, "new": {"name": "b", "ids": ["map", []], "set": 1}}}}), &support).unwrap();
        assert_eq!(printed(&replica), ["a ids={} name=b set=1"]);
        assert!(replica.update(&json!({"T": {B: {"old": {}, "new": {}}}}), &support).is_err());
        replica = Replica::default();
        replica.update(&json!({"T": {A: {"new": {"name": "a"}}}}), &support).unwrap();
        replica.update(&json!({"T": {A: {"old": {"name": "a"}}}}), &support).unwrap();
        assert!(replica.table("T").is_empty());
        assert!(replica.update(&json!({"U": {A: {"new": {}}}}), &support).unwrap_err().to_string().contains("nobody asked"));
    }

    #[test]
    fn the_size_follows_the_rows() {
        let (support, mut replica) = (support(), Replica::default());
        let mut told = |updates: Value| {
            replica.update2(&json!({"T": updates}), &support).unwrap();
            replica.size()
        };
        let one = told(json!({A: {"insert": {"name": "a"}}}));
        let both = told(json!({B: {"insert": {"name": "b", "ids": ["map", [["key", "value"]]]}}}));
        assert_eq!((one.rows, both.rows), (1, 2));
        assert!(both.bytes > 2 * one.bytes, "{one:?} {both:?}");
        let longer = told(json!({A: {"modify": {"name": "a".repeat(1000)}}}));
        assert_eq!(longer.bytes, both.bytes + 999);
        assert!(longer.fits(longer) && !longer.fits(both));
        told(json!({A: {"modify": {"name": "a"}}}));
        assert_eq!(told(json!({B: {"delete": null}})), one);
        assert_eq!(told(json!({A: {"delete": null}})), Size::default());
    }

    #[test]
    fn readers_keep_what_they_have_seen() {
        let (support, mut replica) = (support(), Replica::default());
        replica.update2(&json!({"T": {A: {"insert": {"name": "a"}}}}), &support).unwrap();
        let seen = replica.clone();
        replica.update2(&json!({"T": {A: {"modify": {"name": "b"}}}}), &support).unwrap();
        assert_eq!((seen.table("T").get(A.parse().unwrap()).unwrap().text("name"), printed(&replica).len()), ("a", 1));
        assert!(printed(&replica)[0].contains("name=b"));
    }
}
