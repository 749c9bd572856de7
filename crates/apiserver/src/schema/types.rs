//! Upstream's Go types as a table of facts: which fields a type has, how Go names and prints their types, and how patches merge them.
//!
//! `types.txt` is written by `tools/api-types.py`. A line without indent names a type; an indented line is one of its fields:
//! `FIELD GOTYPE SHAPE FLAG…`. A shape is `[]SHAPE`, `{}SHAPE` (a map), `@TYPE` or a leaf. Flags: `ptr`, `omitempty`, `omitzero`,
//! `list:TYPE[,KEY…]`, `map:atomic`, `patch:STRATEGY[,STRATEGY]`, `key:MERGEKEY`.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The table.
pub const TEXT: &str = include_str!("types.txt");

#[derive(Debug, PartialEq, Eq)]
pub struct GoType {
    /// The full name, as in OpenAPI documents.
    pub name: &'static str,
    /// Upstream's `+structType=atomic`.
    pub atomic: bool,
    /// The fields in upstream's order; embedded structs' fields are listed as the struct's own.
    pub fields: Vec<Field>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in JSON.
    pub name: &'static str,
    /// The type as Go's reflection prints it; a pointer's target.
    pub go: &'static str,
    /// What JSON may stand there.
    pub shape: Shape,
    flags: &'static str,
    pointer: bool,
    omit_empty: bool,
    omit_zero: bool,
}

/// What JSON may stand somewhere: the text of the grammar, taken apart on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape(&'static str);

/// One level of a [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// An array of this.
    List(Shape),
    /// An object with any keys and these values.
    Map(Shape),
    /// An object of the named type.
    Object(&'static str),
    /// A scalar, or a type with its own decoder: `string`, `int32`, `quantity`, `time`, …
    Leaf(&'static str),
}

impl Shape {
    /// The outermost level.
    pub fn level(self) -> Level {
        if let Some(inner) = self.0.strip_prefix("[]") {
            Level::List(Shape(inner))
        } else if let Some(inner) = self.0.strip_prefix("{}") {
            Level::Map(Shape(inner))
        } else if let Some(name) = self.0.strip_prefix('@') {
            Level::Object(name)
        } else {
            Level::Leaf(self.0)
        }
    }
}

impl GoType {
    /// The last part of the name, as Go's decoder prints it in errors.
    pub fn short(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl Field {
    fn new(name: &'static str, go: &'static str, shape: Shape, flags: &'static str) -> Self {
        let field = Self { name, go, shape, flags, pointer: false, omit_empty: false, omit_zero: false };
        Self { pointer: field.has("ptr"), omit_empty: field.has("omitempty"), omit_zero: field.has("omitzero"), ..field }
    }

    fn flag(&self, prefix: &str) -> Option<&'static str> {
        self.flags.split(' ').find_map(|flag| flag.strip_prefix(prefix))
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|found| found == flag)
    }

    /// Whether Go holds a pointer: absence and the zero value differ.
    pub fn pointer(&self) -> bool {
        self.pointer
    }

    /// Whether Go leaves the field out when it is empty (`omitempty`).
    pub fn omit_empty(&self) -> bool {
        self.omit_empty
    }

    /// Whether Go leaves the field out when it is its type's zero value (`omitzero`).
    pub fn omit_zero(&self) -> bool {
        self.omit_zero
    }

    /// `atomic`, `set` or `map`, with a map list's keys.
    pub fn list_type(&self) -> Option<(&'static str, Vec<&'static str>)> {
        let mut parts = self.flag("list:")?.split(',');
        Some((parts.next()?, parts.collect()))
    }

    /// Whether the map or struct here is replaced as a whole by apply.
    pub fn map_atomic(&self) -> bool {
        self.has("map:atomic")
    }

    /// The patch strategies as upstream's tag writes them: `merge`, `retainKeys`, `merge,retainKeys`, or nothing.
    pub fn patch_strategy(&self) -> Option<&'static str> {
        self.flag("patch:")
    }

    /// The key by which a strategic merge patch matches the list's items.
    pub fn merge_key(&self) -> Option<&'static str> {
        self.flag("key:")
    }
}

/// Every known type by its full name.
pub fn all() -> &'static HashMap<&'static str, GoType> {
    static TYPES: OnceLock<HashMap<&'static str, GoType>> = OnceLock::new();
    TYPES.get_or_init(parse)
}

/// The type of this full name.
pub fn find(name: &str) -> Option<&'static GoType> {
    all().get(name)
}

fn parse() -> HashMap<&'static str, GoType> {
    let mut types = HashMap::new();
    let mut current: Option<GoType> = None;
    for line in TEXT.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix(' ') {
            let mut parts = rest.splitn(4, ' ');
            let mut next = || parts.next().unwrap_or_default();
            let field = Field::new(next(), next(), Shape(next()), next());
            if let Some(current) = &mut current {
                current.fields.push(field);
            }
        } else {
            let (name, flags) = line.split_once(' ').unwrap_or((line, ""));
            let next = GoType { name, atomic: flags == "map:atomic", fields: Vec::new() };
            if let Some(done) = current.replace(next) {
                types.insert(done.name, done);
            }
        }
    }
    types.extend(current.map(|done| (done.name, done)));
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_is_known() {
        for field in all().values().flat_map(|found| &found.fields) {
            let mut shape = field.shape;
            let leaf = loop {
                match shape.level() {
                    Level::List(inner) | Level::Map(inner) => shape = inner,
                    Level::Object(name) => break find(name).is_some(),
                    Level::Leaf(leaf) => break LEAVES.contains(&leaf),
                }
            };
            assert!(leaf, "{field:?}");
        }
    }

    const LEAVES: [&str; 17] = [
        "string",
        "bool",
        "int32",
        "int64",
        "float64",
        "bytes",
        "time",
        "microtime",
        "quantity",
        "intorstring",
        "raw",
        "extension",
        "int",
        "json",
        "schemaorbool",
        "schemaorarray",
        "schemaorstrings",
    ];

    #[test]
    fn fields_carry_their_facts() {
        let spec = find("io.k8s.api.core.v1.PodSpec").unwrap();
        let containers = spec.field("containers").unwrap();
        assert_eq!((containers.go, containers.merge_key(), containers.patch_strategy()), ("[]v1.Container", Some("name"), Some("merge")));
        assert_eq!(containers.list_type(), Some(("map", vec!["name"])));
        assert_eq!(spec.field("volumes").unwrap().patch_strategy(), Some("merge,retainKeys"));
        assert!(spec.field("securityContext").unwrap().pointer());
        assert!(!spec.field("hostNetwork").unwrap().pointer());
        assert!(find("io.k8s.api.core.v1.SecretKeySelector").unwrap().field("name").is_some(), "embedded fields are the struct's own");
    }
}
