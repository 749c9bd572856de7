//! `ovn_cni` and `ovn-k8s-cni-overlay`: a pod's link to its logical port of OVN. Source: ovn-kubernetes of 2017 and 2018.
//!
//! Flow: the pod's annotation → pair of links → port of `br-int` with the logical port's name → `ovn-installed` of `ovn-controller`.
//! Guarantees: a failed ADD leaves nothing; DEL and CHECK may come any number of times; ports of others are never changed.
//! Does not do: addresses, which OVN gives; `ipam` of the configuration is not read, as upstream does not.

mod annotation;
mod pod;
mod switch;

use std::path::PathBuf;
use std::time::Duration;

use linux_sys::ethtool;
use linux_sys::netlink::{Link, Rtnl};
use linux_sys::ns::NetNs;
use serde::Deserialize;

use crate::fold::fold_map;
use crate::links::{
    check_pair, collect_pairs, configure, drifted, host_name, mac_text, make_pair, must_find, net, open_sandbox, prepare_ipv6, remove_pair,
};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Interface, IpConfig, Route, code};
pub use annotation::{AnnotationError, PodNetwork};
use pod::Pod;
use switch::{NewPort, Switch};

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Config {
    bridge: String,
    mtu: u32,
    /// The local Open vSwitch's database.
    ovs: String,
    kubeconfig: Option<PathBuf>,
    /// Seconds to wait for the annotation, and again for the flows.
    timeout: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { bridge: "br-int".into(), mtu: 1400, ovs: "unix:/run/openvswitch/db.sock".into(), kubeconfig: None, timeout: 30 }
    }
}

const KEYS: &[&str] = &["bridge", "mtu", "ovs", "kubeconfig", "timeout"];

impl Config {
    fn read(request: &Request) -> Result<Self, CniError> {
        let mut document = request.config.document.clone();
        fold_map(&mut document, KEYS);
        document.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        let config: Self = serde_json::from_value(document.into()).map_err(|e| CniError::decode("the configuration of ovn_cni", &e))?;
        ovsdb::remotes(&config.ovs).map_err(|e| CniError::config(format!("ovs {:?}: {e}", config.ovs)))?;
        if config.timeout == 0 || config.timeout > 600 {
            return Err(CniError::config(format!("timeout {}: give 1 to 600 seconds", config.timeout)));
        }
        Ok(config)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
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
        Command::Status => block_on(async { Switch::open(&config.ovs).await?.bridge(&config.bridge).map(|_| None) })?,
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T, CniError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|e| CniError::io("start a runtime", &e))?.block_on(work))
}

fn add(request: &Request, config: &Config) -> Result<AddResult, CniError> {
    let pod = Pod::of(request)?;
    let sandbox = open_sandbox(request)?;
    let host = Rtnl::open().map_err(net)?;
    block_on(async {
        let switch = Switch::open(&config.ovs).await?;
        let bridge = switch.bridge(&config.bridge)?;
        let network = pod::network(&pod, config, &switch.settings()).await?;
        let near = make_pair(request, &host, &sandbox, Some(config.mtu).filter(|mtu| *mtu != 0))?;
        let done = connect(&Work { request, config, switch: &switch, pod: &pod, host: &host, sandbox: &sandbox }, &bridge, &network, &near).await;
        if done.is_err() {
            // Best effort: the first error is the one to report.
            let _ = switch.detach(&config.bridge, |port| port.sandbox == request.container_id && port.link == near.name).await;
            let _ = host.del_link(near.index);
        }
        done
    })?
}

/// What an ADD works with.
struct Work<'a> {
    request: &'a Request,
    config: &'a Config,
    switch: &'a Switch,
    pod: &'a Pod,
    host: &'a Rtnl,
    sandbox: &'a NetNs,
}

async fn connect(work: &Work<'_>, bridge: &switch::Bridge, network: &PodNetwork, near: &Link) -> Result<AddResult, CniError> {
    let Work { request, config, switch, pod, host, sandbox } = *work;
    let inside = Rtnl::open_in(sandbox).map_err(net)?;
    let mut result = result_of(network);
    inside.set_mac(must_find(&inside, &request.ifname)?.index, network.mac).map_err(net)?;
    if bridge.is_userspace {
        // Nobody completes there what a kernel left to the network card.
        let off =
            |link: &str| ethtool::set_tx_checksum(link, false).map_err(|e| CniError::io(format_args!("switch off checksum offload of {link}"), &e));
        off(&near.name)?;
        sandbox.run(|| off(&request.ifname)).map_err(|e| CniError::io("enter the sandbox", &e))??;
    }
    prepare_ipv6(request, sandbox, &result)?;
    let far = configure(request, &inside, &result)?;
    host.set_up(near.index).map_err(net)?;
    let addresses: Vec<String> = network.addresses.iter().map(ToString::to_string).collect();
    let port =
        NewPort { link: &near.name, pod, sandbox: &request.container_id, network: &request.config.name, mac: mac_text(network.mac), addresses };
    switch.attach(&config.bridge, &port).await?;
    switch.installed(&port, config.limit()).await?;
    let near = must_find(host, &near.name)?;
    let of =
        |link: &Link, sandbox: &str| Interface { name: link.name.clone(), mac: mac_text(link.mac), mtu: Some(link.mtu), sandbox: sandbox.to_owned() };
    result.interfaces = vec![of(&near, ""), of(&far, &request.netns)];
    result.ips.iter_mut().for_each(|ip| ip.interface = Some(1));
    result.dns = request.config.dns()?;
    Ok(result)
}

fn result_of(network: &PodNetwork) -> AddResult {
    let gateway = |ip: &ipnet::IpNet| network.gateways.iter().find(|gateway| gateway.is_ipv4() == ip.addr().is_ipv4()).copied();
    let any = |gateway: &std::net::IpAddr| if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let route = |(dst, gw): (ipnet::IpNet, std::net::IpAddr)| Route { dst, gw: Some(gw), mtu: None, priority: None };
    let defaults = network.gateways.iter().filter_map(|gateway| Some((any(gateway).parse().ok()?, *gateway)));
    AddResult {
        ips: network.addresses.iter().map(|address| IpConfig { address: *address, gateway: gateway(address), interface: None }).collect(),
        routes: network.routes.iter().copied().chain(defaults).map(route).collect(),
        ..AddResult::default()
    }
}

fn del(request: &Request, config: &Config) -> Result<(), CniError> {
    let removed = remove_pair(request);
    // Without a database there is no port, or none that works: a later ADD or GC finds it.
    let detached = if switch::is_there(&config.ovs) {
        let link = host_name(request);
        block_on(async {
            Switch::open(&config.ovs).await?.detach(&config.bridge, |port| port.sandbox == request.container_id && port.link == link).await
        })?
    } else {
        Ok(())
    };
    removed.and(detached)
}

fn check(request: &Request, config: &Config) -> Result<(), CniError> {
    let pod = Pod::of(request)?;
    let found = check_pair(request, &Rtnl::open().map_err(net)?)?;
    let switch = block_on(Switch::open(&config.ovs))??;
    let ports = switch.ports(&config.bridge);
    let port = ports.iter().find(|port| port.link == found.near.name);
    let port = port.ok_or_else(|| drifted(format!("{} is no port of {}", found.near.name, config.bridge)))?;
    if port.iface_id != pod.port_name() || port.sandbox != request.container_id {
        return Err(drifted(format!("port {} of {} is that of {} in sandbox {}", port.link, config.bridge, port.iface_id, port.sandbox)));
    }
    if port.installed { Ok(()) } else { Err(drifted(format!("OVN has no flows for {}; look whether ovn-controller runs", pod.port_name()))) }
}

fn gc(request: &Request, config: &Config) -> Result<(), CniError> {
    let valid: Vec<String> = request.valid_attachments().into_iter().map(|(id, _)| id).collect();
    let collected = collect_pairs(request);
    let detached = block_on(async {
        let switch = Switch::open(&config.ovs).await?;
        let owner = switch::owner(&request.config.name);
        switch.detach(&config.bridge, |port| port.owner == owner && !valid.contains(&port.sandbox)).await
    })?;
    collected.and(detached)
}

/// An error after which the runtime tries again.
fn later(text: String) -> CniError {
    CniError::new(code::TRY_AGAIN, text)
}
