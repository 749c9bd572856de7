//! Estimates of costs before evaluation, from the sizes that a shape declares (upstream: cel-go's checker/cost.go).

use std::collections::HashMap;

use crate::ast::{ACCUMULATOR, Expr, Fold, Id, Kind, Literal};
use crate::cost::{LIST_CREATE, MAP_CREATE, REGEX, STRUCT_CREATE, TRAVERSAL};
use crate::env::Program;
use crate::shape::Shape;
use crate::types::Type;

/// Least and greatest cost, or size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

const UNKNOWN: Range = Range { min: 0, max: u64::MAX };
const ONE: Range = Range::fixed(1);

impl Range {
    pub const fn fixed(value: u64) -> Self {
        Range { min: value, max: value }
    }

    pub(crate) fn add(self, other: Range) -> Range {
        Range { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Range) -> Range {
        Range { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplied and rounded up.
    pub(crate) fn factor(self, factor: f64) -> Range {
        let scale = |value: u64| (value as f64 * factor).ceil() as u64;
        Range { min: scale(self.min), max: scale(self.max) }
    }

    pub(crate) fn union(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Sizes of the keys and values of a container.
#[derive(Clone, Copy)]
struct Entries {
    list: bool,
    key: Range,
    value: Range,
}

#[derive(Clone)]
struct Local {
    name: String,
    path: Vec<String>,
    size: Option<Range>,
    entries: Option<Entries>,
}

/// An argument of a call: its size, if known, and where it comes from.
pub(crate) struct Argument<'p> {
    pub expr: &'p Expr,
    pub ty: &'p Type,
    pub path: Vec<String>,
    pub size: Option<Range>,
}

impl Argument<'_> {
    fn known(&self) -> Range {
        self.size.unwrap_or(UNKNOWN)
    }
}

struct Estimation<'p> {
    program: &'p Program,
    shape: &'p Shape,
    paths: HashMap<Id, Vec<String>>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, Entries>,
    locals: Vec<Local>,
}

impl Program {
    /// The cost that evaluations can have, when the variables have (parts of) the shape.
    pub fn estimate(&self, shape: &Shape) -> Range {
        let mut estimation =
            Estimation { program: self, shape, paths: HashMap::new(), sizes: HashMap::new(), entries: HashMap::new(), locals: Vec::new() };
        estimation.cost(&self.root)
    }
}

impl<'p> Estimation<'p> {
    fn ty(&self, expr: &Expr) -> &'p Type {
        &self.program.types[expr.id]
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn path(&self, expr: &Expr) -> Vec<String> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn declared(&self, path: &[String]) -> Option<Range> {
        let max = self.shape.size_at(path.get(1..)?)?;
        Some(Range { min: 0, max })
    }

    fn size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        if let Some(size) = literal_size(expr) {
            return Some(size);
        }
        let path = self.path(expr);
        if let Some(size) = self.declared(&path) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(self.ty(expr)) {
            return Some(ONE);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn known(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(UNKNOWN)
    }

    fn entries(&self, expr: &Expr) -> Option<Entries> {
        if let Some(entries) = self.entries.get(&expr.id) {
            return Some(*entries);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entries),
            _ => None,
        }
    }

    fn argument(&mut self, expr: &'p Expr) -> Argument<'p> {
        let mut path = self.path(expr);
        if path.first().is_some_and(|root| root == ACCUMULATOR) {
            path.clear();
        }
        Argument { expr, ty: self.ty(expr), path, size: self.size(expr) }
    }

    fn cost(&mut self, expr: &'p Expr) -> Range {
        match &expr.kind {
            Kind::Literal(_) => Range::fixed(0),
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![name.clone()], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                ONE
            }
            Kind::Select { operand, test: true, .. } => self.cost(operand),
            Kind::Select { operand, field, .. } => {
                let mut sum = self.cost(operand);
                if matches!(self.ty(operand), Type::Map(..) | Type::Object(_) | Type::Named(_) | Type::Param(_)) {
                    sum = sum.add(ONE);
                }
                let mut path = self.path(operand);
                path.push(field.clone());
                self.paths.insert(expr.id, path);
                sum
            }
            Kind::Call { target, function, args } => self.call(expr, target.as_deref(), function, args),
            Kind::List(elements) => {
                let mut sum = Range::fixed(0);
                let mut items = if elements.is_empty() { Range::fixed(0) } else { Range { min: u64::MAX, max: 0 } };
                for (element, _) in elements {
                    sum = sum.add(self.cost(element));
                    items = items.union(self.known(element));
                }
                self.entries.insert(expr.id, Entries { list: true, key: ONE, value: items });
                sum.add(Range::fixed(LIST_CREATE))
            }
            Kind::Map(entries) => {
                let mut sum = Range::fixed(0);
                let none = if entries.is_empty() { Range::fixed(0) } else { Range { min: u64::MAX, max: 0 } };
                let (mut keys, mut values) = (none, none);
                for entry in entries {
                    sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
                    keys = keys.union(self.known(&entry.key));
                    values = values.union(self.known(&entry.value));
                }
                self.entries.insert(expr.id, Entries { list: false, key: keys, value: values });
                sum.add(Range::fixed(MAP_CREATE))
            }
            Kind::Struct { fields, .. } => {
                let sum = fields.iter().fold(Range::fixed(0), |sum, field| sum.add(self.cost(&field.value)));
                sum.add(Range::fixed(STRUCT_CREATE))
            }
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn fold(&mut self, expr: &Expr, fold: &'p Fold) -> Range {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let bound =
            Local { name: fold.accumulator.clone(), path: self.path(&fold.init), size: self.size(&fold.init), entries: self.entries(&fold.init) };
        self.locals.push(bound);
        let binds = matches!(&fold.range.kind, Kind::List(elements) if elements.is_empty())
            && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)));
        if binds {
            sum = sum.add(self.cost(&fold.result));
            self.copy_sizes(expr, &fold.result);
            self.locals.pop();
            return sum;
        }
        let depth = self.locals.len();
        match &fold.second {
            Some(second) => {
                self.iterate(&fold.variable, &fold.range, true);
                self.iterate(second, &fold.range, false);
            }
            None => {
                let keys = !self.is_list(&fold.range);
                self.iterate(&fold.variable, &fold.range, keys);
            }
        }
        let condition = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        self.locals.truncate(depth);
        sum = sum.add(self.cost(&fold.result));
        self.locals.pop();
        let count = self.known(&fold.range);
        sum = sum.add(count.times(step.add(condition)));
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.sizes.insert(expr.id, count);
                if let Some(entries) = self.entries(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        sum
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.size(from) {
            self.sizes.insert(to.id, size);
        }
        if let Some(entries) = self.entries(from) {
            self.entries.insert(to.id, entries);
        }
    }

    fn is_list(&self, range: &Expr) -> bool {
        self.entries(range).map_or(matches!(self.ty(range), Type::List(_)), |entries| entries.list)
    }

    fn iterate(&mut self, name: &str, range: &Expr, keys: bool) {
        let entries = self.entries(range);
        let size = entries.map(|entries| if keys { entries.key } else { entries.value });
        let part = match (self.is_list(range), keys) {
            (true, true) => "@indices",
            (true, false) => "@items",
            (false, true) => "@keys",
            (false, false) => "@values",
        };
        let mut path = self.path(range);
        path.push(part.to_owned());
        self.locals.push(Local { name: name.to_owned(), path, size, entries: None });
    }

    fn call(&mut self, expr: &Expr, target: Option<&'p Expr>, function: &str, args: &'p [Expr]) -> Range {
        let mut costs = Vec::with_capacity(args.len());
        for arg in args {
            costs.push(self.cost(arg));
        }
        let arguments: Vec<Argument> = args.iter().map(|arg| self.argument(arg)).collect();
        let sum = costs.iter().fold(Range::fixed(0), |sum, cost| sum.add(*cost));
        if function == "dyn" {
            self.copy_sizes(expr, &args[0]);
            return sum.add(ONE);
        }
        if matches!(function, "_&&_" | "_||_") {
            let min = costs.first().map_or(0, |first| first.min);
            self.sizes.insert(expr.id, ONE);
            return Range { min, max: sum.max };
        }
        if function == "_?:_" || function == "_?_:_" {
            return self.conditional(expr, args, &costs);
        }
        let mut total = Range::fixed(0);
        let receiver = target.map(|target| {
            total = self.cost(target);
            self.argument(target)
        });
        let mut own = Range { min: u64::MAX, max: 0 };
        let mut size: Option<Range> = None;
        let overloads = &self.program.calls[expr.id].overloads;
        for overload in overloads {
            let (cost, result) = self.overload(function, overload, receiver.as_ref(), &arguments);
            own = own.union(cost.add(sum));
            size = match (size, result) {
                (Some(size), Some(result)) => Some(size.union(result)),
                (size, result) => size.or(result),
            };
            match *overload {
                "index_list" | "index_map" => {
                    size = self.entries(&args[0]).map(|entries| entries.value);
                    let part = if *overload == "index_list" { "@items" } else { "@values" };
                    let mut path = self.path(&args[0]);
                    path.push(part.to_owned());
                    self.paths.insert(expr.id, path);
                }
                "add_list" => self.join_entries(expr, &args[0], &args[1]),
                _ => {}
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if overloads.is_empty() {
            own = sum.add(ONE);
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        total.add(own)
    }

    fn join_entries(&mut self, to: &Expr, a: &Expr, b: &Expr) {
        if let (Some(a), Some(b)) = (self.entries(a), self.entries(b)) {
            let joined = Entries { list: a.list, key: a.key.union(b.key), value: a.value.union(b.value) };
            self.entries.insert(to.id, joined);
        }
    }

    fn conditional(&mut self, expr: &Expr, args: &'p [Expr], costs: &[Range]) -> Range {
        let size = self.known(&args[1]).union(self.known(&args[2]));
        self.sizes.insert(expr.id, size);
        self.join_entries(expr, &args[1], &args[2]);
        costs[0].add(costs[1].union(costs[2]))
    }

    /// The cost of one overload without its arguments, and the size of its result.
    fn overload(&self, function: &str, overload: &str, target: Option<&Argument>, args: &[Argument]) -> (Range, Option<Range>) {
        if let Some(found) = self.library(function, overload, target, args) {
            return found;
        }
        let first = args.first().map_or(UNKNOWN, Argument::known);
        let second = args.get(1).map_or(UNKNOWN, Argument::known);
        let receiver = target.map_or(UNKNOWN, Argument::known);
        match overload {
            "string_format" => (receiver.factor(TRAVERSAL), None),
            "string_to_bytes" => (first.factor(TRAVERSAL), Some(Range { min: first.min, max: first.max.saturating_mul(4) })),
            "bytes_to_string" => (first.factor(TRAVERSAL), Some(Range { min: first.min / 4, max: first.max })),
            "strings_quote" => {
                let size = Range { min: first.min.saturating_add(2), max: first.max.saturating_mul(2).saturating_add(2) };
                (first.factor(TRAVERSAL), Some(size))
            }
            "starts_with_string" | "ends_with_string" => (first.factor(TRAVERSAL), None),
            "in_list" => (second, None),
            "matches_string" => (receiver.add(ONE).factor(TRAVERSAL).times(first.factor(REGEX)), None),
            "contains_string" => (receiver.factor(TRAVERSAL).times(first.factor(TRAVERSAL)), None),
            "add_list" => (ONE, Some(first.add(second))),
            "add_string" | "add_bytes" => (first.add(second).factor(TRAVERSAL), Some(first.add(second))),
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals" => {
                let max = first.max.min(second.max);
                (Range { min: u64::from(max > 0), max }.factor(TRAVERSAL), None)
            }
            _ => (ONE, None),
        }
    }
}

impl Estimation<'_> {
    /// Kubernetes' libraries and cel-go's extensions.
    fn library(&self, function: &str, overload: &str, target: Option<&Argument>, args: &[Argument]) -> Option<(Range, Option<Range>)> {
        let arg = |index: usize| args.get(index).map_or(UNKNOWN, Argument::known);
        let receiver = target.map_or(UNKNOWN, Argument::known);
        let walk = |size: Range| size.factor(TRAVERSAL);
        let made = |size: Range, factor: f64| Some((size.factor(factor).add(ONE).add(Range::fixed(LIST_CREATE)), Some(size)));
        let number = |index: usize, otherwise: u64| match args.get(index).map(|arg| &arg.expr.kind) {
            Some(Kind::Literal(Literal::Int(value))) => u64::try_from(*value).unwrap_or(0),
            _ => otherwise,
        };
        Some(match (function, target) {
            ("check", _) => (Range::fixed(350_000), None),
            ("fieldSelector" | "labelSelector", _) => {
                let each = (LIST_CREATE + STRUCT_CREATE) as f64;
                let requirements = arg(0).factor(0.5).factor(each);
                (Range::fixed(LIST_CREATE).add(walk(arg(0))).add(requirements), None)
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target)) => {
                return Some((self.list_walk(target), None));
            }
            ("url" | "jsonpatch.escapeKey", None) => (walk(arg(0)), Some(arg(0))),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(_)) => (walk(receiver), Some(receiver)),
            ("replace", Some(_)) => (receiver.factor(2.0 * TRAVERSAL), Some(replaced(receiver, arg(0), arg(1)))),
            ("split", Some(_)) => {
                let max = number(1, receiver.max);
                (receiver.factor(2.0 * TRAVERSAL), Some(Range { min: 0, max }))
            }
            ("join", Some(target)) => {
                let element = self.element_size(target).unwrap_or(UNKNOWN);
                let separators = Range { min: receiver.min.saturating_sub(1), max: receiver.max.saturating_sub(1) };
                let mut size = receiver.times(element);
                if !args.is_empty() {
                    size = size.add(arg(0).times(separators));
                }
                (walk(size), Some(size))
            }
            ("find" | "findAll", Some(_)) => {
                let cost = receiver.add(ONE).factor(TRAVERSAL).times(arg(0).factor(REGEX));
                (cost, Some(Range { min: 0, max: receiver.max }))
            }
            ("ip", Some(_)) => (ONE, None),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _) => (walk(arg(0)), None),
            ("ip.isCanonical", _) => (arg(0).factor(2.0 * TRAVERSAL), None),
            ("containsIP" | "containsCIDR", _) => {
                let address = Range { min: 4, max: 16 };
                let mut cost = walk(address.add(address));
                if function == "containsCIDR" {
                    cost = cost.add(walk(address)).add(ONE);
                }
                if matches!(overload, "cidr_contains_ip_string" | "cidr_contains_cidr_string") {
                    cost = cost.add(walk(arg(0)));
                }
                (cost, None)
            }
            ("validate", _) => (walk(arg(0)).factor(128.0 * REGEX), None),
            ("_==_", _) => return self.equality(args),
            ("sets.contains" | "sets.intersects", _) => (arg(0).times(arg(1)).add(ONE), None),
            ("sets.equivalent", _) => (arg(0).times(arg(1)).factor(2.0).add(ONE), None),
            ("slice", Some(_)) => {
                let size = number(1, receiver.max).saturating_sub(number(0, 0));
                return made(Range::fixed(size), 1.0);
            }
            ("lists.range", _) => return made(Range::fixed(number(0, u64::MAX)), 1.0),
            ("reverse", Some(_)) => return made(receiver, 1.0),
            ("flatten", Some(_)) => {
                let depth = if args.is_empty() { 1 } else { number(0, u64::MAX) };
                return made(receiver, depth as f64);
            }
            ("distinct", Some(_)) => return made(receiver.times(receiver), 2.0),
            ("sort" | "@sortByAssociatedKeys", Some(_)) => {
                let size = if function == "sort" { receiver } else { arg(0) };
                let text = overload.starts_with("list_string") || overload.starts_with("list_bytes");
                return made(size.times(size), if text { 2.0 + TRAVERSAL } else { 2.0 });
            }
            _ => return None,
        })
    }

    /// Equality of types whose values have a bounded size.
    fn equality(&self, args: &[Argument]) -> Option<(Range, Option<Range>)> {
        let [a, b] = args else { return None };
        let Type::Named(name) = a.ty else { return None };
        if !a.ty.same(b.ty) {
            return None;
        }
        match &**name {
            "kubernetes.NamedFormat" => Some((Range { min: 1, max: 64 }.factor(TRAVERSAL), None)),
            "kubernetes.URL" => {
                let size = b.size.map_or(ONE, |size| size.union(size));
                Some((Range { min: 1, max: size.max }.factor(TRAVERSAL), None))
            }
            name if name.starts_with("kubernetes.") || name.starts_with("net.") => Some((ONE, None)),
            _ => None,
        }
    }

    fn element_size(&self, list: &Argument) -> Option<Range> {
        let mut path = list.path.clone();
        if path.is_empty() {
            return None;
        }
        path.push("@items".into());
        self.declared(&path)
    }

    fn list_walk(&self, target: &Argument) -> Range {
        let size = target.known();
        let Type::List(element) = target.ty else { return size.factor(TRAVERSAL) };
        let mut each = ONE;
        if matches!(**element, Type::String | Type::Bytes) {
            each = each.add(self.element_size(target).unwrap_or(UNKNOWN).factor(TRAVERSAL));
        }
        size.times(each)
    }
}

/// The size that a string can have after `replace`.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    let quotient = |a: u64, b: u64| (a as f64 / b as f64).ceil() as u64;
    let (most, kept_most) = match old.min {
        0 => (text.max.saturating_add(1), text.max),
        _ if new.max <= old.min => (0, text.max),
        _ => (quotient(text.max, old.min), 0),
    };
    let (least, kept_least) = match old.max {
        0 => (text.min.saturating_add(1), text.min),
        _ if old.max <= new.min => (0, text.min),
        _ => (quotient(text.min, old.max), 0),
    };
    Range { min: least, max: most }.times(new).add(Range { min: kept_least, max: kept_most })
}

fn literal_size(expr: &Expr) -> Option<Range> {
    Some(Range::fixed(match &expr.kind {
        Kind::Literal(Literal::String(text)) => text.chars().count() as u64,
        Kind::Literal(Literal::Bytes(bytes)) => bytes.len() as u64,
        Kind::Literal(_) => 1,
        Kind::List(elements) => elements.len() as u64,
        Kind::Map(entries) => entries.len() as u64,
        _ => return None,
    }))
}

fn is_scalar(ty: &Type) -> bool {
    match ty {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}
