//! Bytes and connections through the user-space proxy, beside a relay that does nothing but splice.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use linux_sys::netlink::Rtnl;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::command::{Programs, Userspace};
use crate::figures::{Amount, Figures, Limit};
use crate::process::Helper;
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

/// Connections that carry at once, and for how long they do.
const STREAMS: usize = 2;
const SPAN: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 7;
const AT_ONCE: usize = 4_000;
/// Quiet connections need no pipe; so many are kept for busy ones.
const KEPT: usize = 64;
const SERVICE: &str = "10.96.0.1:80";
const BARE: &str = "127.0.0.1:8081";
/// The Service's backends, all of them this host's own.
const BACKENDS: [Ipv4Addr; 3] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 1, 0, 3)];
const PORT: u16 = 8080;

/// `mullion kube-proxy --proxy-mode=userspace` and the bare relay in turns, then the proxy with many connections.
pub fn measure(figures: &mut Figures, programs: &Programs) -> Result<()> {
    let netlink = Rtnl::open()?;
    for address in BACKENDS {
        netlink.add_addr(1, ipnet::IpNet::new(address.into(), 32)?)?;
    }
    let start = |args: &[&str]| -> Result<Helper> {
        let mut helper = Helper::start(&[&["proxy-nft-part"], args].concat())?;
        ensure!(helper.line()? == "listening", "{args:?} did not say that it listens");
        Ok(helper)
    };
    let sink = SocketAddr::from((BACKENDS[0], PORT));
    let around = (start(&["sink", &format!("0.0.0.0:{PORT}")])?, start(&["bare", BARE, &sink.to_string()])?);
    let proxy = Userspace::start(programs)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.push(throughput(BARE.parse()?)?);
        ours.push(throughput(SERVICE.parse()?)?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let rate = |bytes: u64| Amount::bits_per_second(bytes as f64 * 8.0 / SPAN.as_secs_f64());
    figures.background(format!("{STREAMS} connections at once, through a bare splice relay (median of {ROUNDS})"), rate(theirs));
    figures.background("the same through the proxy, taking turns", rate(ours));
    let share = Amount::percent(ours as f64 / theirs as f64 * 100.0);
    figures.add("share of the bare relay's throughput", share, Limit::AtLeast(Amount::percent(90.0)));
    drop((proxy, around));
    at_once(figures, programs)
}

/// Takes bytes and forgets them; says at the end of each connection how many they were.
pub fn sink(at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(at)?;
    println!("listening");
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
    Ok(())
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
fn at_once(figures: &mut Figures, programs: &Programs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpSocket::new_v4()?;
        listener.set_reuseaddr(true)?;
        listener.bind((Ipv4Addr::UNSPECIFIED, PORT).into())?;
        let listener = listener.listen(4096)?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        anyhow::Ok(())
    })?;
    let proxy = Userspace::start(programs)?;
    let idle = proxy.memory()?;
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
    figures.add("connections that are open and carry at once", Amount::count(open.len()), Limit::AtLeast(Amount::count(AT_ONCE)));
    figures.background_time("opening them all, each with an answer", took);
    figures.add("pipes that the proxy holds with them", Amount::count(proxy.pipes()?), Limit::AtMost(Amount::count(KEPT)));
    figures.background("PSS of `mullion kube-proxy` with them", proxy.memory()?);
    figures.background("PSS of it without any connection", idle);
    Ok(())
}
