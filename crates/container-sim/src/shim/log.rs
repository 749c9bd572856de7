//! Container logs in CRI's format: `TIME STREAM TAG TEXT`, TAG being F for a whole line and P for a part of one.

use std::fs::File;
use std::io::{self, Write};

use host::{HostRoot, PodPath};

/// Longest text in one log line; containerd's `max_container_log_line_size`.
pub const MAX_LINE: usize = 16 * 1024;

/// Cuts a stream of bytes into log lines.
#[derive(Debug)]
pub struct Cutter {
    stream: &'static str,
    held: Vec<u8>,
}

impl Cutter {
    /// For `stdout` or `stderr`.
    pub fn new(stream: &'static str) -> Self {
        Self { stream, held: Vec::new() }
    }

    /// Takes some bytes and appends the lines they complete to `out`, stamped `time`.
    pub fn push(&mut self, mut bytes: &[u8], time: jiff::Timestamp, out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.held.len();
            let newline = bytes.iter().take(room + 1).position(|b| *b == b'\n');
            match newline {
                Some(at) => {
                    self.held.extend_from_slice(&bytes[..at]);
                    self.emit("F", time, out);
                    bytes = &bytes[at + 1..];
                }
                None if bytes.len() > room => {
                    self.held.extend_from_slice(&bytes[..room]);
                    self.emit("P", time, out);
                    bytes = &bytes[room..];
                }
                None => {
                    self.held.extend_from_slice(bytes);
                    return;
                }
            }
        }
    }

    /// What is left when the stream ends: a line without its newline counts as a part, as in containerd.
    pub fn finish(&mut self, time: jiff::Timestamp, out: &mut Vec<u8>) {
        if !self.held.is_empty() {
            self.emit("P", time, out);
        }
    }

    fn emit(&mut self, tag: &str, time: jiff::Timestamp, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{time:.9} {} {tag} ", self.stream).as_bytes());
        out.append(&mut self.held);
        out.push(b'\n');
    }
}

/// Appends to a log file of the node; opens it again on request, after the kubelet has renamed it.
#[derive(Debug)]
pub struct LogWriter {
    place: Option<(HostRoot, PodPath)>,
    file: Option<File>,
    /// Whether a failed write was logged; a full disk must not fill the shim's own log too.
    is_logged: bool,
}

impl LogWriter {
    /// A log at `place`, opened at once; without one output is dropped.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(place: Option<(HostRoot, PodPath)>) -> Result<Self, host::HostError> {
        let mut writer = Self { place, file: None, is_logged: false };
        writer.reopen()?;
        Ok(writer)
    }

    /// Opens the file by its name again. On failure the old file stays in use.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn reopen(&mut self) -> Result<(), host::HostError> {
        if let Some((root, path)) = &self.place {
            if let Some(parent) = path.parent() {
                root.create_dir_all(&parent, 0o755)?;
            }
            self.file = Some(root.open_append(path, 0o640)?);
        }
        Ok(())
    }

    /// Writes whole lines. A program must not stop because its log cannot be written, so failures are logged once and
    /// then ignored.
    pub fn write(&mut self, lines: &[u8]) {
        let Some(file) = &mut self.file else { return };
        let result: io::Result<()> = file.write_all(lines);
        match result {
            Ok(()) => self.is_logged = false,
            Err(error) if !self.is_logged => {
                eprintln!("shim: cannot write a container log, its output is lost meanwhile: {error}");
                self.is_logged = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> String {
        let time: jiff::Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let mut cutter = Cutter::new("stdout");
        let mut out = Vec::new();
        for chunk in chunks {
            cutter.push(chunk, time, &mut out);
        }
        cutter.finish(time, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_whole_in_any_chunks() {
        let whole = "2026-01-02T03:04:05.600000000Z stdout F one\n2026-01-02T03:04:05.600000000Z stdout F \n";
        assert_eq!(cut(&[b"one\n\n"]), whole);
        assert_eq!(cut(&[b"o", b"n", b"e\n", b"\n"]), whole);
    }

    #[test]
    fn unfinished_line_is_a_part() {
        assert_eq!(cut(&[b"end"]), "2026-01-02T03:04:05.600000000Z stdout P end\n");
        assert_eq!(cut(&[]), "");
    }

    #[test]
    fn long_lines_come_in_parts() {
        let long = vec![b'x'; MAX_LINE + 5];
        let out = cut(&[&long, b"\n"]);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains(" stdout P x") && lines[1].ends_with(" stdout F xxxxx"));
        let exact = vec![b'x'; MAX_LINE];
        let out = cut(&[&exact, b"\n"]);
        assert_eq!(out.lines().count(), 1, "a line of just the limit is whole");
    }

    proptest::proptest! {
        /// Whatever the chunks, the text that comes out is the text that went in.
        #[test]
        fn text_is_kept_in_any_chunks(chunks in proptest::collection::vec(proptest::collection::vec(proptest::num::u8::ANY, 0..9000), 0..8)) {
            let time: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
            let mut cutter = Cutter::new("stderr");
            let mut out = Vec::new();
            chunks.iter().for_each(|chunk| cutter.push(chunk, time, &mut out));
            cutter.finish(time, &mut out);
            let mut text = Vec::new();
            for line in out.split_inclusive(|b| *b == b'\n') {
                let head = "2026-01-02T03:04:05.000000000Z stderr F ".len();
                text.extend_from_slice(&line[head..line.len() - 1]);
                if line[head - 2] == b'F' { text.push(b'\n'); }
            }
            proptest::prop_assert_eq!(text, chunks.concat());
        }
    }
}
