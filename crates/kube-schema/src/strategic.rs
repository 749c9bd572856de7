//! Strategic merge patches (apimachinery pkg/util/strategicpatch): lists of objects merge by key, lists of scalars as sets, directives
//! delete, replace and order. Strategies and merge keys come from the schema tree.

use crate::DEEPEST;
use crate::schema::Type;
use crate::value::{go_map, go_text, go_type};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Why a patch cannot be applied. Texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// Applies `patch` to an object of this type.
pub fn apply(of: Type<'_>, object: &Value, patch: &Value) -> Result<Value, Malformed> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(malformed("invalid JSON document"));
    };
    if patch.values().chain(object.values()).any(is_too_deep) {
        return Err(malformed("exceeded max depth"));
    }
    merge_map(object.clone(), patch.clone(), Some(of)).map(Value::Object)
}

fn is_too_deep(value: &Value) -> bool {
    let mut waiting = vec![(value, 1)];
    while let Some((value, depth)) = waiting.pop() {
        match value {
            Value::Array(_) | Value::Object(_) if depth >= DEEPEST => return true,
            Value::Array(items) => waiting.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => waiting.extend(members.values().map(|member| (member, depth + 1))),
            _ => {}
        }
    }
    false
}

fn malformed(text: impl Into<String>) -> Malformed {
    Malformed(text.into())
}

fn bad_type(expected: &str, found: &Value) -> Malformed {
    malformed(format!("expected a {expected}, but received a {}", if found.is_null() { "%!s(<nil>)" } else { go_type(found) }))
}

fn no_merge_key(members: &Object, key: &str) -> Malformed {
    malformed(format!("map: {} does not contain declared merge key: {key}", go_map(members)))
}

fn unknown_patch_type(directive: &Value, members: &Object) -> Malformed {
    malformed(format!("unknown patch type: {} in map: {}", go_text(directive), go_map(members)))
}

/// What the tree says of a member that both sides have as an object or list.
#[derive(Default)]
struct Meta<'a> {
    /// The type of the object, or of the list's items.
    inner: Option<Type<'a>>,
    strategy: Option<&'a str>,
    key: Option<&'a str>,
}

fn look_up<'a>(of: Option<Type<'a>>, name: &str) -> Result<Meta<'a>, Malformed> {
    let Some((of, object)) = of.and_then(|of| Some((of, of.node().object.as_ref()?))) else { return Ok(Meta::default()) };
    let Some(field) = object.field(name) else {
        return match object.values {
            Some(values) => Ok(Meta { inner: inner_type(of.schema.type_at(values)), ..Meta::default() }),
            None => Err(malformed(format!("unable to find api field in struct {} for the json field {name:?}", of.node().short()))),
        };
    };
    let inner = inner_type(of.schema.type_at(field.value));
    Ok(Meta { inner, strategy: field.patch.strategy.as_deref(), key: field.patch.key.as_deref() })
}

/// The objects themselves, or those in the list.
fn inner_type(mut of: Type<'_>) -> Option<Type<'_>> {
    for _ in 0..DEEPEST {
        let node = of.node();
        match &node.list {
            _ if node.object.is_some() => return Some(of),
            Some(list) => of = of.schema.type_at(list.items),
            None => return None,
        }
    }
    None
}

fn merge_map(mut original: Object, mut patch: Object, of: Option<Type<'_>>) -> Result<Object, Malformed> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.shift_remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Object::new()),
            _ => Err(unknown_patch_type(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    let ordered: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in ordered {
        apply_order(&mut original, &mut patch, &directive, of)?;
    }
    for (key, value) in patch {
        merge_member(&mut original, &key, value, of)?;
    }
    Ok(original)
}

fn merge_member(original: &mut Object, key: &str, value: Value, of: Option<Type<'_>>) -> Result<(), Malformed> {
    let (name, is_delete_list) = match key.strip_prefix(DELETE_FROM) {
        Some(name) => (name, true),
        None if key == DELETE_FROM.trim_end_matches('/') => return Err(malformed("invalid patch format of primitive list")),
        None => (key, false),
    };
    if value.is_null() {
        original.shift_remove(name);
        return Ok(());
    }
    let merged = match (original.get_mut(name).map(Value::take), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let meta = look_up(of, name)?;
            let merged = if meta.strategy == Some("replace") { new } else { merge_map(old, new, meta.inner)? };
            Some(Value::Object(merged))
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let meta = look_up(of, name)?;
            let merged = if meta.strategy == Some("merge") || is_delete_list { merge_list(old, new, &meta, is_delete_list)? } else { new };
            Some(Value::Array(merged))
        }
        (old, _) if is_delete_list => old,
        (_, new) => without_directives(without_nulls(new)),
    };
    match merged {
        Some(merged) => drop(original.insert(name.to_string(), merged)),
        None => drop(original.shift_remove(name)),
    }
    Ok(())
}

/// Drops what `$retainKeys` does not name, which must name everything that the patch sets.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), Malformed> {
    let Some(kept) = patch.shift_remove(RETAIN_KEYS) else { return Ok(()) };
    let bad_format = || malformed("invalid patch format of retainKeys");
    let kept = kept.as_array().ok_or_else(bad_format)?;
    let is_kept = |key: &str| kept.iter().any(|name| name == key);
    let set = |(key, value): (&String, &Value)| !value.is_null() && !key.starts_with(DELETE_FROM) && !key.starts_with(SET_ORDER);
    if patch.iter().any(|member| set(member) && !is_kept(member.0)) {
        return Err(bad_format());
    }
    original.retain(|key, _| is_kept(key));
    Ok(())
}

/// Merges a list and puts it into the order of its `$setElementOrder` directive.
fn apply_order(original: &mut Object, patch: &mut Object, directive: &str, of: Option<Type<'_>>) -> Result<(), Malformed> {
    let Some(order) = patch.shift_remove(directive) else { return Ok(()) };
    let order = order.as_array().ok_or_else(|| bad_type("[]interface {}", &order))?;
    let name = &directive[SET_ORDER.len()..];
    let take_list = |value: Option<Value>| match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(other) => Err(bad_type("[]interface {}", &other)),
    };
    let meta = look_up(of, name)?;
    let in_patch = take_list(patch.shift_remove(name))?;
    check_order(in_patch.as_deref().unwrap_or_default(), order, meta.key)?;
    let live = take_list(original.get(name).cloned())?;
    let merged = match (live.clone(), in_patch) {
        (None, None) => return Ok(()),
        (Some(live), None) => live,
        (None, Some(added)) => added.into_iter().filter_map(without_directives).collect(),
        (Some(live), Some(added)) if meta.strategy == Some("merge") => merge_list(live, added, &meta, false)?,
        (Some(_), Some(added)) => added,
    };
    let sorted = in_order(merged, order, live.as_deref().unwrap_or_default(), meta.key)?;
    original.insert(name.to_string(), sorted.into());
    Ok(())
}

/// The patch's items must stand in the order's order, and all be in it.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Malformed> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let wanted = identity(item, key)?;
        loop {
            let Some(next) = rest.next() else {
                let (patch, order) = (go_text(&patch.into()), go_text(&order.into()));
                return Err(malformed(format!("The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n")));
            };
            if identity(next, key)? == wanted {
                break;
            }
        }
    }
    Ok(())
}

/// The identity of an item in its list: the merge key's value, or a scalar itself.
fn identity<'a>(item: &'a Value, key: Option<&str>) -> Result<&'a Value, Malformed> {
    match (key, item) {
        (None, item) => Ok(item),
        (Some(key), Value::Object(members)) => members.get(key).ok_or_else(|| no_merge_key(members, key)),
        (Some(_), other) => Err(bad_type("map[string]interface {}", other)),
    }
}

fn position(list: &[Value], wanted: &Value, key: Option<&str>) -> Option<usize> {
    list.iter().position(|item| identity(item, key).is_ok_and(|found| found == wanted))
}

fn merge_list(original: Vec<Value>, patch: Vec<Value>, meta: &Meta<'_>, is_delete_list: bool) -> Result<Vec<Value>, Malformed> {
    let Some(first) = original.first().or(patch.first()) else { return Ok(original) };
    let objects = first.is_object();
    if let Some(list) = original.iter().chain(&patch).find(|item| item.is_array()) {
        return Err(malformed(format!("lists of lists are not supported: {}", go_text(list))));
    }
    if original.iter().chain(&patch).any(|item| item.is_object() != objects) {
        return Err(malformed(format!("list element types are not identical: [{} {}]", go_text(&original.into()), go_text(&patch.into()))));
    }
    if !objects {
        return Ok(merge_scalars(original, patch, is_delete_list));
    }
    let Some(key) = meta.key else {
        let name = meta.inner.map_or("", |inner| inner.node().short());
        return Err(malformed(format!("cannot merge lists without merge key for {name}")));
    };
    let (original, patch) = apply_item_directives(original, patch, key)?;
    let mut merged = original.clone();
    for item in &patch {
        let wanted = identity(item, Some(key))?;
        match (position(&merged, wanted, Some(key)), item) {
            (Some(at), Value::Object(members)) => {
                let Value::Object(live) = merged[at].take() else { continue };
                merged[at] = Value::Object(merge_map(live, members.clone(), meta.inner)?);
            }
            _ => merged.push(item.clone()),
        }
    }
    in_order(merged, &patch, &original, Some(key))
}

fn merge_scalars(original: Vec<Value>, patch: Vec<Value>, is_delete_list: bool) -> Vec<Value> {
    if is_delete_list {
        return original.into_iter().filter(|item| !patch.contains(item)).collect();
    }
    let mut merged: Vec<Value> = Vec::new();
    for item in original.iter().chain(&patch) {
        if !merged.contains(item) {
            merged.push(item.clone());
        }
    }
    let fallback = merged.clone();
    in_order(merged, &patch, &original, None).unwrap_or(fallback)
}

/// Carries out `$patch: delete` and `$patch: replace` items: what is left of the list, and what is left of the patch.
fn apply_item_directives(mut original: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Malformed> {
    let mut rest = Vec::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(members) = &item else { return Err(bad_type("map[string]interface {}", &item)) };
        match members.get(DIRECTIVE) {
            None => rest.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    let gone = members.get(key).ok_or_else(|| no_merge_key(members, key))?;
                    original.retain(|item| item.get(key) != Some(gone));
                }
                Some("replace") => replace = true,
                Some("merge") => return Err(malformed("merging lists cannot yet be specified in the patch")),
                _ => return Err(unknown_patch_type(directive, members)),
            },
        }
    }
    Ok(if replace { (rest, Vec::new()) } else { (original, rest) })
}

/// Items that `order` names come in its order; the others are let in where the live list had them before a named one.
fn in_order(items: Vec<Value>, order: &[Value], live: &[Value], key: Option<&str>) -> Result<Vec<Value>, Malformed> {
    let mut named = Vec::new();
    let mut others = Vec::new();
    for item in items {
        let wanted = identity(&item, key)?.clone();
        let at_live = position(live, &wanted, key);
        match position(order, &wanted, key) {
            Some(at) => named.push((at, at_live, item)),
            None => others.push((at_live, item)),
        }
    }
    named.sort_by_key(|(at, ..)| *at);
    others.sort_by_key(|(at, _)| *at);
    let mut sorted = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, named_at, item) in named {
        while let (Some((Some(other_at), _)), Some(named_at)) = (others.peek(), named_at)
            && *other_at < named_at
        {
            sorted.extend(others.next().map(|(_, item)| item));
        }
        sorted.push(item);
    }
    sorted.extend(others.map(|(_, item)| item));
    Ok(sorted)
}

/// A value that is added as a whole has no directives left: an object with `$patch` is not added at all.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => None,
        Value::Object(members) => {
            Some(Value::Object(members.into_iter().filter_map(|(key, value)| Some((key, without_directives(value)?))).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

/// Nulls delete, and there is nothing to delete in a value that is added as a whole.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
