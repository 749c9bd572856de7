//! Arithmetic, order, containment, size.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::convert;
use crate::equality::{self, identity};
use crate::shape::ListKind;
use crate::time;
use crate::value::{Key, List, Map, Result, Value, error, no_overload};

/// Elements or bytes that an expression may put together in one value.
const MAX_BUILT: usize = 4_000_000;

const INT: &str = "integer overflow";
const UINT: &str = "unsigned integer overflow";
const DURATION: &str = "duration overflow";

fn int<'a>(value: Option<i64>) -> Result<Value<'a>> {
    value.map_or_else(|| error(INT), |value| Ok(Value::Int(value)))
}

fn uint<'a>(value: Option<u64>) -> Result<Value<'a>> {
    value.map_or_else(|| error(UINT), |value| Ok(Value::Uint(value)))
}

fn duration<'a>(value: Option<i64>) -> Result<Value<'a>> {
    value.map_or_else(|| error(DURATION), |value| Ok(Value::Duration(value)))
}

pub fn add<'a>(a: Value<'a>, b: Value<'a>) -> Result<Value<'a>> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => int(a.checked_add(b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_add(b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_add(b)),
        (Value::Duration(by), Value::Timestamp(at)) | (Value::Timestamp(at), Value::Duration(by)) => {
            time::moment(at.as_nanosecond() + i128::from(by)).map(Value::Timestamp)
        }
        (Value::String(a), Value::String(b)) => {
            bounded(a.len() + b.len())?;
            Ok(Value::string(format!("{}{}", &*a, &*b)))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            bounded(a.len() + b.len())?;
            Ok(Value::Bytes([&*a, &*b].concat().into()))
        }
        (Value::List(a), Value::List(b)) => concat(a, b),
        _ => no_overload(),
    }
}

pub(crate) fn bounded(size: usize) -> Result<()> {
    if size > MAX_BUILT { error(format!("value size exceeds limit: size: {size}, limit {MAX_BUILT}")) } else { Ok(()) }
}

fn concat<'a>(a: List<'a>, b: List<'a>) -> Result<Value<'a>> {
    bounded(a.len() + b.len())?;
    if *a.kind() != ListKind::Atomic {
        return merge(&a, &b);
    }
    let more = b.items()?;
    let mut items = match a {
        List::Owned(items) => items,
        other => Arc::new(other.items()?),
    };
    // In place when nothing else holds the list, as in `map` and `filter`.
    Arc::make_mut(&mut items).extend(more);
    Ok(Value::List(List::Owned(items)))
}

/// Sets keep one of a kind; keyed lists let later elements replace earlier ones.
fn merge<'a>(a: &List<'a>, b: &List<'a>) -> Result<Value<'a>> {
    let mut items = a.items()?;
    let places = items.iter().enumerate().map(|(index, item)| (identity(item, a.kind()), index));
    let mut places: BTreeMap<String, usize> = places.collect();
    for item in b.items()? {
        let key = identity(&item, a.kind());
        match places.get(&key) {
            Some(&index) => items[index] = item,
            None => {
                places.insert(key, items.len());
                items.push(item);
            }
        }
    }
    Ok(Value::list(items))
}

pub fn subtract<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_sub(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_sub(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a - b)),
        [Value::Duration(a), Value::Duration(b)] => duration(a.checked_sub(*b)),
        [Value::Timestamp(at), Value::Duration(by)] => time::moment(at.as_nanosecond() - i128::from(*by)).map(Value::Timestamp),
        [Value::Timestamp(a), Value::Timestamp(b)] => duration(i64::try_from(a.as_nanosecond() - b.as_nanosecond()).ok()),
        _ => no_overload(),
    }
}

pub fn multiply<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_mul(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_mul(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
        _ => no_overload(),
    }
}

pub fn divide<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("division by zero"),
        [Value::Int(a), Value::Int(b)] => int(a.checked_div(*b)),
        [Value::Uint(a), Value::Uint(b)] => Ok(Value::Uint(a / b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
        _ => no_overload(),
    }
}

pub fn modulo<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("modulus by zero"),
        [Value::Int(a), Value::Int(b)] => int(a.checked_rem(*b)),
        [Value::Uint(a), Value::Uint(b)] => Ok(Value::Uint(a % b)),
        _ => no_overload(),
    }
}

pub fn negate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Int(a)] => int(a.checked_neg()),
        [Value::Double(a)] => Ok(Value::Double(-a)),
        _ => no_overload(),
    }
}

pub fn not<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Bool(a)] => Ok(Value::Bool(!a)),
        _ => no_overload(),
    }
}

fn ordered<'a>(args: &[Value<'a>], holds: impl Fn(Ordering) -> bool) -> Result<Value<'a>> {
    let [a, b] = args else { return no_overload() };
    equality::compare(a, b).map(|order| Value::Bool(holds(order)))
}

pub fn less<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_lt)
}

pub fn less_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_le)
}

pub fn greater<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_gt)
}

pub fn greater_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_ge)
}

pub fn equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [a, b] = args else { return no_overload() };
    Ok(Value::Bool(equality::equal(a, b)))
}

pub fn not_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [a, b] = args else { return no_overload() };
    Ok(Value::Bool(!equality::equal(a, b)))
}

pub fn contained<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [wanted, Value::List(list)] => list.contains(wanted).map(Value::Bool),
        [key, Value::Map(map)] => map.get(key).map(|found| Value::Bool(found.is_some())),
        _ => no_overload(),
    }
}

pub fn size<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
            Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX)))
        }
        _ => no_overload(),
    }
}

/// Takes its arguments, so that the map that a fold builds is changed in place.
pub fn insert<'a>(mut args: Vec<Value<'a>>) -> Result<Value<'a>> {
    if !matches!(args.len(), 2 | 3) {
        return no_overload();
    }
    let Value::Map(Map::Owned(mut entries)) = args.remove(0) else { return no_overload() };
    let added = match args.as_slice() {
        [key, value] => vec![(key.clone(), value.clone())],
        [Value::Map(added)] => added.entries()?,
        _ => return no_overload(),
    };
    bounded(entries.len() + added.len())?;
    for (key, value) in added {
        let Some(name) = Key::of(&key) else { return no_overload() };
        let shown = convert::display(&key);
        if Arc::make_mut(&mut entries).insert(name, (key, value)).is_some() {
            return error(format!("insert failed: key {shown} already exists"));
        }
    }
    Ok(Value::Map(Map::Owned(entries)))
}
