//! Blocks of PEM in a text, as Go's encoding/pem finds them: what is no block is passed over.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Characters of a line of a block.
const WIDTH: usize = 64;

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Such as `CERTIFICATE`.
    pub label: String,
    /// Lines `KEY: VALUE` stand before the content.
    pub has_headers: bool,
    pub bytes: Vec<u8>,
}

/// The blocks of a text, in their order. A block that another one begins in, that does not end, or whose content is no base64 is none.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<(&str, Vec<&str>)> = None;
    for line in text.lines() {
        let line = line.trim_end();
        if let Some(label) = label(line, BEGIN) {
            open = Some((label, Vec::new()));
        } else if line.starts_with(END) {
            let ended = open.take().filter(|(begun, _)| label(line, END) == Some(begun));
            found.extend(ended.and_then(|(label, lines)| block(label, &lines)));
        } else if let Some((_, lines)) = &mut open {
            lines.push(line);
        }
    }
    found
}

fn label<'a>(line: &'a str, prefix: &str) -> Option<&'a str> {
    line.strip_prefix(prefix)?.strip_suffix(DASHES)
}

fn block(label: &str, lines: &[&str]) -> Option<Block> {
    let headers = lines.iter().take_while(|line| line.contains(':')).count();
    let content: String = lines[headers..].iter().flat_map(|line| line.split_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(content).ok()?;
    Some(Block { label: label.to_owned(), has_headers: headers > 0, bytes })
}

/// A block without headers, as text.
pub fn encode(label: &str, bytes: &[u8]) -> String {
    let content = STANDARD.encode(bytes);
    let mut text = format!("{BEGIN}{label}{DASHES}\n");
    for start in (0..content.len()).step_by(WIDTH) {
        text.push_str(&content[start..content.len().min(start + WIDTH)]);
        text.push('\n');
    }
    text.push_str(&format!("{END}{label}{DASHES}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text() {
        let (one, two) = (encode("A", &[1; 100]), encode("B C", b"2"));
        let text = format!("# comment\r\n{}junk\n{two}-----BEGIN A-----\nnot ended", one.replace('\n', "\r\n"));
        let found = blocks(&text);
        assert_eq!(
            found.iter().map(|block| (block.label.as_str(), block.bytes.as_slice())).collect::<Vec<_>>(),
            [("A", &[1; 100][..]), ("B C", b"2")]
        );
        assert!(one.lines().all(|line| line.len() <= WIDTH));
        for none in [
            "",
            "x",
            "-----BEGIN A-----",
            "-----BEGIN A-----\n!\n-----END A-----",
            "-----BEGIN A-----\nAA==\n-----END B-----",
            " -----BEGIN A-----\nAA==\n-----END A-----",
            "-----BEGIN A---\nAA==\n-----END A-----",
        ] {
            assert_eq!(blocks(none), [], "{none:?}");
        }
        assert_eq!(blocks("-----BEGIN A-----\n-----BEGIN B-----\nAA==\n-----END B-----").len(), 1, "the last beginning counts");
    }

    #[test]
    fn headers_are_noticed_and_are_no_content() {
        let found = blocks("-----BEGIN A-----\nProc-Type: 4,ENCRYPTED\nX: y\n\nAA==\n-----END A-----\n");
        assert_eq!(found, [Block { label: "A".into(), has_headers: true, bytes: vec![0] }]);
    }
}
