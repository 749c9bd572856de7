//! FRRouting: static routes with our tag, given to `staticd` and read back from `zebra`, over the sockets that `vtysh` uses.
//!
//! Protocol: FRR's `vtysh/vtysh.c`. A command ends with a zero byte; an answer with three zero bytes and a status, which is 0 for success.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use host::{HostRoute, Routes, RoutesError};
use ipnet::IpNet;
use serde_json::Value;

use super::{connect, failed, named, read_until, settle};

/// The directory of the sockets, of Debian's package.
pub const SOCKETS: &str = "/run/frr";
/// The tag of our routes.
const TAG: u64 = host::OUR_PROTOCOL as u64;

/// The tables of an FRRouting.
#[derive(Debug)]
pub struct FrrRoutes {
    sockets: PathBuf,
    /// Routes to take away and to add; those first, so that a destination never has two next hops.
    changes: Mutex<(Vec<HostRoute>, Vec<HostRoute>)>,
}

impl FrrRoutes {
    /// The FRRouting whose daemons have their sockets in a directory.
    pub fn open(sockets: &Path) -> Result<Self, RoutesError> {
        let frr = Self { sockets: sockets.to_owned(), changes: Mutex::default() };
        frr.ask("staticd", &["show version".to_owned()])?;
        frr.table()?;
        Ok(frr)
    }

    /// The answer to the last of the commands, each of which has to succeed.
    fn ask(&self, daemon: &str, commands: &[String]) -> Result<String, RoutesError> {
        let socket = self.sockets.join(format!("{daemon}.vty"));
        let lost = |command: &str| failed(format!("ask {daemon} of FRR ({command}) at {}; start it, or give --frr-sockets", socket.display()));
        let mut stream = connect(&socket).map_err(lost("connect"))?;
        let mut last = String::new();
        for command in std::iter::once("enable").chain(commands.iter().map(String::as_str)) {
            let (status, text) = answer(&mut stream, command).map_err(lost(command))?;
            if status != 0 {
                let why = io::Error::other(text.trim().replace('\n', "; "));
                return Err(failed(format!("make {daemon} of FRR do {command:?}"))(why));
            }
            last = text;
        }
        Ok(last)
    }

    fn table(&self) -> Result<Vec<HostRoute>, RoutesError> {
        let mut routes = Vec::new();
        for command in ["show ip route json", "show ipv6 route json"] {
            let text = self.ask("zebra", &[command.to_owned()])?;
            let parsed = parse(&text).map_err(|error| failed(format!("read what zebra of FRR answers to {command:?}"))(error.into()))?;
            routes.extend(parsed);
        }
        Ok(routes)
    }
}

fn answer(stream: &mut UnixStream, command: &str) -> io::Result<(u8, String)> {
    stream.write_all(command.as_bytes())?;
    stream.write_all(&[0])?;
    let bytes = read_until(stream, |so_far| matches!(so_far, [.., 0, 0, 0, _]))?;
    let (text, end) = bytes.split_at(bytes.len() - 4);
    Ok((end[3], String::from_utf8_lossy(text).into_owned()))
}

/// The routes of zebra's `show ip route json`: those that it uses. One with several next hops is several routes.
///
/// # Errors
/// The text is no JSON.
pub fn parse(text: &str) -> Result<Vec<HostRoute>, serde_json::Error> {
    let table: Value = serde_json::from_str(text)?;
    let mut routes = Vec::new();
    for entry in table.as_object().into_iter().flat_map(|table| table.values()).filter_map(Value::as_array).flatten() {
        let Some(dst) = entry["prefix"].as_str().and_then(|prefix| prefix.parse::<IpNet>().ok()) else { continue };
        if entry["selected"] != true {
            continue;
        }
        let ours = entry["protocol"] == "static" && entry["tag"].as_u64() == Some(TAG);
        for hop in entry["nexthops"].as_array().into_iter().flatten().filter(|hop| hop["active"] == true) {
            let via = hop["ip"].as_str().and_then(|ip| ip.parse().ok());
            let oif = hop["interfaceIndex"].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or_default();
            routes.push(HostRoute { dst, via, oif, on_link: false, metric: 0, ours });
        }
    }
    Ok(routes)
}

/// The command for a route of ours; `no` takes it away.
fn command(no: &str, route: &HostRoute) -> Option<String> {
    let family = if route.dst.addr().is_ipv4() { "ip" } else { "ipv6" };
    Some(format!("{no}{family} route {} {} tag {TAG}", route.dst, route.via?))
}

impl Routes for FrrRoutes {
    fn list(&self) -> Result<Vec<HostRoute>, RoutesError> {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        self.table()
    }

    fn add(&self, route: &HostRoute) -> Result<(), RoutesError> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).1.push(route.clone());
        Ok(())
    }

    fn delete(&self, route: &HostRoute) -> Result<(), RoutesError> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).0.push(route.clone());
        Ok(())
    }

    fn commit(&self) -> Result<(), RoutesError> {
        let (gone, wanted) = std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner));
        let mut commands = vec!["configure terminal".to_owned()];
        commands.extend(gone.iter().filter_map(|route| command("no ", route)));
        commands.extend(wanted.iter().filter_map(|route| command("", route)));
        commands.push("end".to_owned());
        self.ask("staticd", &commands)?;
        let wrong = settle(|| self.table(), &wanted, &gone)?;
        if wrong.is_empty() {
            return Ok(());
        }
        let why = io::Error::other("zebra does not have them as they were given: let the next hops be its neighbours");
        Err(failed(format!("change FRR's routes {}", named(&wrong)))(why))
    }

    fn restore(&self, route: &HostRoute) -> Result<(), RoutesError> {
        Err(failed(format!("give FRR the route to {} without our mark", route.dst))(io::ErrorKind::Unsupported.into()))
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
