//! `bandwidth`: bounds on what a pod receives and sends, behind another plug-in in a list. Source: containernetworking/plugins
//! `plugins/meta/bandwidth`.
//!
//! What the pod receives is bounded where the host's end of its pair sends it; what it sends is redirected from there to a device of type
//! ifb, which bounds it. Rates are bits a second, bursts bits, as upstream's.

use std::path::Path;

use linux_sys::netlink::{Link, Rate, Rtnl};
use linux_sys::ns::NetNs;
use serde::Deserialize;
use serde_json::Value;

use crate::fold::fold_map;
use crate::links::{digest, gone, group, mac_text, must_find, net};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Interface, code};

/// How long a packet may wait, in microseconds; upstream's value.
const LATENCY: u64 = 25_000;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

const KEYS: &[&str] = &["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

impl Config {
    /// The runtime's bounds, else the configuration's.
    fn read(request: &Request) -> Result<Self, CniError> {
        let runtime = request.config.document.get("runtimeConfig").and_then(|runtime| runtime.get("bandwidth"));
        let mut document = match runtime {
            Some(Value::Object(given)) => given.clone(),
            _ => request.config.document.clone(),
        };
        fold_map(&mut document, KEYS);
        document.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        let config: Self = serde_json::from_value(document.into()).map_err(|e| CniError::decode("the configuration of bandwidth", &e))?;
        check("ingress", config.ingress_rate, config.ingress_burst)?;
        check("egress", config.egress_rate, config.egress_burst)?;
        Ok(config)
    }

    fn ingress(&self) -> Option<Rate> {
        bound(self.ingress_rate, self.ingress_burst)
    }

    fn egress(&self) -> Option<Rate> {
        bound(self.egress_rate, self.egress_burst)
    }
}

fn check(what: &str, rate: u64, burst: u64) -> Result<(), CniError> {
    if (rate == 0) != (burst == 0) {
        let text = format!("{what}: rate and burst are both given, or neither; rate is {rate}, burst {burst}");
        return Err(CniError::config(text));
    }
    // Bits of upstream's limit on bytes.
    if burst / 8 >= u64::from(u32::MAX) || rate / 8 > u64::from(u32::MAX) * 1_000 {
        return Err(CniError::config(format!("{what}: rate {rate} or burst {burst} is more than the kernel counts")));
    }
    Ok(())
}

fn bound(rate: u64, burst: u64) -> Option<Rate> {
    let (bytes, burst) = (rate / 8, u32::try_from(burst / 8).unwrap_or(u32::MAX));
    let waiting = bytes.saturating_mul(LATENCY) / 1_000_000;
    let queue = u32::try_from(waiting.saturating_add(u64::from(burst))).unwrap_or(u32::MAX);
    (bytes != 0).then_some(Rate { bytes, burst, queue })
}

/// Serves one request in the calling thread's network namespace.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    match request.command {
        Command::Add => add(request, &config).map(Some),
        Command::Del => del(request).map(|()| None),
        Command::Check => compare(request, &config).map(|()| None),
        Command::Gc => gc(request).map(|()| None),
        Command::Status => Ok(None),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

/// The device that bounds what a container sends: upstream's name, so that each removes the other's.
fn ifb_name(network: &str, container: &str) -> String {
    format!("bwp{}", digest(&[network, container], 12))
}

fn own_ifb_name(request: &Request) -> String {
    ifb_name(&request.config.name, &request.container_id)
}

/// The host's end of the pair whose other end is the pod's interface.
fn host_end(request: &Request, before: &AddResult, host: &Rtnl) -> Result<Link, CniError> {
    let sandbox = NetNs::open(Path::new(&request.netns)).map_err(|e| CniError::io(format_args!("open netns {:?}", request.netns), &e))?;
    let inside = must_find(&Rtnl::open_in(&sandbox).map_err(net)?, &request.ifname)?;
    let known = before.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    for interface in known {
        if let Some(link) = host.link(&interface.name).map_err(net)?
            && link.kind == "veth"
            && Some(link.index) == inside.peer
        {
            return Ok(link);
        }
    }
    Err(CniError::config(format!("no interface of the host in prevResult is the other end of {}", request.ifname)))
}

fn add(request: &Request, config: &Config) -> Result<AddResult, CniError> {
    let Some(mut result) = request.config.prev_result()? else {
        return Err(CniError::config("must be called as a chained plugin: put bandwidth behind another one"));
    };
    if config.ingress().is_none() && config.egress().is_none() {
        return Ok(result);
    }
    let host = Rtnl::open().map_err(net)?;
    let end = host_end(request, &result, &host)?;
    if let Some(rate) = config.ingress() {
        host.set_rate(end.index, rate).map_err(net)?;
    }
    if let Some(rate) = config.egress() {
        let made = make_ifb(request, &host, &end, rate);
        if made.is_err() {
            // Best effort: the first error is the one to report.
            let _ = del(request);
        }
        let ifb = made?;
        result.interfaces.push(Interface { name: ifb.name, mac: mac_text(ifb.mac), mtu: Some(ifb.mtu), sandbox: String::new() });
    }
    Ok(result)
}

fn make_ifb(request: &Request, host: &Rtnl, end: &Link, rate: Rate) -> Result<Link, CniError> {
    let name = own_ifb_name(request);
    if let Some(stale) = host.link(&name).map_err(net)? {
        // Left over from an ADD that was cut off.
        host.del_link(stale.index).map_err(net)?;
    }
    host.add_ifb(&name, group(&request.config.name)).map_err(net)?;
    let ifb = must_find(host, &name)?;
    host.set_mtu(ifb.index, end.mtu).map_err(net)?;
    host.set_up(ifb.index).map_err(net)?;
    host.set_rate(ifb.index, rate).map_err(net)?;
    host.redirect(end.index, ifb.index).map_err(net)?;
    must_find(host, &name)
}

/// What bounds the host's end goes with it, when the plug-in before removes the pair.
fn del(request: &Request) -> Result<(), CniError> {
    let host = Rtnl::open().map_err(net)?;
    match host.link(&own_ifb_name(request)).map_err(net)? {
        Some(link) => gone(host.del_link(link.index)),
        None => Ok(()),
    }
}

/// Removes the devices of this network's containers that are no more.
fn gc(request: &Request) -> Result<(), CniError> {
    let host = Rtnl::open().map_err(net)?;
    let network = &request.config.name;
    let valid: Vec<String> = request.valid_attachments().iter().map(|(container, _)| ifb_name(network, container)).collect();
    let links = host.links().map_err(net)?.into_iter();
    let dead = links.filter(|link| link.kind == "ifb" && link.group == group(network) && !valid.contains(&link.name));
    let mut first = Ok(());
    for link in dead {
        first = first.and(gone(host.del_link(link.index)));
    }
    first
}

fn compare(request: &Request, config: &Config) -> Result<(), CniError> {
    let drift = |text: &str| Err(CniError::new(code::DRIFT, format!("{}: {text}", request.ifname)));
    let Some(before) = request.config.prev_result()? else { return Err(CniError::config("required prevResult missing")) };
    let host = Rtnl::open().map_err(net)?;
    let end = host_end(request, &before, &host)?;
    let (sends, receives) = host.is_bounded(end.index).map_err(net)?;
    if config.ingress().is_some() && !sends {
        return drift("what the pod receives is not bounded");
    }
    if config.egress().is_some() {
        let ifb = host.link(&own_ifb_name(request)).map_err(net)?;
        let bounds = ifb.map(|ifb| host.is_bounded(ifb.index)).transpose().map_err(net)?;
        if !receives || !bounds.is_some_and(|(sends, _)| sends) {
            return drift("what the pod sends is not bounded");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_upstreams() {
        let rate = bound(8_000_000, 800_000).unwrap();
        assert_eq!((rate.bytes, rate.burst, rate.queue), (1_000_000, 100_000, 125_000), "25 ms of the rate, and the burst");
        assert_eq!(bound(0, 0), None);
        assert!(check("ingress", 1_000, 0).is_err() && check("ingress", 0, 1_000).is_err());
        assert!(check("ingress", 1_000, u64::MAX).is_err() && check("ingress", u64::MAX, 1_000).is_err());
        check("ingress", 1_000, 1_000).unwrap();
    }
}
