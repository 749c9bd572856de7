//! DNS resolver like a pod's system resolver: hosts file, search list, servers in order.

use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};

/// A pod's resolver settings, as CRI's `DNSConfig` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(unix, derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Dns {
    /// Addresses of servers.
    pub servers: Vec<String>,
    /// Suffixes tried in order.
    pub searches: Vec<String>,
    /// Options of resolv.conf, such as `ndots:5`.
    pub options: Vec<String>,
}

const TRY: Duration = Duration::from_secs(2);

impl Dns {
    /// Reads `resolv.conf`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => dns.servers.extend(words.next()),
                Some("search") => dns.searches = words.collect(),
                Some("options") => dns.options.extend(words),
                _ => {}
            }
        }
        dns
    }

    fn ndots(&self) -> usize {
        self.options.iter().find_map(|option| option.strip_prefix("ndots:")).and_then(|dots| dots.parse().ok()).unwrap_or(1)
    }

    /// The names to ask for, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(full) = name.strip_suffix('.') {
            return vec![full.to_owned()];
        }
        let searched = self.searches.iter().map(|suffix| format!("{name}.{}", suffix.trim_matches('.')));
        let mut names: Vec<String> = searched.collect();
        let first = name.matches('.').count() >= self.ndots();
        names.insert(if first { 0 } else { names.len() }, name.to_owned());
        names
    }
}

/// Resolves names for one pod.
#[derive(Clone, Debug)]
pub struct Resolver {
    dns: Dns,
    hosts: Option<PathBuf>,
}

impl Resolver {
    /// With the pod's settings and the place of its hosts file.
    pub fn new(dns: Dns, hosts: Option<PathBuf>) -> Self {
        Self { dns, hosts }
    }

    /// The addresses of a name; an address is its own.
    ///
    /// # Errors
    /// When no server knows the name or none answers; the message names both.
    pub fn resolve(&self, name: &str) -> Result<Vec<IpAddr>> {
        if let Ok(address) = name.trim_matches(['[', ']']).parse() {
            return Ok(vec![address]);
        }
        let hosts = self.hosts.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let known = from_hosts(&hosts, name);
        if !known.is_empty() {
            return Ok(known);
        }
        self.look_up(name).map(|(_, addresses)| addresses)
    }

    /// The full name that a server knows, and its addresses.
    ///
    /// # Errors
    /// As [`Resolver::resolve`].
    pub(crate) fn look_up(&self, name: &str) -> Result<(String, Vec<IpAddr>)> {
        if self.dns.servers.is_empty() {
            bail!("cannot resolve {name}: the pod has no DNS server");
        }
        for candidate in self.dns.candidates(name) {
            for kind in [TYPE::A, TYPE::AAAA] {
                let found = self.ask_all(&candidate, kind)?;
                if !found.is_empty() {
                    return Ok((candidate, found));
                }
            }
        }
        bail!("cannot resolve {name}: no such name (asked {})", self.dns.servers.join(", "))
    }

    /// Asks the servers in order until one answers.
    fn ask_all(&self, name: &str, kind: TYPE) -> Result<Vec<IpAddr>> {
        let mut last = anyhow!("no server");
        for server in &self.dns.servers {
            match ask(server, name, kind) {
                Ok(found) => return Ok(found),
                Err(error) => last = error.context(format!("cannot resolve {name} at {server}")),
            }
        }
        Err(last)
    }
}

fn from_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or(""));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
        })
        .collect()
}

fn ask(server: &str, name: &str, kind: TYPE) -> Result<Vec<IpAddr>> {
    let server: SocketAddr = match server.parse::<IpAddr>() {
        Ok(ip) => (ip, 53).into(),
        Err(_) => server.parse().with_context(|| format!("{server:?} is not an address"))?,
    };
    let id = u16::try_from(std::hash::RandomState::new().build_hasher().finish() & 0xffff).unwrap_or(0);
    let mut message = Packet::new_query(id);
    message.set_flags(PacketFlag::RECURSION_DESIRED);
    message.questions.push(Question::new(Name::new(name)?, kind.into(), CLASS::IN.into(), false));
    let query = message.build_bytes_vec()?;
    let mut answer = None;
    for _ in 0..2 {
        answer = over_udp(server, &query, id)?;
        if answer.is_some() {
            break;
        }
    }
    let mut answer = answer.context("no answer within 4 s")?;
    if answer.truncated {
        answer = over_tcp(server, &query, id).context("no answer over TCP")?;
    }
    match answer.code {
        RCODE::NoError | RCODE::NameError => Ok(answer.addresses),
        code => bail!("the server answered {}", reason(code)),
    }
}

/// As Windows' nslookup says it.
fn reason(code: RCODE) -> String {
    match code {
        RCODE::FormatError => "Format error".to_owned(),
        RCODE::ServerFailure => "Server failed".to_owned(),
        RCODE::NotImplemented => "Not implemented".to_owned(),
        RCODE::Refused => "Query refused".to_owned(),
        other => format!("{other:?}"),
    }
}

/// What matters of a server's answer.
struct Answer {
    truncated: bool,
    code: RCODE,
    addresses: Vec<IpAddr>,
}

impl Answer {
    /// Reads an answer to the question `id`; nothing where it is one to another question, or none.
    fn parse(packet: &[u8], id: u16) -> Option<Self> {
        let packet = Packet::parse(packet).ok().filter(|packet| packet.id() == id && packet.has_flags(PacketFlag::RESPONSE))?;
        let addresses = packet.answers.iter().filter_map(|record| match &record.rdata {
            RData::A(a) => Some(IpAddr::from(a.address.to_be_bytes())),
            RData::AAAA(aaaa) => Some(IpAddr::from(aaaa.address.to_be_bytes())),
            _ => None,
        });
        Some(Self { truncated: packet.has_flags(PacketFlag::TRUNCATION), code: packet.rcode(), addresses: addresses.collect() })
    }
}

/// None: no answer in time.
fn over_udp(server: SocketAddr, query: &[u8], id: u16) -> Result<Option<Answer>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.send(query)?;
    let begin = Instant::now();
    let mut buffer = [0u8; 1500];
    loop {
        let Some(left) = TRY.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else { return Ok(None) };
        socket.set_read_timeout(Some(left))?;
        let count = match socket.recv(&mut buffer) {
            Ok(count) => count,
            // Unix says the one, Windows the other.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Late answers to another question, or forged ones, are passed over.
        if let Some(answer) = Answer::parse(&buffer[..count], id) {
            return Ok(Some(answer));
        }
    }
}

fn over_tcp(server: SocketAddr, query: &[u8], id: u16) -> Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, TRY)?;
    stream.set_read_timeout(Some(TRY))?;
    stream.set_write_timeout(Some(TRY))?;
    stream.write_all(&[&u16::try_from(query.len())?.to_be_bytes(), query].concat())?;
    let mut length = [0u8; 2];
    stream.read_exact(&mut length)?;
    let mut buffer = vec![0u8; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut buffer)?;
    Answer::parse(&buffer, id).context("what the server sent is no answer to the question")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use simple_dns::ResourceRecord;

    use super::*;

    #[test]
    fn search_lists_follow_ndots() {
        let dns =
            Dns { searches: vec!["default.svc.cluster.local".into(), "svc.cluster.local".into()], options: vec!["ndots:5".into()], ..Dns::default() };
        assert_eq!(dns.candidates("iis"), ["iis.default.svc.cluster.local", "iis.svc.cluster.local", "iis"]);
        assert_eq!(dns.candidates("a.b."), ["a.b"]);
        let plain = Dns { searches: vec!["x".into()], ..Dns::default() };
        assert_eq!(plain.candidates("a.b"), ["a.b", "a.b.x"]);
    }

    #[test]
    fn resolver_settings_are_read() {
        let dns = Dns::parse("# x\nnameserver 10.96.0.10\nsearch a b\noptions ndots:5\n");
        assert_eq!(dns, Dns { servers: vec!["10.96.0.10".into()], searches: vec!["a".into(), "b".into()], options: vec!["ndots:5".into()] });
    }

    #[test]
    fn hosts_files_are_read() {
        let hosts = "# comment\n127.0.0.1 localhost\n10.1.2.3  web WEB.example # x\n";
        assert_eq!(from_hosts(hosts, "web.Example"), ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        assert!(from_hosts(hosts, "comment").is_empty());
    }

    #[test]
    fn a_server_is_asked_with_the_search_list() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let server = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0u8; 512];
            loop {
                let (count, from) = socket.recv_from(&mut buffer).unwrap();
                let query = Packet::parse(&buffer[..count]).unwrap();
                let asked = query.questions[0].clone();
                let mut answer = Packet::new_reply(query.id());
                if asked.qname.to_string() == "web.ns.svc" && asked.qtype == TYPE::A.into() {
                    let data = RData::A(Ipv4Addr::new(10, 96, 0, 7).into());
                    answer.answers.push(ResourceRecord::new(asked.qname.clone(), CLASS::IN, 5, data));
                } else {
                    *answer.rcode_mut() = RCODE::NameError;
                }
                answer.questions.push(asked);
                socket.send_to(&answer.build_bytes_vec().unwrap(), from).unwrap();
            }
        });
        let dns = Dns { servers: vec![server.to_string()], searches: vec!["ns.svc".into()], options: vec!["ndots:5".into()] };
        let resolver = Resolver::new(dns, None);
        assert_eq!(resolver.resolve("web").unwrap(), ["10.96.0.7".parse::<IpAddr>().unwrap()]);
        let error = resolver.resolve("other").unwrap_err().to_string();
        assert!(error.contains("no such name"), "{error}");
    }
}
