//! `nslookup NAME [SERVER]`, as Windows prints it.

use std::net::IpAddr;

use super::Streams;
use crate::{Dns, Resolver};

/// Where the pod's resolver settings are: below Wine, by its name for files of the system under it.
const SETTINGS: &[&str] = &[r"\\?\unix\etc\resolv.conf", "/etc/resolv.conf"];

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let mut words = args.iter().filter(|arg| !arg.starts_with('-'));
    let Some(name) = words.next() else {
        let _ = writeln!(streams.err, "usage: nslookup NAME [SERVER] (Mullion's answers questions on the command line only)");
        return 1;
    };
    let settings = SETTINGS.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let mut dns = Dns::parse(&settings);
    if let Some(server) = words.next() {
        dns.servers = match server.parse::<IpAddr>() {
            Ok(address) => vec![address.to_string()],
            Err(_) => match Resolver::new(dns.clone(), None).resolve(server) {
                Ok(addresses) => addresses.iter().take(1).map(IpAddr::to_string).collect(),
                _ => {
                    let _ = writeln!(streams.err, "*** Can't find address for server {server}");
                    return 1;
                }
            },
        };
    }
    let server = dns.servers.first().cloned().unwrap_or_else(|| "none".to_owned());
    let _ = writeln!(streams.out, "Server:  UnKnown\r\nAddress:  {server}\r\n\r");
    match Resolver::new(dns, None).look_up(name) {
        Ok((full, addresses)) => {
            let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            let label = if list.len() > 1 { "Addresses" } else { "Address" };
            let _ = writeln!(streams.out, "Name:    {full}\r\n{label}:  {}\r\n\r", list.join("\r\n          "));
            0
        }
        Err(error) => {
            let text = format!("{error:#}");
            let reason = match text.rsplit_once("the server answered ") {
                Some((_, answer)) => answer,
                None if text.contains("no such name") => "Non-existent domain",
                None => &text,
            };
            let _ = writeln!(streams.err, "*** UnKnown can't find {name}: {reason}");
            1
        }
    }
}
