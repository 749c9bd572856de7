//! Files of variables that containers leave to each other in a volume (`fileKeyRef`; upstream util/env `ParseEnv`): a strict part of the
//! shell's syntax, `NAME='value'` with values that may go on over lines.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};

use host::{Beneath, HostError, HostRoot, PodPath};
use k8s_openapi::api::core::v1::{Container, FileKeySelector};

/// Bytes of a file that are read; one that has more is refused.
const MAX_FILE: u64 = 1 << 20;
/// Bytes of all files of a container. Upstream has neither bound: it reads a file again for each variable, and keeps nothing of it.
const MAX_FILES: u64 = 4 << 20;
/// Bytes of a line, which upstream's reader limits.
const MAX_LINE: usize = 64 << 10;

/// The files that a container's variables name, by volume and path ([`place`]).
pub(crate) type Files = BTreeMap<(String, String), Result<File, NoFile>>;

/// A file of variables.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Where it is on the node.
    pub place: String,
    pub variables: Variables,
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    #[error("it has more than {MAX_FILE} bytes, or all files of the container more than {MAX_FILES}")]
    TooLong,
}

/// Reads these variables of a file of a volume, through no link, if it has at most so many bytes. Also returns how many it has.
fn read(root: &HostRoot, volume: &PodPath, path: &str, keys: &BTreeSet<String>, most: u64) -> Result<(File, u64), ReadError> {
    let names: Vec<String> = names(path).map(str::to_owned).collect();
    let Beneath::File(file) = root.open_beneath(volume, &names)? else { return Err(ReadError::NoFile) };
    let mut content = Vec::new();
    let size = file.take(most + 1).read_to_end(&mut content)? as u64;
    if size > most {
        return Err(ReadError::TooLong);
    }
    Ok((File { place: format!("{volume}/{}", names.join("/")), variables: Variables::read(&content, |name| keys.contains(name)) }, size))
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

/// Which file a variable names: one has many paths.
pub(crate) fn place(selector: &FileKeySelector) -> (String, String) {
    (selector.volume_name.clone(), names(&selector.path).collect::<Vec<_>>().join("/"))
}

/// The variables that are wanted of each file ([`place`]).
pub(crate) type Wanted = BTreeMap<(String, String), BTreeSet<String>>;

/// What a container wants of files.
pub(crate) fn wanted(c: &Container) -> Wanted {
    let mut all = Wanted::new();
    for selector in references(c) {
        all.entry(place(selector)).or_default().insert(selector.key.clone());
    }
    all
}

/// Reads each file once; `tell` is told why one cannot be read. It waits for the disk.
pub(crate) fn read_all(root: &HostRoot, volumes: &BTreeMap<String, PodPath>, wanted: Wanted, tell: impl Fn(&str, &str, ReadError)) -> Files {
    let mut left = MAX_FILES;
    let mut one = |volume: &str, path: &str, keys: &BTreeSet<String>| -> Result<File, NoFile> {
        let place = volumes.get(volume).ok_or(NoFile::Volume)?;
        let (file, size) = read(root, place, path, keys, MAX_FILE.min(left)).map_err(|error| {
            tell(volume, path, error);
            NoFile::Unreadable
        })?;
        left -= size;
        Ok(file)
    };
    wanted
        .into_iter()
        .map(|((volume, path), keys)| (one(&volume, &path, &keys), volume, path))
        .map(|(file, volume, path)| ((volume, path), file))
        .collect()
}

/// The files that a container's variables name.
fn references(c: &Container) -> impl Iterator<Item = &FileKeySelector> {
    c.env.iter().flatten().filter_map(|var| var.value_from.as_ref()?.file_key_ref.as_ref())
}

/// What a file sets, up to the line where it is no file of variables any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables {
    values: BTreeMap<String, String>,
    error: Option<SyntaxError>,
}

impl Variables {
    /// Those that are wanted, so that they take no more than the file does, however many it has.
    pub(crate) fn read(content: &[u8], wanted: impl Fn(&str) -> bool) -> Self {
        let mut values = BTreeMap::new();
        let keep = |name: &str, value| {
            if wanted(name) {
                values.entry(name.to_owned()).or_insert(value);
            }
        };
        let error = parse(content, keep).err();
        Self { values, error }
    }

    /// The value of a variable; empty where the file does not set it. What follows it does not count.
    pub(crate) fn value(&self, key: &str) -> Result<String, SyntaxError> {
        match (self.values.get(key), &self.error) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(String::new()),
        }
    }
}

fn parse(content: &[u8], mut set: impl FnMut(&str, String)) -> Result<(), SyntaxError> {
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
            set(name, String::new());
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
        set(name, value);
    }
    Ok(())
}

/// Reads a file of variables as a container may have written it, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    let read = |bytes: &[u8]| Variables::read(bytes, |name| name == "A").value("A");
    let found = read(bytes);
    if let Ok(value) = found.as_ref()
        && !value.is_empty()
    {
        assert!(!value.contains('\''), "{value:?}");
        let again = read(format!("A='{value}'\n").as_bytes()).expect("what was read can be written");
        // A carriage return before a newline belongs to the newline.
        assert_eq!(again, value.replace("\r\n", "\n"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let read = |path: &str| read(&root, &place, path, &BTreeSet::from(["A".to_owned()]), MAX_FILE);
        let (found, size) = read("./d//env").unwrap();
        assert_eq!((found.place.as_str(), found.variables.value("A"), size), ("/v/d/env", Ok("1".to_owned()), 5));
        for path in ["link", "absolute", "up/secret", "../secret", "d", "none", ""] {
            assert!(read(path).is_err(), "{path}");
        }
        assert!(matches!(read("long"), Err(ReadError::TooLong)));
    }

    #[cfg(unix)]
    #[test]
    fn the_files_of_a_container_take_a_bounded_part_of_memory() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        for number in 0..6 {
            std::fs::write(dir.path().join(number.to_string()), vec![b'#'; MAX_FILE as usize]).unwrap();
        }
        let volumes = BTreeMap::from([("v".to_owned(), root.parse("/").unwrap())]);
        let variable = |path: &str| json!({"name": "N", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": path, "key": path}}});
        let env: Vec<_> = ["0", "./0", "0/.", "//0", "1", "2", "3", "4", "5"].into_iter().map(variable).collect();
        let wanted = wanted(&serde_json::from_value(json!({"name": "c", "env": env})).unwrap());
        assert_eq!(wanted.values().map(BTreeSet::len).collect::<Vec<_>>(), [4, 1, 1, 1, 1, 1]);
        let told = std::cell::RefCell::new(Vec::new());
        let files = read_all(&root, &volumes, wanted, |_, path, _| told.borrow_mut().push(path.to_owned()));
        assert_eq!((files.len(), files.values().filter(|file| file.is_ok()).count()), (6, 4), "one file has many paths");
        assert_eq!(told.into_inner(), ["4", "5"]);
        let none = read_all(&root, &volumes, [(("w".to_owned(), "0".to_owned()), BTreeSet::new())].into(), |_, _, _| unreachable!());
        assert_eq!(none.into_values().next().unwrap().unwrap_err(), NoFile::Volume);
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
            assert_eq!(Variables::read(text.as_bytes(), |_| true).value("A"), want, "{text:?}");
        }
        let two = Variables::read(b"B='2'\nA='1'", |name| name == "A");
        assert_eq!((two.values.len(), two.value("A")), (1, found("1")), "what nobody wants is not kept");
        let long = format!("\nA='{}'", "x".repeat(MAX_LINE));
        assert_eq!(Variables::read(long.as_bytes(), |_| true).value("A"), Err(SyntaxError::TooLong(2)));
    }
}
