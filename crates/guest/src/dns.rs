//! Resolving names the way a pod's system resolver would: hosts file, search list, servers in order.

use std::hash::{BuildHasher as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

/// A pod's resolver settings, as CRI's `DNSConfig` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>> {
        if let Ok(address) = name.trim_matches(['[', ']']).parse() {
            return Ok(vec![address]);
        }
        let hosts = self.hosts.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let known = from_hosts(&hosts, name);
        if !known.is_empty() {
            return Ok(known);
        }
        self.look_up(name).await.map(|(_, addresses)| addresses)
    }

    /// The full name that a server knows, and its addresses.
    ///
    /// # Errors
    /// As [`Resolver::resolve`].
    pub(crate) async fn look_up(&self, name: &str) -> Result<(String, Vec<IpAddr>)> {
        if self.dns.servers.is_empty() {
            bail!("cannot resolve {name}: the pod has no DNS server");
        }
        for candidate in self.dns.candidates(name) {
            for kind in [RecordType::A, RecordType::AAAA] {
                let found = self.ask_all(&candidate, kind).await?;
                if !found.is_empty() {
                    return Ok((candidate, found));
                }
            }
        }
        bail!("cannot resolve {name}: no such name (asked {})", self.dns.servers.join(", "))
    }

    /// Asks the servers in order until one answers.
    async fn ask_all(&self, name: &str, kind: RecordType) -> Result<Vec<IpAddr>> {
        let mut last = anyhow!("no server");
        for server in &self.dns.servers {
            match ask(server, name, kind).await {
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

async fn ask(server: &str, name: &str, kind: RecordType) -> Result<Vec<IpAddr>> {
    let server: SocketAddr = match server.parse::<IpAddr>() {
        Ok(ip) => (ip, 53).into(),
        Err(_) => server.parse().with_context(|| format!("{server:?} is not an address"))?,
    };
    let id = u16::try_from(std::hash::RandomState::new().build_hasher().finish() & 0xffff).unwrap_or(0);
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(format!("{name}."))?, kind));
    let query = message.to_vec()?;
    let mut answer = None;
    for _ in 0..2 {
        if let Ok(result) = tokio::time::timeout(TRY, over_udp(server, &query, id)).await {
            answer = Some(result?);
            break;
        }
    }
    let mut answer = answer.context("no answer within 4 s")?;
    if answer.metadata.truncation {
        answer = tokio::time::timeout(TRY, over_tcp(server, &query)).await.context("no answer over TCP within 2 s")??;
    }
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => {}
        code => bail!("the server answered {code}"),
    }
    let addresses = answer.answers.iter().filter_map(|record| match &record.data {
        RData::A(a) => Some(IpAddr::V4(a.0)),
        RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
        _ => None,
    });
    Ok(addresses.collect())
}

async fn over_udp(server: SocketAddr, query: &[u8], id: u16) -> Result<Message> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = [0u8; 1500];
    loop {
        let count = socket.recv(&mut buffer).await?;
        // Late answers to another question, or forged ones, are passed over.
        if let Ok(answer) = Message::from_vec(&buffer[..count])
            && answer.metadata.id == id
        {
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &[u8]) -> Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(query.len())?).await?;
    stream.write_all(query).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0u8; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    Ok(Message::from_vec(&buffer)?)
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn a_server_is_asked_with_the_search_list() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0u8; 512];
            loop {
                let (count, from) = socket.recv_from(&mut buffer).await.unwrap();
                let query = Message::from_vec(&buffer[..count]).unwrap();
                let asked = query.queries[0].clone();
                let mut answer = Message::response(query.metadata.id, OpCode::Query);
                if asked.name().to_ascii() == "web.ns.svc." && asked.query_type() == RecordType::A {
                    let data = RData::A(hickory_proto::rr::rdata::A::new(10, 96, 0, 7));
                    answer.answers.push(hickory_proto::rr::Record::from_rdata(asked.name().clone(), 5, data));
                } else {
                    answer.metadata.response_code = ResponseCode::NXDomain;
                }
                answer.add_query(asked);
                socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
            }
        });
        let dns = Dns { servers: vec![server.to_string()], searches: vec!["ns.svc".into()], options: vec!["ndots:5".into()] };
        let resolver = Resolver::new(dns, None);
        assert_eq!(resolver.resolve("web").await.unwrap(), ["10.96.0.7".parse::<IpAddr>().unwrap()]);
        let error = resolver.resolve("other").await.unwrap_err().to_string();
        assert!(error.contains("no such name"), "{error}");
    }
}
