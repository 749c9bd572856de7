//! What calls cost at run time (upstream: cel-go's cost tracker and Kubernetes' cost estimator).

use crate::ast::{Expr, Kind, Literal};
use crate::kube::Opaque;
use crate::value::{List, Map, Value};

pub const LIST_CREATE: u64 = 10;
pub const MAP_CREATE: u64 = 30;
pub const STRUCT_CREATE: u64 = 40;
/// The cost of walking over one byte or character.
pub const TRAVERSAL: f64 = 0.1;
pub const REGEX: f64 = 0.25;
const CHECK: u64 = 350_000;

pub(crate) fn ceil(value: f64) -> u64 {
    value.ceil() as u64
}

fn traversed(size: u64, times: f64) -> u64 {
    ceil(size as f64 * times * TRAVERSAL)
}

/// The cost of a call; none when it depends on a result that is not there yet.
pub fn of_call(function: &str, overload: Option<&str>, args: &[Value], result: Option<&Value>) -> Option<u64> {
    let size = |index: usize| args.get(index).map_or(1, Value::size);
    let regex = |pattern: u64| ceil((1.0 + size(0) as f64) * TRAVERSAL) * ceil(pattern as f64 * REGEX);
    Some(match function {
        "check" => CHECK,
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name" | "allowed" | "reason" | "error" | "errored" => 1,
        "fieldSelector" | "labelSelector" => {
            let length = size(1) as f64;
            LIST_CREATE + ceil(length * TRAVERSAL) + ceil(ceil(length * 0.5) as f64 * (LIST_CREATE + STRUCT_CREATE) as f64)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => args.first().map_or(0, traversal),
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => traversed(size(0), 1.0),
        "replace" | "split" | "ip.isCanonical" => traversed(size(0), 2.0),
        "join" => traversed(result?.size(), 2.0),
        "find" | "findAll" => regex(size(1)),
        "ip" => match args.first() {
            Some(Value::String(_)) => traversed(size(0), 1.0),
            _ => 1,
        },
        "containsIP" | "containsCIDR" => {
            let mut cost = traversed(size(0), 2.0);
            if function == "containsCIDR" {
                cost += traversed(size(0), 1.0) + 1;
            }
            if matches!(overload, Some("cidr_contains_ip_string" | "cidr_contains_cidr_string")) {
                cost += traversed(size(1), 1.0);
            }
            cost
        }
        "validate" => match args.first() {
            Some(Value::Opaque(format)) => match &**format {
                Opaque::Format(format) => ceil((1.0 + size(1) as f64) * TRAVERSAL) * ceil(format.regex_size as f64 * REGEX),
                _ => 1,
            },
            _ => 1,
        },
        "_==_" if matches!(args.first(), Some(Value::Opaque(_) | Value::Authz(_))) => 1,
        "_==_" | "_!=_" => traversed(size(0).min(size(1)), 1.0),
        "sets.contains" | "sets.intersects" => 1 + size(0).saturating_mul(size(1)),
        "sets.equivalent" => 1 + size(0).saturating_mul(size(1)).saturating_mul(2),
        "slice" | "reverse" | "lists.range" if overload.is_some() => allocation(result?.size(), 1.0),
        "flatten" if overload.is_some() => match args.get(1) {
            Some(Value::Int(depth)) => allocation(size(0), *depth as f64),
            _ => allocation(size(0), 1.0),
        },
        "distinct" | "sort" | "@sortByAssociatedKeys" if overload.is_some() => self_comparison(args.last()),
        _ => by_overload(overload.unwrap_or_default(), &size),
    })
}

/// The cost of a function that makes a list.
fn allocation(size: u64, factor: f64) -> u64 {
    ((size as f64 * factor) as u64).saturating_add(1 + LIST_CREATE)
}

/// The cost of comparing all elements of a list with each other.
fn self_comparison(list: Option<&Value>) -> u64 {
    let Some(Value::List(list)) = list else { return 1 };
    let text = matches!(list.get(0), Ok(Value::String(_) | Value::Bytes(_)));
    let size = list.len() as u64;
    allocation(size.saturating_mul(size), if text { 2.0 + TRAVERSAL } else { 2.0 })
}

fn by_overload(overload: &str, size: &dyn Fn(usize) -> u64) -> u64 {
    match overload {
        "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => {
            traversed(size(0), 1.0)
        }
        "in_list" => size(1),
        "less_string"
        | "greater_string"
        | "less_equals_string"
        | "greater_equals_string"
        | "less_bytes"
        | "greater_bytes"
        | "less_equals_bytes"
        | "greater_equals_bytes" => traversed(size(0).min(size(1)), 1.0),
        "add_string" | "add_bytes" => traversed(size(0) + size(1), 1.0),
        "matches_string" | "matches" => ceil((1.0 + size(0) as f64) * TRAVERSAL) * ceil(size(1) as f64 * REGEX),
        "contains_string" => traversed(size(0), 1.0) * traversed(size(1), 1.0),
        _ => 1,
    }
}

/// The cost of walking over a value as a tree of data.
fn traversal(value: &Value) -> u64 {
    let sum = |costs: &mut dyn Iterator<Item = u64>| costs.fold(0_u64, u64::saturating_add);
    match value {
        Value::String(text) => (text.len() as f64 * TRAVERSAL) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * TRAVERSAL) as u64,
        Value::List(list) => sum(&mut (0..list.len()).map(|index| item_cost(list, index))),
        Value::Map(map) => sum(&mut map_costs(map).into_iter()),
        _ => 1,
    }
}

fn item_cost(list: &List, index: usize) -> u64 {
    list.get(index).map_or(1, |item| traversal(&item))
}

fn map_costs(map: &Map) -> Vec<u64> {
    let entries = map.entries().unwrap_or_default();
    entries.iter().map(|(key, value)| traversal(key).saturating_add(traversal(value))).collect()
}

fn is_conversion(function: &str) -> bool {
    matches!(function, "bool" | "bytes" | "double" | "dyn" | "duration" | "int" | "string" | "timestamp" | "type" | "uint")
}

/// Whether upstream computes the expression once, before all evaluations.
pub fn is_constant(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Literal(_) => true,
        Kind::List(elements) => elements.iter().all(|(element, optional)| !optional && is_constant(element)),
        Kind::Map(entries) => entries.iter().all(|entry| !entry.optional && is_constant(&entry.key) && is_constant(&entry.value)),
        Kind::Call { target: None, function, args } => is_conversion(function) && args.len() == 1 && is_constant(&args[0]),
        _ => false,
    }
}

/// Calls that upstream replaces by something without cost: conversions of constants, and `in` a list of constants.
pub fn is_free(function: &str, target: Option<&Expr>, args: &[Expr], overload: Option<&str>) -> bool {
    match (function, args) {
        ("@in", [_, list]) if overload == Some("in_list") => match &list.kind {
            Kind::List(elements) => elements.iter().all(|(element, optional)| {
                !optional && matches!(&element.kind, Kind::Literal(literal) if !matches!(literal, Literal::Bytes(_) | Literal::Null))
            }),
            _ => false,
        },
        (function, [arg]) => target.is_none() && is_conversion(function) && is_constant(arg),
        _ => false,
    }
}

/// Whether the expression is a variable with selections, and nothing that computes.
pub fn is_path(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Ident(_) => true,
        Kind::Select { operand, test: false, .. } => is_path(operand),
        Kind::Call { target: None, function, args } if function == "_[_]" => args.iter().all(is_path),
        Kind::Literal(_) => true,
        _ => false,
    }
}
