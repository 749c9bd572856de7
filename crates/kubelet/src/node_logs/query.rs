//! Queries for logs: pure but for the look whether a file is there. Messages are upstream's.

use std::fmt;

use host::{HostRoot, PodPath};
use jiff::Timestamp;
use regex::{Regex, RegexBuilder};

use super::files;

/// Lines of a tail.
const MAX_TAIL: i64 = 100_000;
/// Letters of a service's name.
const MAX_SERVICE: usize = 256;
const MAX_SERVICES: usize = 4;
/// Bytes of a pattern's program.
const MAX_PATTERN: usize = 1 << 20;

/// What is wrong with a query, as upstream's lists of field errors read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Errors(Vec<String>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            all => write!(f, "[{}]", all.join(", ")),
        }
    }
}

/// A query for logs.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    pub services: Vec<String>,
    pub files: Vec<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub tail: Option<i64>,
    /// 0 for the current boot, -1 for the one before.
    pub boot: Option<i64>,
    pub pattern: String,
}

fn invalid(field: &str, value: &str, detail: &str) -> String {
    format!("{field}: Invalid value: {value}: {detail}")
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn list(texts: &[String]) -> String {
    serde_json::to_string(texts).unwrap_or_default()
}

/// As Go's `strconv.Atoi` reads numbers and words its refusals.
fn number(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("strconv.Atoi: parsing {text:?}: invalid syntax"));
    }
    text.strip_prefix('+').unwrap_or(text).parse().map_err(|_| format!("strconv.Atoi: parsing {text:?}: value out of range"))
}

/// The values of a query string, decoded, in order.
fn values(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(name, value)| (decode(name), decode(value))).collect()
}

impl Query {
    /// Reads a query string. None when it asks for nothing of this kind.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, Errors> {
        let values = values(text);
        let first = |name: &str| values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).filter(|value| !value.is_empty());
        let asked: Vec<String> = values.iter().filter(|(name, _)| name == "query").map(|(_, value)| value.clone()).collect();
        let mut errors = Vec::new();
        let mut query = Query::default();
        for name in &asked {
            // A slash is a sign of a file.
            if name.contains(['/', '\\']) {
                query.files.push(name.clone());
            } else if !name.trim().is_empty() {
                query.services.push(name.clone());
            }
        }
        if !asked.is_empty() && query.files.is_empty() && query.services.is_empty() {
            errors.push(invalid("query", &list(&asked), "query cannot be empty"));
        }
        let mut time = |name: &str| {
            let text = first(name)?;
            let time = text.parse::<Timestamp>().ok();
            if time.is_none() {
                errors.push(invalid(name, &quoted(&text), "invalid time format"));
            }
            time
        };
        (query.since, query.until) = (time("sinceTime"), time("untilTime"));
        let mut count = |name: &str| match number(&first(name)?) {
            Ok(count) => Some(count),
            Err(why) => {
                errors.push(invalid(name, &quoted(&first(name)?), &why));
                None
            }
        };
        (query.boot, query.tail) = (count("boot"), count("tailLines"));
        query.pattern = first("pattern").unwrap_or_default();
        match errors.as_slice() {
            [] => Ok(Some(query).filter(|query| !asked.is_empty() || query.has_options())),
            _ => Err(Errors(errors)),
        }
    }

    pub(super) fn has_options(&self) -> bool {
        self.since.is_some() || self.until.is_some() || self.tail.is_some() || self.boot.is_some() || !self.pattern.is_empty()
    }

    /// What lines have to match; letters of either case, as upstream asks of journalctl. `None` for all lines.
    pub(super) fn regex(&self) -> Result<Option<Regex>, regex::Error> {
        if self.pattern.is_empty() {
            return Ok(None);
        }
        RegexBuilder::new(&self.pattern).case_insensitive(true).size_limit(MAX_PATTERN).build().map(Some)
    }

    /// Whether it can be answered.
    pub(super) fn validate(&self, root: &HostRoot, directory: &PodPath) -> Result<(), Errors> {
        let mut errors = self.check_names(root, directory);
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            errors.push(invalid("untilTime", &quoted(&until.to_string()), "must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot {
            if root.os().is_windows() {
                errors.push(invalid("boot", &boot.to_string(), "not supported on Windows"));
            }
            if boot > 0 {
                errors.push(invalid("boot", &boot.to_string(), "must be less than 1"));
            }
        }
        if let Some(tail) = self.tail.filter(|tail| !(0..=MAX_TAIL).contains(tail)) {
            errors.push(invalid("tailLines", &tail.to_string(), &format!("must be between 0 and {MAX_TAIL}, inclusive")));
        }
        if let Err(error) = self.regex() {
            let why = error.to_string();
            errors.push(invalid("pattern", &quoted(&self.pattern), why.lines().last().unwrap_or_default()));
        }
        if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
    }

    fn check_names(&self, root: &HostRoot, directory: &PodPath) -> Vec<String> {
        let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
        let mut errors = Vec::new();
        for service in &self.services {
            if service.len() > MAX_SERVICE {
                errors.push(invalid("query", &quoted(service), &format!("length must be less than {MAX_SERVICE}")));
            } else if !service.chars().all(safe) {
                errors.push(invalid("query", &quoted(service), "input contains unsupported characters"));
            }
        }
        if self.services.len() > MAX_SERVICES {
            errors.push(format!("query: Too many: {}: must have at most {MAX_SERVICES} items", self.services.len()));
        }
        match self.files.as_slice() {
            [] if self.services.is_empty() => errors.push("query: Required value: cannot be empty with options".to_owned()),
            [] => {}
            files if !self.services.is_empty() => {
                let both = format!("[{}], [{}]", files.join(" "), self.services.join(" "));
                errors.push(invalid("query", &quoted(&both), "cannot specify a file and service"));
            }
            [file] => {
                if self.has_options() {
                    errors.push(invalid("query", &list(&self.files), "cannot specify file with options"));
                } else if let Err(why) = files::exists(root, directory, file) {
                    errors.push(invalid("query", &list(&self.files), &why));
                }
            }
            files => errors.push(invalid("query", &list(files), "cannot specify more than one file")),
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(os: host::NodeOs, query: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("var/log/sub")).unwrap();
        std::fs::write(dir.path().join("var/log/sub/a.log"), "").unwrap();
        let root = if os.is_windows() { HostRoot::windows(os, [('C', dir.path().to_owned())]) } else { HostRoot::linux(dir.path()) }.unwrap();
        let directory = root.parse("/var/log").unwrap();
        match Query::parse(query) {
            Err(errors) => format!("400 {errors}"),
            Ok(None) => "no query".to_owned(),
            Ok(Some(query)) => match query.validate(&root, &directory) {
                Err(errors) => format!("406 {errors}"),
                Ok(()) => format!("{:?} {:?}", query.services, query.files),
            },
        }
    }

    #[test]
    fn queries_are_read_and_refused_as_upstream_does() {
        let a = "a".repeat(257);
        for (query, want) in [
            ("", "no query".to_owned()),
            ("other=1", "no query".into()),
            ("query=kubelet&query=docker", r#"["kubelet", "docker"] []"#.into()),
            ("query=sub/a.log", r#"[] ["sub/a.log"]"#.into()),
            ("query=%2Fsub%5Ca.log", r#"[] ["/sub\\a.log"]"#.into()),
            ("query=+++", r#"400 query: Invalid value: ["   "]: query cannot be empty"#.into()),
            ("query=a&sinceTime=yesterday", r#"400 sinceTime: Invalid value: "yesterday": invalid time format"#.into()),
            (
                "query=a&boot=x&tailLines=99999999999999999999",
                "400 [boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax, tailLines: Invalid value: \
                 \"99999999999999999999\": strconv.Atoi: parsing \"99999999999999999999\": value out of range]"
                    .into(),
            ),
            ("tailLines=1", "406 query: Required value: cannot be empty with options".into()),
            ("query=a%3Bb", r#"406 query: Invalid value: "a;b": input contains unsupported characters"#.into()),
            (&format!("query={a}"), format!(r#"406 query: Invalid value: "{a}": length must be less than 256"#)),
            ("query=a&query=b&query=c&query=d&query=e", "406 query: Too many: 5: must have at most 4 items".into()),
            ("query=a&query=b/c", r#"406 query: Invalid value: "[b/c], [a]": cannot specify a file and service"#.into()),
            ("query=a/b&query=b/c", r#"406 query: Invalid value: ["a/b","b/c"]: cannot specify more than one file"#.into()),
            ("query=sub/a.log&tailLines=1", r#"406 query: Invalid value: ["sub/a.log"]: cannot specify file with options"#.into()),
            ("query=sub/none", r#"406 query: Invalid value: ["sub/none"]: statat sub/none: no such file or directory"#.into()),
            ("query=../../etc/passwd", r#"406 query: Invalid value: ["../../etc/passwd"]: path escapes from parent"#.into()),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                "406 untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`".into(),
            ),
            ("query=a&boot=1", "406 boot: Invalid value: 1: must be less than 1".into()),
            ("query=a&tailLines=100001", "406 tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive".into()),
            ("query=a&pattern=%5Ba", r#"406 pattern: Invalid value: "[a": error: unclosed character class"#.into()),
            ("query=a&boot=-1&tailLines=5&pattern=x", r#"["a"] []"#.into()),
            // Options of one distribution alone.
            ("query=a&since=x&until=y&output=z&case-sensitive=w", r#"["a"] []"#.into()),
        ] {
            assert_eq!(answer(host::NodeOs::Linux, query), want, "{query}");
        }
        let windows = host::NodeOs::Windows { build: 20348 };
        assert_eq!(answer(windows, "query=a&boot=0"), "406 boot: Invalid value: 0: not supported on Windows");
    }
}
