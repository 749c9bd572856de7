//! RESP codec: bytes to requests, replies to bytes; no I/O.

/// Longest line without an end, and longest inline command.
const MAX_LINE: usize = 64 << 10;
/// Most arguments of one request.
const MAX_ARGS: i64 = 64 << 10;
/// Longest argument. Redis takes 512 MiB; a stand-in has no use for that.
const MAX_BULK: i64 = 16 << 20;

/// A request's words.
pub(crate) type Args = Vec<Vec<u8>>;

/// What the first bytes of a buffer are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A request, and how many bytes it took. No words at all is fine and gets no answer.
    Request(Args, usize),
    /// The beginning of one.
    Partial,
    /// Not a request: the text of the error, after which the connection ends.
    Wrong(String),
}

/// Reads the first request of a buffer.
pub(crate) fn parse(buffer: &[u8]) -> Parsed {
    match buffer.first() {
        None => Parsed::Partial,
        Some(b'*') => multibulk(buffer),
        Some(_) => inline(buffer),
    }
}

/// The line that begins at `from` and where the next one does; `Err` says whether to wait or to refuse.
fn line<'a>(buffer: &'a [u8], from: usize, what: &str) -> Result<(&'a [u8], usize), Parsed> {
    let rest = &buffer[from..];
    match rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
        Some(end) => Ok((rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]), from + end + 1)),
        None if rest.len() >= MAX_LINE => Err(Parsed::Wrong(format!("too big {what}"))),
        None => Err(Parsed::Partial),
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn multibulk(buffer: &[u8]) -> Parsed {
    match try_multibulk(buffer) {
        Ok((args, used)) => Parsed::Request(args, used),
        Err(other) => other,
    }
}

fn try_multibulk(buffer: &[u8]) -> Result<(Args, usize), Parsed> {
    let (head, mut at) = line(buffer, 0, "mbulk count string")?;
    let count = number(&head[1..]).filter(|count| *count <= MAX_ARGS).ok_or_else(|| Parsed::Wrong("invalid multibulk length".into()))?;
    let mut args = Vec::new();
    for _ in 0..count {
        let (head, next) = line(buffer, at, "bulk count string")?;
        if head.first() != Some(&b'$') {
            let got = head.first().map_or(' ', |byte| char::from(*byte));
            return Err(Parsed::Wrong(format!("expected '$', got '{got}'")));
        }
        let length = number(&head[1..]).filter(|length| (0..=MAX_BULK).contains(length));
        let length = length.and_then(|length| usize::try_from(length).ok()).ok_or_else(|| Parsed::Wrong("invalid bulk length".into()))?;
        if buffer.len() < next + length + 2 {
            return Err(Parsed::Partial);
        }
        args.push(buffer[next..next + length].to_vec());
        at = next + length + 2;
    }
    Ok((args, at))
}

fn inline(buffer: &[u8]) -> Parsed {
    match line(buffer, 0, "inline request") {
        Ok((text, used)) => match words(text) {
            Some(args) => Parsed::Request(args, used),
            None => Parsed::Wrong("unbalanced quotes in request".into()),
        },
        Err(other) => other,
    }
}

/// Words as `redis-cli` and telnet users write them: blanks separate, quotes keep together.
fn words(text: &[u8]) -> Option<Args> {
    let mut args = Vec::new();
    let mut bytes = text.iter().copied().peekable();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        let Some(first) = bytes.peek().copied() else { return Some(args) };
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            bytes.next();
            loop {
                match bytes.next()? {
                    byte if byte == first => break,
                    b'\\' if first == b'"' => word.push(escaped(bytes.next()?)),
                    b'\\' if bytes.peek() == Some(&b'\'') => word.extend(bytes.next()),
                    byte => word.push(byte),
                }
            }
            if bytes.peek().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return None;
            }
        } else {
            while let Some(byte) = bytes.next_if(|byte| !byte.is_ascii_whitespace()) {
                word.push(byte);
            }
        }
        args.push(word);
    }
}

fn escaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => other,
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `+OK`
    Simple(&'static str),
    /// `-ERR …`: kind and text together.
    Error(String),
    /// `:1`
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// No such thing.
    Nil,
    /// Several.
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Simple("OK");

    pub(crate) fn error(text: impl std::fmt::Display) -> Self {
        Self::Error(format!("ERR {text}"))
    }

    /// Appends the reply as it goes over the wire.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
            Self::Error(text) => out.extend_from_slice(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).as_bytes()),
            Self::Integer(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Self::Bulk(bytes) => {
                out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Array(items) => {
                out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[&str], used: usize) -> Parsed {
        Parsed::Request(words.iter().map(|word| word.as_bytes().to_vec()).collect(), used)
    }

    #[test]
    fn requests_of_both_forms_are_read() {
        let whole = b"*2\r\n$4\r\nECHO\r\n$3\r\na b\r\nPING\r\n";
        assert_eq!(parse(whole), request(&["ECHO", "a b"], 23));
        assert_eq!(parse(b"PING\r\nx"), request(&["PING"], 6));
        assert_eq!(parse(b"set k \"a\\n b\" 'c d'\n"), request(&["set", "k", "a\n b", "c d"], 20));
        assert_eq!(parse(b"\r\n"), request(&[], 2));
        for length in 0..23 {
            assert_eq!(parse(&whole[..length]), Parsed::Partial, "{length} bytes");
        }
    }

    #[test]
    fn malformed_requests_get_redis_messages() {
        for (bytes, text) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*99999999\r\n", "invalid multibulk length"),
            (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$999999999999\r\n", "invalid bulk length"),
            (b"set k \"open\r\n", "unbalanced quotes in request"),
            (&[b'a'; MAX_LINE], "too big inline request"),
        ] {
            assert_eq!(parse(bytes), Parsed::Wrong(text.into()));
        }
    }
}
