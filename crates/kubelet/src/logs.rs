//! Reading container logs as the runtime wrote them (CRI format: RFC 3339 time, stream, P or F,
//! text).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use bytes::Bytes;
use host::{Beneath, HostError, HostRoot, PodPath};
use jiff::Timestamp;

/// What a reader wants of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub follow: bool,
    pub timestamps: bool,
    pub tail: Option<u64>,
    pub since: Option<Timestamp>,
    pub limit: Option<u64>,
}

const CHUNK: usize = 16 << 10;
/// The most that is kept of a line without an end. A runtime writes 16 KiB of text behind a short header; what is longer was not
/// written by it, and is handed out in parts.
const LINE: usize = 32 << 10;
/// The most that stands before the text of a line: time, stream, tag.
const HEADER: usize = 256;

/// Opens a log: the file `names` below `dir`, that of all pods' logs. A pod may hold that directory as a volume, and would lead its readers
/// elsewhere with a link, a device or a pipe: none is followed or opened.
pub(crate) fn open(root: &HostRoot, dir: &PodPath, names: &[String]) -> Result<File, HostError> {
    match root.open_beneath(dir, names)? {
        Beneath::File(file) => Ok(file),
        Beneath::Directory(_) | Beneath::Other => {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "not an ordinary file");
            Err(HostError::Io { operation: "read", path: format!("{dir}/{}", names.join("/")), source })
        }
    }
}

/// Turns raw log lines into what the reader wants.
pub(crate) struct Filter {
    options: Options,
    left: Option<u64>,
    partial: Vec<u8>,
    /// The rest of a line without a header is passed over.
    skip: bool,
}

impl Filter {
    pub(crate) fn new(options: Options) -> Self {
        Filter { left: options.limit, options, partial: Vec::new(), skip: false }
    }

    /// Whether the limit is used up.
    pub(crate) fn full(&self) -> bool {
        self.left == Some(0)
    }

    /// Takes raw bytes; returns text to hand out. An unfinished line waits for its rest.
    pub(crate) fn push(&mut self, raw: &[u8]) -> Bytes {
        self.partial.extend_from_slice(raw);
        let mut out = Vec::new();
        let mut begin = 0;
        while let Some(end) = self.partial[begin..].iter().position(|b| *b == b'\n') {
            let line = &self.partial[begin..begin + end];
            if !std::mem::take(&mut self.skip) {
                render(line, &self.options, &mut out);
            }
            begin += end + 1;
        }
        self.partial.drain(..begin);
        if self.partial.len() > LINE {
            self.cut(&mut out);
        }
        if let Some(left) = &mut self.left {
            out.truncate((*left).min(out.len() as u64) as usize);
            *left -= out.len() as u64;
        }
        Bytes::from(out)
    }

    /// Hands out what there is of a long line; its header stays for the rest.
    fn cut(&mut self, out: &mut Vec<u8>) {
        let header = self.partial.iter().take(HEADER).enumerate().filter(|(_, b)| **b == b' ').nth(2).map(|(at, _)| at + 1);
        let Some(header) = header.filter(|_| !self.skip) else {
            self.skip = true;
            return self.partial.clear();
        };
        let before = out.len();
        render(&self.partial, &self.options, out);
        // A part has no end of line.
        if out.len() > before && out.last() == Some(&b'\n') {
            out.pop();
        }
        self.partial.truncate(header);
    }
}

/// One line: kept or left out, with or without its time. A partial line (P) gets no newline.
fn render(line: &[u8], options: &Options, out: &mut Vec<u8>) {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let (Some(time), Some(_stream), Some(tag)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let text = parts.next().unwrap_or_default();
    if let Some(since) = options.since {
        let at = std::str::from_utf8(time).ok().and_then(|t| t.parse::<Timestamp>().ok());
        if at.is_none_or(|at| at < since) {
            return;
        }
    }
    if options.timestamps {
        out.extend_from_slice(time);
        out.push(b' ');
    }
    out.extend_from_slice(text);
    if tag.first() == Some(&b'F') {
        out.push(b'\n');
    }
}

/// Moves to where the last `lines` lines begin.
pub(crate) fn seek_tail(file: &mut File, lines: u64) -> io::Result<()> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut at = end;
    let mut found = 0;
    let mut buffer = vec![0; CHUNK];
    while at > 0 {
        let size = at.min(CHUNK as u64) as usize;
        at -= size as u64;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut buffer[..size])?;
        for i in (0..size).rev() {
            // The newline that ends the last line begins no further one.
            let here = at + i as u64;
            if buffer[i] == b'\n' && here + 1 < end {
                found += 1;
                if found == lines {
                    file.seek(SeekFrom::Start(here + 1))?;
                    return Ok(());
                }
            }
        }
    }
    file.seek(SeekFrom::Start(if lines == 0 { end } else { 0 })).map(drop)
}

/// The next raw piece; empty at the end of the file.
pub(crate) fn read_chunk(file: &mut File) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; CHUNK];
    let n = file.read(&mut buffer)?;
    buffer.truncate(n);
    Ok(buffer)
}

/// The end of a log as text: at most `lines` lines and `bytes` bytes.
pub(crate) fn tail_text(mut file: File, bytes: usize, lines: usize) -> String {
    if seek_tail(&mut file, lines as u64).is_err() {
        return String::new();
    }
    let mut filter = Filter::new(Options::default());
    let mut text = Vec::new();
    while let Ok(chunk) = read_chunk(&mut file) {
        if chunk.is_empty() {
            break;
        }
        text.extend_from_slice(&filter.push(&chunk));
        // A line may be of any length.
        text.drain(..text.len().saturating_sub(bytes));
    }
    let from = text.len().saturating_sub(bytes);
    String::from_utf8_lossy(&text[from..]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:00.000000001Z stdout F one\n\
        2026-01-01T00:00:01Z stderr P two\n\
        2026-01-01T00:00:02Z stderr F  three\n\
        2026-01-01T00:00:03Z stdout F \n\
        2026-01-01T00:00:04Z stdout F fünf\n";

    fn file() -> File {
        let mut f = tempfile::tempfile().unwrap();
        f.write_all(LOG.as_bytes()).unwrap();
        f
    }

    #[cfg(unix)]
    #[test]
    fn a_log_is_an_ordinary_file_that_no_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("var/log/pods/ns_pod_uid");
        std::fs::create_dir_all(pod.join("c")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(pod.join("c/0.log"), "l").unwrap();
        std::os::unix::fs::symlink("/secret", pod.join("c/1.log")).unwrap();
        std::os::unix::fs::symlink("c", pod.join("linked")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(pod.join("c/2.log")).unwrap();
        std::fs::create_dir(pod.join("c/3.log")).unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        let pods = root.parse("/var/log/pods").unwrap();
        for (container, file, want) in
            [("c", "0.log", true), ("c", "1.log", false), ("linked", "0.log", false), ("c", "2.log", false), ("c", "3.log", false)]
        {
            let names = ["ns_pod_uid", container, file].map(str::to_owned);
            assert_eq!(open(&root, &pods, &names).is_ok(), want, "{container}/{file}");
        }
    }

    #[test]
    fn a_long_line_is_handed_out_in_parts() {
        let long = "x".repeat(5 * LINE);
        for (header, want) in [("2026-01-01T00:00:00Z stdout F ", format!("{long}\nnext\n")), ("", "next\n".to_owned())] {
            let raw = format!("{header}{long}\n2026-01-01T00:00:00Z stdout F next\n");
            let mut filter = Filter::new(Options::default());
            let mut text = Vec::new();
            for chunk in raw.as_bytes().chunks(CHUNK) {
                text.extend_from_slice(&filter.push(chunk));
                assert!(filter.partial.len() <= LINE, "{}", filter.partial.len());
            }
            assert!(text == want.as_bytes(), "{header:?}: {} bytes", text.len());
        }
    }

    fn read(options: Options) -> String {
        let mut f = file();
        seek_tail(&mut f, options.tail.unwrap_or(1000)).unwrap();
        let mut filter = Filter::new(options);
        let mut out = Vec::new();
        loop {
            let chunk = read_chunk(&mut f).unwrap();
            if chunk.is_empty() || filter.full() {
                break;
            }
            // Byte by byte: lines may arrive in any pieces.
            for b in chunk {
                out.extend_from_slice(&filter.push(&[b]));
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn forms() {
        let all = "one\ntwo three\n\nfünf\n";
        assert_eq!(read(Options::default()), all);
        for (tail, want) in [(0, ""), (1, "fünf\n"), (2, "\nfünf\n"), (5, all), (9, all)] {
            assert_eq!(read(Options { tail: Some(tail), ..Default::default() }), want, "tail {tail}");
        }
        let since = "2026-01-01T00:00:03Z".parse().unwrap();
        assert_eq!(read(Options { since: Some(since), ..Default::default() }), "\nfünf\n");
        assert_eq!(read(Options { limit: Some(6), ..Default::default() }), "one\ntw");
        assert!(read(Options { timestamps: true, ..Default::default() }).starts_with("2026-01-01T00:00:00.000000001Z one\n"));
        assert_eq!(tail_text(file(), 6, 80), "fünf\n");
        assert_eq!(tail_text(file(), 4096, 1), "fünf\n");
    }
}
