//! `bridge`: pods of a Linux node on one bridge. Source: containernetworking/plugins `plugins/main/bridge`.
//!
//! One key is ours: with `routed`, packet filters and Services of the node apply between its own pods. Where bridge
//! netfilter does that already (`bridge-nf-call-iptables`), nothing more is needed; where it is off, as on stock Debian,
//! the bridge's ports are isolated, and the node forwards between them: it answers ARP for its pods, and in IPv6 they send everything to it.
//! Not here: VLANs; a configuration that asks for them is refused.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use ipnet::IpNet;
use linux_sys::netlink::{BridgePort, Link, LinkChange, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;
use serde::Deserialize;

use crate::fold::fold_map;
use crate::ipam;
use crate::links::{
    Found, Neighbours, check_mac, check_pair, collect_pairs, configure_as, detach, drifted, first_host, mac_text, make_pair, must_find, net,
    open_sandbox, prepare_ipv6, switch,
};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Interface, IpConfig, Route, code};
use crate::steps::step;

pub(crate) mod masquerade;
mod spoof;

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
        request.refuse_unknown_args(&["MAC"])?;
        let mut document = request.config.document.clone();
        fold_map(&mut document, KEYS);
        document.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        let mut config: Self = serde_json::from_value(document.into()).map_err(|e| CniError::decode("the configuration of bridge", &e))?;
        config.is_gateway |= config.is_default_gateway;
        if config.hairpin_mode && config.promisc_mode {
            return Err(CniError::config("cannot set hairpin mode and promiscuous mode at the same time"));
        }
        if config.vlan != 0 {
            let text = format!("bridge does not support vlan; remove it from network {:?}", request.config.name);
            return Err(CniError::new(code::UNSUPPORTED_FIELD, text));
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
        Command::Del => del(request, &config).map(|()| None),
        Command::Check => check(request, &config).map(|()| None),
        Command::Gc => gc(request, &config).map(|()| None),
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
    let host = Rtnl::open().map_err(net)?;
    let bridge = ensure_bridge(&host, config)?;
    let sandbox = open_sandbox(request)?;
    // A port with an MTU of its own would lower that of the bridge.
    let near = make_pair(request, &host, &sandbox, Some(if config.mtu == 0 { bridge.mtu } else { config.mtu }))?;
    let made = attach(request, config, &host, &bridge, &near, &sandbox);
    if made.is_err() {
        // Best effort: the first error is the one to report.
        let _ = host.del_link(near.index);
        let _ = ipam::delegate(request, Command::Del);
        if config.mac_spoof_check {
            let _ = spoof::forget(|owner| owner == spoof::owner(&request.container_id, &request.ifname));
        }
    }
    made
}

fn attach(request: &Request, config: &Config, host: &Rtnl, bridge: &Link, near: &Link, sandbox: &NetNs) -> Result<AddResult, CniError> {
    join(config, host, bridge, near)?;
    step();
    let inside = open_inside(request, sandbox)?;
    if config.mac_spoof_check {
        let far = must_find(&inside, &request.ifname)?;
        spoof::ensure(&near.name, far.mac, &spoof::owner(&request.container_id, &request.ifname))?;
        step();
    }
    let mut result = AddResult::default();
    if !request.config.ipam_type().is_empty() {
        let answer = ipam::delegate(request, Command::Add)?.filter(|result| !result.ips.is_empty());
        result = answer.ok_or_else(|| CniError::config("IPAM plugin returned missing IP config"))?;
        complete(config, &mut result);
    }
    prepare_ipv6(request, sandbox, &result)?;
    let neighbours = if config.isolates_ports() { Neighbours::Ipv6ByGateway } else { Neighbours::OnLink };
    let link = configure_as(request, &inside, &result, neighbours)?;
    if config.is_gateway {
        make_gateway(host, config, bridge, &result.ips)?;
        step();
    }
    if config.ip_masq {
        masquerade::ensure(&request.config.name, result.ips.iter().map(|ip| ip.address.trunc()))?;
        step();
    }
    for ip in &result.ips {
        // A former pod may have had the address with another MAC.
        match host.del_neigh(bridge.index, ip.address.addr()) {
            Err(error) if !error.is_not_found() => return Err(net(error)),
            _ => {}
        }
    }
    // Asking for a link makes the kernel (since 6.8) act on its carrier now; by itself it may take a second until the
    // port and the bridge forward, and the pod's first packets would be lost.
    let near = must_find(host, &near.name)?;
    let bridge = must_find(host, &bridge.name)?;
    let of_host = |link: &Link| Interface { name: link.name.clone(), mac: mac_text(link.mac), mtu: Some(link.mtu), sandbox: String::new() };
    let of_pod = Interface { sandbox: request.netns.clone(), ..of_host(&link) };
    result.interfaces = vec![of_host(&bridge), of_host(&near), of_pod];
    let dns = request.config.dns()?;
    if !dns.is_empty() {
        result.dns = dns;
    }
    Ok(result)
}

/// Completes what address management answered.
fn complete(config: &Config, result: &mut AddResult) {
    for ip in &mut result.ips {
        ip.interface = Some(2);
        if config.is_gateway && ip.gateway.is_none() {
            ip.gateway = Some(first_host(ip.address));
        }
    }
    if config.is_default_gateway {
        add_default_routes(result);
    }
}

fn ensure_bridge(host: &Rtnl, config: &Config) -> Result<Link, CniError> {
    let name = &config.bridge;
    let link = match host.link(name).map_err(net)? {
        Some(link) => link,
        None => make_bridge(host, name)?,
    };
    if link.kind != "bridge" {
        return Err(CniError::config(format!("{name:?} already exists but is not a bridge; choose another name or remove it")));
    }
    if config.promisc_mode && !link.promiscuous {
        host.set_promiscuous(link.index, true).map_err(net)?;
    }
    if !link.up {
        if config.isolates_ports() {
            without_detection(name)?;
        }
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
    Ok(link)
}

fn make_bridge(host: &Rtnl, name: &str) -> Result<Link, CniError> {
    // Given at once, the MAC does not follow the ports that come and go, whenever this call ends.
    match host.add_bridge_with_mac(name, mac_by_chance()) {
        // Another ADD was faster.
        Err(error) if !error.is_exists() => return Err(net(error)),
        _ => step(),
    }
    must_find(host, name)
}

/// A MAC of the range that anybody may use.
fn mac_by_chance() -> [u8; 6] {
    let [_, rest @ .., _, _] = RandomState::new().build_hasher().finish().to_be_bytes();
    let [a, b, c, d, e] = rest;
    [2, a, b, c, d, e]
}

/// Lets the bridge look for pods at once, not after a second of detection: nobody else has its address.
fn without_detection(bridge: &str) -> Result<(), CniError> {
    match sysctl::set(&format!("net.ipv6.conf.{}.dad_transmits", bridge.replace('.', "/")), "0") {
        // A kernel without IPv6.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|e| CniError::io(format_args!("prepare bridge {bridge:?}"), &e)),
    }
}

/// Puts the host's end on the bridge.
fn join(config: &Config, host: &Rtnl, bridge: &Link, near: &Link) -> Result<(), CniError> {
    host.change_link(near.index, &LinkChange { master: Some(bridge.index), up: true, ..LinkChange::default() }).map_err(net)?;
    let isolated = config.isolates_ports();
    // Bridge netfilter sends what a pod sends to itself through a Service back by the port it came from.
    let hairpin = config.hairpin_mode || (config.routed && !isolated);
    if !hairpin && !isolated {
        return Ok(());
    }
    let port = BridgePort { hairpin: Some(hairpin), isolated: Some(isolated), ..BridgePort::default() };
    host.set_bridge_port(near.index, port).map_err(net)
}

/// As upstream, the pod announces its address when its link comes up.
fn open_inside(request: &Request, sandbox: &NetNs) -> Result<Rtnl, CniError> {
    let announce = format!("net.ipv4.conf.{}.arp_notify", request.ifname.replace('.', "/"));
    let has_address = !request.config.ipam_type().is_empty();
    let opened = sandbox.run(|| {
        if has_address {
            // A kernel without it loses nothing else.
            let _ = sysctl::set(&announce, "1");
        }
        Rtnl::open()
    });
    opened.map_err(|e| CniError::io(format_args!("enter netns {:?}", request.netns), &e))?.map_err(net)
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

fn del(request: &Request, config: &Config) -> Result<(), CniError> {
    detach(request, config.ip_masq)?;
    if config.mac_spoof_check {
        let owner = spoof::owner(&request.container_id, &request.ifname);
        spoof::forget(|known| known == owner)?;
    }
    Ok(())
}

fn gc(request: &Request, config: &Config) -> Result<(), CniError> {
    let mut done = collect_pairs(request);
    if config.mac_spoof_check {
        let valid: Vec<String> = request.valid_attachments().iter().map(|(id, ifname)| spoof::owner(id, ifname)).collect();
        done = done.and(spoof::forget(|known| !valid.iter().any(|owner| owner == known)));
    }
    // The address of a pair that is still there must not be given out.
    done?;
    ipam::delegate(request, Command::Gc).map(drop)
}

fn check(request: &Request, config: &Config) -> Result<(), CniError> {
    ipam::delegate(request, Command::Check)?;
    let host = Rtnl::open().map_err(net)?;
    let Found { expected, near } = check_pair(request, &host)?;
    let Some(bridge) = host.link(&config.bridge).map_err(net)?.filter(|link| link.kind == "bridge") else {
        return Err(drifted(format!("the bridge {} is gone", config.bridge)));
    };
    if near.master != Some(bridge.index) {
        return Err(drifted(format!("the host's end of {} is not on {}", request.ifname, config.bridge)));
    }
    if bridge.promiscuous != config.promisc_mode {
        return Err(drifted(format!("promiscuous mode of {} is {}, not {}", config.bridge, bridge.promiscuous, config.promisc_mode)));
    }
    match expected.interfaces.iter().find(|known| known.name == config.bridge && known.sandbox.is_empty()) {
        Some(known) => check_mac(&known.mac, &bridge),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
