//! Regular expressions: Go's syntax (RE2) by crate `regex`, bounded in size, compiled once.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

use crate::value::{Result, Value, error, no_overload};

/// Bytes that a compiled expression may take.
const MAX_COMPILED: usize = 4 << 20;
/// Compiled expressions that are kept.
const MAX_KEPT: usize = 500;

static COMPILED: LazyLock<Mutex<HashMap<String, Arc<Regex>>>> = LazyLock::new(Mutex::default);

/// Compiles an expression in Go's syntax. The error is the reason alone.
pub fn compile(pattern: &str) -> std::result::Result<Arc<Regex>, String> {
    if let Some(found) = COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get(pattern) {
        return Ok(found.clone());
    }
    let mut builder = RegexBuilder::new(&translate(pattern));
    let regex = builder.size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).nest_limit(200).build();
    let regex = Arc::new(regex.map_err(|reason| {
        let reason = reason.to_string();
        let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("error parsing regexp: {last}: `{pattern}`")
    })?);
    let mut kept = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= MAX_KEPT {
        kept.clear();
    }
    kept.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

/// The same expression for crate `regex`: classes are of ASCII, and what Go takes literally is escaped.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut class = false;
    while let Some(c) = rest.chars().next() {
        let tail = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                if let Some(quoted) = tail.strip_prefix('Q') {
                    let (literal, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
                    out.push_str(&regex::escape(literal));
                    rest = after;
                    continue;
                }
                let Some(next) = tail.chars().next() else {
                    out.push('\\');
                    break;
                };
                match next {
                    'd' => out.push_str("[0-9]"),
                    'D' => out.push_str("[^0-9]"),
                    'w' => out.push_str("[0-9A-Za-z_]"),
                    'W' => out.push_str("[^0-9A-Za-z_]"),
                    's' => out.push_str(r"[\t\n\f\r ]"),
                    'S' => out.push_str(r"[^\t\n\f\r ]"),
                    'b' => out.push_str(r"(?-u:\b)"),
                    _ => out.extend(['\\', next]),
                }
                rest = &tail[next.len_utf8()..];
                continue;
            }
            '[' if !class => {
                class = true;
                out.push('[');
                rest = tail;
                if let Some(after) = rest.strip_prefix('^') {
                    out.push('^');
                    rest = after;
                }
                if let Some(after) = rest.strip_prefix(']') {
                    out.push_str(r"\]");
                    rest = after;
                }
                continue;
            }
            '[' if tail.starts_with(':') => {
                if let Some(end) = tail.find(":]") {
                    out.push_str(&rest[..end + 3]);
                    rest = &rest[end + 3..];
                    continue;
                }
                out.push_str(r"\[");
            }
            '[' => out.push_str(r"\["),
            ']' if class => {
                class = false;
                out.push(']');
            }
            '&' | '~' if class => out.extend(['\\', c]),
            '-' if class && tail.starts_with('-') => out.push_str(r"\-"),
            '{' if !class && !is_repetition(tail) => out.push_str(r"\{"),
            _ => out.push(c),
        }
        rest = tail;
    }
    out
}

/// Whether what follows `{` counts: `2}`, `2,}`, `2,3}`.
fn is_repetition(tail: &str) -> bool {
    let Some((inner, _)) = tail.split_once('}') else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    !least.is_empty() && digits(least) && digits(most)
}

pub fn matches<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_overload() };
    match compile(pattern) {
        Ok(regex) => Ok(Value::Bool(regex.is_match(text))),
        Err(reason) => error(reason),
    }
}

pub fn find<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_overload() };
    match compile(pattern) {
        Ok(regex) => Ok(Value::string(regex.find(text).map_or("", |found| found.as_str()))),
        Err(reason) => error(format!("Illegal regex: {reason}")),
    }
}

pub fn find_all<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, pattern, limit) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, usize::MAX),
        [Value::String(text), Value::String(pattern), Value::Int(limit)] => (text, pattern, usize::try_from(*limit).unwrap_or(usize::MAX)),
        _ => return no_overload(),
    };
    match compile(pattern) {
        Ok(regex) => {
            let found = regex.find_iter(text).take(limit);
            Ok(Value::list(found.map(|found| Value::string(found.as_str())).collect()))
        }
        Err(reason) => error(format!("Illegal regex: {reason}")),
    }
}
