//! BIRD 2: routes in a file that its configuration includes; told over its control socket, read back from its tables.
//!
//! Protocol: BIRD's `nest/cli.c`. A line of an answer begins with a four-digit code and `-`, the last one with a code and a blank; lines
//! that begin with a blank continue the one before.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use host::{HostRoute, Routes, RoutesError};
use ipnet::IpNet;

use super::{connect, failed, named, read_until, settle};
use crate::render::{Format, Line, render};

/// The control socket of Debian's package.
pub const SOCKET: &str = "/run/bird/bird.ctl";
/// The file that the configuration includes.
pub const FILE: &str = "/etc/bird/mullion.conf";
/// The protocols in that file, whose routes are ours.
const OURS: [&str; 2] = ["mullion4", "mullion6"];
/// Codes of answers: the configuration is taken, at once or in the background.
const TAKEN: [u16; 3] = [3, 4, 18];
/// From this code on, an answer is a failure.
const FAILURES: u16 = 8000;

/// The tables of a BIRD.
#[derive(Debug)]
pub struct BirdRoutes {
    socket: PathBuf,
    file: PathBuf,
    /// What the file is to have: as read, with the changes since.
    next: Mutex<BTreeMap<IpNet, IpAddr>>,
}

impl BirdRoutes {
    /// The BIRD behind a control socket, whose configuration includes `file`.
    pub fn open(socket: &Path, file: &Path) -> Result<Self, RoutesError> {
        let bird = Self { socket: socket.to_owned(), file: file.to_owned(), next: Mutex::default() };
        bird.ask("show status")?;
        Ok(bird)
    }

    /// The answer's last code, and its text.
    fn ask(&self, command: &str) -> Result<(u16, String), RoutesError> {
        let ask = || {
            let mut stream = connect(&self.socket)?;
            answer(&mut stream)?;
            stream.write_all(format!("{command}\n").as_bytes())?;
            answer(&mut stream)
        };
        let told = ask().map_err(failed(format!("ask BIRD ({command}) at {}; start it, or give --bird-socket", self.socket.display())))?;
        if told.0 >= FAILURES {
            let why = io::Error::other(told.1.trim().replace('\n', "; "));
            return Err(failed(format!("make BIRD {command}; mend what it names"))(why));
        }
        Ok(told)
    }

    fn table(&self) -> Result<Vec<HostRoute>, RoutesError> {
        Ok(parse(&self.ask("show route")?.1))
    }
}

/// One answer: the last code, and the text without codes.
fn answer(stream: &mut UnixStream) -> io::Result<(u16, String)> {
    let bytes =
        read_until(stream, |so_far| so_far.ends_with(b"\n") && last_line(so_far).is_some_and(|line| code_of(line).is_some_and(|(_, last)| last)))?;
    let text = String::from_utf8_lossy(&bytes);
    let (mut code, mut body) = (0, String::new());
    for line in text.lines() {
        let rest = match code_of(line.as_bytes()) {
            Some((found, _)) => {
                code = found;
                &line[5..]
            }
            None => line.strip_prefix(' ').unwrap_or(line),
        };
        body.push_str(rest);
        body.push('\n');
    }
    Ok((code, body))
}

fn last_line(bytes: &[u8]) -> Option<&[u8]> {
    bytes.strip_suffix(b"\n")?.rsplit(|byte| *byte == b'\n').next()
}

/// The code that begins a line, and whether the line is the last of its answer.
fn code_of(line: &[u8]) -> Option<(u16, bool)> {
    let (digits, mark) = (line.get(..4)?, *line.get(4)?);
    if !digits.iter().all(u8::is_ascii_digit) || !matches!(mark, b'-' | b' ') {
        return None;
    }
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    Some((code, mark == b' '))
}

/// The routes that `show route` prints. A line without a prefix is of the prefix above; its next hops follow.
pub fn parse(text: &str) -> Vec<HostRoute> {
    let mut routes: Vec<HostRoute> = Vec::new();
    let (mut dst, mut ours) = (None::<IpNet>, false);
    // A second next hop of one route is another leg.
    for line in text.lines() {
        let mut words = line.split_whitespace().peekable();
        if let Some(prefix) = words.peek().and_then(|word| word.parse().ok()) {
            dst = Some(prefix);
            words.next();
        }
        let word = words.next().unwrap_or_default();
        let next = words.next().unwrap_or_default();
        match (word, dst) {
            ("unicast", _) => ours = OURS.contains(&next.trim_start_matches('[')),
            ("via" | "dev", Some(dst)) => {
                let via = if word == "via" { next.parse().ok() } else { None };
                routes.push(HostRoute { dst, via, oif: 0, on_link: false, metric: 0, ours });
            }
            _ => {}
        }
    }
    routes
}

impl Routes for BirdRoutes {
    fn list(&self) -> Result<Vec<HostRoute>, RoutesError> {
        let routes = self.table()?;
        let ours = routes.iter().filter(|route| route.ours).filter_map(|route| Some((route.dst, route.via?)));
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = ours.collect();
        Ok(routes)
    }

    fn add(&self, route: &HostRoute) -> Result<(), RoutesError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        route.via.into_iter().for_each(|via| _ = next.insert(route.dst, via));
        Ok(())
    }

    fn delete(&self, route: &HostRoute) -> Result<(), RoutesError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        // Not one that has another next hop by now.
        if next.get(&route.dst).copied() == route.via {
            next.remove(&route.dst);
        }
        Ok(())
    }

    fn commit(&self) -> Result<(), RoutesError> {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lines: Vec<Line> = next.iter().map(|(dst, via)| Line { dst: *dst, via: *via, node: String::new() }).collect();
        let file = self.file.display();
        atomic_file::write(&self.file, render(Format::Bird, &lines, None)).map_err(failed(format!("write {file}")))?;
        let (code, text) = self.ask("configure")?;
        if !TAKEN.contains(&code) {
            return Err(failed("make BIRD take its configuration".to_owned())(io::Error::other(text.trim().replace('\n', "; "))));
        }
        let wanted: Vec<HostRoute> =
            next.into_iter().map(|(dst, via)| HostRoute { dst, via: Some(via), oif: 0, on_link: false, metric: 0, ours: true }).collect();
        let missing = settle(|| self.table(), &wanted, &[])?;
        if missing.is_empty() {
            return Ok(());
        }
        let why =
            format!("it took the configuration without them: write `include \"{file}\";` into bird.conf, and let the next hops be its neighbours");
        Err(failed(format!("give BIRD the routes {}", named(&missing)))(io::Error::other(why)))
    }

    fn restore(&self, route: &HostRoute) -> Result<(), RoutesError> {
        Err(failed(format!("give BIRD the route to {} without our mark", route.dst))(io::ErrorKind::Unsupported.into()))
    }

    fn interface(&self, _name: &str) -> Result<Option<u32>, RoutesError> {
        Ok(None)
    }

    fn mtu(&self, _interface: u32) -> Result<Option<u32>, RoutesError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
