//! Path forms: how a pod writes paths on Windows and Linux, parsed into components that cannot
//! escape.

use std::fmt;

use crate::os::NodeOs;

/// An absolute path below a node's root: drive (Windows only) and plain components. Holds no
/// `.`/`..`, no separator, and on Windows no name the file system treats specially. What [`PodPath::remote`] reads is below no drive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodPath {
    drive: Option<char>,
    components: Vec<String>,
}

/// A path that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Not absolute.
    #[error("path {0:?} is not absolute; write it with a leading slash, or with a drive on Windows")]
    Relative(String),
    /// A `..` component.
    #[error("path {0:?} contains '..', which could leave its directory; write the path without it")]
    Backsteps(String),
    /// A pipe or network share where a local file is needed.
    #[error("path {0:?} names a pipe or a network share, not a local file")]
    NotLocal(String),
    /// A component that the file system cannot hold or treats specially.
    #[error("path {path:?} contains {component:?}: {why}")]
    Component {
        path: String,
        /// The offending part.
        component: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// In the place of a drive's letter, of what is on none.
const REMOTE: char = '\\';

impl PodPath {
    /// Reads a path in the form of a node's OS. Windows: `C:\x`, `c:/x`, `\x`, `/x` (drive C).
    /// Linux: `/x`.
    pub fn parse(os: NodeOs, text: &str) -> Result<Self, PathError> {
        if os.is_windows() { Self::parse_windows(text) } else { Self::parse_linux(text) }
    }

    fn parse_linux(text: &str) -> Result<Self, PathError> {
        let rest = text.strip_prefix('/').ok_or_else(|| PathError::Relative(text.to_owned()))?;
        let components = split(text, rest.split('/'), |c| c.contains('\0').then_some("a NUL byte"))?;
        Ok(PodPath { drive: None, components })
    }

    fn parse_windows(text: &str) -> Result<Self, PathError> {
        let is_sep = |c: char| c == '/' || c == '\\';
        if text.starts_with(r"\\") || text.starts_with("//") {
            return Err(PathError::NotLocal(text.to_owned()));
        }
        let bytes = text.as_bytes();
        let (drive, rest) = if bytes.len() >= 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' {
            (bytes[0].to_ascii_uppercase() as char, &text[2..])
        } else {
            ('C', text)
        };
        let bare_drive = rest.is_empty() && bytes.len() == 2;
        if !bare_drive && !rest.starts_with(is_sep) {
            return Err(PathError::Relative(text.to_owned()));
        }
        let components = split(text, rest.split(is_sep), windows_name_problem)?;
        Ok(PodPath { drive: Some(drive), components })
    }

    /// Reads what is on no drive of a Windows node: a named pipe (`\\\\.\\pipe\\x`) or a path on a share (`\\\\server\\share\\x`). None for other
    /// texts, devices and paths of Windows' own forms (`\\\\?\\…`) among them, which lead around every rule of paths.
    pub fn remote(os: NodeOs, text: &str) -> Option<Self> {
        let rest = text.strip_prefix(r"\\").or_else(|| text.strip_prefix("//")).filter(|_| os.is_windows())?;
        let mut components: Vec<String> = rest.split(['/', '\\']).map(str::to_owned).collect();
        if components.last().is_some_and(String::is_empty) {
            components.pop();
        }
        // Windows resolves `.` and `..` in a pipe's path too, out of the pipes, and drops dots and blanks at an end.
        let is_name = |name: &String| !name.trim_matches(['.', ' ']).is_empty();
        let is_pipe = match &components[..] {
            [dot, pipe, names @ ..] => dot == "." && pipe.eq_ignore_ascii_case("pipe") && !names.is_empty() && names.iter().all(is_name),
            _ => false,
        };
        let is_plain = |name: &String| is_name(name) && windows_name_problem(name).is_none();
        let is_share = components.len() >= 2 && components.iter().all(is_plain);
        let has_control = components.iter().any(|name| name.chars().any(char::is_control));
        ((is_pipe && !has_control) || is_share).then_some(PodPath { drive: Some(REMOTE), components })
    }

    /// Whether it is a named pipe or on a share.
    pub fn is_remote(&self) -> bool {
        self.drive == Some(REMOTE)
    }

    /// The root of a drive (`C`) or, with None, of a Linux node.
    pub fn root(drive: Option<char>) -> Self {
        PodPath { drive: drive.map(|d| d.to_ascii_uppercase()), components: Vec::new() }
    }

    /// The drive letter, upper case; None on Linux.
    pub fn drive(&self) -> Option<char> {
        self.drive
    }

    /// The parts below the root.
    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// The last part; None for a root.
    pub fn name(&self) -> Option<&str> {
        self.components.last().map(String::as_str)
    }

    /// The directory that holds it; None for a root.
    pub fn parent(&self) -> Option<PodPath> {
        let (_, rest) = self.components.split_last()?;
        Some(PodPath { drive: self.drive, components: rest.to_vec() })
    }

    /// Appends a relative path (`a/b`, on Windows also `a\b`), held to the same rules.
    pub fn join(&self, relative: &str) -> Result<PodPath, PathError> {
        let more = match self.drive {
            Some(_) => split(relative, relative.split(['/', '\\']), windows_name_problem)?,
            None => split(relative, relative.split('/'), |c| c.contains('\0').then_some("a NUL byte"))?,
        };
        let mut components = self.components.clone();
        components.extend(more);
        Ok(PodPath { drive: self.drive, components })
    }

    /// Whether `self` is `other` or lies below it (Windows: case-insensitive).
    pub fn starts_with(&self, other: &PodPath) -> bool {
        let same = |a: &String, b: &String| {
            if self.drive.is_some() { a.eq_ignore_ascii_case(b) } else { a == b }
        };
        self.drive == other.drive
            && self.components.len() >= other.components.len()
            && self.components.iter().zip(&other.components).all(|(a, b)| same(a, b))
    }
}

impl fmt::Display for PodPath {
    /// The node's own form: `C:\a\b` or `/a/b`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.drive {
            Some(REMOTE) => write!(f, "\\\\{}", self.components.join("\\")),
            Some(drive) => write!(f, "{drive}:\\{}", self.components.join("\\")),
            None => write!(f, "/{}", self.components.join("/")),
        }
    }
}

fn split<'a>(whole: &str, parts: impl Iterator<Item = &'a str>, problem: impl Fn(&str) -> Option<&'static str>) -> Result<Vec<String>, PathError> {
    let mut out = Vec::new();
    for part in parts.filter(|p| !p.is_empty() && *p != ".") {
        if part == ".." {
            return Err(PathError::Backsteps(whole.to_owned()));
        }
        if let Some(why) = problem(part) {
            return Err(PathError::Component { path: whole.to_owned(), component: part.to_owned(), why });
        }
        out.push(part.to_owned());
    }
    Ok(out)
}

/// What makes a name unfit as one Windows path component, if anything.
pub fn windows_name_problem(name: &str) -> Option<&'static str> {
    if name.chars().any(|c| c.is_control() || "<>\"|?*".contains(c)) {
        return Some("a character that Windows file names cannot hold");
    }
    if name.contains(['/', '\\']) {
        return Some("a path separator inside a name");
    }
    if name.contains(':') {
        return Some("a colon, which names a drive or an alternate data stream");
    }
    if name.ends_with(['.', ' ']) {
        return Some("a trailing dot or blank, which Windows drops");
    }
    let stem = name.split('.').next().unwrap_or(name).trim_end().to_ascii_uppercase();
    let numbered = |prefix: &str| {
        stem.strip_prefix(prefix).is_some_and(|n| {
            let mut chars = n.chars();
            matches!((chars.next(), chars.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
        })
    };
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") || numbered("COM") || numbered("LPT") {
        return Some("a reserved device name");
    }
    None
}

/// The path inside a container as CRI gets it: on Windows `/var/run/x` and `var/run/x` become
/// `C:\var\run\x`, drive paths keep their drive, pipes and shares stay as written; on Linux a
/// relative path is taken from the root (upstream `MakeAbsolutePath`).
pub fn container_path(os: NodeOs, text: &str) -> String {
    if !os.is_windows() {
        return if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    }
    if text.starts_with(r"\\") {
        return text.to_owned();
    }
    let back = text.replace('/', "\\");
    let bytes = back.as_bytes();
    if bytes.len() >= 2 && bytes[1] == b':' {
        let mut path = back.clone();
        path[..1].make_ascii_uppercase();
        return path;
    }
    format!("C:\\{}", back.trim_start_matches('\\'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIN: NodeOs = NodeOs::Windows { build: 20348 };

    #[test]
    fn pipes_and_shares_are_read_and_nothing_else() {
        for (text, shown) in [
            (r"\\.\pipe\docker_engine", r"\\.\pipe\docker_engine"),
            ("//./pipe/csi/proxy-v1", r"\\.\pipe\csi\proxy-v1"),
            (r"\\files\data\a b\", r"\\files\data\a b"),
        ] {
            let path = PodPath::remote(WIN, text).unwrap();
            assert_eq!((path.to_string().as_str(), path.is_remote()), (shown, true), "{text}");
        }
        for text in [
            r"C:\x",
            r"\x",
            r"\\server",
            r"\\server\share\..\x",
            r"\\?\C:\x",
            r"\\?\pipe\x",
            r"\\.\C:",
            r"\\.\PhysicalDrive0",
            r"\\.\pipe",
            r"\\.\pipe\",
            r"\\.\pipe\..\C:\secret",
            r"\\.\pipe\x\..\..\C:\secret",
            r"\\.\pipe\x\..",
            r"\\.\pipe\.. \x",
            "//./pipe/../C:/secret",
            r"\\.\pipe\.\x",
            r"\\.\pipe\x\.\y",
            r"\\.\pipe\\x",
            r"\\.\pipe\x\\y",
            "\\\\.\\pipe\\a\0b",
            r"\\server\share\x:y",
            r"\\\x\y",
            "",
        ] {
            assert_eq!(PodPath::remote(WIN, text), None, "{text}");
        }
        assert_eq!(PodPath::remote(NodeOs::Linux, r"\\.\pipe\x"), None);
        assert!(!PodPath::parse(WIN, r"C:\x").unwrap().is_remote());
    }

    #[test]
    fn windows_paths_parse() {
        for (text, shown) in [
            (r"C:\etc\foo", r"C:\etc\foo"),
            ("c:/etc/foo/", r"C:\etc\foo"),
            ("/etc/foo", r"C:\etc\foo"),
            (r"\etc", r"C:\etc"),
            (r"D:\data", r"D:\data"),
            ("d:", r"D:\"),
            ("/", r"C:\"),
            (r"C:\a\.\b\\c", r"C:\a\b\c"),
        ] {
            assert_eq!(PodPath::parse(WIN, text).unwrap().to_string(), shown, "{text}");
        }
        for text in [
            "etc",
            "C:etc",
            r"C:\..\x",
            r"C:\a\..",
            r"\\server\share",
            r"\\.\pipe\x",
            r"C:\a:stream",
            r"C:\nul",
            r"C:\com1.txt",
            r"C:\a.",
            r"C:\a \b",
            r"C:\a?b",
            "",
            "1:/x",
        ] {
            assert!(PodPath::parse(WIN, text).is_err(), "{text}");
        }
    }

    #[test]
    fn linux_paths_parse() {
        let ok = |t| PodPath::parse(NodeOs::Linux, t).unwrap().to_string();
        assert_eq!(ok("/a//b/./c"), "/a/b/c");
        assert_eq!(ok("/"), "/");
        assert_eq!(ok(r"/a\b:c"), r"/a\b:c");
        assert!(PodPath::parse(NodeOs::Linux, "a").is_err());
        assert!(PodPath::parse(NodeOs::Linux, "/a/../b").is_err());
        assert!(PodPath::parse(NodeOs::Linux, "/a\0").is_err());
    }

    #[test]
    fn paths_join() {
        let base = PodPath::parse(WIN, r"C:\var\lib").unwrap();
        assert_eq!(base.join("a/b").unwrap().to_string(), r"C:\var\lib\a\b");
        assert!(base.join("../x").is_err());
        assert!(base.join("/a").unwrap().starts_with(&base));
        assert!(PodPath::parse(WIN, r"c:\VAR\LIB\x").unwrap().starts_with(&base));
        assert_eq!(base.parent().unwrap().to_string(), r"C:\var");
    }

    #[test]
    fn container_paths_parse() {
        for (text, shown) in [
            ("/var/run/secrets/x", r"C:\var\run\secrets\x"),
            ("data", r"C:\data"),
            ("c:/data", r"C:\data"),
            (r"D:\data", r"D:\data"),
            (r"\\.\pipe\docker", r"\\.\pipe\docker"),
        ] {
            assert_eq!(container_path(WIN, text), shown, "{text}");
        }
        assert_eq!(container_path(NodeOs::Linux, "data"), "/data");
    }

    proptest! {
        #[test]
        fn no_parsed_path_escapes(text in r"([A-Za-z]:)?[/\\]?([a-z.:]{0,3}[/\\]?){0,8}") {
            for os in [WIN, NodeOs::Linux] {
                if let Ok(path) = PodPath::parse(os, &text) {
                    for c in path.components() {
                        prop_assert!(c != ".." && c != "." && !c.is_empty() && !c.contains('/'));
                        prop_assert!(!os.is_windows() || !c.contains(['\\', ':']));
                    }
                    prop_assert_eq!(PodPath::parse(os, &path.to_string()).unwrap(), path);
                }
            }
        }
    }
}
