//! `loopback`: switches a sandbox's loopback link on. Source: containernetworking/plugins `plugins/main/loopback`.

use std::path::Path;

use linux_sys::netlink::{Link, Rtnl};
use linux_sys::ns::NetNs;

use crate::links::{must_find, net};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Interface, IpConfig, code};

/// The link, whatever the runtime calls it.
const NAME: &str = "lo";

/// Serves one request.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    match request.command {
        Command::Add => add(request).map(Some),
        Command::Del => del(request).map(|()| None),
        Command::Check => check(request).map(|()| None),
        Command::Gc | Command::Status => Ok(None),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    request.config.prev_result().map(drop)
}

fn open(request: &Request) -> Result<Rtnl, CniError> {
    let sandbox = NetNs::open(Path::new(&request.netns)).map_err(|e| CniError::io(format_args!("open netns {:?}", request.netns), &e))?;
    Rtnl::open_in(&sandbox).map_err(net)
}

fn add(request: &Request) -> Result<AddResult, CniError> {
    let inside = open(request)?;
    let link = must_find(&inside, NAME)?;
    inside.set_up(link.index).map_err(net)?;
    if let Some(before) = request.config.prev_result()? {
        return Ok(before);
    }
    let addresses = inside.addrs(link.index).map_err(net)?;
    if let Some(other) = addresses.iter().find(|address| !address.addr().is_loopback()) {
        return Err(CniError::internal(format!("loopback interface found with non-loopback address {}", other.addr())));
    }
    let first = |v4: bool| addresses.iter().find(|address| address.addr().is_ipv4() == v4);
    let ips = [first(true), first(false)].into_iter().flatten();
    Ok(AddResult {
        interfaces: vec![Interface { name: NAME.into(), mac: "00:00:00:00:00:00".into(), mtu: None, sandbox: request.netns.clone() }],
        ips: ips.map(|address| IpConfig { address: *address, gateway: None, interface: Some(0) }).collect(),
        ..AddResult::default()
    })
}

/// A sandbox that is gone took its loopback link along.
fn del(request: &Request) -> Result<(), CniError> {
    if request.netns.is_empty() || !Path::new(&request.netns).exists() {
        return Ok(());
    }
    let inside = open(request)?;
    let link: Link = must_find(&inside, NAME)?;
    inside.set_down(link.index).map_err(net)
}

fn check(request: &Request) -> Result<(), CniError> {
    let link = must_find(&open(request)?, NAME)?;
    if link.up { Ok(()) } else { Err(CniError::new(code::DRIFT, "loopback interface is down")) }
}
