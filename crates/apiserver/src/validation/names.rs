//! The forms of names, labels, ports and addresses: each check returns what is wrong, in upstream's words
//! (apimachinery pkg/api/validate/content, pkg/util/validation).

use std::net::IpAddr;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

fn form(message: &str, examples: &[&str], pattern: &str) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    match examples.is_empty() {
        true => format!("{message} (regex used for validation is '{pattern}')"),
        false => format!("{message} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or ")),
    }
}

fn at_most(text: &str, limit: usize, found: &mut Vec<String>) {
    if text.len() > limit {
        found.push(format!("must be no more than {limit} bytes"));
    }
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.first().is_some_and(inner) && bytes.last().is_some_and(inner) && bytes.iter().all(|byte| inner(byte) || *byte == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_key(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// An RFC 1123 label.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    at_most(text, 63, &mut found);
    if !is_label(text) {
        found.push(if is_subdomain(text) {
            "must not contain dots".into()
        } else {
            let message = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an \
                           alphanumeric character";
            form(message, &["my-name", "123-abc"], LABEL)
        });
    }
    found
}

/// The warning for an object whose name becomes part of its pods' names and is no DNS label.
pub fn pod_name_warning(name: &str) -> Option<String> {
    let reason = "this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended";
    let problems = dns_label(name);
    (!problems.is_empty()).then(|| format!("metadata.name: {reason}: [{}]", problems.join(" ")))
}

/// An RFC 1123 subdomain.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    at_most(text, 253, &mut found);
    if !is_subdomain(text) {
        let message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end \
                       with an alphanumeric character";
        found.push(form(message, &["example.com"], SUBDOMAIN));
    }
    found
}

/// A subdomain below a wildcard: `*.example.com`.
pub fn wildcard_subdomain(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    at_most(text, 253, &mut found);
    if !text.strip_prefix("*.").is_some_and(is_subdomain) {
        let message = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case \
                       alphanumeric characters, '-' or '.' and end with an alphanumeric character";
        found.push(form(message, &["*.example.com"], &format!(r"\*\.{SUBDOMAIN}")));
    }
    found
}

/// An RFC 1035 label: a Service's name.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    at_most(text, 63, &mut found);
    if !is_label(text) || !text.starts_with(|first: char| first.is_ascii_lowercase()) {
        let message = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end \
                       with an alphanumeric character";
        found.push(form(message, &["my-name", "abc-123"], "[a-z]([-a-z0-9]*[a-z0-9])?"));
    }
    found
}

/// A name that may stand in a path: what RBAC's objects are called.
pub fn path_segment(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if text == "." || text == ".." {
        found.push(format!("may not be '{text}'"));
    }
    found.extend(['/', '%'].into_iter().filter(|illegal| text.contains(*illegal)).map(|illegal| format!("may not contain '{illegal}'")));
    found
}

/// A label's key, an annotation's key, a finalizer: `[PREFIX/]NAME`.
pub fn qualified(text: &str) -> Vec<String> {
    const MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    const EXAMPLES: &[&str] = &["MyName", "my.name", "123-abc"];
    let mut found = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                found.push("prefix part must be non-empty".into());
            } else {
                found.extend(dns_subdomain(prefix).into_iter().map(|problem| format!("prefix part {problem}")));
            }
            name
        }
        _ => {
            let text = form(MESSAGE, EXAMPLES, KEY);
            return vec![format!("a valid label key {text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")];
        }
    };
    if name.is_empty() {
        found.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        found.push("name part must be no more than 63 bytes".into());
    }
    if !is_key(name) {
        found.push(format!("name part {}", form(MESSAGE, EXAMPLES, KEY)));
    }
    found
}

pub fn label_value(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    at_most(text, 63, &mut found);
    if !text.is_empty() && !is_key(text) {
        let message = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                       with an alphanumeric character";
        found.push(form(message, &["MyValue", "my_value", "12345"], "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"));
    }
    found
}

/// A key of a ConfigMap or Secret.
pub fn config_key(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if text.len() > 253 {
        found.push("must be no more than 253 characters".into());
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        let message = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        found.push(form(message, &["key.name", "KEY_NAME", "key-name"], "[-._a-zA-Z0-9]+"));
    }
    match text {
        "." => found.push("must not be '.'".into()),
        ".." => found.push("must not be '..'".into()),
        text if text.starts_with("..") => found.push("must not start with '..'".into()),
        _ => {}
    }
    found
}

/// An environment variable's name, by the relaxed rule.
pub fn environment(text: &str) -> Vec<String> {
    let valid = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    if valid { Vec::new() } else { vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".into()] }
}

pub fn port_number(number: i64) -> Vec<String> {
    if (1..=65535).contains(&number) { Vec::new() } else { vec!["must be between 1 and 65535, inclusive".into()] }
}

/// A port's name (IANA service name).
pub fn port_name(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if text.len() > 15 {
        found.push("must be no more than 15 characters".into());
    }
    if !text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') || text.is_empty() {
        found.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        found.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        found.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        found.push("must not begin or end with a hyphen".into());
    }
    found
}

pub fn ip(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Ok(_) => Vec::new(),
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()],
    }
}
