//! `ptp`: a pair of links between a pod and its node, which routes. Source: containernetworking/plugins `plugins/main/ptp`.

use std::net::IpAddr;

use ipnet::IpNet;
use linux_sys::netlink::{Link, NetlinkError, Route as KernelRoute, Rtnl};
use serde::Deserialize;

use crate::bridge::masquerade;
use crate::fold::fold_map;
use crate::ipam;
use crate::links::{
    check_pair, collect_pairs, configure, detach, drifted, first_host, host_name, mac_text, make_pair, must_find, net, open_sandbox, switch,
};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Interface, IpConfig};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    ip_masq: bool,
    mtu: u32,
}

const KEYS: &[&str] = &["ipMasq", "mtu"];

impl Config {
    fn read(request: &Request) -> Result<Self, CniError> {
        let mut document = request.config.document.clone();
        fold_map(&mut document, KEYS);
        document.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        serde_json::from_value(document.into()).map_err(|e| CniError::decode("the configuration of ptp", &e))
    }
}

/// Serves one request in the calling thread's network namespace.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    match request.command {
        Command::Add => add(request, &config).map(Some),
        Command::Del => detach(request, config.ip_masq).map(|()| None),
        Command::Check => check(request).map(|()| None),
        Command::Gc => {
            collect_pairs(request)?;
            ipam::delegate(request, Command::Gc).map(|_| None)
        }
        Command::Status => ipam::delegate(request, Command::Status).map(|_| None),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

fn add(request: &Request, config: &Config) -> Result<AddResult, CniError> {
    let sandbox = open_sandbox(request)?;
    let host = Rtnl::open().map_err(net)?;
    let near = make_pair(request, &host, &sandbox, Some(config.mtu).filter(|mtu| *mtu != 0))?;
    let made = Rtnl::open_in(&sandbox).map_err(net).and_then(|inside| attach(request, config, &host, &inside, &near));
    if made.is_err() {
        // Best effort: the first error is the one to report.
        let _ = host.del_link(near.index);
        let _ = ipam::delegate(request, Command::Del);
    }
    made
}

fn attach(request: &Request, config: &Config, host: &Rtnl, inside: &Rtnl, near: &Link) -> Result<AddResult, CniError> {
    let Some(mut result) = ipam::delegate(request, Command::Add)?.filter(|result| !result.ips.is_empty()) else {
        return Err(CniError::config("IPAM plugin returned missing IP config"));
    };
    for ip in &mut result.ips {
        ip.interface = Some(1);
        if ip.gateway.is_none() {
            ip.gateway = Some(first_host(ip.address));
        }
    }
    host.set_up(near.index).map_err(net)?;
    let link = configure(request, inside, &result)?;
    for ip in &result.ips {
        lead_by_gateway(inside, &link, ip)?;
    }
    // Asking for a link makes the kernel (since 6.8) act on its carrier now, without which first packets would be lost.
    let host_link = must_find(host, &host_name(request))?;
    for ip in &result.ips {
        answer_for_gateway(host, &host_link, ip)?;
    }
    if config.ip_masq {
        result.ips.iter().try_for_each(|ip| masquerade::ensure(&request.config.name, [ip.address.trunc()]))?;
    }
    let of_host = |link: &Link| Interface { name: link.name.clone(), mac: mac_text(link.mac), mtu: Some(link.mtu), sandbox: String::new() };
    let of_pod = Interface { sandbox: request.netns.clone(), ..of_host(&link) };
    result.interfaces = vec![of_host(&host_link), of_pod];
    let dns = request.config.dns()?;
    if !dns.is_empty() {
        result.dns = dns;
    }
    Ok(result)
}

fn gateway(ip: &IpConfig) -> Result<IpAddr, CniError> {
    ip.gateway.ok_or_else(|| CniError::config(format!("address {} has no gateway", ip.address)))
}

/// Inside, the gateway is the only neighbour: its subnet is reached by it too.
fn lead_by_gateway(inside: &Rtnl, link: &Link, ip: &IpConfig) -> Result<(), CniError> {
    let (gateway, subnet) = (gateway(ip)?, ip.address.trunc());
    let connected =
        inside.routes().map_err(net)?.into_iter().find(|route| route.dst == subnet && route.oif == Some(link.index) && route.via.is_none());
    if let Some(connected) = connected {
        inside.del_route(&connected).map_err(net)?;
    }
    let source = Some(ip.address.addr());
    let neighbour = KernelRoute { source, ..KernelRoute::new(IpNet::from(gateway)).oif(link.index) };
    let rest = KernelRoute { source, ..KernelRoute::new(subnet).via(gateway).oif(link.index) };
    [neighbour, rest].iter().try_for_each(|route| inside.add_route(route)).map_err(net)
}

/// On the host, the pair's end has the gateway's address alone, and leads to the pod alone.
fn answer_for_gateway(host: &Rtnl, link: &Link, ip: &IpConfig) -> Result<(), CniError> {
    let gateway = gateway(ip)?;
    switch(if gateway.is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" }, "1")?;
    let tolerate = |added: Result<(), NetlinkError>| match added {
        Err(error) if !error.is_exists() => Err(net(error)),
        _ => Ok(()),
    };
    tolerate(host.add_addr(link.index, IpNet::from(gateway)))?;
    tolerate(host.add_route(&KernelRoute::new(IpNet::from(ip.address.addr())).oif(link.index)))
}

fn check(request: &Request) -> Result<(), CniError> {
    ipam::delegate(request, Command::Check)?;
    let host = Rtnl::open().map_err(net)?;
    let expected = check_pair(request, &host)?.expected;
    let known = host.routes().map_err(net)?;
    match expected.ips.iter().find(|ip| !known.iter().any(|route| route.dst == IpNet::from(ip.address.addr()))) {
        Some(lost) => Err(drifted(format!("the host lost its route to {}", lost.address.addr()))),
        None => Ok(()),
    }
}
