//! Paths of JSON within schemas and objects: `fieldPath` of rules, selectable fields, `scale`, printer columns.

use serde_json::Value;

use crate::field::{child, key};
use crate::schema::Schema;

/// Follows a path such as `.spec.names['a.b']` through a schema. Gives the path as errors print it, and where it leads.
pub fn in_schema<'s>(path: &str, schema: &'s Schema, brackets: bool) -> Result<(String, &'s Schema), String> {
    let mut at = schema;
    let mut shown = String::new();
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let end = || "unexpected end of JSON path".to_owned();
        let name = match token.as_str() {
            "[" if !brackets => return Err("array notation is not allowed".into()),
            "[" => {
                let quoted = tokens.next().ok_or_else(end)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let name = unescape(inner)?;
                match tokens.next().ok_or_else(end)?.as_str() {
                    "]" => name,
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => tokens.next().ok_or_else(end)?,
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        if !at.properties.is_empty() {
            at = at.properties.get(&name).ok_or("does not refer to a valid field")?;
            shown = child(&shown, &name);
        } else {
            at = at.additional_schema().ok_or("does not refer to a valid field")?;
            shown = key(&shown, &name);
        }
    }
    Ok((shown, at))
}

/// `.`, `[` and `]`, and what stands between them; quotes hide them.
fn tokens(path: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    let mut chars = path.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' if word.is_empty() => {
                word.push('\'');
                let mut escaped = false;
                for c in chars.by_ref() {
                    word.push(c);
                    if c == '\'' && !escaped {
                        break;
                    }
                    escaped = c == '\\' && !escaped;
                }
                tokens.push(std::mem::take(&mut word));
            }
            '.' | '[' | ']' => {
                if !word.is_empty() {
                    tokens.push(std::mem::take(&mut word));
                }
                tokens.push(c.to_string());
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(c @ ('\'' | '\\')) => c,
            other => {
                let escape = format!("\\{}", other.map(String::from).unwrap_or_default());
                return Err(format!("invalid string literal: invalid escape char {escape}"));
            }
        });
    }
    Ok(out)
}

/// The value at a simple path such as `.spec.replicas`.
pub fn get<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    path.strip_prefix('.')?.split('.').filter(|part| !part.is_empty()).try_fold(object, |at, part| at.get(part))
}

/// Sets the value at a simple path; objects on the way are made. False when something else stands in the way.
pub fn set(object: &mut Value, path: &str, value: Value) -> bool {
    let Some(path) = path.strip_prefix('.') else { return false };
    let mut at = object;
    for part in path.split('.') {
        let Value::Object(map) = at else { return false };
        at = map.entry(part).or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    *at = value;
    true
}

/// The values that a printer column's JSONPath finds: names, `[0]`, `[-1]`, `[*]`, `['name']` and `[?(@.key=="value")]`.
pub fn find<'v>(object: &'v Value, path: &str) -> Vec<&'v Value> {
    let mut found = vec![object];
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let end = bracket_end(after);
            let (inner, tail) = after.split_at(end);
            found = found.into_iter().flat_map(|value| bracket(value, inner)).collect();
            rest = tail.strip_prefix(']').unwrap_or("");
            continue;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        let end = name_end(rest);
        let (name, tail) = rest.split_at(end);
        if name == "*" {
            found = found.into_iter().flat_map(children).collect();
        } else if !name.is_empty() {
            let name = name.replace('\\', "");
            found = found.into_iter().filter_map(|value| value.get(&name)).collect();
        } else if tail.is_empty() {
            break;
        }
        rest = tail;
        if found.len() > 10_000 {
            found.truncate(10_000);
        }
    }
    found
}

/// A name ends at a dot or bracket that no backslash precedes.
fn name_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if matches!(c, '.' | '[') && !escaped {
            return at;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

fn bracket_end(text: &str) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (']', None) => return at,
            _ => {}
        }
    }
    text.len()
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

fn bracket<'v>(value: &'v Value, inner: &str) -> Vec<&'v Value> {
    let inner = inner.trim();
    if inner == "*" {
        return children(value);
    }
    let unquoted = |text: &str| {
        let text = text.trim();
        let quoted = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        quoted('\'').or_else(|| quoted('"')).map(str::to_owned)
    };
    if let Some(name) = unquoted(inner) {
        return value.get(&name).into_iter().collect();
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (path, wanted, equal) = match (filter.split_once("=="), filter.split_once("!=")) {
            (Some((path, wanted)), _) => (path, wanted, true),
            (None, Some((path, wanted))) => (path, wanted, false),
            (None, None) => return Vec::new(),
        };
        let path = path.trim().trim_start_matches('@').to_owned();
        let wanted = unquoted(wanted).unwrap_or_else(|| wanted.trim().to_owned());
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let matches = |item: &&Value| find(item, &path).first().is_some_and(|found| (text(found) == wanted) == equal);
        return children(value).into_iter().filter(matches).collect();
    }
    let Value::Array(items) = value else { return Vec::new() };
    let place = |text: &str, otherwise: i64| match text.trim() {
        "" => Some(otherwise),
        text => text.parse::<i64>().ok(),
    };
    let absolute = |index: i64| if index < 0 { index + items.len() as i64 } else { index };
    match inner.split_once(':') {
        None => {
            let index = place(inner, -1).map(absolute).and_then(|index| usize::try_from(index).ok());
            index.and_then(|index| items.get(index)).into_iter().collect()
        }
        Some((from, to)) => {
            let (Some(from), Some(to)) = (place(from, 0), place(to, items.len() as i64)) else { return Vec::new() };
            let bound = |index: i64| usize::try_from(absolute(index)).unwrap_or(0).min(items.len());
            items.get(bound(from)..bound(to)).into_iter().flatten().collect()
        }
    }
}
