//! Functions of lists and sets.

use std::cmp::Ordering;

use crate::equality::{compare, equal};
use crate::operators::{add, bounded};
use crate::value::{Fault, List, Result, Value, error, no_overload};

pub fn index_of<'a>(args: &[Value<'a>], last: bool) -> Result<Value<'a>> {
    let [Value::List(list), wanted] = args else { return no_overload() };
    let items = list.items()?;
    let mut places = (0..items.len()).filter(|&index| equal(&items[index], wanted));
    let found = if last { places.next_back() } else { places.next() };
    Ok(Value::Int(found.map_or(-1, |index| index as i64)))
}

pub fn is_sorted<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return no_overload() };
    let items = list.items()?;
    for pair in items.windows(2) {
        if compare(&pair[0], &pair[1])?.is_gt() {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

/// The sum; `zero` is that of an empty list.
pub fn sum<'a>(args: &[Value<'a>], zero: Value<'a>) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut items = list.items()?.into_iter();
    let Some(first) = items.next() else { return Ok(zero) };
    items.try_fold(first, add)
}

pub fn extreme<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return no_overload() };
    let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
    let mut items = list.items()?.into_iter();
    let Some(mut best) = items.next() else { return error(format!("{name} called on empty list")) };
    for item in items {
        if compare(&item, &best)? == wanted {
            best = item;
        }
    }
    Ok(best)
}

pub fn slice<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else { return no_overload() };
    let cannot = format!("cannot slice({start}, {end})");
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return error(format!("{cannot}, negative indexes not supported"));
    };
    if from > to {
        return error(format!("{cannot}, start index must be less than or equal to end index"));
    }
    if to > list.len() {
        return error(format!("{cannot}, list is length {}", list.len()));
    }
    (from..to).map(|index| list.get(index)).collect::<Result<Vec<_>>>().map(Value::list)
}

pub fn flatten<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] if *depth < 0 => {
            let _ = list;
            return error("level must be non-negative");
        }
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return no_overload(),
    };
    let mut out = Vec::new();
    flatten_into(list, depth, &mut out)?;
    Ok(Value::list(out))
}

fn flatten_into<'a>(list: &List<'a>, depth: i64, out: &mut Vec<Value<'a>>) -> Result<()> {
    for item in list.items()? {
        match item {
            Value::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, out)?,
            item => out.push(item),
        }
        bounded(out.len())?;
    }
    Ok(())
}

/// Sorts by keys of the same places.
fn sorted<'a>(items: Vec<Value<'a>>, keys: &[Value<'a>]) -> Result<Value<'a>> {
    if items.len() != keys.len() {
        return error(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            items.len(),
            keys.len()
        ));
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    let mut fault: Option<Fault> = None;
    order.sort_by(|&a, &b| {
        compare(&keys[a], &keys[b]).unwrap_or_else(|reason| {
            fault.get_or_insert(reason);
            Ordering::Equal
        })
    });
    match fault {
        Some(_) => error("list elements must have the same type"),
        None => Ok(Value::list(order.into_iter().map(|index| items[index].clone()).collect())),
    }
}

pub fn sort<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::List(list)] => {
            let items = list.items()?;
            let keys = items.clone();
            sorted(items, &keys)
        }
        [Value::List(list), Value::List(keys)] => sorted(list.items()?, &keys.items()?),
        _ => no_overload(),
    }
}

pub fn range<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Int(end)] = args else { return no_overload() };
    bounded(usize::try_from(*end).unwrap_or(0))?;
    Ok(Value::list((0..*end).map(Value::Int).collect()))
}

pub fn reverse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut items = list.items()?;
    items.reverse();
    Ok(Value::list(items))
}

/// How many comparisons a function of sets may make.
const MAX_COMPARED: usize = 10_000_000;

fn comparable(a: usize, b: usize) -> Result<()> {
    if a.saturating_mul(b) > MAX_COMPARED { Err(Fault::CostLimit) } else { Ok(()) }
}

pub fn distinct<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else { return no_overload() };
    comparable(list.len(), list.len())?;
    let mut out: Vec<Value> = Vec::new();
    for item in list.items()? {
        if !out.iter().any(|seen| equal(seen, &item)) {
            out.push(item);
        }
    }
    Ok(Value::list(out))
}

pub fn sets<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(a), Value::List(b)] = args else { return no_overload() };
    comparable(a.len(), b.len())?;
    let (a, b) = (a.items()?, b.items()?);
    let has = |list: &[Value], wanted: &Value| list.iter().any(|item| equal(item, wanted));
    Ok(Value::Bool(match name {
        "sets.contains" => b.iter().all(|item| has(&a, item)),
        "sets.intersects" => b.iter().any(|item| has(&a, item)),
        _ => a.iter().all(|item| has(&b, item)) && b.iter().all(|item| has(&a, item)),
    }))
}
