//! YAML text that readers of YAML 1.1 and of YAML 1.2 understand alike.
//!
//! kubectl reads YAML 1.1, where a plain `no` or `y` is a boolean and `1e3` a number. serde_yaml_ng writes YAML 1.2 and leaves these words
//! plain. Here a string is plain only when it is a word in both versions; all others are quoted.

use serde_json::Value;

/// Words that are no strings in YAML 1.1, in any case.
const NOT_STRINGS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// The document's text, in block style.
pub(crate) fn to_yaml(document: &Value) -> String {
    let mut text = String::new();
    write(document, 0, &mut text);
    text.trim_start().to_owned()
}

/// Writes what stands behind `key:` or `-`, up to the end of the line; a sequence is not deeper than its key, as kubectl writes it.
fn write(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (index, (key, member)) in members.iter().enumerate() {
                // The first member of an element stands behind its hyphen.
                let begin = if index == 0 && text.ends_with('-') { " ".to_owned() } else { line(depth, text) };
                *text += &format!("{begin}{}:", scalar(key));
                let below = if member.is_array() { depth } else { depth + 1 };
                write(member, below, text);
            }
        }
        Value::Array(elements) if !elements.is_empty() => {
            for element in elements {
                *text += &format!("{}-", line(depth, text));
                write(element, depth + 1, text);
            }
        }
        Value::Object(_) => *text += " {}\n",
        Value::Array(_) => *text += " []\n",
        Value::String(string) => *text += &format!(" {}\n", scalar(string)),
        Value::Null | Value::Bool(_) | Value::Number(_) => *text += &format!(" {value}\n"),
    }
}

/// The begin of a line: the line before ends where nothing stands behind its key or hyphen.
fn line(depth: usize, text: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{end}{}", "  ".repeat(depth))
}

fn scalar(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@+=".contains(c);
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_plain) && !text.ends_with(':');
    if is_word && !NOT_STRINGS.contains(&text.to_ascii_lowercase().as_str()) { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        // A byte order mark and the separators of lines and paragraphs are no characters of a line.
        c if c.is_control() || matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}') => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_that_yaml_1_1_takes_for_other_values_are_quoted() {
        for name in
            ["y", "n", "yes", "no", "No", "on", "off", "OFF", "true", "null", "~", "123", "1e3", "0x1f", "1_000", "12:30", ".inf", "2026-01-01", ""]
        {
            assert_eq!(scalar(name), format!("\"{name}\""));
        }
        for name in ["mullion", "yes-1", "system:node:win01", "https://127.0.0.1:6443", "LS0tLS1CRUdJTg=="] {
            assert_eq!(scalar(name), name);
        }
        assert_eq!(scalar("a\"b\\c: d"), r#""a\"b\\c: d""#);
        assert_eq!(["a:", "a b", "#a", "- a", "a\u{7f}\n"].map(scalar), ["\"a:\"", "\"a b\"", "\"#a\"", "\"- a\"", "\"a\\u007f\\n\""]);
    }

    #[test]
    fn documents_are_read_back_as_they_were() {
        let document = json!({
            "a": {"b": [1, -2.5, true, null, "true", []], "c": {}, "no": "no"},
            "d": [[["x", "y"], "z"], {"k": [{"name": "a\"b\\c: d", "deep": {"er": 1}}], "l": "1e3"}, {}],
            "ä \u{1b}": "line\n\u{2028}\u{feff}\ttab",
        });
        let text = to_yaml(&document);
        assert_eq!(serde_yaml_ng::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}:\n{text}")), document, "{text}");
        let list = json!({"clusters": [{"name": "no", "cluster": {"server": "https://a"}}], "contexts": []});
        assert_eq!(to_yaml(&list), "clusters:\n- name: \"no\"\n  cluster:\n    server: https://a\ncontexts: []\n");
    }
}
