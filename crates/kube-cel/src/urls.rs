//! URLs as Go's `net/url` reads them: absolute ones, and absolute paths.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub struct Url {
    pub scheme: String,
    user: Option<String>,
    pub host: String,
    path: String,
    query: Option<String>,
}

/// Go's `ParseRequestURI`, with its messages.
pub fn parse(text: &str) -> Result<Url, String> {
    let failed = |reason: &str| Err(format!("parse {text:?}: {reason}"));
    if text.is_empty() {
        return failed("empty url");
    }
    if text.bytes().any(|c| c < 0x20 || c == 0x7f) {
        return failed("net/url: invalid control character in URL");
    }
    let (scheme, rest) = match split_scheme(text) {
        Ok(split) => split,
        Err(reason) => return failed(reason),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query.to_owned())),
        None => (rest, None),
    };
    if !rest.starts_with('/') {
        return failed("invalid URI for request");
    }
    let mut url = Url { scheme: scheme.to_lowercase(), user: None, host: String::new(), path: rest.to_owned(), query };
    if let Some(authority) = rest.strip_prefix("//").filter(|_| !scheme.is_empty() || !rest.starts_with("///")) {
        let end = authority.find('/').unwrap_or(authority.len());
        let (authority, path) = authority.split_at(end);
        url.path = path.to_owned();
        let host = match authority.rsplit_once('@') {
            Some((user, host)) => {
                url.user = Some(user.to_owned());
                host
            }
            None => authority,
        };
        if let Err(reason) = check_host(host) {
            return failed(&reason);
        }
        url.host = host.to_owned();
    }
    if let Some(reason) = bad_escape(&url.path) {
        return failed(&reason);
    }
    Ok(url)
}

fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let (name, port) = if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Err("missing ']' in host".into()) };
        host.split_at(end + 1)
    } else {
        host.split_at(host.rfind(':').unwrap_or(host.len()))
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !digits.bytes().all(|c| c.is_ascii_digit()) || (!port.is_empty() && !port.starts_with(':')) {
        return Err(format!("invalid port {port:?} after host"));
    }
    if let Some(bad) = name.chars().find(|c| c.is_ascii() && " \"<>\\^`{|}#".contains(*c)) {
        return Err(format!("invalid character {:?} in host name", bad.to_string()));
    }
    bad_escape(name).map_or(Ok(()), Err)
}

fn bad_escape(text: &str) -> Option<String> {
    for (at, _) in text.match_indices('%') {
        let digits = text.get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.bytes().all(|c| c.is_ascii_hexdigit())) {
            let shown: String = text[at..].chars().take(3).collect();
            return Some(format!("invalid URL escape {shown:?}"));
        }
    }
    None
}

/// The text that percent signs and, in queries, plus signs stand for.
fn decode(text: &str) -> Option<String> {
    if bad_escape(text).is_some() {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(c) = bytes.next() {
        match c {
            b'+' => out.push(b' '),
            b'%' => {
                let mut digit = || bytes.next().and_then(|c| (c as char).to_digit(16)).unwrap_or(0) as u8;
                out.push(digit() * 16 + digit());
            }
            c => out.push(c),
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

impl Url {
    pub fn hostname(&self) -> &str {
        if let Some(rest) = self.host.strip_prefix('[') {
            return rest.split(']').next().unwrap_or(rest);
        }
        self.host.rsplit_once(':').map_or(&self.host, |(name, _)| name)
    }

    pub fn port(&self) -> &str {
        let after = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after)| after);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    pub fn escaped_path(&self) -> String {
        let mut out = String::new();
        for byte in self.path.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&byte) {
                out.push(byte as char);
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }

    pub fn query_values(&self) -> BTreeMap<String, Vec<String>> {
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let pairs = self.query.as_deref().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for pair in pairs.filter(|pair| !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (decode(key), decode(value)) {
                values.entry(key).or_default().push(value);
            }
        }
        values
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.scheme.is_empty() {
            write!(f, "{}:", self.scheme)?;
        }
        if !self.scheme.is_empty() || !self.host.is_empty() {
            let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
            write!(f, "//{user}{}", self.host)?;
        }
        f.write_str(&self.escaped_path())?;
        self.query.as_ref().map_or(Ok(()), |query| write!(f, "?{query}"))
    }
}
