//! Named formats of strings, with upstream's messages.

use base64::Engine;

use crate::regexes;
use crate::{time, urls};

pub struct Format {
    /// The name that expressions use.
    pub key: &'static str,
    pub name: &'static str,
    /// The size of upstream's regular expression, for costs.
    pub regex_size: u64,
    pub check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Format {
    pub fn named(key: &str) -> Option<&'static Format> {
        FORMATS.iter().find(|format| format.key == key)
    }
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const UUID: &str = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";

static FORMATS: [Format; 13] = [
    Format { key: "dns1123Label", name: "DNS1123Label", regex_size: 30, check: dns1123_label },
    Format { key: "dns1123Subdomain", name: "DNS1123Subdomain", regex_size: 60, check: dns1123_subdomain },
    Format { key: "dns1035Label", name: "DNS1035Label", regex_size: 30, check: dns1035_label },
    Format { key: "qualifiedName", name: "QualifiedName", regex_size: 60, check: qualified_name },
    Format { key: "dns1123LabelPrefix", name: "DNS1123LabelPrefix", regex_size: 30, check: |text| dns1123_label(&prefix(text)) },
    Format { key: "dns1123SubdomainPrefix", name: "DNS1123SubdomainPrefix", regex_size: 60, check: |text| dns1123_subdomain(&prefix(text)) },
    Format { key: "dns1035LabelPrefix", name: "DNS1035LabelPrefix", regex_size: 30, check: |text| dns1035_label(&prefix(text)) },
    Format { key: "labelValue", name: "LabelValue", regex_size: 40, check: label_value },
    Format { key: "uri", name: "URI", regex_size: 1103, check: |text| urls::parse(text).err().into_iter().collect() },
    Format { key: "uuid", name: "uuid", regex_size: UUID.len() as u64, check: |text| problem(matches(UUID, text), "does not match the UUID format") },
    Format { key: "byte", name: "byte", regex_size: 84, check: |text| problem(is_base64(text), "invalid base64") },
    Format { key: "date", name: "date", regex_size: 84, check: |text| problem(is_date(text), "invalid date") },
    Format { key: "datetime", name: "datetime", regex_size: 84, check: |text| problem(time::parse_timestamp(text).is_some(), "invalid datetime") },
];

fn problem(fine: bool, message: &str) -> Vec<String> {
    if fine { Vec::new() } else { vec![message.to_owned()] }
}

fn is_base64(text: &str) -> bool {
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && time::parse_timestamp(&format!("{text}T00:00:00Z")).is_some()
}

/// A name to which something is appended may end with a dash.
fn prefix(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut masked = rest.to_owned();
            masked.pop();
            masked + "a"
        }
        _ => text.to_owned(),
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    regexes::compile(pattern).is_ok_and(|regex| regex.is_match(text))
}

fn whole(pattern: &str, text: &str) -> bool {
    matches(&format!("^(?:{pattern})$"), text)
}

fn too_long(text: &str, most: usize, unit: &str) -> Vec<String> {
    problem(text.len() <= most, &format!("must be no more than {most} {unit}"))
}

/// Upstream's message about a regular expression.
fn regex_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}'")).collect();
    format!("{message} (e.g. {}, regex used for validation is '{pattern}')", examples.join(",  or "))
}

fn subdomain_pattern() -> String {
    format!(r"{LABEL}(\.{LABEL})*")
}

pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut problems = too_long(text, 63, "characters");
    if whole(LABEL, text) {
        return problems;
    }
    if whole(&subdomain_pattern(), text) {
        problems.push("must not contain dots".into());
    } else {
        let message = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                       and must start and end with an alphanumeric character";
        problems.push(regex_error(message, LABEL, &["my-name", "123-abc"]));
    }
    problems
}

pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut problems = too_long(text, 253, "characters");
    let pattern = subdomain_pattern();
    if !whole(&pattern, text) {
        let message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                       and must start and end with an alphanumeric character";
        problems.push(regex_error(message, &pattern, &["example.com"]));
    }
    problems
}

pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut problems = too_long(text, 63, "characters");
    if !whole(LABEL_1035, text) {
        let message = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                       alphabetic character, and end with an alphanumeric character";
        problems.push(regex_error(message, LABEL_1035, &["my-name", "abc-123"]));
    }
    problems
}

pub fn label_value(text: &str) -> Vec<String> {
    let mut problems = too_long(text, 63, "bytes");
    let pattern = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
    if !whole(pattern, text) {
        let message = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                       and must start and end with an alphanumeric character";
        problems.push(regex_error(message, pattern, &["MyValue", "my_value", "12345"]));
    }
    problems
}

pub fn qualified_name(text: &str) -> Vec<String> {
    let pattern = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
    let message = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                   alphanumeric character";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".into());
            } else {
                problems.extend(dns1123_subdomain(prefix).into_iter().map(|problem| format!("prefix part {problem}")));
            }
            name
        }
        _ => {
            let message = format!("a qualified name {}", regex_error(message, pattern, &examples));
            return vec![format!("{message} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".into());
    }
    if !whole(pattern, name) {
        problems.push(format!("name part {}", regex_error(message, pattern, &examples)));
    }
    problems
}
