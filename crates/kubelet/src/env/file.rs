//! Files of variables that containers leave to each other in a volume (`fileKeyRef`; upstream util/env `ParseEnv`): a strict part of the
//! shell's syntax, `NAME='value'` with values that may go on over lines.

use std::collections::BTreeMap;
use std::io::{self, Read as _};

use host::{Beneath, HostError, HostRoot, PodPath};
use k8s_openapi::api::core::v1::{Container, FileKeySelector};

/// Bytes of a file that are read; one that has more is refused.
const MAX_FILE: u64 = 1 << 20;
/// Bytes of a line, which upstream's reader limits.
const MAX_LINE: usize = 64 << 10;

/// Content of the files that a container's variables name, by volume and path.
pub(crate) type Files = BTreeMap<(String, String), Result<File, NoFile>>;

/// A file of variables.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Where it is on the node.
    pub place: String,
    pub content: Vec<u8>,
}

/// Why there is no content. The node's log says more: what stands in a volume is not for everybody who reads events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFile {
    /// The pod has no such volume.
    Volume,
    /// It cannot be read.
    Unreadable,
}

/// Why a file of variables is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SyntaxError {
    #[error("invalid environment variable format at line {line}: {what}")]
    Line { line: usize, what: &'static str },
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
    #[error("line {0} is longer than {MAX_LINE} bytes")]
    TooLong(usize),
}

/// Why a file of variables is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no file, but a directory, a pipe or a device")]
    NoFile,
    #[error("it has more than {MAX_FILE} bytes")]
    TooLong,
}

/// Reads a file of a volume through no link.
pub(crate) fn read(root: &HostRoot, volume: &PodPath, path: &str) -> Result<File, ReadError> {
    let names: Vec<String> = path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::to_owned).collect();
    let Beneath::File(file) = root.open_beneath(volume, &names)? else { return Err(ReadError::NoFile) };
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(ReadError::TooLong);
    }
    Ok(File { place: format!("{volume}/{}", names.join("/")), content })
}

/// The files that a container's variables name.
pub(crate) fn references(c: &Container) -> impl Iterator<Item = &FileKeySelector> {
    c.env.iter().flatten().filter_map(|var| var.value_from.as_ref()?.file_key_ref.as_ref())
}

/// The value of a variable; empty where the file does not set it. What follows it is not looked at.
pub(crate) fn value(content: &[u8], key: &str) -> Result<String, SyntaxError> {
    let text = String::from_utf8_lossy(content);
    // A newline ends a line, the last one too.
    let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let mut lines = (1..).zip(lines);
    while let Some((line, whole)) = lines.next() {
        let checked = |line: usize, text: &str| if text.len() > MAX_LINE { Err(SyntaxError::TooLong(line)) } else { Ok(()) };
        checked(line, whole)?;
        let rest = whole.trim_start_matches([' ', '\t']);
        if rest.is_empty() || rest.starts_with('#') {
            continue;
        }
        let error = |what| SyntaxError::Line { line, what };
        let (name, rest) = rest.split_once('=').ok_or(error("missing '='"))?;
        if name.is_empty() {
            return Err(error("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(error("whitespace before '=' is not allowed"));
        }
        if rest.starts_with([' ', '\t']) {
            // As in a shell, the variable is empty.
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let mut rest = rest.strip_prefix('\'').ok_or(error("value must be enclosed in single quotes"))?;
        let (mut value, mut at) = (String::new(), line);
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after;
            }
            value.push_str(rest);
            value.push('\n');
            (at, rest) = lines.next().ok_or(SyntaxError::Unclosed(line))?;
            checked(at, rest)?;
        };
        let after = after.trim_start_matches([' ', '\t']);
        if !after.is_empty() && !after.starts_with('#') {
            return Err(SyntaxError::Line { line: at, what: "unexpected content after closing quote" });
        }
        if name == key {
            return Ok(value);
        }
    }
    Ok(String::new())
}

/// Reads a file of variables as a container may have written it, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    let found = value(bytes, "A");
    if let Ok(value) = found.as_ref()
        && !value.is_empty()
    {
        assert!(!value.contains('\''), "{value:?}");
        let again = self::value(format!("A='{value}'\n").as_bytes(), "A").expect("what was read can be written");
        // A carriage return before a newline belongs to the newline.
        assert_eq!(again, value.replace("\r\n", "\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_container_cannot_have_another_file_read_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir_all(volume.join("d")).unwrap();
        std::fs::write(dir.path().join("secret"), "A='1'").unwrap();
        std::fs::write(volume.join("d/env"), "A='1'").unwrap();
        std::fs::write(volume.join("long"), vec![b'#'; MAX_FILE as usize + 1]).unwrap();
        std::os::unix::fs::symlink("../secret", volume.join("link")).unwrap();
        std::os::unix::fs::symlink("/secret", volume.join("absolute")).unwrap();
        std::os::unix::fs::symlink("..", volume.join("up")).unwrap();
        let place = root.parse("/v").unwrap();
        let read = |path: &str| read(&root, &place, path);
        let found = read("./d//env").unwrap();
        assert_eq!((found.place.as_str(), found.content.as_slice()), ("/v/d/env", b"A='1'".as_slice()));
        for path in ["link", "absolute", "up/secret", "../secret", "d", "none", ""] {
            assert!(read(path).is_err(), "{path}");
        }
        assert!(matches!(read("long"), Err(ReadError::TooLong)));
    }

    #[test]
    fn files_are_read_as_upstream_reads_them() {
        let line = |line, what| Err(SyntaxError::Line { line, what });
        let found = |text: &str| Ok(text.to_owned());
        for (text, want) in [
            ("A='1'", found("1")),
            ("A='1'\nA='2'\n", found("1")),
            ("# A='0'\n\n \t A='1' # why\nB=broken", found("1")),
            ("B='x'\r\nA='a\r\nb'\r\n", found("a\nb")),
            ("A='two\n lines $B \\'", found("two\n lines $B \\")),
            ("A=''", found("")),
            ("A= 'x'\n", found("")),
            ("B= broken\nA='1'", found("1")),
            ("B='1'", found("")),
            ("", found("")),
            ("A", line(1, "missing '='")),
            ("='1'", line(1, "empty variable name")),
            ("A ='1'", line(1, "whitespace before '=' is not allowed")),
            ("\nA=1", line(2, "value must be enclosed in single quotes")),
            ("A=\"1\"", line(1, "value must be enclosed in single quotes")),
            ("A='1'x", line(1, "unexpected content after closing quote")),
            ("B='1\n2' x\nA='1'", line(2, "unexpected content after closing quote")),
            ("B='1\n2", Err(SyntaxError::Unclosed(1))),
            ("export A='1'", found("")),
        ] {
            assert_eq!(value(text.as_bytes(), "A"), want, "{text:?}");
        }
        let long = format!("\nA='{}'", "x".repeat(MAX_LINE));
        assert_eq!(value(long.as_bytes(), "A"), Err(SyntaxError::TooLong(2)));
    }
}
