//! Bytes and connections through the user-space proxy, beside a relay that does nothing but splice.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::Key;
use host::LinuxAddresses;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use service_proxy::userspace::{Settings, Userspace};
use service_proxy::{Backend, Front, FrontKey, Kind, NodePorts, Protocol, Table, Vip};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Figures, Helper};
use crate::up::median;

/// As many files as the system allows.
pub fn raise_limits() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

/// What a pipe of the bare relay holds: with more, bytes leave the processor's caches before they leave the pipe.
const PIPE: usize = 1 << 18;

/// Relays by threads that block: the least that can be done.
pub fn bare(from: SocketAddr, to: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(from)?;
    println!("listening");
    for client in listener.incoming() {
        let (client, backend) = (Arc::new(client?), Arc::new(TcpStream::connect(to)?));
        for (from, to) in [(client.clone(), backend.clone()), (backend, client)] {
            let one_way = move || -> Result<()> {
                let (read, write) = pipe()?;
                fcntl_setpipe_size(&write, PIPE)?;
                loop {
                    let mut inside = splice(&*from, None, &write, None, PIPE, SpliceFlags::MOVE)?;
                    if inside == 0 {
                        return Ok(to.shutdown(Shutdown::Write)?);
                    }
                    while inside > 0 {
                        inside -= splice(&read, None, &*to, None, inside, SpliceFlags::MOVE)?;
                    }
                }
            };
            std::thread::spawn(one_way);
        }
    }
    Ok(())
}

/// The proxy as it is used: a Service's address on an interface, one back end.
pub fn user_space(from: SocketAddr, to: SocketAddr) -> Result<()> {
    // As the agents run.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    let mut proxy = Userspace::new(Settings {
        interface: Some(Arc::new(LinuxAddresses::open("lo")?)),
        node_ips: Vec::new(),
        node_ports: NodePorts::Primary,
        pods: Vec::new(),
        udp_idle: Duration::from_secs(30),
    });
    let key = FrontKey { vip: Vip::Address(from.ip()), protocol: Protocol::Tcp, port: from.port() };
    let backends = [Backend { address: to.ip(), port: to.port(), local: true }].into();
    let mut table = Table::default();
    table.set_service(&Key::new("bench", "web"), vec![(key, Front { backends, ..Front::new("bench/web:80", Kind::ClusterIp) })]);
    let outcome = proxy.sync(&table, &BTreeSet::new(), true).map_err(anyhow::Error::msg)?;
    ensure!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    println!("listening");
    runtime.block_on(std::future::pending::<()>());
    Ok(())
}

/// Connections that carry at once, and for how long they do.
const STREAMS: usize = 2;
const SPAN: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 7;
const AT_ONCE: usize = 4_000;
/// Quiet connections need no pipe; so many are kept for those that speak.
const KEPT: usize = 64;
const SERVICE: &str = "10.96.0.1:80";
const BARE: &str = "127.0.0.1:8081";

/// Both tables' figures.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let sink = sink()?;
    let mut carry = Helper::start(&["carry", SERVICE, &sink.to_string()])?;
    let mut bare = Helper::start(&["bare", BARE, &sink.to_string()])?;
    ensure!(carry.line()? == "listening" && bare.line()? == "listening", "a relay did not say that it listens");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.push(throughput(BARE.parse()?)?);
        ours.push(throughput(SERVICE.parse()?)?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let share = ours as f64 / theirs as f64 * 100.0;
    let gbit = |bytes: u64| format!("{:.1} Gbit/s", bytes as f64 * 8.0 / SPAN.as_secs_f64() / 1e9);
    figures.add(&format!("{STREAMS} connections at once, through a bare splice relay (median of {ROUNDS})"), &gbit(theirs), "", true);
    figures.add("the same through the proxy, taking turns", &gbit(ours), "", true);
    figures.add("share of the bare relay's throughput", &format!("{share:.0} %"), "≥ 90 %", share >= 90.0);
    drop((carry, bare));
    at_once(figures)
}

/// Takes bytes and forgets them; says at the end how many they were.
fn sink() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || -> std::io::Result<()> {
                let (mut buffer, mut sum) = (vec![0; 1 << 18], 0u64);
                loop {
                    match stream.read(&mut buffer)? {
                        0 => return stream.write_all(&sum.to_le_bytes()),
                        count => sum += count as u64,
                    }
                }
            });
        }
    });
    Ok(at)
}

/// How many bytes arrive within the span.
fn throughput(to: SocketAddr) -> Result<u64> {
    let send = move || -> std::io::Result<u64> {
        let mut stream = TcpStream::connect(to)?;
        let (buffer, begin) = (vec![7; 1 << 18], Instant::now());
        while begin.elapsed() < SPAN {
            stream.write_all(&buffer)?;
        }
        stream.shutdown(Shutdown::Write)?;
        let mut sum = [0; 8];
        stream.read_exact(&mut sum)?;
        Ok(u64::from_le_bytes(sum))
    };
    let threads: Vec<_> = (0..STREAMS).map(|_| std::thread::spawn(send)).collect();
    let mut all = 0;
    for thread in threads {
        all += thread.join().map_err(|_| anyhow::anyhow!("a sender panicked"))?.context("sending failed")?;
    }
    Ok(all)
}

/// Opens connections, has each answer, and holds them all.
fn at_once(figures: &mut Figures) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let echo = runtime.block_on(async {
        let listener = tokio::net::TcpSocket::new_v4()?;
        listener.bind("127.0.0.1:0".parse()?)?;
        let listener = listener.listen(4096)?;
        let at = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        anyhow::Ok(at)
    })?;
    let mut carry = Helper::start(&["carry", SERVICE, &echo.to_string()])?;
    ensure!(carry.line()? == "listening", "the proxy did not say that it listens");
    let idle = carry.pss_mb()?;
    let service: SocketAddr = SERVICE.parse()?;
    let (open, took) = runtime.block_on(async {
        let begin = Instant::now();
        let connect = || async move {
            let mut stream = tokio::net::TcpStream::connect(service).await?;
            stream.write_all(b"x").await?;
            stream.read_exact(&mut [0; 1]).await?;
            std::io::Result::Ok(stream)
        };
        let all: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(connect())).collect();
        let mut open = Vec::new();
        for one in all {
            open.extend(one.await?.ok());
        }
        let took = begin.elapsed();
        // Every one still carries, after all of them are there.
        let mut alive = Vec::new();
        for mut stream in open {
            if stream.write_all(b"y").await.is_ok() && stream.read_exact(&mut [0; 1]).await.is_ok() {
                alive.push(stream);
            }
        }
        anyhow::Ok((alive, took))
    })?;
    figures.add("connections that are open and carry at once", &open.len().to_string(), &AT_ONCE.to_string(), open.len() >= AT_ONCE);
    figures.time("opening them all, each with an answer", took, None);
    let pipes = carry.pipes()?;
    figures.add("pipes that the proxy holds with them", &pipes.to_string(), &KEPT.to_string(), pipes <= KEPT);
    let memory = carry.pss_mb()?;
    figures.add("PSS of the proxy with them (without any)", &format!("{memory:.1} MB ({idle:.1} MB)"), "", true);
    Ok(())
}
