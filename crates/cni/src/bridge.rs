//! `bridge`: pods of a Linux node on one bridge. Source: containernetworking/plugins `plugins/main/bridge`.
//!
//! One key is ours: with `routed`, packet filters and Services of the node apply between its own pods. Where bridge
//! netfilter does that already (`bridge-nf-call-iptables`), nothing more is needed; where it is off, as on stock Debian,
//! the bridge's ports are isolated and the node answers ARP and forwards between them.
//! Not here: VLANs, promiscuous mode and MAC spoof checks; a configuration that asks for them is refused.

use std::path::Path;

use ipnet::IpNet;
use linux_sys::netlink::{BridgePort, Link, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;
use serde::Deserialize;

use crate::fold::fold_map;
use crate::ipam;
use crate::links::{check_inside, configure, detach, drifted, host_name, mac_text, must_find, net, switch};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Interface, IpConfig, Route, code};

pub(crate) mod masquerade;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    mtu: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: u32,
    #[serde(rename = "macspoofchk")]
    mac_spoof_check: bool,
    routed: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bridge: "cni0".into(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            mtu: 0,
            hairpin_mode: false,
            promisc_mode: false,
            vlan: 0,
            mac_spoof_check: false,
            routed: false,
        }
    }
}

const KEYS: &[&str] =
    &["bridge", "isGateway", "isDefaultGateway", "forceAddress", "ipMasq", "mtu", "hairpinMode", "promiscMode", "vlan", "macspoofchk", "routed"];

impl Config {
    fn read(request: &Request) -> Result<Self, CniError> {
        let mut document = request.config.document.clone();
        fold_map(&mut document, KEYS);
        document.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        let mut config: Self = serde_json::from_value(document.into()).map_err(|e| CniError::decode("the configuration of bridge", &e))?;
        config.is_gateway |= config.is_default_gateway;
        if config.hairpin_mode && config.promisc_mode {
            return Err(CniError::config("cannot set hairpin mode and promiscuous mode at the same time."));
        }
        let unsupported = [(config.vlan != 0, "vlan"), (config.promisc_mode, "promiscMode"), (config.mac_spoof_check, "macspoofchk")];
        if let Some((_, field)) = unsupported.iter().find(|(asked, _)| *asked) {
            return Err(CniError::new(
                code::UNSUPPORTED_FIELD,
                format!("bridge does not support {field}; remove it from network {:?}", request.config.name),
            ));
        }
        Ok(config)
    }

    /// Isolated ports and bridge netfilter exclude each other: that one translates addresses and then bridges.
    fn isolates_ports(&self) -> bool {
        self.routed && !sysctl::get("net.bridge.bridge-nf-call-iptables").is_ok_and(|value| value == "1")
    }
}

/// Serves one request in the calling thread's network namespace.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    match request.command {
        Command::Add => add(request, &config).map(Some),
        Command::Del => detach(request).map(|()| None),
        Command::Check => check(request).map(|()| None),
        Command::Gc | Command::Status => ipam::delegate(request, request.command).map(|_| None),
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
    let sandbox = NetNs::open(Path::new(&request.netns)).map_err(|e| CniError::io(format_args!("open netns {:?}", request.netns), &e))?;
    let host = Rtnl::open().map_err(net)?;
    let inside = Rtnl::open_in(&sandbox).map_err(net)?;
    if inside.link(&request.ifname).map_err(net)?.is_some() {
        return Err(CniError::internal(format!("container veth name {:?} already exists", request.ifname)));
    }
    let made = attach(request, config, &host, &inside, &sandbox);
    if made.is_err() {
        // Best effort: the first error is the one to report.
        if let Ok(Some(link)) = host.link(&host_name(request)) {
            let _ = host.del_link(link.index);
        }
        let _ = ipam::delegate(request, Command::Del);
    }
    made
}

fn attach(request: &Request, config: &Config, host: &Rtnl, inside: &Rtnl, sandbox: &NetNs) -> Result<AddResult, CniError> {
    let bridge = ensure_bridge(host, config)?;
    connect(request, config, host, &bridge, sandbox)?;
    let Some(mut result) = ipam::delegate(request, Command::Add)?.filter(|r| !r.ips.is_empty()) else {
        return Err(CniError::config("IPAM plugin returned missing IP config"));
    };
    for ip in &mut result.ips {
        ip.interface = Some(2);
        if config.is_gateway && ip.gateway.is_none() {
            ip.gateway = ip.address.hosts().next();
        }
    }
    if config.is_default_gateway {
        add_default_routes(&mut result);
    }
    let link = configure(request, inside, &result)?;
    // Asking for a link makes the kernel (since 6.8) act on its carrier now; by itself it may take a second until the
    // port and the bridge forward, and the pod's first packets would be lost.
    let host_link = must_find(host, &host_name(request))?;
    must_find(host, &bridge.name)?;
    if config.is_gateway {
        make_gateway(host, config, &bridge, &result.ips)?;
    }
    if config.ip_masq {
        result.ips.iter().try_for_each(|ip| masquerade::ensure(&request.config.name, ip.address.trunc()))?;
    }
    for ip in &result.ips {
        // A former pod may have had the address with another MAC.
        match host.del_neigh(bridge.index, ip.address.addr()) {
            Err(error) if !error.is_not_found() => return Err(net(error)),
            _ => {}
        }
    }
    let of_host = |link: &Link| Interface { name: link.name.clone(), mac: mac_text(link.mac), mtu: Some(link.mtu), sandbox: String::new() };
    let of_pod = Interface { sandbox: request.netns.clone(), ..of_host(&link) };
    result.interfaces = vec![of_host(&bridge), of_host(&host_link), of_pod];
    let dns = request.config.dns()?;
    if !dns.is_empty() {
        result.dns = dns;
    }
    Ok(result)
}

fn ensure_bridge(host: &Rtnl, config: &Config) -> Result<Link, CniError> {
    let name = &config.bridge;
    if host.link(name).map_err(net)?.is_none() {
        match host.add_bridge(name) {
            Ok(()) => {
                // Set once, the MAC no longer follows the ports that come and go.
                let made = must_find(host, name)?;
                host.set_mac(made.index, made.mac).map_err(net)?;
            }
            Err(error) if error.is_exists() => {}
            Err(error) => return Err(net(error)),
        }
    }
    let link = must_find(host, name)?;
    if link.kind != "bridge" {
        return Err(CniError::config(format!("{name:?} already exists but is not a bridge; choose another name or remove it")));
    }
    if config.mtu != 0 && link.mtu != config.mtu {
        host.set_mtu(link.index, config.mtu).map_err(net)?;
    }
    if !link.up {
        host.set_up(link.index).map_err(net)?;
    }
    if config.isolates_ports() {
        let name = name.replace('.', "/");
        switch("net.ipv4.ip_forward", "1")?;
        switch(&format!("net.ipv4.conf.{name}.proxy_arp_pvlan"), "1")?;
        // The default would hold answers back for up to 0.8 s.
        switch(&format!("net.ipv4.neigh.{name}.proxy_delay"), "0")?;
        // No redirects: pods cannot reach each other directly.
        switch("net.ipv4.conf.all.send_redirects", "0")?;
        switch(&format!("net.ipv4.conf.{name}.send_redirects"), "0")?;
    }
    must_find(host, name)
}

/// Makes the pair of interfaces, the pod's end in `sandbox`, the host's end on the bridge.
fn connect(request: &Request, config: &Config, host: &Rtnl, bridge: &Link, sandbox: &NetNs) -> Result<(), CniError> {
    let name = host_name(request);
    if let Some(stale) = host.link(&name).map_err(net)? {
        // Left over from an ADD that was cut off: its other end is not in this sandbox.
        host.del_link(stale.index).map_err(net)?;
    }
    host.add_veth(&name, &request.ifname, Some(sandbox)).map_err(net)?;
    let link = must_find(host, &name)?;
    let mtu = if config.mtu == 0 { bridge.mtu } else { config.mtu };
    if link.mtu != mtu {
        host.set_mtu(link.index, mtu).map_err(net)?;
        let inside = Rtnl::open_in(sandbox).map_err(net)?;
        inside.set_mtu(must_find(&inside, &request.ifname)?.index, mtu).map_err(net)?;
    }
    host.set_master(link.index, Some(bridge.index)).map_err(net)?;
    let isolated = config.isolates_ports();
    // Bridge netfilter sends what a pod sends to itself through a Service back by the port it came from.
    let hairpin = config.hairpin_mode || (config.routed && !isolated);
    let port = BridgePort { hairpin: Some(hairpin), isolated: Some(isolated), ..BridgePort::default() };
    host.set_bridge_port(link.index, port).map_err(net)?;
    host.set_up(link.index).map_err(net)
}

fn default_route(v4: bool) -> IpNet {
    if v4 { IpNet::V4(ipnet::Ipv4Net::default()) } else { IpNet::V6(ipnet::Ipv6Net::default()) }
}

fn add_default_routes(result: &mut AddResult) {
    for ip in &result.ips {
        let dst = default_route(ip.address.addr().is_ipv4());
        if !result.routes.iter().any(|route| route.dst == dst) {
            result.routes.push(Route { dst, gw: ip.gateway, mtu: None, priority: None });
        }
    }
}

fn make_gateway(host: &Rtnl, config: &Config, bridge: &Link, ips: &[IpConfig]) -> Result<(), CniError> {
    for ip in ips {
        let Some(gateway) = ip.gateway.and_then(|gateway| IpNet::new(gateway, ip.address.prefix_len()).ok()) else { continue };
        let present = host.addrs(bridge.index).map_err(net)?;
        if present.contains(&gateway) {
            continue;
        }
        // IPv6 interfaces have several addresses; of IPv4 an older one means another network uses the bridge.
        let others = present.iter().filter(|p| p.addr().is_ipv4() && gateway.addr().is_ipv4());
        for other in others {
            if !config.force_address {
                return Err(CniError::config(format!(
                    "{:?} already has an IP address different from {gateway}: {other}; set forceAddress or use another bridge",
                    bridge.name
                )));
            }
            host.del_addr(bridge.index, *other).map_err(net)?;
        }
        host.add_addr(bridge.index, gateway).map_err(net)?;
        let forward = if gateway.addr().is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
        switch(forward, "1")?;
    }
    Ok(())
}

fn check(request: &Request) -> Result<(), CniError> {
    check_inside(request)?;
    let host = Rtnl::open().map_err(net)?;
    if host.link(&host_name(request)).map_err(net)?.and_then(|link| link.master).is_none() {
        return Err(drifted(format!("the host's end of {} is not on its bridge", request.ifname)));
    }
    ipam::delegate(request, Command::Check).map(drop)
}

#[cfg(test)]
mod tests;
