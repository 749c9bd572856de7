//! Evaluation, with upstream's count of costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Entry, Expr, Fold, Kind, Literal};
use crate::convert::{display, is_zero};
use crate::cost;
use crate::declarations::TYPE_NAMES;
use crate::env::Program;
use crate::operators;
use crate::types::Type;
use crate::value::{Fault, Key, List, Map, Result, Text, Value, error, no_overload};

/// Upstream's limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Steps that no cost counts: bytes and elements that functions walk over.
const MAX_WORK: u64 = 200_000_000;

/// The variables of an evaluation.
#[derive(Clone, Default)]
pub struct Variables<'a> {
    named: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Variables<'a> {
    pub fn new() -> Self {
        Variables { named: Vec::new() }
    }

    pub fn with(mut self, name: &'a str, value: Value<'a>) -> Self {
        self.set(name, value);
        self
    }

    pub fn set(&mut self, name: &'a str, value: Value<'a>) {
        self.named.retain(|(known, _)| *known != name);
        self.named.push((name, value));
    }
}

/// A result and what it cost.
pub struct Evaluated<'a> {
    pub result: Result<Value<'a>>,
    pub cost: u64,
}

struct Evaluation<'p, 'a> {
    program: &'p Program,
    variables: &'p Variables<'a>,
    locals: Vec<(&'p str, Value<'a>)>,
    cost: u64,
    limit: u64,
    work: u64,
}

impl Program {
    /// Evaluates the expression; it ends with `Fault::CostLimit` when it costs more than the limit.
    pub fn evaluate<'a>(&self, variables: &Variables<'a>, limit: u64) -> Evaluated<'a> {
        let mut evaluation = Evaluation { program: self, variables, locals: Vec::new(), cost: 0, limit, work: 0 };
        let result = evaluation.eval(&self.root);
        Evaluated { result, cost: evaluation.cost }
    }
}

impl<'p, 'a> Evaluation<'p, 'a> {
    fn charge(&mut self, cost: u64) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Fault::CostLimit) } else { Ok(()) }
    }

    fn eval(&mut self, expr: &'p Expr) -> Result<Value<'a>> {
        match &expr.kind {
            Kind::Literal(literal) => Ok(constant(literal)),
            Kind::Ident(name) => self.ident(name),
            Kind::Select { operand, field, test } => {
                let of = self.eval(operand)?;
                if *test {
                    return present(&of, field).map(Value::Bool);
                }
                self.charge_selection(operand)?;
                select(&of, &Value::string(field.as_str()))
            }
            Kind::Call { target, function, args } => self.call(expr, target.as_deref(), function, args),
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => {
                let mut out = BTreeMap::new();
                for field in fields {
                    let value = self.eval(&field.value)?;
                    let Some(value) = unwrap_entry(&field.name, value, field.optional)? else { continue };
                    let key = Value::string(field.name.as_str());
                    out.insert(Key::String(field.name.clone()), (key, value));
                }
                self.charge(cost::STRUCT_CREATE)?;
                Ok(Value::Map(Map::Message(name.as_str().into(), Arc::new(out))))
            }
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    /// A selection costs one; on anything but a variable it costs one more.
    fn charge_selection(&mut self, operand: &Expr) -> Result<()> {
        let chained = match &operand.kind {
            Kind::Ident(_) | Kind::Select { .. } => true,
            Kind::Call { function, target: None, .. } => matches!(function.as_str(), "_[_]" | "_?._" | "_[?_]"),
            _ => false,
        };
        self.charge(if chained { 1 } else { 2 })
    }

    /// A path in brackets or in a branch is part of the selection around it: its variable is free.
    fn eval_part(&mut self, expr: &'p Expr) -> Result<Value<'a>> {
        let before = self.cost;
        let value = self.eval(expr)?;
        if cost::is_path(expr) && self.cost > before {
            self.cost -= 1;
        }
        Ok(value)
    }

    /// A variable costs one; the name of a type is a constant.
    fn ident(&mut self, name: &str) -> Result<Value<'a>> {
        let local = self.locals.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value);
        let named = || self.variables.named.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        if let Some(value) = local.or_else(named).cloned() {
            self.charge(1)?;
            return Ok(value);
        }
        match TYPE_NAMES.get(name) {
            Some(_) => Ok(Value::Type(name.into())),
            None => error(format!("no such attribute(s): {name}")),
        }
    }

    fn list(&mut self, elements: &'p [(Expr, bool)]) -> Result<Value<'a>> {
        let mut items = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            match (self.eval(element)?, optional) {
                (value, false) => items.push(value),
                (Value::Optional(held), true) => items.extend(held.map(Arc::unwrap_or_clone)),
                (other, true) => {
                    let shown = display(&other);
                    return error(format!("cannot initialize optional list element from non-optional value {shown}"));
                }
            }
        }
        // A list of constants is made once, before the evaluation.
        if !elements.iter().all(|(element, _)| cost::is_constant(element)) {
            self.charge(cost::LIST_CREATE)?;
        }
        Ok(Value::list(items))
    }

    fn map(&mut self, entries: &'p [Entry]) -> Result<Value<'a>> {
        let mut out = BTreeMap::new();
        for entry in entries {
            let key = self.eval(&entry.key)?;
            let value = self.eval(&entry.value)?;
            let Some(name) = Key::of(&key) else { return error(format!("unsupported key type: {}", key.type_name())) };
            let Some(value) = unwrap_entry(&display(&key), value, entry.optional)? else { continue };
            if out.insert(name, (key.clone(), value)).is_some() {
                return error(format!("Failed with repeated key: {}", display(&key)));
            }
        }
        if !entries.iter().all(|entry| cost::is_constant(&entry.key) && cost::is_constant(&entry.value)) {
            self.charge(cost::MAP_CREATE)?;
        }
        Ok(Value::Map(Map::Owned(Arc::new(out))))
    }

    fn call(&mut self, expr: &'p Expr, target: Option<&'p Expr>, function: &'p str, args: &'p [Expr]) -> Result<Value<'a>> {
        match function {
            "_&&_" => return self.logical(args, false),
            "_||_" => return self.logical(args, true),
            "_?_:_" => {
                return match self.eval(&args[0])? {
                    Value::Bool(true) => self.eval_part(&args[1]),
                    Value::Bool(false) => self.eval_part(&args[2]),
                    _ => no_overload(),
                };
            }
            "@not_strictly_false" => {
                let value = match self.eval(&args[0]) {
                    Err(Fault::CostLimit) => return Err(Fault::CostLimit),
                    Ok(Value::Bool(false)) => false,
                    _ => true,
                };
                self.charge(1)?;
                return Ok(Value::Bool(value));
            }
            "_[_]" | "_?._" | "_[?_]" if target.is_none() => return self.index(function, args),
            "or" | "orValue" if target.is_some() => return self.alternative(function, target, args),
            _ => {}
        }
        let mut values = Vec::with_capacity(args.len() + 1);
        if matches!(function, "_+_" | "cel.@mapInsert") && is_accumulator(&args[0]) {
            self.accumulate(args, &mut values)?;
        } else {
            for arg in target.into_iter().chain(args) {
                values.push(self.eval(arg)?);
            }
        }
        let call = &self.program.calls[expr.id];
        let overload = call.overload();
        let free = cost::is_free(function, target, args, overload);
        self.work = values.iter().fold(self.work, |work, value| work.saturating_add(breadth(function, value)));
        if self.work > MAX_WORK {
            return Err(Fault::CostLimit);
        }
        // Costs that need no result are charged first, so that the limit also bounds the work.
        let before = cost::of_call(function, overload, &values, None);
        if let (Some(before), false) = (before, free) {
            self.charge(before)?;
        }
        let sizes = if before.is_none() { values.clone() } else { Vec::new() };
        let result = match (function, call.function) {
            ("_+_", _) => match <[Value; 2]>::try_from(values) {
                Ok([a, b]) => operators::add(a, b),
                Err(_) => no_overload(),
            },
            ("cel.@mapInsert", _) => operators::insert(values),
            ("sum", _) => crate::lists::sum(&values, self.zero(expr)),
            (name, Some(code)) => code(name, &values),
            (name, None) => error(format!("no such overload: {name}")),
        };
        if before.is_none() {
            let cost = cost::of_call(function, overload, &sizes, result.as_ref().ok()).unwrap_or(1);
            self.charge(cost)?;
        }
        result
    }

    /// The sum of an empty list, by the type that the check found.
    fn zero(&self, expr: &Expr) -> Value<'a> {
        match self.program.types[expr.id] {
            Type::Uint => Value::Uint(0),
            Type::Double => Value::Double(0.0),
            Type::Duration => Value::Duration(0),
            _ => Value::Int(0),
        }
    }

    /// Takes the accumulator out of its variable, so that it can be added to in place.
    fn accumulate(&mut self, args: &'p [Expr], values: &mut Vec<Value<'a>>) -> Result<()> {
        self.charge(1)?;
        for arg in &args[1..] {
            values.push(self.eval(arg)?);
        }
        let Kind::Ident(name) = &args[0].kind else { return no_overload() };
        let place = self.locals.iter_mut().rev().find(|(known, _)| *known == name.as_str());
        let held = place.map_or(Value::Null, |(_, value)| std::mem::replace(value, Value::Null));
        values.insert(0, held);
        Ok(())
    }

    /// `||` ends at the first true, `&&` at the first false; either wins over errors.
    fn logical(&mut self, args: &'p [Expr], ends_at: bool) -> Result<Value<'a>> {
        let mut fault = None;
        for arg in args {
            match self.eval(arg) {
                Ok(Value::Bool(value)) if value == ends_at => return Ok(Value::Bool(value)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => fault = fault.or(Some(Fault::Error("no such overload".into()))),
                Err(Fault::CostLimit) => return Err(Fault::CostLimit),
                Err(reason) => fault = fault.or(Some(reason)),
            }
        }
        fault.map_or(Ok(Value::Bool(!ends_at)), Err)
    }

    /// `x.or(y)` and `x.orValue(y)` evaluate `y` only when `x` has no value.
    fn alternative(&mut self, function: &str, target: Option<&'p Expr>, args: &'p [Expr]) -> Result<Value<'a>> {
        let (Some(target), [other]) = (target, args) else { return no_overload() };
        match self.eval(target)? {
            held @ Value::Optional(Some(_)) if function == "or" => Ok(held),
            Value::Optional(Some(held)) => Ok(Arc::unwrap_or_clone(held)),
            Value::Optional(None) => self.eval(other),
            _ => no_overload(),
        }
    }

    fn index(&mut self, function: &str, args: &'p [Expr]) -> Result<Value<'a>> {
        let [operand, index] = args else { return no_overload() };
        let of = self.eval(operand)?;
        let key = self.eval_part(index)?;
        self.charge_selection(operand)?;
        if function == "_[_]" {
            return select(&of, &key);
        }
        let inner = match of {
            Value::Optional(None) => return Ok(Value::optional(None)),
            Value::Optional(Some(inner)) => Arc::unwrap_or_clone(inner),
            other => other,
        };
        Ok(match (&inner, &key) {
            (Value::Map(map), key) => Value::optional(map.get(key)?),
            (Value::List(list), key) => match position(key)? {
                Some(index) if index < list.len() => Value::optional(Some(list.get(index)?)),
                _ => Value::optional(None),
            },
            _ => return no_overload(),
        })
    }

    fn fold(&mut self, fold: &'p Fold) -> Result<Value<'a>> {
        let range = self.eval(&fold.range)?;
        let init = self.eval(&fold.init)?;
        let base = self.locals.len();
        self.locals.push((&fold.accumulator, init));
        let outcome = match range {
            Value::List(list) => self.fold_list(fold, base, &list),
            Value::Map(map) => self.fold_map(fold, base, &map),
            _ => no_overload(),
        };
        self.locals.truncate(base + 1);
        let result = match outcome {
            Ok(()) => self.eval(&fold.result),
            Err(fault) => Err(fault),
        };
        self.locals.truncate(base);
        result
    }

    fn fold_list(&mut self, fold: &'p Fold, base: usize, list: &List<'a>) -> Result<()> {
        let mut fault = None;
        for index in 0..list.len() {
            let item = list.get(index)?;
            match &fold.second {
                Some(second) => {
                    self.locals.push((&fold.variable, Value::Int(index as i64)));
                    self.locals.push((second, item));
                }
                None => self.locals.push((&fold.variable, item)),
            }
            if !self.step(fold, base, &mut fault)? {
                break;
            }
        }
        fault.map_or(Ok(()), Err)
    }

    fn fold_map(&mut self, fold: &'p Fold, base: usize, map: &Map<'a>) -> Result<()> {
        let mut fault = None;
        for key in map.keys() {
            if let Some(second) = &fold.second {
                let value = map.get(&key)?.unwrap_or(Value::Null);
                self.locals.push((second, value));
            }
            self.locals.push((&fold.variable, key));
            if !self.step(fold, base, &mut fault)? {
                break;
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// One turn of a fold; false ends it. An error of a turn stays the result unless a later turn absorbs it.
    fn step(&mut self, fold: &'p Fold, base: usize, fault: &mut Option<Fault>) -> Result<bool> {
        if fault.is_none() {
            match self.eval(&fold.condition) {
                Ok(value) if value.is_true() => {}
                Ok(_) => {
                    self.locals.truncate(base + 1);
                    return Ok(false);
                }
                Err(reason) => return Err(reason),
            }
        } else if is_literal(&fold.condition) {
            // The step of `map` and its like adds to what already failed.
            self.locals.truncate(base + 1);
            return Ok(false);
        } else {
            self.charge(2)?;
        }
        let step = match fault {
            None => self.eval(&fold.step),
            Some(_) => self.absorbing(fold),
        };
        self.locals.truncate(base + 1);
        match step {
            Ok(value) => {
                *fault = None;
                self.locals[base].1 = value;
            }
            Err(Fault::CostLimit) => return Err(Fault::CostLimit),
            Err(reason) => *fault = fault.take().or(Some(reason)),
        }
        Ok(true)
    }

    /// The step `accumulator || x` (or `&&`) while the accumulator is an error.
    fn absorbing(&mut self, fold: &'p Fold) -> Result<Value<'a>> {
        let Kind::Call { function, args, .. } = &fold.step.kind else { return no_overload() };
        let wins = function == "_||_";
        match self.eval(&args[1])? {
            Value::Bool(value) if value == wins => Ok(Value::Bool(value)),
            _ => no_overload(),
        }
    }
}

fn is_literal(expr: &Expr) -> bool {
    matches!(expr.kind, Kind::Literal(_))
}

fn is_accumulator(expr: &Expr) -> bool {
    matches!(&expr.kind, Kind::Ident(name) if name == crate::ast::ACCUMULATOR)
}

/// How much a function may have to walk over.
fn breadth(function: &str, value: &Value) -> u64 {
    if matches!(function, "size" | "_+_" | "cel.@mapInsert") {
        return 1;
    }
    match value {
        Value::String(text) => text.len() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::List(list) => list.len() as u64,
        _ => 1,
    }
}

fn constant<'a>(literal: &Literal) -> Value<'a> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(text) => Value::String(Text::Shared(text.clone())),
        Literal::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}

/// The value of an entry; none when it is optional and has none.
fn unwrap_entry<'a>(name: &str, value: Value<'a>, optional: bool) -> Result<Option<Value<'a>>> {
    match (value, optional) {
        (value, false) => Ok(Some(value)),
        (Value::Optional(held), true) => Ok(held.map(Arc::unwrap_or_clone)),
        (other, true) => {
            let shown = display(&other);
            error(format!("cannot initialize optional entry '{name}' from non-optional value {shown}"))
        }
    }
}

fn position(key: &Value) -> Result<Option<usize>> {
    match key {
        Value::Int(index) => Ok(usize::try_from(*index).ok()),
        Value::Uint(index) => Ok(usize::try_from(*index).ok()),
        Value::Double(index) if index.fract() == 0.0 && *index >= 0.0 => Ok(Some(*index as usize)),
        other => error(format!("unsupported index type '{}' in list", other.type_name())),
    }
}

fn select<'a>(of: &Value<'a>, key: &Value<'a>) -> Result<Value<'a>> {
    match of {
        Value::Map(map) => match map.get(key)? {
            Some(value) => Ok(value),
            None => error(format!("no such key: {}", display(key))),
        },
        Value::List(list) => match position(key)? {
            Some(index) if index < list.len() => list.get(index),
            _ => error(format!("index out of bounds: {}", display(key))),
        },
        // An optional value hands the selection on to what it holds.
        Value::Optional(None) => Ok(Value::optional(None)),
        Value::Optional(Some(inner)) => match &**inner {
            Value::Map(map) => Ok(Value::optional(map.get(key)?)),
            inner => select(inner, key).map(|value| Value::optional(Some(value))),
        },
        _ => no_overload(),
    }
}

fn present(of: &Value, field: &str) -> Result<bool> {
    match of {
        Value::Map(map) => Ok(match map.get(&Value::string(field))? {
            // Fields of messages are present when they are not zero.
            Some(value) if matches!(map, Map::Message(..)) => !is_zero(&value),
            Some(_) => true,
            None => false,
        }),
        Value::Optional(None) => Ok(false),
        Value::Optional(Some(inner)) => present(inner, field),
        _ => no_overload(),
    }
}
