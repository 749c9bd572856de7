//! Applies the registry of an image's layers to Wine's registry files, text in which a section is a key.
//!
//! `system.reg` holds `HKEY_LOCAL_MACHINE`, `user.reg` the user's own. What Wine needs to be itself stays as it is: the
//! version that the node's build decides, and the services that Wine brings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::hive::{Key, Semantics, Value};

/// A hive of a layer that is of use under Wine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// `HKLM\Software`
    Software,
    /// `HKLM\System`
    System,
    /// What new users begin with.
    User,
}

impl Which {
    pub const ALL: [Self; 3] = [Self::Software, Self::System, Self::User];

    /// Name of the file in an unpacked layer.
    pub fn file(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::System => "system",
            Self::User => "user",
        }
    }

    /// The hive that `Hives/NAME` in a layer is.
    pub fn of(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "software_delta" => Some(Self::Software),
            "system_delta" => Some(Self::System),
            "defaultuser_delta" => Some(Self::User),
            _ => None,
        }
    }

    fn prefix(self) -> Option<&'static str> {
        match self {
            Self::Software => Some("Software"),
            Self::System => Some("System"),
            Self::User => None,
        }
    }
}

#[derive(Debug, Default)]
struct Section {
    /// The lines before the first value: the header, `#time`, `#link`.
    head: Vec<String>,
    /// Lower-case name (`None` is the default value) → its lines.
    values: BTreeMap<Option<String>, String>,
}

/// One of Wine's registry files.
#[derive(Debug)]
pub struct RegistryFile {
    preamble: String,
    /// Lower-case path → section.
    sections: BTreeMap<String, Section>,
    /// Lower-case paths of the services that Wine brings.
    services: Vec<String>,
}

const SERVICES: &str = r"system\currentcontrolset\services\";
const VERSION: &str = r"software\microsoft\windows nt\currentversion";

impl RegistryFile {
    /// Reads what Wine wrote. Lines that mean nothing to us are kept where they stand.
    pub fn parse(text: &str) -> Self {
        let mut file = Self { preamble: String::new(), sections: BTreeMap::new(), services: Vec::new() };
        let mut current: Option<String> = None;
        let mut last: Option<Option<String>> = None;
        for line in text.lines() {
            if let Some(path) = header(line) {
                let path = path.to_lowercase();
                file.sections.entry(path.clone()).or_default().head.push(line.to_owned());
                (current, last) = (Some(path), None);
                continue;
            }
            let Some(section) = current.as_ref().and_then(|path| file.sections.get_mut(path)) else {
                file.preamble.push_str(line);
                file.preamble.push('\n');
                continue;
            };
            if let Some(name) = value_name(line) {
                section.values.insert(name.clone(), line.to_owned());
                last = Some(name);
            } else if let Some(value) = last.as_ref().and_then(|name| section.values.get_mut(name)).filter(|_| line.starts_with("  ")) {
                value.push('\n');
                value.push_str(line);
            } else if !line.is_empty() {
                section.head.push(line.to_owned());
            }
        }
        let names = file.sections.keys().filter_map(|path| path.strip_prefix(SERVICES)?.split('\\').next());
        let mut services: Vec<String> = names.map(|name| format!("{SERVICES}{name}")).collect();
        services.dedup();
        file.services = services;
        file
    }

    /// Applies a layer's hive on top.
    pub fn apply(&mut self, which: Which, root: &Key) {
        self.apply_key(which.prefix().unwrap_or_default(), root, true);
    }

    fn apply_key(&mut self, path: &str, key: &Key, root: bool) {
        let lower = path.to_lowercase();
        if self.services.iter().any(|service| within(&lower, service)) {
            return;
        }
        match key.semantics {
            // A root of a hive stands for a whole branch of Wine's registry, which never goes away.
            Semantics::Tombstone | Semantics::SupersedeTree if !root => self.remove(&lower),
            Semantics::SupersedeLocal if !root => {
                if let Some(section) = self.sections.get_mut(&lower) {
                    section.values.clear();
                }
            }
            _ => {}
        }
        if key.semantics == Semantics::Tombstone && !root {
            return;
        }
        if lower != VERSION && !path.is_empty() {
            let section = self.section(path, &lower);
            for value in &key.values {
                let name = Some(value.name.to_lowercase()).filter(|name| !name.is_empty());
                match &value.data {
                    Some(data) => section.values.insert(name, line_of(value, data)),
                    None => section.values.remove(&name),
                };
            }
        }
        for child in &key.keys {
            // Wine's control set has one name only.
            let name = if lower == "system" && child.name.eq_ignore_ascii_case("ControlSet001") { "CurrentControlSet" } else { &child.name };
            let joined = if path.is_empty() { name.to_owned() } else { format!("{path}\\{name}") };
            self.apply_key(&joined, child, false);
        }
    }

    fn section(&mut self, path: &str, lower: &str) -> &mut Section {
        self.sections.entry(lower.to_owned()).or_insert_with(|| Section { head: vec![header_of(path)], values: BTreeMap::new() })
    }

    /// Removes a key with everything in it, but for what has to stay.
    fn remove(&mut self, lower: &str) {
        let services = &self.services;
        self.sections.retain(|path, _| !within(path, lower) || within(path, VERSION) || services.iter().any(|service| within(path, service)));
    }

    /// As Wine reads it.
    pub fn render(&self) -> String {
        let mut out = self.preamble.clone();
        for section in self.sections.values() {
            section.head.iter().chain(section.values.values()).for_each(|line| {
                out.push_str(line);
                out.push('\n');
            });
            out.push('\n');
        }
        out
    }
}

/// Whether a path is `root` or lies in it.
fn within(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('\\'))
}

/// The path in `[Software\\X] 1700000000`.
fn header(line: &str) -> Option<String> {
    let (path, rest) = unescape(line.strip_prefix('[')?, ']')?;
    rest.trim_start().bytes().all(|byte| byte.is_ascii_digit() || byte == b' ').then_some(path)
}

/// The lower-case name in `"Name"=…`, or none in `@=…`.
fn value_name(line: &str) -> Option<Option<String>> {
    if line.starts_with("@=") {
        return Some(None);
    }
    let (name, rest) = unescape(line.strip_prefix('"')?, '"')?;
    rest.starts_with('=').then(|| Some(name.to_lowercase()))
}

/// Reads up to `end`; returns that without escapes, and the rest.
fn unescape(text: &str, end: char) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == end => return Some((out, &text[at + c.len_utf8()..])),
            '\\' => {
                let (at, escaped) = chars.next()?;
                match escaped {
                    'x' => {
                        let digits = text[at + 1..].chars().take(4).take_while(char::is_ascii_hexdigit).count();
                        let code = u32::from_str_radix(&text[at + 1..at + 1 + digits], 16).ok()?;
                        out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                        chars.by_ref().take(digits).for_each(drop);
                    }
                    other => out.push(other),
                }
            }
            other => out.push(other),
        }
    }
    None
}

fn escape(text: &str, special: &[char]) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            c if special.contains(&c) => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\x{unit:04x}");
                }
            }
        }
    }
    out
}

fn header_of(path: &str) -> String {
    format!("[{}] 0", escape(path, &['\\', '[', ']']))
}

fn line_of(value: &Value, data: &[u8]) -> String {
    let name = if value.name.is_empty() { "@".to_owned() } else { format!("\"{}\"", escape(&value.name, &['\\', '"'])) };
    if let (4, Ok(number)) = (value.kind, <[u8; 4]>::try_from(data)) {
        return format!("{name}=dword:{:08x}", u32::from_le_bytes(number));
    }
    let bytes: Vec<String> = data.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}=hex({:x}):{}", value.kind, bytes.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINE: &str = "WINE REGISTRY Version 2\n;; All keys relative to REGISTRY\\\\Machine\n\n#arch=win64\n\n\
        [Software\\\\Here\\\\Sub] 1\n#time=1\n\"a\"=\"1\"\n@=\"d\"\n\"long\"=hex:00,\\\n  01\n\n\
        [Software\\\\Microsoft\\\\Windows NT\\\\CurrentVersion] 1\n\"CurrentBuild\"=\"20348\"\n\n\
        [System\\\\CurrentControlSet\\\\Services\\\\rpcss] 1\n\"Start\"=dword:00000004\n\n\
        [Software\\\\Odd\\\\\\[x\\]\\x00e9] 1\n\"q\\\"\"=\"x\"\n\n";

    fn key(name: &str, semantics: Semantics, values: &[(&str, Option<&str>)], keys: Vec<Key>) -> Key {
        let values = values.iter().map(|(name, text)| {
            let data = text.map(|text| text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect());
            Value { name: (*name).into(), kind: 1, data }
        });
        Key { name: name.into(), semantics, values: values.collect(), keys }
    }

    fn merged(which: Which, keys: Vec<Key>) -> String {
        let mut file = RegistryFile::parse(WINE);
        file.apply(which, &key("ROOT", Semantics::Merge, &[], keys));
        file.render()
    }

    #[test]
    fn registry_without_layers_is_unchanged() {
        let (ours, theirs) = (merged(Which::User, vec![]), WINE);
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&ours), sorted(theirs));
    }

    #[test]
    fn layers_add_change_and_remove_keys() {
        let sub = key("sub", Semantics::Merge, &[("A", Some("2")), ("", None), ("new\"", Some("x"))], vec![]);
        let text = merged(Which::Software, vec![key("HERE", Semantics::Merge, &[], vec![sub])]);
        assert!(text.contains("\"A\"=hex(1):32,00,00,00\n") && text.contains("\"new\\\"\"=hex(1):78,00,00,00"), "{text}");
        assert!(!text.contains("@=\"d\"") && text.contains("\"long\"=hex:00,\\\n  01\n"), "{text}");
        let text = merged(Which::Software, vec![key("Here", Semantics::Tombstone, &[], vec![])]);
        assert!(!text.contains("Here"), "{text}");
        let text = merged(Which::Software, vec![key("Here", Semantics::SupersedeTree, &[("n", Some("1"))], vec![])]);
        assert!(text.contains("[Software\\\\Here] 0\n\"n\"=") && !text.contains("\\\\Sub]"), "{text}");
        let odd = key("Odd", Semantics::Merge, &[], vec![key("[x]é", Semantics::SupersedeLocal, &[], vec![])]);
        assert!(!merged(Which::Software, vec![odd]).contains("\"q\\\"\""));
    }

    #[test]
    fn keys_that_wine_needs_stay() {
        let version = key("CurrentVersion", Semantics::Tombstone, &[("CurrentBuild", Some("1"))], vec![]);
        let version = key("Microsoft", Semantics::Merge, &[], vec![key("Windows NT", Semantics::SupersedeTree, &[], vec![version])]);
        assert!(merged(Which::Software, vec![version]).contains("\"CurrentBuild\"=\"20348\""));
        let services = ["rpcss", "mine"].map(|name| key(name, Semantics::Merge, &[("Start", Some("2"))], vec![]));
        let set = key("ControlSet001", Semantics::Merge, &[], vec![key("Services", Semantics::Merge, &[], services.into())]);
        let text = merged(Which::System, vec![set]);
        assert!(text.contains("\"Start\"=dword:00000004"), "{text}");
        assert!(text.contains("[System\\\\CurrentControlSet\\\\Services\\\\mine] 0"), "{text}");
    }

    #[test]
    fn rendered_registry_is_read_again() {
        let value = Value { name: "q\"\\é\u{1F600}".into(), kind: 4, data: Some(vec![1, 0, 0, 0]) };
        let line = line_of(&value, value.data.as_deref().unwrap_or_default());
        assert!(line.ends_with("=dword:00000001"), "{line}");
        assert!(value_name(&line).is_some());
        assert_eq!(header(&header_of(r"A\[b]\é")).as_deref(), Some(r"A\[b]\é"));
    }
}
