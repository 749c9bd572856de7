//! Environments: which variables an expression may use, and its compilation.

use std::collections::BTreeMap;
use std::fmt;

use crate::ast::{Expr, Kind};
use crate::checker;
use crate::functions::{self, Function};
use crate::lexer::Problem;
use crate::parser;
use crate::types::Type;

/// Variables and their types.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: BTreeMap<String, Type>,
    mutation: bool,
}

/// An expression that was parsed and checked.
pub struct Program {
    pub(crate) root: Expr,
    /// By the id of the node.
    pub(crate) calls: Vec<Call>,
    pub(crate) types: Vec<Type>,
}

#[derive(Clone, Default)]
pub(crate) struct Call {
    pub(crate) overloads: Vec<&'static str>,
    pub(crate) function: Option<Function>,
}

/// Why an expression was refused: upstream's text, with the source and the place below each problem.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileError {
    source: String,
    problems: Vec<Problem>,
}

impl Env {
    pub fn new() -> Self {
        Env::default()
    }

    /// Declares a variable. Its name may have dots.
    pub fn with(mut self, name: &str, ty: Type) -> Self {
        self.variables.insert(name.to_owned(), ty);
        self
    }

    /// Allows `Object{…}`, `Object.spec{…}` and `JSONPatch{…}`, as policies that mutate need them.
    pub fn with_mutation(mut self) -> Self {
        self.mutation = true;
        self
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&Type> {
        self.variables.get(name)
    }

    pub(crate) fn is_message(&self, name: &str) -> bool {
        self.mutation && (name == "Object" || name == "JSONPatch" || name.starts_with("Object."))
    }

    pub(crate) fn message_field(&self, name: &str, field: &str) -> Option<Type> {
        match (name, field) {
            ("JSONPatch", "op" | "path" | "from") => Some(Type::String),
            ("JSONPatch", "value") => Some(Type::Dyn),
            ("JSONPatch", _) => None,
            _ => Some(Type::Dyn),
        }
    }

    /// Parses and checks an expression.
    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        let refused = |problems| CompileError { source: source.to_owned(), problems };
        let parsed = parser::parse(source).map_err(refused)?;
        let positions = parsed.positions.clone();
        let checked = checker::check(parsed, self).map_err(refused)?;
        let problems = crate::literals::check(&checked.root, &positions);
        if !problems.is_empty() {
            return Err(refused(problems));
        }
        let mut calls: Vec<Call> = checked.overloads.into_iter().map(|overloads| Call { overloads, function: None }).collect();
        checked.root.walk(&mut |expr| {
            if let Kind::Call { function, .. } = &expr.kind {
                calls[expr.id].function = functions::lookup(function);
            }
        });
        Ok(Program { root: checked.root, calls, types: checked.types })
    }
}

impl Call {
    /// The overload, when it is one alone.
    pub(crate) fn overload(&self) -> Option<&'static str> {
        match self.overloads[..] {
            [overload] => Some(overload),
            _ => None,
        }
    }
}

impl Program {
    pub fn result_type(&self) -> &Type {
        &self.types[self.root.id]
    }

    /// Whether the expression reads the variable anywhere.
    pub fn uses(&self, variable: &str) -> bool {
        let mut found = false;
        self.root.walk(&mut |expr| found |= matches!(&expr.kind, Kind::Ident(name) if name == variable));
        found
    }
}

impl CompileError {
    /// The messages alone, in the order of their places.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(|problem| problem.message.as_str())
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let (mut line, mut column) = (1, 0);
            for c in self.source.chars().take(problem.at) {
                (line, column) = if c == '\n' { (line + 1, 0) } else { (line, column + 1) };
            }
            write!(f, "ERROR: <input>:{line}:{}: {}", column + 1, problem.message)?;
            let snippet = self.source.split('\n').nth(line - 1).unwrap_or_default().replace('\t', " ");
            if snippet.len() > 16_384 {
                continue;
            }
            write!(f, "\n | {snippet}\n | ")?;
            let wide = |c: char| c.len_utf8() > 1;
            for c in snippet.chars().take(column) {
                f.write_str(if wide(c) { "．" } else { "." })?;
            }
            f.write_str(if snippet.chars().nth(column).is_some_and(wide) { "＾" } else { "^" })?;
        }
        Ok(())
    }
}

impl std::error::Error for CompileError {}
