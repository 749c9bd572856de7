//! The static check: resolves names and overloads, and gives each node its type.

use std::collections::{HashMap, HashSet};

use crate::ast::{Expr, Fold, Id, Kind, Literal, Parsed};
use crate::declarations::{FUNCTIONS, TYPE_NAMES};
use crate::env::Env;
use crate::lexer::Problem;
use crate::types::{Mapping, Type};

/// What is known of each node.
pub struct Checked {
    pub root: Expr,
    pub types: Vec<Type>,
    /// The overloads of a call that its arguments fit.
    pub overloads: Vec<Vec<&'static str>>,
}

struct Checker<'a> {
    env: &'a Env,
    positions: &'a [usize],
    scopes: Vec<HashMap<String, Type>>,
    mapping: Mapping,
    next_var: u32,
    types: Vec<Type>,
    overloads: Vec<Vec<&'static str>>,
    problems: Vec<Problem>,
}

pub fn check(parsed: Parsed, env: &Env) -> Result<Checked, Vec<Problem>> {
    let Parsed { mut root, positions } = parsed;
    let mut checker = Checker {
        env,
        positions: &positions,
        scopes: Vec::new(),
        mapping: Mapping::default(),
        next_var: 0,
        types: vec![Type::Error; positions.len()],
        overloads: vec![Vec::new(); positions.len()],
        problems: Vec::new(),
    };
    checker.check(&mut root);
    checker.mixed_literals(&root);
    if !checker.problems.is_empty() {
        checker.problems.sort_by_key(|problem| problem.at);
        return Err(checker.problems);
    }
    let types = checker.types.iter().map(|ty| checker.mapping.substitute(ty, true)).collect();
    Ok(Checked { root, types, overloads: checker.overloads })
}

impl Checker<'_> {
    fn report(&mut self, id: Id, message: String) {
        // Upstream's limit of reported errors.
        if self.problems.len() < 100 {
            self.problems.push(Problem { at: self.positions[id], message });
        }
    }

    fn var(&mut self) -> Type {
        self.next_var += 1;
        Type::Param(self.next_var - 1)
    }

    fn known(&self, expr: &Expr) -> Type {
        self.mapping.substitute(&self.types[expr.id], false)
    }

    fn undeclared(&mut self, id: Id, name: &str) -> Type {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn lookup(&self, name: &str) -> Option<Type> {
        if let Some(rooted) = name.strip_prefix('.') {
            return self.global(rooted);
        }
        self.scopes.iter().rev().find_map(|scope| scope.get(name).cloned()).or_else(|| self.global(name))
    }

    fn global(&self, name: &str) -> Option<Type> {
        if let Some(ty) = self.env.variable(name) {
            return Some(ty.clone());
        }
        TYPE_NAMES.get(name).map(|ty| Type::Type(Some(ty.clone().into())))
    }

    fn check(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let ty = match &mut expr.kind {
            Kind::Literal(literal) => match literal {
                Literal::Null => Type::Null,
                Literal::Bool(_) => Type::Bool,
                Literal::Int(_) => Type::Int,
                Literal::Uint(_) => Type::Uint,
                Literal::Double(_) => Type::Double,
                Literal::String(_) => Type::String,
                Literal::Bytes(_) => Type::Bytes,
            },
            Kind::Ident(name) => match self.lookup(name) {
                Some(ty) => {
                    *name = name.trim_start_matches('.').to_owned();
                    ty
                }
                None => self.undeclared(id, &name.clone()),
            },
            Kind::Select { test, .. } => {
                let test = *test;
                match expr.qualified_name().and_then(|name| self.lookup(&name).map(|ty| (name, ty))) {
                    Some((name, ty)) => {
                        expr.kind = Kind::Ident(name.trim_start_matches('.').to_owned());
                        ty
                    }
                    None => self.select(expr, test),
                }
            }
            Kind::Call { .. } => self.call(expr),
            Kind::List(elements) => {
                let mut joined = None;
                for (element, optional) in elements {
                    self.check(element);
                    let ty = self.element_type(element, *optional);
                    joined = Some(self.join(joined, ty));
                }
                Type::list(joined.unwrap_or_else(|| self.var()))
            }
            Kind::Map(entries) => {
                let (mut keys, mut values) = (None, None);
                for entry in entries {
                    self.check(&mut entry.key);
                    let ty = self.types[entry.key.id].clone();
                    keys = Some(self.join(keys, ty));
                    self.check(&mut entry.value);
                    let ty = self.element_type(&entry.value, entry.optional);
                    values = Some(self.join(values, ty));
                }
                let key = keys.unwrap_or_else(|| self.var());
                Type::map(key, values.unwrap_or_else(|| self.var()))
            }
            Kind::Struct { .. } => self.message(expr),
            Kind::Fold(fold) => self.fold(fold),
        };
        self.types[id] = ty;
    }

    /// The type of an element or entry; an optional one contributes what it holds.
    fn element_type(&mut self, element: &Expr, optional: bool) -> Type {
        let ty = self.types[element.id].clone();
        if !optional {
            return ty;
        }
        let (inner, is_optional) = self.known(element).unwrap_optional();
        if !is_optional && !inner.is_dyn_or_error() {
            self.mismatch(element.id, &Type::optional(inner.clone()), &inner);
        }
        inner
    }

    fn join(&mut self, previous: Option<Type>, current: Type) -> Type {
        match previous {
            None => current,
            Some(previous) if self.mapping.assignable(&previous, &current) => Type::most_general(&previous, &current),
            Some(_) => Type::Dyn,
        }
    }

    fn select(&mut self, expr: &mut Expr, test: bool) -> Type {
        let Kind::Select { operand, field, .. } = &mut expr.kind else { return Type::Error };
        self.check(operand);
        let target = self.known(operand);
        let ty = self.field(expr.id, &target, &field.clone(), false);
        if test { Type::Bool } else { ty }
    }

    fn field(&mut self, id: Id, of: &Type, field: &str, optional: bool) -> Type {
        let (target, was_optional) = of.unwrap_optional();
        let result = match &target {
            Type::Map(_, value) => (**value).clone(),
            Type::Object(object) => match object.fields.get(field) {
                Some(property) => property.shape.ty(),
                None => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Named(name) if self.env.is_message(name) => match self.env.message_field(name, field) {
                Some(ty) => ty,
                None => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.mapping.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                self.report(id, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        let result = self.mapping.substitute(&result, false);
        if was_optional || optional { Type::optional(result) } else { result }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Call { target, function, args } = &mut expr.kind else { return Type::Error };
        if function == "_?._" && target.is_none() {
            self.check(&mut args[0]);
            let Kind::Literal(Literal::String(field)) = &args[1].kind else { return Type::Error };
            let field = field.to_string();
            self.types[args[1].id] = Type::String;
            let of = self.known(&args[0]);
            self.overloads[id] = vec!["select_optional_field"];
            return self.field(id, &of, &field, true);
        }
        for arg in args.iter_mut() {
            self.check(arg);
        }
        if let Some(receiver) = target {
            let qualified = receiver.qualified_name().map(|prefix| format!("{prefix}.{function}"));
            let qualified = qualified.filter(|name| FUNCTIONS.contains_key(name.trim_start_matches('.')));
            match qualified {
                Some(name) => {
                    *function = name.trim_start_matches('.').to_owned();
                    *target = None;
                }
                None => self.check(receiver),
            }
        } else {
            *function = function.trim_start_matches('.').to_owned();
        }
        if !FUNCTIONS.contains_key(function.as_str()) {
            let name = function.clone();
            return self.undeclared(id, &name);
        }
        let types: Vec<Type> = target.iter().map(|target| &**target).chain(args.iter()).map(|arg| self.types[arg.id].clone()).collect();
        if matches!(function.as_str(), "_&&_" | "_||_") {
            return self.logical(id, args, &types);
        }
        let (name, member) = (function.clone(), target.is_some());
        self.resolve(id, &name, member, types)
    }

    fn logical(&mut self, id: Id, args: &[Expr], types: &[Type]) -> Type {
        let mut result = Type::Bool;
        for (arg, ty) in args.iter().zip(types) {
            if !self.mapping.assignable(ty, &Type::Bool) {
                let ty = self.mapping.substitute(ty, true);
                self.mismatch(arg.id, &Type::Bool, &ty);
                result = Type::Error;
            }
        }
        self.overloads[id] = vec!["logical"];
        result
    }

    fn resolve(&mut self, id: Id, name: &str, member: bool, types: Vec<Type>) -> Type {
        let mut result: Option<Type> = None;
        let mut fitting = Vec::new();
        for overload in FUNCTIONS.get(name).into_iter().flatten().filter(|overload| overload.member == member) {
            let first = self.next_var;
            self.next_var += overload.params;
            let fresh = |ty: &Type| ty.with_params(&|param| Type::Param(first + param));
            let wanted: Vec<Type> = overload.args.iter().map(fresh).collect();
            if !self.mapping.assignable_all(&types, &wanted) {
                continue;
            }
            let found = self.mapping.substitute(&fresh(&overload.result), false);
            fitting.push(overload.id);
            result = match result {
                None => Some(found),
                Some(before) if matches!(before, Type::Dyn) || before.same(&found) => Some(before),
                Some(_) => Some(Type::Dyn),
            };
        }
        self.overloads[id] = fitting;
        if let Some(result) = result {
            return result;
        }
        let shown: Vec<String> = types.iter().map(|ty| self.mapping.substitute(ty, true).to_string()).collect();
        let signature = match shown.split_first() {
            Some((receiver, rest)) if member => format!("{receiver}.({})", rest.join(", ")),
            _ => format!("({})", shown.join(", ")),
        };
        self.report(id, format!("found no matching overload for '{name}' applied to '{signature}'"));
        Type::Error
    }

    fn message(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Struct { name, fields } = &mut expr.kind else { return Type::Error };
        *name = name.trim_start_matches('.').to_owned();
        let name = name.clone();
        if !self.env.is_message(&name) {
            return match self.lookup(&name) {
                Some(_) => {
                    self.report(id, format!("'{name}' is not a message type"));
                    Type::Error
                }
                None => self.undeclared(id, &name),
            };
        }
        for field in fields {
            self.check(&mut field.value);
            let value = self.element_type(&field.value, field.optional);
            let Some(wanted) = self.env.message_field(&name, &field.name) else {
                self.report(field.id, format!("undefined field '{}'", field.name));
                continue;
            };
            if !self.mapping.assignable(&wanted, &value) {
                let value = self.mapping.substitute(&value, true);
                let message = format!("expected type of field '{}' is '{wanted}' but provided type is '{value}'", field.name);
                self.report(field.id, message);
            }
        }
        Type::named(&name)
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.known(&fold.range);
        let accumulated = self.types[fold.init.id].clone();
        self.scopes.push([(fold.accumulator.clone(), accumulated.clone())].into());
        let two = fold.second.is_some();
        let (first, second) = match &range {
            Type::List(element) if two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.mapping.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!("expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)");
                self.report(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let mut scope = HashMap::from([(fold.variable.clone(), first)]);
        if let Some(name) = &fold.second {
            scope.insert(name.clone(), second);
        }
        self.scopes.push(scope);
        self.check(&mut fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accumulated);
        self.scopes.pop();
        self.check(&mut fold.result);
        self.scopes.pop();
        self.known(&fold.result)
    }

    fn assert(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.types[expr.id].clone();
        if !self.mapping.assignable(wanted, &found) {
            let wanted = self.mapping.substitute(wanted, false);
            self.mismatch(expr.id, &wanted, &self.mapping.substitute(&found, false));
        }
    }

    /// Literals of lists and maps have elements of one type (upstream's homogeneous aggregate literals).
    fn mixed_literals(&mut self, root: &Expr) {
        let mut found = Vec::new();
        let mut exempt = HashSet::new();
        root.walk(&mut |expr| {
            let mut first_of = |items: &mut dyn Iterator<Item = (&Expr, bool)>| {
                let mut first: Option<Type> = None;
                for (item, optional) in items {
                    let ty = self.mapping.substitute(&self.types[item.id], true);
                    let ty = if optional { ty.unwrap_optional().0 } else { ty };
                    match &first {
                        None => first = Some(ty),
                        Some(first) if first.same(&ty) || matches!((first, &ty), (Type::Dyn, _) | (_, Type::Dyn)) => {}
                        Some(first) => {
                            found.push((item.id, first.clone(), ty));
                            return;
                        }
                    }
                }
            };
            match &expr.kind {
                // The arguments of format may differ, at any depth.
                Kind::Call { target: Some(_), function, args } if function == "format" && args.len() == 1 => {
                    args[0].walk(&mut |inner| {
                        exempt.insert(inner.id);
                    });
                }
                Kind::List(elements) if !exempt.contains(&expr.id) => {
                    first_of(&mut elements.iter().map(|(element, optional)| (element, *optional)));
                }
                Kind::Map(entries) if !exempt.contains(&expr.id) => {
                    first_of(&mut entries.iter().map(|entry| (&entry.key, false)));
                    first_of(&mut entries.iter().map(|entry| (&entry.value, entry.optional)));
                }
                _ => {}
            }
        });
        for (id, expected, ty) in found {
            self.mismatch(id, &expected, &ty);
        }
    }
}
