//! The rules of a schema, `x-kubernetes-validations`: compiled once, evaluated within a budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_cel::shape::MAX_REQUEST;
use kube_cel::{Env, Fault, PER_CALL_LIMIT, Program, Shape, Type, Value, Variables, display};
use serde_json::Value as Json;

use crate::correlate;
use crate::field::{self, ErrorKind, Errors, FieldError, child, invalid, key};
use crate::path;
use crate::schema::{Rule, Schema};
use crate::shape;

/// What all rules of an object may cost together.
pub const BUDGET: u64 = 10_000_000;
/// The longest message that an expression may give.
const MAX_MESSAGE: usize = 5 * 1024;
const OUT_OF_BUDGET: &str = "validation failed due to running out of cost budget, no further validation rules will be run";

/// A rule that was compiled, or why it was not.
pub struct Compiled {
    pub program: Result<Program, String>,
    pub message: Option<Result<Program, String>>,
    pub uses_old_self: bool,
    /// The greatest estimated costs of the rule and its message.
    pub cost: u64,
    pub message_cost: u64,
    /// How often a request can hold the value that the rule judges.
    pub cardinality: u64,
    field_path: String,
    rule: Rule,
}

/// Compiles the rules of one node. None when rules cannot see its values.
pub fn compile(schema: &Schema, resource: bool) -> Option<(Arc<Shape>, Vec<Compiled>)> {
    let shape = Arc::new(shape::shape(schema, resource, "selfType")?);
    let compiled = schema.rules.iter().map(|rule| compile_rule(rule, schema, &shape)).collect();
    Some((shape, compiled))
}

fn compile_rule(rule: &Rule, schema: &Schema, shape: &Shape) -> Compiled {
    let ty = shape.ty();
    let old = if rule.optional_old_self == Some(true) { Type::optional(ty.clone()) } else { ty.clone() };
    let env = Env::new().with("self", ty).with("oldSelf", old);
    let compiled = |source: &str, wanted: &str, failed: &str, otherwise: &str| {
        let program = env.compile(source).map_err(|error| format!("{failed}: {error}"))?;
        if program.result_type().to_string() == wanted { Ok(program) } else { Err(otherwise.to_owned()) }
    };
    let program = compiled(&rule.rule, "bool", "compilation failed", "cel expression must evaluate to a bool");
    let message = (!rule.message_expression.is_empty()).then(|| {
        let failed = "messageExpression compilation failed";
        compiled(&rule.message_expression, "string", failed, "messageExpression must evaluate to a string")
    });
    let estimate = |program: &Program| program.estimate(shape).max;
    let field_path = path::in_schema(&rule.field_path, schema, true).map(|(shown, _)| shown).unwrap_or_default();
    Compiled {
        uses_old_self: program.as_ref().is_ok_and(|program| program.uses("oldSelf")),
        cost: program.as_ref().map_or(0, estimate),
        message_cost: message.as_ref().and_then(|message| message.as_ref().ok()).map_or(0, estimate),
        cardinality: MAX_REQUEST / (shape.min_bytes + 1),
        program,
        message,
        field_path,
        rule: rule.clone(),
    }
}

/// The rules of a schema and of everything below it.
pub struct Rules {
    shape: Option<Arc<Shape>>,
    compiled: Vec<Compiled>,
    ty: String,
    schema: Arc<Schema>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
    properties: BTreeMap<String, Rules>,
}

/// The state of one validation.
struct Run {
    budget: Option<u64>,
    errors: Errors,
    warnings: Errors,
}

/// The errors of rules, and the warnings about what an update left unchanged.
#[derive(Debug, Default)]
pub struct Judged {
    pub errors: Errors,
    pub warnings: Errors,
}

/// What old value a node has, and whether it may excuse errors.
#[derive(Clone, Copy)]
struct Old<'v> {
    /// The value that belongs to this one.
    value: Option<&'v Json>,
    /// An ancestor, or the node itself, did not change.
    unchanged: bool,
}

impl Rules {
    /// Compiles the rules of a schema; none when it has none. Rules that do not compile give errors when they are evaluated.
    pub fn new(schema: &Schema, resource: bool) -> Option<Rules> {
        let inner = |schema: &Schema| Rules::new(schema, schema.embedded).map(Box::new);
        let items = schema.items.as_deref().and_then(inner);
        let additional = schema.additional_schema().and_then(inner);
        let properties = schema.properties.iter();
        let properties: BTreeMap<String, Rules> = properties.filter_map(|(name, schema)| Some((name.clone(), *inner(schema)?))).collect();
        if schema.rules.is_empty() && items.is_none() && additional.is_none() && properties.is_empty() {
            return None;
        }
        let (shape, compiled) = match (schema.rules.is_empty(), compile(schema, resource)) {
            (false, Some((shape, compiled))) => (Some(shape), compiled),
            _ => (None, Vec::new()),
        };
        // Correlation needs the keys of lists and their defaults, nothing else.
        let kept = Schema {
            list_type: schema.list_type.clone(),
            list_map_keys: schema.list_map_keys.clone(),
            items: schema.items.clone().filter(|_| schema.list_type.as_deref() == Some("map")),
            ..Schema::default()
        };
        Some(Rules { shape, compiled, ty: schema.ty.clone(), schema: Arc::new(kept), items, additional, properties })
    }

    /// Judges an object, and its change when there is an old one.
    pub fn validate(&self, prefix: &str, object: &Json, old: Option<&Json>) -> Judged {
        let mut run = Run { budget: Some(BUDGET), errors: Vec::new(), warnings: Vec::new() };
        let unchanged = old == Some(object);
        self.walk(prefix, object, Old { value: old, unchanged }, true, &mut run);
        Judged { errors: run.errors, warnings: run.warnings }
    }

    fn walk(&self, at: &str, value: &Json, old: Old, root: bool, run: &mut Run) {
        if value.is_null() || run.budget.is_none() {
            return;
        }
        self.expressions(at, value, old, run);
        match value {
            Json::Array(items) => {
                let Some(rules) = &self.items else { return };
                let pairs = correlate::items(items, old.value, &self.schema);
                for (index, (item, value)) in items.iter().zip(pairs).enumerate() {
                    let unchanged = value.map_or(old.unchanged, |value| value == item);
                    rules.walk(&key(at, index), item, Old { value, unchanged }, false, run);
                }
            }
            Json::Object(map) => {
                for (name, item) in map {
                    let rules = match (self.properties.get(name), &self.additional) {
                        (Some(rules), _) => Some((rules, child(at, name))),
                        (None, Some(rules)) => Some((&**rules, key(at, name))),
                        _ => None,
                    };
                    let Some((rules, at)) = rules else { continue };
                    let value = old.value.and_then(|old| old.get(name)).filter(|old| !old.is_null());
                    let fixed = root && matches!(name.as_str(), "apiVersion" | "kind");
                    let unchanged = !fixed && value.map_or(old.unchanged, |value| value == item);
                    rules.walk(&at, item, Old { value, unchanged }, false, run);
                }
            }
            _ => {}
        }
    }

    fn expressions(&self, at: &str, value: &Json, old: Old, run: &mut Run) {
        let Some(shape) = self.shape.as_deref() else { return };
        if run.budget == Some(0) {
            run.errors.push(invalid(at, self.ty.as_str(), OUT_OF_BUDGET));
            run.budget = None;
            return;
        }
        for compiled in &self.compiled {
            if run.budget.is_none() {
                return;
            }
            match &compiled.program {
                Err(reason) => {
                    run.errors.push(invalid(at, self.ty.as_str(), format!("rule compile error: {reason}")));
                }
                Ok(program) => self.judge(at, value, old, shape, (compiled, program), run),
            }
        }
    }

    fn judge(&self, at: &str, value: &Json, old: Old, shape: &Shape, rule: (&Compiled, &Program), run: &mut Run) {
        let (compiled, program) = rule;
        let optional = compiled.rule.optional_old_self == Some(true);
        if compiled.uses_old_self && old.value.is_none() && !optional {
            return;
        }
        let ty = self.ty.as_str();
        let variables = match variables(value, old.value, shape, optional) {
            Ok(variables) => variables,
            Err(fault) => {
                let detail = format!("{fault} evaluating rule: {}", compiled.rule.shown());
                run.errors.push(invalid(at, ty, detail));
                return;
            }
        };
        let evaluated = program.evaluate(&variables, PER_CALL_LIMIT);
        run.budget = run.budget.and_then(|budget| budget.checked_sub(evaluated.cost));
        if run.budget.is_none() {
            run.errors.push(invalid(at, ty, OUT_OF_BUDGET));
            return;
        }
        let shown = compiled.rule.shown();
        match evaluated.result {
            Ok(Value::Bool(true)) => {}
            Ok(_) => {
                let (error, ends) = self.failure(at, value, compiled, &variables, run);
                let excused = !compiled.uses_old_self && old.unchanged;
                if excused {
                    run.warnings.push(error)
                } else {
                    run.errors.push(error)
                }
                if ends {
                    run.budget = None;
                }
            }
            Err(fault @ Fault::CostLimit) => {
                let detail = format!("'{fault}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}");
                run.errors.push(invalid(at, ty, detail));
                run.budget = None;
            }
            Err(Fault::Error(reason)) => {
                let detail = if reason.starts_with("no such overload") {
                    format!("'{reason}': call arguments did not match a supported operator, function or macro signature for rule: {shown}")
                } else {
                    format!("{reason} evaluating rule: {shown}")
                };
                run.errors.push(invalid(at, ty, detail));
            }
        }
    }

    /// The error of a rule that gave false, and whether its message ended the evaluation of all rules.
    fn failure(&self, at: &str, value: &Json, compiled: &Compiled, variables: &Variables, run: &mut Run) -> (FieldError, bool) {
        let rule = &compiled.rule;
        let at = if compiled.field_path.is_empty() { at.to_owned() } else { child(at, &compiled.field_path) };
        let mut detail = if rule.message.is_empty() { format!("failed rule: {}", rule.rule.trim()) } else { rule.message.trim().to_owned() };
        if let Some(Ok(program)) = &compiled.message {
            match self.message(program, &rule.message_expression, variables, run) {
                Ok(Some(text)) => detail = text,
                Ok(None) => {}
                Err(reason) => return (invalid(at, self.ty.as_str(), reason), true),
            }
        }
        let shown = (!matches!(self.ty.as_str(), "object" | "array")).then(|| value.clone());
        let error = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => field::forbidden(at, detail),
            Some("FieldValueRequired") => field::required(at, detail),
            Some("FieldValueDuplicate") => FieldError::new(ErrorKind::Duplicate, at, shown, ""),
            _ => FieldError::new(ErrorKind::Invalid, at, shown, detail),
        };
        (error, false)
    }

    /// The text of a messageExpression; none when it has no good one. An error ends all evaluation.
    fn message(&self, program: &Program, source: &str, variables: &Variables, run: &mut Run) -> Result<Option<String>, String> {
        let evaluated = program.evaluate(variables, PER_CALL_LIMIT);
        if matches!(evaluated.result, Err(Fault::CostLimit)) {
            return Err(format!("no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"));
        }
        run.budget = run.budget.and_then(|budget| budget.checked_sub(evaluated.cost));
        if run.budget.is_none() {
            let reason = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
            return Err(reason.into());
        }
        let Ok(value) = evaluated.result else { return Ok(None) };
        let text = display(&value);
        let text = text.trim();
        let good = !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
        Ok(good.then(|| text.to_owned()))
    }
}

fn variables<'a>(value: &'a Json, old: Option<&'a Json>, shape: &'a Shape, optional: bool) -> Result<Variables<'a>, Fault> {
    let mut variables = Variables::new().with("self", Value::shaped(value, shape)?);
    let old = old.map(|old| Value::shaped(old, shape)).transpose()?;
    if optional {
        variables.set("oldSelf", Value::optional(old));
    } else if let Some(old) = old {
        variables.set("oldSelf", old);
    }
    Ok(variables)
}
