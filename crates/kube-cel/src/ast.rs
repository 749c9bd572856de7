//! Syntax tree of an expression, after its macros were expanded.

use std::sync::Arc;

/// Number of a node within its expression; also the index of its position.
pub type Id = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
pub struct Expr {
    pub id: Id,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Literal(Literal),
    Ident(String),
    /// `operand.field`; with `test`, `has(operand.field)`.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    Call {
        target: Option<Box<Expr>>,
        function: String,
        args: Vec<Expr>,
    },
    /// Elements, each with a mark whether it is optional (`?element`).
    List(Vec<(Expr, bool)>),
    Map(Vec<Entry>),
    Struct {
        name: String,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub id: Id,
    pub name: String,
    pub value: Expr,
    pub optional: bool,
}

/// A comprehension: what `all`, `map` and the other macros become.
#[derive(Clone, Debug)]
pub struct Fold {
    pub variable: String,
    pub second: Option<String>,
    pub range: Expr,
    pub accumulator: String,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

/// A parsed expression: its tree, and where each node begins (in characters).
#[derive(Clone, Debug)]
pub struct Parsed {
    pub root: Expr,
    pub positions: Vec<usize>,
}

/// The name that macros give to what a fold accumulates; no source can spell it.
pub const ACCUMULATOR: &str = "@result";

impl Expr {
    /// `a.b.c` when the expression is nothing but names.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, test: false } => operand.qualified_name().map(|prefix| format!("{prefix}.{field}")),
            _ => None,
        }
    }

    /// Calls `visit` for the node and everything below it.
    pub fn walk(&self, visit: &mut dyn FnMut(&Expr)) {
        visit(self);
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => operand.walk(visit),
            Kind::Call { target, args, .. } => {
                target.iter().for_each(|target| target.walk(visit));
                args.iter().for_each(|arg| arg.walk(visit));
            }
            Kind::List(elements) => elements.iter().for_each(|(element, _)| element.walk(visit)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                entry.key.walk(visit);
                entry.value.walk(visit);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| field.value.walk(visit)),
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    part.walk(visit);
                }
            }
        }
    }
}
