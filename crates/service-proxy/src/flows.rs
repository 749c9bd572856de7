//! Long-lived connections, for tests of changes that must not cut them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_lab::LIMIT;

/// Echoes every connection, on a thread of its own.
pub(crate) fn echo(listener: TcpListener) {
    raise_limits();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
    });
}

/// Both ends of each are in this process.
fn raise_limits() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// Connections that are open all the time.
pub(crate) struct Flows(Vec<TcpStream>);

impl Flows {
    /// So many from a namespace to each of these, where an [`echo`] answers. Each one is answered before the next one begins: no queue of
    /// connections fills up, where a full one costs seconds, and a proxy's patience with its backend.
    pub fn open(ns: &NetNs, to: &[&str], each: usize) -> Self {
        let connect = |to: &str| -> io::Result<TcpStream> {
            let mut stream = TcpStream::connect_timeout(&to.parse::<SocketAddr>().unwrap(), LIMIT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(&[7])?;
            stream.read_exact(&mut [0])?;
            Ok(stream)
        };
        let all = ns.run(|| to.iter().flat_map(|to| (0..each).map(move |_| connect(to))).collect::<io::Result<_>>()).unwrap();
        Self(all.unwrap())
    }

    /// How many of them carry a byte there and back.
    pub fn alive(&mut self) -> usize {
        let until = Instant::now() + LIMIT;
        let sent: Vec<bool> = self.0.iter_mut().map(|stream| stream.write_all(&[7]).is_ok()).collect();
        let answered = |stream: &mut TcpStream| {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left)).and_then(|()| stream.read_exact(&mut [0])).is_ok()
        };
        self.0.iter_mut().zip(sent).map(|(stream, sent)| sent && answered(stream)).filter(|alive| *alive).count()
    }
}
