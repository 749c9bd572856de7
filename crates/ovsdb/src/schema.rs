//! Schemas: what a server's database has, compared with what a client uses of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::value::{Datum, ValueError};

/// The type of an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomType {
    /// An integer of 64 bits.
    Integer,
    /// A real number.
    Real,
    /// A boolean.
    Boolean,
    /// A text.
    String,
    /// A row, or any UUID.
    Uuid,
}

impl AtomType {
    fn parse(value: &Value) -> Option<Self> {
        let name = match value {
            Value::Object(base) => base.get("type")?.as_str()?,
            other => other.as_str()?,
        };
        match name {
            "integer" => Some(Self::Integer),
            "real" => Some(Self::Real),
            "boolean" => Some(Self::Boolean),
            "string" => Some(Self::String),
            "uuid" => Some(Self::Uuid),
            _ => None,
        }
    }
}

impl fmt::Display for AtomType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Uuid => "uuid",
        })
    }
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnType {
    /// Of the elements, or of a map's keys.
    pub key: AtomType,
    /// Of a map's values.
    pub value: Option<AtomType>,
    /// The least number of elements: 0 or 1.
    pub min: u64,
    /// The greatest number of elements; `u64::MAX` without a limit.
    pub max: u64,
}

impl ColumnType {
    /// Reads a column's type, `<type>` of RFC 7047, section 3.2. None: it is none.
    #[must_use]
    pub fn parse(value: &Value) -> Option<Self> {
        let Some(object) = value.as_object().filter(|object| object.contains_key("key")) else {
            return Some(Self { key: AtomType::parse(value)?, value: None, min: 1, max: 1 });
        };
        let max = match object.get("max") {
            None => 1,
            Some(max) if max == "unlimited" => u64::MAX,
            Some(max) => max.as_u64()?,
        };
        let of_value = match object.get("value") {
            None => None,
            Some(value) => Some(AtomType::parse(value)?),
        };
        let min = object.get("min").map_or(Some(1), Value::as_u64)?;
        Some(Self { key: AtomType::parse(object.get("key")?)?, value: of_value, min, max })
    }

    /// Whether it may have more than one element.
    #[must_use]
    pub fn is_composite(&self) -> bool {
        self.max > 1
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value, self.max) {
            (Some(value), _) => write!(f, "map of {} to {value}", self.key),
            (None, 1) if self.min == 0 => write!(f, "optional {}", self.key),
            (None, 1) => write!(f, "{}", self.key),
            (None, _) => write!(f, "set of {}", self.key),
        }
    }
}

/// A column as a client uses it.
#[derive(Clone, Copy, Debug)]
pub struct ColumnUse {
    /// Its name.
    pub name: &'static str,
    /// The type of its elements, or of its keys.
    pub key: AtomType,
    /// The type of its values, if it is a map.
    pub value: Option<AtomType>,
    /// Whether the client cannot do without it.
    pub required: bool,
}

impl ColumnUse {
    /// A column that has to be there.
    #[must_use]
    pub const fn required(name: &'static str, key: AtomType) -> Self {
        Self { name, key, value: None, required: true }
    }

    /// A column that older or newer servers may lack.
    #[must_use]
    pub const fn optional(name: &'static str, key: AtomType) -> Self {
        Self { name, key, value: None, required: false }
    }

    /// A map of texts that has to be there.
    #[must_use]
    pub const fn texts(name: &'static str) -> Self {
        Self { name, key: AtomType::String, value: Some(AtomType::String), required: true }
    }

    fn fits(&self, kind: &ColumnType) -> bool {
        self.key == kind.key && self.value == kind.value
    }
}

/// A table as a client uses it.
#[derive(Clone, Copy, Debug)]
pub struct TableUse {
    /// Its name.
    pub name: &'static str,
    /// Whether the client cannot do without it.
    pub required: bool,
    /// The columns that are replicated and written.
    pub columns: &'static [ColumnUse],
}

/// Why a database cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The server's answer is no schema.
    #[error("cannot read the schema of {database}: the server's answer is no schema; look whether another program listens there")]
    Malformed {
        /// The database.
        database: String,
    },
    /// A table is missing.
    #[error("database {database} (schema {version}) has no table {table}: connect to another database, or install a newer server")]
    NoTable {
        /// The database.
        database: String,
        /// The schema's version.
        version: String,
        /// The table.
        table: &'static str,
    },
    /// A column is missing or of another type.
    #[error("database {database} (schema {version}) has no column {table}.{column} of {expected}s: install a server whose schema has it")]
    NoColumn {
        /// The database.
        database: String,
        /// The schema's version.
        version: String,
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// What its elements must be.
        expected: AtomType,
    },
}

/// A database's schema, as the server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The database.
    pub name: String,
    /// The schema's version.
    pub version: String,
    /// Types by table and column; columns of unknown types are left out.
    pub tables: BTreeMap<String, BTreeMap<String, ColumnType>>,
}

impl Schema {
    /// Reads `<database-schema>` of RFC 7047, section 3.2. None: it is none.
    #[must_use]
    pub fn parse(value: &Value) -> Option<Self> {
        let columns = |table: &Value| -> Option<BTreeMap<String, ColumnType>> {
            let columns = table.get("columns")?.as_object()?;
            Some(columns.iter().filter_map(|(name, column)| Some((name.clone(), ColumnType::parse(column.get("type")?)?))).collect())
        };
        let tables = value.get("tables")?.as_object()?;
        Some(Self {
            name: value.get("name")?.as_str()?.to_owned(),
            version: value.get("version").and_then(Value::as_str).unwrap_or("without a version").to_owned(),
            tables: tables.iter().map(|(name, table)| Some((name.clone(), columns(table)?))).collect::<Option<_>>()?,
        })
    }

    /// What of the uses the database supports.
    ///
    /// # Errors
    /// A table or column is missing that the client cannot do without.
    pub fn supports(&self, uses: &[TableUse]) -> Result<Support, SchemaError> {
        let mut support = Support::default();
        for table in uses {
            let Some(columns) = self.tables.get(table.name) else {
                if table.required {
                    return Err(SchemaError::NoTable { database: self.name.clone(), version: self.version.clone(), table: table.name });
                }
                support.missing.extend(table.columns.iter().map(|column| (table.name, column.name)));
                continue;
            };
            let mut present = BTreeMap::new();
            for column in table.columns {
                match columns.get(column.name).filter(|kind| column.fits(kind)) {
                    Some(kind) => drop(present.insert(Arc::from(column.name), *kind)),
                    None if !column.required => support.missing.push((table.name, column.name)),
                    None => {
                        return Err(SchemaError::NoColumn {
                            database: self.name.clone(),
                            version: self.version.clone(),
                            table: table.name,
                            column: column.name,
                            expected: column.key,
                        });
                    }
                }
            }
            support.tables.insert(Arc::from(table.name), present);
        }
        Ok(support)
    }
}

/// What of a client's uses a database supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// Types by table and column.
    pub(crate) tables: BTreeMap<Arc<str>, BTreeMap<Arc<str>, ColumnType>>,
    missing: Vec<(&'static str, &'static str)>,
}

impl Support {
    /// Whether a column can be read and written.
    #[must_use]
    pub fn has(&self, table: &str, column: &str) -> bool {
        self.kind(table, column).is_some()
    }

    /// The type of a column that is used and there.
    #[must_use]
    pub fn kind(&self, table: &str, column: &str) -> Option<&ColumnType> {
        self.tables.get(table)?.get(column)
    }

    /// Columns that are used and not there, by table.
    #[must_use]
    pub fn missing(&self) -> &[(&'static str, &'static str)] {
        &self.missing
    }

    /// Whether a column is used and not there: it is not written.
    pub(crate) fn lacks(&self, table: &str, column: &str) -> bool {
        self.missing.iter().any(|(of, name)| *of == table && *name == column)
    }

    /// Reads a row of a `select`; columns that are not used are left out.
    ///
    /// # Errors
    /// A column's value is of another type than the schema says.
    pub fn row(&self, table: &str, row: &Map<String, Value>) -> Result<BTreeMap<Arc<str>, Datum>, ValueError> {
        let Some(columns) = self.tables.get(table) else { return Ok(BTreeMap::new()) };
        let known = row.iter().filter_map(|(name, value)| columns.get_key_value(name.as_str()).map(|(name, kind)| (name, kind, value)));
        known.map(|(name, kind, value)| Ok((name.clone(), Datum::parse(value, kind)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const USES: &[TableUse] = &[
        TableUse {
            name: "Bridge",
            required: true,
            columns: &[
                ColumnUse::required("name", AtomType::String),
                ColumnUse::texts("external_ids"),
                ColumnUse::optional("tier", AtomType::Integer),
            ],
        },
        TableUse { name: "Newer", required: false, columns: &[ColumnUse::required("name", AtomType::String)] },
    ];

    fn schema(bridge: &Value) -> Schema {
        Schema::parse(&json!({"name": "Test", "version": "7.0.0", "tables": {"Bridge": {"columns": bridge}}})).unwrap()
    }

    fn texts() -> Value {
        json!({"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}})
    }

    #[test]
    fn types_of_columns_are_read() {
        let cases = [
            (json!("string"), "string"),
            (json!({"key": {"type": "uuid", "refTable": "Port"}, "min": 0, "max": "unlimited"}), "set of uuid"),
            (json!({"key": {"type": "string", "enum": ["set", ["a", "b"]]}, "min": 0, "max": 1}), "optional string"),
            (json!({"key": "string", "value": "string", "min": 0, "max": "unlimited"}), "map of string to string"),
            (json!({"type": "integer", "minInteger": 0}), "integer"),
        ];
        for (kind, printed) in cases {
            assert_eq!(ColumnType::parse(&kind).unwrap().to_string(), printed, "{kind}");
        }
        for wrong in [json!("text"), json!({"key": "string", "max": "many"}), json!({"key": 1}), json!(null)] {
            assert!(ColumnType::parse(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn missing_optional_columns_and_tables_are_tolerated_and_named() {
        let support = schema(&json!({"name": {"type": "string"}, "external_ids": texts()})).supports(USES).unwrap();
        assert!(support.has("Bridge", "name") && !support.has("Bridge", "tier"));
        assert_eq!(support.missing(), [("Bridge", "tier"), ("Newer", "name")]);
        // Of another type it is missing too.
        let support = schema(&json!({"name": {"type": "string"}, "external_ids": texts(), "tier": {"type": "string"}})).supports(USES).unwrap();
        assert!(support.lacks("Bridge", "tier"));
    }

    #[test]
    fn missing_required_columns_and_tables_are_named() {
        let error = schema(&json!({"name": {"type": "string"}})).supports(USES).unwrap_err();
        assert_eq!(
            error.to_string(),
            "database Test (schema 7.0.0) has no column Bridge.external_ids of strings: install a server whose schema has it"
        );
        let error = Schema { name: "X".into(), version: "1".into(), tables: BTreeMap::new() }.supports(USES).unwrap_err();
        assert!(error.to_string().starts_with("database X (schema 1) has no table Bridge:"), "{error}");
    }

    #[test]
    fn what_is_no_schema_is_none() {
        for wrong in [json!(null), json!({"name": "x"}), json!({"name": 1, "tables": {}}), json!({"name": "x", "tables": {"T": []}})] {
            assert!(Schema::parse(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn rows_of_selects_have_typed_columns() {
        let support = schema(&json!({"name": {"type": "string"}, "external_ids": texts()})).supports(USES).unwrap();
        let row = support.row("Bridge", json!({"name": "br0", "other": 5}).as_object().unwrap()).unwrap();
        assert_eq!(row.into_iter().collect::<Vec<_>>(), [(Arc::from("name"), Datum::from("br0"))]);
        assert!(support.row("Bridge", json!({"name": 5}).as_object().unwrap()).is_err());
    }
}
