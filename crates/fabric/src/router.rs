//! Routers that have the routes to pods in the mode l3, beside a Linux router over netlink: BIRD and FRRouting. Each is a table of routes that
//! takes changes together ([`Routes::commit`](host::Routes::commit)) and reads back what became of them.

pub mod bird;
pub mod frr;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use host::{HostRoute, RoutesError};

/// How long a router may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take until routes that it accepted are in its table.
const SETTLES: Duration = Duration::from_secs(2);
/// The longest answer, in bytes: a hundred thousand routes.
const LONGEST: usize = 64 << 20;

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads until `end` finds the end of an answer in what has come so far.
fn read_until(stream: &mut UnixStream, end: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let (mut answer, mut part) = (Vec::new(), [0; 1 << 16]);
    while !end(&answer) {
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
        }
        answer.extend_from_slice(&part[..length]);
        if answer.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
        }
    }
    Ok(answer)
}

fn failed(operation: String) -> impl FnOnce(io::Error) -> RoutesError {
    move |source| RoutesError { operation, source }
}

/// Waits until every route of `wanted` is in the table and none of `gone`; answers what is not so.
fn settle(list: impl Fn() -> Result<Vec<HostRoute>, RoutesError>, wanted: &[HostRoute], gone: &[HostRoute]) -> Result<Vec<HostRoute>, RoutesError> {
    let began = Instant::now();
    let is = |list: &[HostRoute], route: &HostRoute| list.iter().any(|other| other.ours && other.dst == route.dst && other.via == route.via);
    loop {
        let present = list()?;
        let wrong = wanted.iter().filter(|route| !is(&present, route)).chain(gone.iter().filter(|route| is(&present, route)));
        let wrong: Vec<HostRoute> = wrong.cloned().collect();
        if wrong.is_empty() || began.elapsed() >= SETTLES {
            return Ok(wrong);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Some of the routes, for a message.
fn named(routes: &[HostRoute]) -> String {
    let via = |route: &HostRoute| route.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let mut text: Vec<String> = routes.iter().take(5).map(|route| format!("{}{}", route.dst, via(route))).collect();
    if routes.len() > 5 {
        text.push(format!("and {} more", routes.len() - 5));
    }
    text.join(", ")
}
