//! Links between namespaces, and small servers and clients in them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use linux_sys::netlink::{BridgePort, Route, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;

use crate::LIMIT;

/// Gives a link addresses, and sets it up. Returns its index.
pub fn set_up(rtnl: &Rtnl, link: &str, addresses: &[&str]) -> u32 {
    let index = rtnl.link(link).unwrap().unwrap_or_else(|| panic!("there is no link {link}")).index;
    for address in addresses {
        rtnl.add_addr(index, address.parse().unwrap()).unwrap();
    }
    rtnl.set_up(index).unwrap();
    index
}

/// Makes the kernel act on the carrier of each link now, which may take it a second otherwise. Bridges come last: they need their ports.
pub fn settle(ns: &NetNs) {
    let rtnl = Rtnl::open_in(ns).unwrap();
    let mut links = rtnl.links().unwrap();
    links.sort_by_key(|link| link.kind == "bridge");
    links.iter().for_each(|link| drop(rtnl.link(&link.name).unwrap()));
}

/// Links made in `ns` from now on use their IPv6 addresses at once. A link asks for no neighbour while its link-local address is being
/// checked, which takes up to two seconds, and a packet to forward waits for three at most.
fn without_dad(ns: &NetNs) {
    sysctl::set_in(ns, "net.ipv6.conf.default.accept_dad", "0").unwrap();
}

/// A new namespace behind a pair of links from this one: the name and the addresses of the link here, and those of the link there.
pub fn neighbour(here: (&str, &[&str]), there: (&str, &[&str])) -> NetNs {
    let ns = NetNs::new_anonymous().unwrap();
    for side in [&NetNs::current().unwrap(), &ns] {
        without_dad(side);
    }
    let (near, far) = (Rtnl::open().unwrap(), Rtnl::open_in(&ns).unwrap());
    near.add_veth(here.0, there.0, Some(&ns)).unwrap();
    set_up(&near, here.0, here.1);
    set_up(&far, there.0, there.1);
    ns
}

/// Adds a route to `prefix` by way of `gateway`.
pub fn route(rtnl: &Rtnl, prefix: &str, gateway: &str) {
    rtnl.add_route(&Route::new(prefix.parse().unwrap()).via(gateway.parse().unwrap())).unwrap();
}

/// A pod of a Linux node with addresses of both families, 10.1.0.N and fd00:1::N with `n` + 2 for N: a namespace whose link's other end is
/// `podN` on `bridge`. Its gateways end with 1. IPv6 has no proxy for neighbours of an isolated port, so all of it goes through the node.
pub fn pod(node: &Rtnl, bridge: u32, n: usize, port: BridgePort) -> NetNs {
    let ns = NetNs::new_anonymous().unwrap();
    without_dad(&ns);
    sysctl::set_in(&ns, "net.ipv6.conf.default.accept_redirects", "0").unwrap();
    let name = format!("pod{n}");
    node.add_veth(&name, "eth0", Some(&ns)).unwrap();
    let index = node.link(&name).unwrap().unwrap().index;
    node.set_master(index, Some(bridge)).unwrap();
    node.set_bridge_port(index, port).unwrap();
    node.set_up(index).unwrap();
    let inside = Rtnl::open_in(&ns).unwrap();
    set_up(&inside, "lo", &[]);
    let eth0 = set_up(&inside, "eth0", &[&format!("10.1.0.{}/24", n + 2), &format!("fd00:1::{}/128", n + 2)]);
    route(&inside, "0.0.0.0/0", "10.1.0.1");
    inside.add_route(&Route::new("fd00:1::1/128".parse().unwrap()).oif(eth0)).unwrap();
    inside.add_route(&Route::new("::/0".parse().unwrap()).via("fd00:1::1".parse().unwrap()).oif(eth0)).unwrap();
    settle(&ns);
    ns
}

/// A LAN 10.240.0.0/24: a bridge in a namespace of its own, which is also the router at 10.240.0.1.
pub struct Lan {
    /// Where the bridge is, which every frame crosses.
    pub router: NetNs,
}

impl Default for Lan {
    fn default() -> Self {
        Self::new()
    }
}

impl Lan {
    /// Without hosts. It forwards nothing.
    pub fn new() -> Self {
        let router = NetNs::new_anonymous().unwrap();
        let rtnl = Rtnl::open_in(&router).unwrap();
        rtnl.add_bridge("lan0").unwrap();
        set_up(&rtnl, "lan0", &["10.240.0.1/24"]);
        Self { router }
    }

    /// A host with that address on its `eth0`, and the router as its default gateway.
    pub fn host(&self, address: &str) -> NetNs {
        let ns = NetNs::new_anonymous().unwrap();
        let (inside, lan) = (Rtnl::open_in(&ns).unwrap(), Rtnl::open_in(&self.router).unwrap());
        let port = format!("h{}", address.rsplit('.').next().unwrap());
        lan.add_veth(&port, "eth0", Some(&ns)).unwrap();
        let bridge = lan.link("lan0").unwrap().unwrap().index;
        lan.set_master(lan.link(&port).unwrap().unwrap().index, Some(bridge)).unwrap();
        set_up(&lan, &port, &[]);
        set_up(&inside, "eth0", &[&format!("{address}/24")]);
        route(&inside, "0.0.0.0/0", "10.240.0.1");
        ns
    }
}

/// Serves TCP at an address of a namespace, as long as the process lives: each connection has a thread, which `talk` ends.
pub fn serve_tcp(ns: &NetNs, at: &str, talk: impl Fn(TcpStream, IpAddr) -> io::Result<()> + Clone + Send + 'static) {
    let at: SocketAddr = at.parse().unwrap();
    let listener = ns.run(move || TcpListener::bind(at)).unwrap().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            let talk = talk.clone();
            // A client that is gone is no failure of the server.
            std::thread::spawn(move || drop(talk(stream, peer.ip().to_canonical())));
        }
    });
}

/// Sends each client at an address the greeting for its own address, and closes the connection.
pub fn greet(ns: &NetNs, at: &str, greeting: impl Fn(IpAddr) -> String + Clone + Send + 'static) {
    serve_tcp(ns, at, move |mut stream, peer| stream.write_all(greeting(peer).as_bytes()));
}

/// Answers each datagram at an address with what `answer` makes of its sender and its content.
pub fn serve_udp(ns: &NetNs, at: &str, answer: impl Fn(IpAddr, &[u8]) -> String + Send + 'static) {
    let at: SocketAddr = at.parse().unwrap();
    let socket = ns.run(move || UdpSocket::bind(at)).unwrap().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(answer(peer.ip().to_canonical(), &buffer[..length]).as_bytes(), peer);
        }
    });
}

/// Connects from a namespace.
///
/// # Errors
/// The kernel's, and a timeout after `patience`.
pub fn connect(ns: &NetNs, to: &str, patience: Duration) -> io::Result<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    let stream = ns.run(move || TcpStream::connect_timeout(&to, patience)).unwrap()?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// What a server sends that closes the connection (see [`greet`]).
///
/// # Errors
/// As [`connect`], and the connection's.
pub fn greeting(ns: &NetNs, to: &str, patience: Duration) -> io::Result<String> {
    let mut text = String::new();
    connect(ns, to, patience)?.read_to_string(&mut text)?;
    Ok(text)
}

/// The answer to one datagram from a namespace. The socket is connected: it gets answers of nobody else.
///
/// # Errors
/// The kernel's, and a timeout after `patience`.
pub fn ask_udp(ns: &NetNs, to: &str, patience: Duration) -> io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = ns.run(|| UdpSocket::bind(any)).unwrap()?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect(to)?;
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
