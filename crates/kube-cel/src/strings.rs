//! Functions of strings; indexes count characters.

use crate::convert::{display, double_text};
use crate::operators::bounded;
use crate::value::{Result, Value, error, no_overload};

fn out_of_range<T>(index: i64) -> Result<T> {
    error(format!("index out of range: {index}"))
}

pub fn contains<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text), Value::String(part)] = args else { return no_overload() };
    Ok(Value::Bool(text.contains(&**part)))
}

pub fn starts_with<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text), Value::String(part)] = args else { return no_overload() };
    Ok(Value::Bool(text.starts_with(&**part)))
}

pub fn ends_with<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text), Value::String(part)] = args else { return no_overload() };
    Ok(Value::Bool(text.ends_with(&**part)))
}

pub fn char_at<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text), Value::Int(index)] = args else { return no_overload() };
    let length = text.chars().count() as i64;
    match usize::try_from(*index) {
        Ok(at) if *index < length => Ok(Value::string(text.chars().nth(at).map(String::from).unwrap_or_default())),
        Ok(_) if *index == length => Ok(Value::string("")),
        _ => out_of_range(*index),
    }
}

/// The byte offset of a character; the end of the text is one too.
fn offset(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(index)
}

pub fn index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, *from),
        [Value::List(_), _] => return crate::lists::index_of(args, false),
        _ => return no_overload(),
    };
    let Some(start) = offset(text, from) else {
        return if part.is_empty() && from > 0 { Ok(Value::Int(-1)) } else { out_of_range(from) };
    };
    let found = text[start..].find(&**part).map(|at| text[..start + at].chars().count() as i64);
    Ok(Value::Int(found.unwrap_or(-1)))
}

pub fn last_index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, part, before) = match args {
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(before)] => (text, part, Some(*before)),
        [Value::List(_), _] => return crate::lists::index_of(args, true),
        _ => return no_overload(),
    };
    let end = match before {
        None => text.len(),
        // A match may begin at the offset itself.
        Some(before) => match offset(text, before) {
            Some(start) => {
                let width = part.chars().count();
                text[start..].char_indices().nth(width).map_or(text.len(), |(at, _)| start + at)
            }
            None => return out_of_range(before),
        },
    };
    let found = text[..end].rfind(&**part).map(|at| text[..at].chars().count() as i64);
    Ok(Value::Int(found.unwrap_or(-1)))
}

pub fn lower<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text)] = args else { return no_overload() };
    Ok(Value::string(text.to_ascii_lowercase()))
}

pub fn upper<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text)] = args else { return no_overload() };
    Ok(Value::string(text.to_ascii_uppercase()))
}

pub fn trim<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text)] = args else { return no_overload() };
    Ok(Value::string(text.trim()))
}

pub fn replace<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, old, new, count) = match args {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, usize::MAX),
        [Value::String(text), Value::String(old), Value::String(new), Value::Int(count)] => {
            (text, old, new, usize::try_from(*count).unwrap_or(usize::MAX))
        }
        _ => return no_overload(),
    };
    let hits = if old.is_empty() { text.chars().count() + 1 } else { text.len() / old.len() };
    bounded(text.len() + hits.min(count).saturating_mul(new.len()))?;
    Ok(Value::string(text.replacen(&**old, new, count)))
}

pub fn split<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, by, count) = match args {
        [Value::String(text), Value::String(by)] => (text, by, usize::MAX),
        [Value::String(text), Value::String(by), Value::Int(count)] => (text, by, usize::try_from(*count).unwrap_or(usize::MAX)),
        _ => return no_overload(),
    };
    let parts: Vec<Value> = if count == 0 {
        Vec::new()
    } else if by.is_empty() {
        // One character each, and the rest in the last one.
        let mut parts = Vec::new();
        let mut rest: &str = text;
        while let Some(c) = rest.chars().next() {
            if parts.len() + 1 == count {
                parts.push(Value::string(rest));
                break;
            }
            parts.push(Value::string(&rest[..c.len_utf8()]));
            rest = &rest[c.len_utf8()..];
        }
        parts
    } else {
        text.splitn(count, &**by).map(Value::string).collect()
    };
    Ok(Value::list(parts))
}

pub fn substring<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return no_overload(),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return error(format!("invalid substring range. start: {start}, end: {end}"));
    }
    let Some(from) = offset(text, start) else { return out_of_range(start) };
    let to = match end {
        None => text.len(),
        Some(end) => match offset(text, end) {
            Some(to) => to,
            None => return out_of_range(end),
        },
    };
    Ok(Value::string(&text[from..to]))
}

pub fn join<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (list, by) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(by)] => (list, &**by),
        _ => return no_overload(),
    };
    let mut out = String::new();
    for index in 0..list.len() {
        let Value::String(part) = list.get(index)? else {
            return error(format!("join: invalid input: {}", display(&list.get(index)?)));
        };
        if index > 0 {
            out.push_str(by);
        }
        out.push_str(&part);
        bounded(out.len())?;
    }
    Ok(Value::string(out))
}

/// `strings.quote`: the text as a CEL literal.
pub fn quote<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text)] = args else { return no_overload() };
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(Value::string(out))
}

/// `jsonpatch.escapeKey`.
pub fn escape_key<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text)] = args else { return no_overload() };
    Ok(Value::string(text.replace('~', "~0").replace('/', "~1")))
}

/// `"%s of %d".format([…])`.
pub fn format<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(pattern), Value::List(list)] = args else { return no_overload() };
    let mut out = String::new();
    let mut rest: &str = pattern;
    let mut next = 0;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return error("unexpected end of string");
        }
        if next >= list.len() {
            return error(format!("index {next} out of range"));
        }
        let precision = precision(&mut rest)?;
        let clause = rest.chars().next().unwrap_or(' ');
        rest = &rest[clause.len_utf8()..];
        let value = list.get(next)?;
        out.push_str(&clause_text(clause, precision, &value)?);
        bounded(out.len())?;
        next += 1;
    }
    out.push_str(rest);
    Ok(Value::string(out))
}

/// Digits after the point: `.3`, or six.
fn precision(rest: &mut &str) -> Result<usize> {
    let Some(after) = rest.strip_prefix('.') else { return Ok(6) };
    let prefix = "could not parse formatting clause: error while parsing precision: ";
    let Some(end) = after.find(|c: char| !c.is_ascii_digit()) else {
        return error(format!("{prefix}could not find end of precision specifier"));
    };
    let (digits, tail) = after.split_at(end);
    *rest = tail;
    match digits.parse::<usize>() {
        Ok(digits) if digits <= 1000 => Ok(digits),
        _ => error(format!("{prefix}error while converting precision to integer: {digits}")),
    }
}

fn clause_text(clause: char, precision: usize, value: &Value) -> Result<String> {
    let wrong = |what: &str| error(format!("error during formatting: {what}, was given {}", value.type_name()));
    let special = |value: f64| match value {
        value if value.is_nan() => Some("NaN".to_owned()),
        value if value.is_infinite() => Some(if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() }),
        _ => None,
    };
    match (clause, value) {
        ('s', Value::Double(value)) => Ok(special(*value).unwrap_or_else(|| double_text(*value))),
        ('s', value) => Ok(display(value)),
        ('d', Value::Int(_) | Value::Uint(_)) => Ok(display(value)),
        ('d', Value::Double(value)) => Ok(special(*value).unwrap_or_else(|| value.to_string())),
        ('d', _) => wrong("decimal clause can only be used on numbers"),
        ('f' | 'e', Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            let number = match value {
                Value::Int(value) => *value as f64,
                Value::Uint(value) => *value as f64,
                Value::Double(value) => *value,
                _ => 0.0,
            };
            if let Some(text) = special(number) {
                return Ok(text);
            }
            Ok(if clause == 'f' { fixed(number, precision) } else { scientific(number, precision) })
        }
        ('f', _) => wrong("fixed-point clause can only be used on doubles"),
        ('e', _) => wrong("scientific clause can only be used on doubles"),
        ('b', Value::Bool(value)) => Ok(if *value { "1".into() } else { "0".into() }),
        ('b' | 'o' | 'x' | 'X', Value::Int(_) | Value::Uint(_)) => {
            let (sign, number) = match value {
                Value::Int(value) if *value < 0 => ("-", value.unsigned_abs()),
                Value::Int(value) => ("", value.unsigned_abs()),
                Value::Uint(value) => ("", *value),
                _ => ("", 0),
            };
            Ok(match clause {
                'b' => format!("{sign}{number:b}"),
                'o' => format!("{sign}{number:o}"),
                'x' => format!("{sign}{number:x}"),
                _ => format!("{sign}{number:X}"),
            })
        }
        ('b', _) => wrong("only ints, uints, and bools can be formatted as binary"),
        ('o', _) => wrong("octal clause can only be used on integers"),
        ('x' | 'X', Value::String(_) | Value::Bytes(_)) => {
            let bytes = match value {
                Value::String(text) => text.as_bytes(),
                Value::Bytes(bytes) => bytes,
                _ => &[],
            };
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(if clause == 'X' { text.to_uppercase() } else { text })
        }
        ('x' | 'X', _) => wrong("only ints, uints, bytes, and strings can be formatted as hex"),
        (other, _) => error(format!("could not parse formatting clause: unrecognized formatting clause \"{other}\"")),
    }
}

/// Digits in groups of three, as upstream's English locale writes them.
fn fixed(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}

/// `3.140000×10⁰⁰`.
fn scientific(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(("", exponent), |rest| ("⁻", rest));
    let raised = |digit: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit.to_digit(10).unwrap_or(0) as usize).unwrap_or('⁰');
    let digits: String = format!("{digits:0>2}").chars().map(raised).collect();
    format!("{mantissa}×10{sign}{digits}")
}
