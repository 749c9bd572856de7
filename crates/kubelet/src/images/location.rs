//! Where credentials are for: patterns of registries and repositories, and which images they match
//! (upstream pkg/credentialprovider/keyring.go, which reads them as Go's URLs).

use percent_encoding::percent_decode_str;

/// A text that is no registry with port and path. The words are those of Go's URLs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {url:?}: {why}")]
pub(crate) struct LocationError {
    url: String,
    why: String,
}

/// A registry with its port and path, where parts of the registry's name may be patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Registry and port, as they are written.
    pub host: String,
    pub path: String,
}

impl Location {
    /// Reads `HOST[:PORT][/PATH]`, which has no scheme.
    pub(crate) fn parse(text: &str) -> Result<Self, LocationError> {
        let failed = |why: &str| LocationError { url: format!("https://{text}"), why: why.to_owned() };
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(failed("net/url: invalid control character in URL"));
        }
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        check_escapes(fragment).map_err(|why| failed(&why))?;
        let text = text.split_once('?').map_or(text, |(text, _)| text);
        let slash = text.find('/').unwrap_or(text.len());
        let (authority, path) = text.split_at(slash);
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        check_host(host).map_err(|why| failed(&why))?;
        check_escapes(path).map_err(|why| failed(&why))?;
        Ok(Location { host: host.to_owned(), path: percent_decode_str(path).decode_utf8_lossy().into_owned() })
    }

    /// Name and port of the registry.
    fn split(&self) -> (&str, &str) {
        if let Some(inner) = self.host.strip_prefix('[') {
            return match inner.split_once("]:") {
                Some((address, port)) => (address, port),
                None => (&self.host, ""),
            };
        }
        match self.host.split_once(':') {
            Some((name, port)) if !port.contains(':') => (name, port),
            _ => (&self.host, ""),
        }
    }

    /// Whether this pattern is for `target`: as many parts of the name, of which each matches; the same port; and a path that begins alike.
    pub(crate) fn matches(&self, target: &Location) -> bool {
        let ((pattern, port), (name, target_port)) = (self.split(), target.split());
        let parts = |name: &str| name.split('.').map(str::to_owned).collect::<Vec<_>>();
        let (patterns, names) = (parts(pattern), parts(name));
        port == target_port
            && patterns.len() == names.len()
            && target.path.starts_with(&self.path)
            && patterns.iter().zip(&names).all(|(pattern, name)| glob(pattern, name))
    }
}

/// Go: `validOptionalPort`, and `unescape` of a host.
fn check_host(host: &str) -> Result<(), String> {
    let port = match (host.starts_with('['), host.rfind(']')) {
        (true, None) => return Err("missing ']' in host".to_owned()),
        (true, Some(end)) => &host[end + 1..],
        (false, _) => host.find(':').map_or("", |colon| &host[colon..]),
    };
    let digits = port.strip_prefix(':').unwrap_or(if port.is_empty() { "" } else { "x" });
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(format!("invalid port {port:?} after host"));
    }
    let fits = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"".contains(c);
    match host.chars().find(|c| !fits(*c)) {
        Some('%') => Err(format!("invalid URL escape {:?}", host[host.find('%').unwrap_or(0)..].chars().take(3).collect::<String>())),
        Some(c) => Err(format!("invalid character {:?} in host name", c.to_string())),
        None => Ok(()),
    }
}

fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text[at..].chars().take(3).collect();
        if escape.len() != 3 || !escape[1..].bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape {escape:?}"));
        }
    }
    Ok(())
}

enum Piece {
    /// `*`
    Any,
    Letter(char),
    /// `[a-c]`
    Among(Vec<(char, char)>),
}

/// The pieces of a pattern; None for a class without an end, or an empty one.
fn pieces(pattern: &str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        pieces.push(match c {
            '*' => Piece::Any,
            '[' => {
                let mut ranges = Vec::new();
                loop {
                    match rest.next()? {
                        ']' if !ranges.is_empty() => break,
                        ']' | '-' => return None,
                        low => {
                            let mut after = rest.clone();
                            let high = match after.next() {
                                Some('-') => {
                                    let high = after.next().filter(|high| !matches!(high, ']' | '-'))?;
                                    rest = after;
                                    high
                                }
                                _ => low,
                            };
                            ranges.push((low, high));
                        }
                    }
                }
                Piece::Among(ranges)
            }
            c => Piece::Letter(c),
        });
    }
    Some(pieces)
}

/// Whether a pattern is that of a text; a wrong pattern is of none (Go: `filepath.Match`).
fn glob(pattern: &str, text: &str) -> bool {
    let Some(pieces) = pieces(pattern) else { return false };
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut from) = (0, 0);
    // Where the last `*` was, and where what follows it was tried.
    let mut retry: Option<(usize, usize)> = None;
    while from < text.len() {
        let matched = match pieces.get(at) {
            Some(Piece::Any) => {
                retry = Some((at, from));
                at += 1;
                continue;
            }
            Some(Piece::Letter(c)) => *c == text[from],
            Some(Piece::Among(ranges)) => ranges.iter().any(|(low, high)| (*low..=*high).contains(&text[from])),
            None => false,
        };
        match (matched, retry) {
            (true, _) => (at, from) = (at + 1, from + 1),
            (false, Some((star, tried))) => {
                retry = Some((star, tried + 1));
                (at, from) = (star + 1, tried + 1);
            }
            (false, None) => return false,
        }
    }
    pieces[at..].iter().all(|piece| matches!(piece, Piece::Any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, image: &str) -> bool {
        Location::parse(pattern).unwrap().matches(&Location::parse(image).unwrap())
    }

    #[test]
    fn images_match_by_parts_port_and_the_beginning_of_the_path() {
        for (pattern, image, is_matched) in [
            ("*.docker.io", "blah.docker.io", true),
            ("*.docker.io", "not.right.io", false),
            ("*.io", "registry.k8s.io", false),
            ("123456789.dkr.ecr.*.amazonaws.com", "123456789.dkr.ecr.us-east-1.amazonaws.com/app", true),
            ("*.*.registry.io", "a.b.registry.io/x", true),
            ("k8s.*", "k8s.gcr", true),
            ("app*.k8s.io", "app5.k8s.io/x", true),
            ("app*.k8s.io", "ap.k8s.io", false),
            ("*a*b.io", "xaxbxb.io", true),
            // Behind it begins a query.
            ("r?g.io", "reg.io", false),
            ("r[a-e]g.io", "reg.io", true),
            ("r[f-z]g.io", "reg.io", false),
            ("r[.io", "r[.io", false),
            ("reg.io", "reg.io:5000/x", false),
            ("reg.io:5000", "reg.io:5000/x", true),
            ("reg.io:5000", "reg.io/x", false),
            ("*:5000", "localhost:5000/x", true),
            ("reg.io/team", "reg.io/team/app", true),
            // A beginning, not whole components.
            ("reg.io/team", "reg.io/teams/app", true),
            ("reg.io/team/app", "reg.io/team", false),
            ("reg.io/te*", "reg.io/team", false),
            ("[::1]:5000", "[::1]:5000/x", true),
            ("user@reg.io?a=b#c", "reg.io", true),
            ("reg.io/%61", "reg.io/a", true),
        ] {
            assert_eq!(matches(pattern, image), is_matched, "{pattern} {image}");
        }
    }

    #[test]
    fn texts_that_are_no_location_are_refused_in_gos_words() {
        for (text, why) in [
            ("a b.io", "parse \"https://a b.io\": invalid character \" \" in host name"),
            ("a\u{7}.io", "parse \"https://a\\u{7}.io\": net/url: invalid control character in URL"),
            ("a.io:http", "parse \"https://a.io:http\": invalid port \":http\" after host"),
            ("a.io:1:2", "parse \"https://a.io:1:2\": invalid port \":1:2\" after host"),
            ("[::1", "parse \"https://[::1\": missing ']' in host"),
            ("a.io/%zz", "parse \"https://a.io/%zz\": invalid URL escape \"%zz\""),
            ("a.io/%a", "parse \"https://a.io/%a\": invalid URL escape \"%a\""),
            ("a%20.io", "parse \"https://a%20.io\": invalid URL escape \"%20\""),
        ] {
            assert_eq!(Location::parse(text).unwrap_err().to_string(), why);
        }
    }
}
