//! One request over HTTP/1.1, and the redirects it leads to.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::options::Options;
use super::{Failure, tls};

/// Largest head of an answer, and largest body.
const MAX_HEAD: u64 = 256 << 10;
const MAX_BODY: u64 = 1 << 30;
const REDIRECTS: usize = 50;

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// Status line and headers, with the empty line.
    pub head: String,
    pub body: Vec<u8>,
    /// Where it was asked for in the end.
    pub url: String,
    pub remote: SocketAddr,
    pub took: Duration,
    /// Why the body is not whole.
    pub broken: Option<Failure>,
}

/// `http[s]://HOST[:PORT][/PATH]`
#[derive(Clone, Debug, PartialEq, Eq)]
struct Url {
    secure: bool,
    host: String,
    port: u16,
    path: String,
}

impl Url {
    fn parse(text: &str) -> Result<Self, Failure> {
        let bad = || Failure::new(3, "URL rejected: Malformed input to a URL function");
        let (secure, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => return Err(Failure::new(1, format!("Protocol {scheme:?} not supported: this curl speaks HTTP and HTTPS only"))),
            None => (false, text),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => inner.split_once(']').map(|(host, port)| (host, port.strip_prefix(':'))).ok_or_else(bad)?,
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(if secure { 443 } else { 80 }), str::parse).map_err(|_| bad())?;
        if host.is_empty() || text.chars().any(char::is_whitespace) {
            return Err(bad());
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { secure, host: host.to_owned(), port, path })
    }

    fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.secure { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }

    fn text(&self) -> String {
        format!("http{}://{}{}", if self.secure { "s" } else { "" }, self.authority(), self.path)
    }

    fn join(&self, location: &str) -> Result<Self, Failure> {
        if location.contains("://") {
            return Self::parse(location);
        }
        let path = if location.starts_with('/') {
            location.to_owned()
        } else {
            let base = self.path.split('?').next().unwrap_or_default();
            format!("{}/{location}", base.rsplit_once('/').map_or("", |(dir, _)| dir))
        };
        Ok(Self { path, ..self.clone() })
    }
}

/// What is left of the time that the whole may take.
struct Clock {
    began: Instant,
    limit: Option<Duration>,
}

impl Clock {
    fn left(&self) -> Result<Option<Duration>, Failure> {
        let Some(limit) = self.limit else { return Ok(None) };
        match limit.checked_sub(self.began.elapsed()).filter(|left| !left.is_zero()) {
            Some(left) => Ok(Some(left)),
            None => Err(self.over()),
        }
    }

    fn over(&self) -> Failure {
        Failure::new(28, format!("Operation timed out after {} milliseconds", self.began.elapsed().as_millis()))
    }
}

pub(super) fn exchange(options: &Options, url: &str, body: Option<&[u8]>, log: &mut dyn Write) -> Result<Answer, Failure> {
    let clock = Clock { began: Instant::now(), limit: options.max_time };
    let mut url = Url::parse(url)?;
    let mut method = options.method.clone().unwrap_or_else(|| {
        let method = if options.head {
            "HEAD"
        } else if body.is_some() {
            "POST"
        } else {
            "GET"
        };
        method.to_owned()
    });
    let mut body = body;
    for _ in 0..=REDIRECTS {
        let answer = once(options, &url, &method, body, &clock, log)?;
        let location = header(&answer.head, "location").filter(|_| options.location && (300..400).contains(&answer.status) && answer.status != 304);
        let Some(location) = location else { return Ok(answer) };
        url = url.join(&location)?;
        if matches!(answer.status, 301..=303) && method == "POST" && options.method.is_none() {
            (method, body) = ("GET".to_owned(), None);
        }
    }
    Err(Failure::new(47, format!("Maximum ({REDIRECTS}) redirects followed")))
}

fn connect(options: &Options, url: &Url, clock: &Clock) -> Result<TcpStream, Failure> {
    let unknown = |_| Failure::new(6, format!("Could not resolve host: {}", url.host));
    let addresses = (url.host.as_str(), url.port).to_socket_addrs().map_err(unknown)?;
    let mut last = ErrorKind::NotFound.into();
    for address in addresses {
        let limit = [clock.left()?, options.connect_timeout, Some(Duration::from_secs(120))].into_iter().flatten().min();
        match TcpStream::connect_timeout(&address, limit.unwrap_or(Duration::from_secs(120))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    let took = clock.began.elapsed().as_millis();
    if last.kind() == ErrorKind::TimedOut {
        return Err(Failure::new(28, format!("Failed to connect to {} port {} after {took} ms: Timeout was reached", url.host, url.port)));
    }
    Err(Failure::new(7, format!("Failed to connect to {} port {} after {took} ms: Could not connect to server", url.host, url.port)))
}

fn once(options: &Options, url: &Url, method: &str, body: Option<&[u8]>, clock: &Clock, log: &mut dyn Write) -> Result<Answer, Failure> {
    let stream = connect(options, url, clock)?;
    let io = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => clock.over(),
        _ => Failure::new(56, format!("Recv failure: {error}")),
    };
    let remote = stream.peer_addr().map_err(io)?;
    let request = request(options, url, method, body)?;
    if options.verbose {
        let _ = writeln!(log, "* Connected to {} ({}) port {}", url.host, remote.ip(), remote.port());
        request.lines().for_each(|line| drop(writeln!(log, "> {line}")));
    }
    stream.set_write_timeout(clock.left()?).map_err(io)?;
    let mut wire = if url.secure {
        let limit = [clock.left()?, options.connect_timeout].into_iter().flatten().min();
        stream.set_read_timeout(limit).map_err(io)?;
        Wire::Tls(Box::new(tls::secure(stream, &url.host, options)?))
    } else {
        Wire::Plain(stream)
    };
    wire.write_all(request.as_bytes()).map_err(io)?;
    wire.write_all(body.unwrap_or_default()).map_err(io)?;
    let mut reader = BufReader::new(Timed { wire: &mut wire, clock });
    let (status, head) = loop {
        let head = read_head(&mut reader).map_err(io)?;
        let status = head.split(' ').nth(1).and_then(|status| status.trim().parse().ok());
        if options.verbose {
            head.lines().for_each(|line| drop(writeln!(log, "< {line}")));
        }
        match status {
            _ if head.is_empty() => return Err(Failure::new(52, "Empty reply from server")),
            None => return Err(Failure::new(1, "Received HTTP/0.9 when not allowed")),
            Some(100..=199) => {}
            Some(status) => break (status, head),
        }
    };
    let (body, broken) = if method == "HEAD" || status == 204 || status == 304 { (Vec::new(), None) } else { read_body(&mut reader, &head, clock) };
    Ok(Answer { status, head, body, url: url.text(), remote, took: clock.began.elapsed(), broken })
}

fn request(options: &Options, url: &Url, method: &str, body: Option<&[u8]>) -> Result<String, Failure> {
    let given = |name: &str| options.headers.iter().any(|line| line.split(':').next().is_some_and(|given| given.trim().eq_ignore_ascii_case(name)));
    let mut text = format!("{method} {} HTTP/1.1\r\n", url.path);
    let mut own = vec![("Host", url.authority()), ("User-Agent", "curl/8.9.1 (Mullion)".to_owned()), ("Accept", "*/*".to_owned())];
    own.push(("Connection", "close".to_owned()));
    if let Some(user) = &options.user {
        own.push(("Authorization", format!("Basic {}", base64(user.as_bytes()))));
    }
    if let Some(body) = body {
        own.push(("Content-Length", body.len().to_string()));
        own.push(("Content-Type", "application/x-www-form-urlencoded".to_owned()));
    }
    for (name, value) in own.into_iter().filter(|(name, _)| !given(name)) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    for line in &options.headers {
        // `Name:` alone leaves the header out.
        if line.split_once(':').is_some_and(|(_, value)| !value.trim().is_empty()) {
            text.push_str(&format!("{line}\r\n"));
        }
    }
    if text.split("\r\n").any(|line| line.contains(['\r', '\n'])) {
        return Err(Failure::new(43, "A header cannot hold a line break"));
    }
    Ok(text + "\r\n")
}

/// A connection.
enum Wire {
    Plain(TcpStream),
    Tls(Box<tls::Stream>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// A connection whose every read ends when the time is over.
struct Timed<'a> {
    wire: &'a mut Wire,
    clock: &'a Clock,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.clock.left().map_err(|_| ErrorKind::TimedOut)?;
        self.wire.socket().set_read_timeout(left)?;
        match self.wire {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

fn read_head(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut limited = reader.take(MAX_HEAD);
    loop {
        let before = head.len();
        let count = limited.read_until(b'\n', &mut head)?;
        if count == 0 || head[before..].trim_ascii().is_empty() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn header(head: &str, name: &str) -> Option<String> {
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).next()
}

/// The body as far as it came, and why not further.
fn read_body(reader: &mut impl BufRead, head: &str, clock: &Clock) -> (Vec<u8>, Option<Failure>) {
    let mut body = Vec::new();
    let result = match header(head, "content-length").and_then(|length| length.parse::<u64>().ok()) {
        _ if header(head, "transfer-encoding").is_some_and(|coding| coding.to_lowercase().contains("chunked")) => chunks(reader, &mut body),
        Some(length) => match reader.take(length.min(MAX_BODY)).read_to_end(&mut body) {
            Ok(count) if (count as u64) < length => {
                return (body, Some(Failure::new(18, format!("end of response with {} bytes missing", length - count as u64))));
            }
            other => other.map(drop),
        },
        None => reader.take(MAX_BODY).read_to_end(&mut body).map(drop),
    };
    let broken = result.err().map(|error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => clock.over(),
        ErrorKind::UnexpectedEof => Failure::new(18, "transfer closed with outstanding read data remaining"),
        _ => Failure::new(56, format!("Recv failure: {error}")),
    });
    (body, broken)
}

fn chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        let mut line = Vec::new();
        reader.take(4096).read_until(b'\n', &mut line)?;
        let line = String::from_utf8_lossy(&line);
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| ErrorKind::UnexpectedEof)?;
        if size == 0 {
            return Ok(());
        }
        if size + body.len() as u64 > MAX_BODY {
            return Err(std::io::Error::other("larger than this curl takes"));
        }
        if reader.take(size).read_to_end(body)? as u64 != size {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut end = Vec::new();
        reader.take(2).read_until(b'\n', &mut end)?;
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in bytes.chunks(3) {
        let number = part.iter().fold(0u32, |number, byte| (number << 8) | u32::from(*byte)) << (8 * (3 - part.len()));
        for index in 0..4 {
            let digit = (number >> (18 - 6 * index)) & 63;
            out.push(if index <= part.len() { char::from(DIGITS[digit as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_joined() {
        let url = Url::parse("http://u@h:81/a/b?c#d").unwrap();
        assert_eq!(url, Url { secure: false, host: "h".into(), port: 81, path: "/a/b?c".into() });
        assert_eq!(url.join("x").unwrap().text(), "http://h:81/a/x");
        assert_eq!(url.join("/x").unwrap().text(), "http://h:81/x");
        assert_eq!(url.join("http://o/").unwrap().text(), "http://o/");
        assert_eq!(Url::parse("h?q").unwrap().path, "/?q");
        assert_eq!(Url::parse("[::1]:8080").unwrap().authority(), "[::1]:8080");
        assert_eq!(Url::parse("http://").unwrap_err().code, 3);
        assert_eq!(Url::parse("HTTPS://h").map(|url| (url.port, url.text())).unwrap(), (443, "https://h/".to_owned()));
        assert_eq!(Url::parse("https://h:80/").unwrap().text(), "https://h:80/");
        assert_eq!(url.join("https://o/x").unwrap().text(), "https://o/x");
    }

    #[test]
    fn base64_is_padded() {
        assert_eq!(["", "a", "ab", "abc", "user:pw"].map(|text| base64(text.as_bytes())), ["", "YQ==", "YWI=", "YWJj", "dXNlcjpwdw=="]);
    }
}
