//! What the simulated host forwards between two of its pods, beside a plain bridge.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hcn::NetworkType;
use ipnet::IpNet;
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;
use nft::{Batch, Chain, ChainType, Family, Hook, Nft, Table, ct_state, rule};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::{Host, net};
use crate::figures::{Amount, Figures, Limit};

/// How often each way is measured, in turns.
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(600);
const PATIENCE: Duration = Duration::from_secs(5);

const STREAM: u16 = 5001;
/// Answered by the processor of the same number.
const ANSWERS: [u16; 2] = [5002, 5003];

/// Answers every byte with a byte.
pub(super) fn serve(ns: &NetNs, port: u16) -> Result<()> {
    answer(ns, port, None)
}

fn answer(ns: &NetNs, port: u16, processor: Option<usize>) -> Result<()> {
    accept(ns, port, move |mut stream| {
        if let Some(processor) = processor {
            stay(processor);
        }
        let mut byte = [0];
        while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
    })
}

fn accept(ns: &NetNs, port: u16, with: impl Fn(TcpStream) + Send + Copy + 'static) -> Result<()> {
    let listener = ns.run(move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // The benchmark ends with its threads.
            std::thread::spawn(move || drop(stream.set_nodelay(true).map(|()| with(stream))));
        }
    });
    Ok(())
}

/// Keeps the calling thread on a processor. Where the two ends of an exchange run decides more than what is between them: on one processor the
/// way is all that an exchange costs, on two it is mostly the waking of the other one; left to the kernel, each run is another mixture.
fn stay(processor: usize) {
    let mut one = CpuSet::new();
    if let Err(error) = one.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &one)) {
        eprintln!("processor {processor} cannot be had ({error}): the figures of requests and responses vary");
    }
}

fn connect(ns: &NetNs, address: SocketAddr) -> Result<TcpStream> {
    let stream = ns.run(move || TcpStream::connect_timeout(&address, PATIENCE))?.with_context(|| format!("nothing answers at {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One byte there and back.
pub(super) fn ask(ns: &NetNs, address: SocketAddr) -> Result<()> {
    let mut stream = connect(ns, address)?;
    stream.write_all(b"?")?;
    Ok(stream.read_exact(&mut [0])?)
}

/// Two ends that reach each other.
struct Way {
    client: NetNs,
    server: Ipv4Addr,
    /// Keeps the namespace between them.
    _between: NetNs,
}

impl Way {
    fn new(client: NetNs, server: &NetNs, address: Ipv4Addr, between: NetNs) -> Result<Self> {
        accept(server, STREAM, |mut stream| {
            let mut buffer = vec![0; 256 << 10];
            while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
        })?;
        for (processor, port) in ANSWERS.into_iter().enumerate() {
            answer(server, port, Some(processor))?;
        }
        Ok(Self { client, server: address, _between: between })
    }

    /// Bytes a second.
    fn stream(&self) -> Result<f64> {
        let mut stream = connect(&self.client, (self.server, STREAM).into())?;
        let buffer = vec![0; 256 << 10];
        let (began, mut sent) = (Instant::now(), 0);
        while began.elapsed() < ROUND {
            sent += stream.write(&buffer)?;
        }
        Ok(sent as f64 / began.elapsed().as_secs_f64())
    }

    /// Requests with their answers a second, from the first processor to the one whose port it is.
    fn answers(&self, port: u16) -> Result<f64> {
        stay(0);
        let mut stream = connect(&self.client, (self.server, port).into())?;
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < ROUND {
            stream.write_all(b"?")?;
            stream.read_exact(&mut [0])?;
            count += 1;
        }
        Ok(f64::from(count) / began.elapsed().as_secs_f64())
    }
}

/// A namespace with that address at its end of a veth pair; the other end's number.
fn end(between: &Rtnl, number: u8, address: IpNet) -> Result<(NetNs, u32)> {
    let end = NetNs::new_anonymous()?;
    let (name, inside) = (format!("v{number}"), Rtnl::open_in(&end)?);
    between.add_veth(&name, "eth0", Some(&end))?;
    let (outer, inner) = (between.link(&name)?.context("gone")?.index, inside.link("eth0")?.context("gone")?.index);
    between.set_up(outer)?;
    inside.add_addr(inner, address)?;
    inside.set_up(inner)?;
    Ok((end, outer))
}

/// Two namespaces on a plain bridge.
fn plain() -> Result<Way> {
    let ns = NetNs::new_anonymous()?;
    let rtnl = Rtnl::open_in(&ns)?;
    rtnl.add_bridge("plain")?;
    let bridge = rtnl.link("plain")?.context("the bridge is gone")?.index;
    rtnl.set_up(bridge)?;
    match sysctl::set_in(&ns, "net.bridge.bridge-nf-call-iptables", "0") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut ends = Vec::new();
    for number in [1, 2] {
        let (end, outer) = end(&rtnl, number, net(&format!("10.9.0.{number}/24")))?;
        rtnl.set_master(outer, Some(bridge))?;
        ends.push(end);
    }
    let [client, server] = ends.try_into().map_err(|_| anyhow::anyhow!("two ends"))?;
    Way::new(client, &server, [10, 9, 0, 2].into(), ns)
}

/// Two namespaces with a router between them, which may know connections and has no other rule.
fn router(tracking: bool) -> Result<Way> {
    let ns = NetNs::new_anonymous()?;
    let rtnl = Rtnl::open_in(&ns)?;
    sysctl::set_in(&ns, "net.ipv4.ip_forward", "1")?;
    if tracking {
        let table = Table::new(Family::Ip, "tracking");
        let mut batch = Batch::new();
        batch.add_table(&table).add_chain(&table, &Chain::base("forward", ChainType::Filter, Hook::Forward, 0));
        batch.add_rule(&table, "forward", rule().ct_state(ct_state::ESTABLISHED | ct_state::RELATED).accept());
        Nft::open_in(&ns)?.commit(&batch)?;
    }
    let mut ends = Vec::new();
    for number in [1, 2] {
        let (end, outer) = end(&rtnl, number, net(&format!("10.9.{number}.2/24")))?;
        rtnl.add_addr(outer, net(&format!("10.9.{number}.1/24")))?;
        let inside = Rtnl::open_in(&end)?;
        let inner = inside.link("eth0")?.context("eth0 is gone")?.index;
        inside.add_route(&Route::new(net("0.0.0.0/0")).via([10, 9, number, 1].into()).oif(inner))?;
        ends.push(end);
    }
    let [client, server] = ends.try_into().map_err(|_| anyhow::anyhow!("two ends"))?;
    Way::new(client, &server, [10, 9, 2, 2].into(), ns)
}

/// The highest of both ways, taken in turns: what else runs on the machine only ever slows.
fn compare(plain: &Way, routed: &Way, measure: impl Fn(&Way) -> Result<f64>) -> Result<(f64, f64)> {
    let (mut of_plain, mut of_routed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_plain.push(measure(plain)?);
        of_routed.push(measure(routed)?);
    }
    let best = |rates: Vec<f64>| rates.into_iter().fold(0.0, f64::max);
    Ok((best(of_plain), best(of_routed)))
}

pub(super) fn measure(figures: &mut Figures) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let host = Host::new(directory.path())?;
    let network = host.network(NetworkType::L2Bridge, "192.168.1.0/24", "192.168.1.1")?;
    let gateway = [192, 168, 1, 1].into();
    let (client, _) = host.pod(network, 0, [192, 168, 1, 10].into(), gateway)?;
    let (server, _) = host.pod(network, 1, [192, 168, 1, 11].into(), gateway)?;
    let routed = Way::new(client.ns, &server.ns, server.address, host.ns.clone())?;
    let plain = plain()?;
    let (of_plain, of_routed) = compare(&plain, &routed, Way::stream)?;
    let detail = format!("{:.1} of {:.1} Gbit/s", of_routed * 8e-9, of_plain * 8e-9);
    let share = Amount::percent(of_routed / of_plain * 100.0);
    figures.add_detailed("pod to pod on one host beside a plain bridge, stream", share, detail, Limit::AtLeast(Amount::percent(75.0)));
    let (alone, tracking) = (router(false)?, router(true)?);
    let least = Limit::AtLeast(Amount::percent(85.0));
    let ways = [
        ("pod to pod on one host", &routed, least),
        ("a router alone", &alone, Limit::Background),
        ("a router that tracks connections", &tracking, Limit::Background),
    ];
    for (processors, port) in ["one processor", "two processors"].into_iter().zip(ANSWERS) {
        for (name, way, limit) in ways {
            let (of_plain, of_way) = compare(&plain, way, |way| way.answers(port))?;
            let (share, detail) = (Amount::percent(of_way / of_plain * 100.0), format!("{of_way:.0} of {of_plain:.0} a second"));
            let name = format!("{name} beside a plain bridge, request and response on {processors}");
            figures.add_detailed(name, share, detail, limit);
        }
    }
    Ok(())
}
