//! Rows of BGPPeer, BGPConfiguration and IPPool.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{PORT, Selector, as_number, is_host};

/// What the cluster's resources say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Of the BGPConfiguration `default`.
    pub configuration: Configuration,
    pub peers: BTreeMap<String, Result<ResourcePeer, String>>,
    pub pools: BTreeMap<String, Result<Pool, String>>,
    /// Why some are not known.
    pub troubles: Vec<String>,
}

/// The BGPConfiguration `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub asn: Option<u32>,
    /// Every node has a session with every other one.
    pub mesh: bool,
    pub port: u16,
    /// Seconds that routes of the mesh stay while their node restarts.
    pub longest_restart: Option<u16>,
    /// Sessions of the mesh have a password, in a Secret.
    pub mesh_password: bool,
    /// Members that have no effect here.
    pub unused: Vec<&'static str>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self { asn: None, mesh: true, port: PORT, longest_restart: None, mesh_password: false, unused: Vec::new() }
    }
}

/// Whom a BGPPeer is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A router.
    Address { ip: IpAddr, port: u16, asn: u32 },
    /// Nodes.
    Nodes(Selector),
}

/// A BGPPeer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourcePeer {
    /// The node that has the peer; none: see `nodes`.
    pub node: Option<String>,
    /// The nodes that have the peer.
    pub nodes: Selector,
    pub remote: Remote,
    pub keep_next_hop: bool,
    pub own_as_allowed: u8,
    /// Seconds.
    pub longest_restart: Option<u16>,
    /// It has a password, in a Secret.
    pub password: bool,
    /// Members that have no effect here.
    pub unused: Vec<&'static str>,
}

/// An IPPool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub cidr: IpNet,
    /// The tunnel that packets between its pods travel in: the member and its value.
    pub tunnel: Option<(&'static str, String)>,
    pub disabled: bool,
    /// Its addresses are not announced.
    pub silent: bool,
}

/// A member that is there and neither null nor empty.
fn has(spec: &Value, name: &str) -> bool {
    match &spec[name] {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

fn unused(spec: &Value, names: &[&'static str]) -> Vec<&'static str> {
    names.iter().copied().filter(|name| has(spec, name)).collect()
}

fn asn(value: &Value) -> Option<u32> {
    match value {
        Value::String(text) => as_number(text),
        Value::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number != 0),
        _ => None,
    }
}

/// Seconds of a duration such as `1m30s` or `120s`.
fn seconds(value: &Value) -> Option<u16> {
    let text = value.as_str()?;
    let mut total: u64 = 0;
    let mut number = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if number.len() < 6 => number.push(letter),
            'h' | 'm' | 's' => {
                let unit = if letter == 'h' {
                    3600
                } else if letter == 'm' {
                    60
                } else {
                    1
                };
                total += number.parse::<u64>().ok()? * unit;
                number.clear();
            }
            _ => return None,
        }
    }
    number.is_empty().then_some(total).filter(|_| !text.is_empty()).map(|total| u16::try_from(total).unwrap_or(u16::MAX))
}

impl Configuration {
    /// Reads the member `spec`.
    pub fn read(spec: &Value) -> Self {
        let port = spec["listenPort"].as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        Self {
            asn: asn(&spec["asNumber"]),
            mesh: spec["nodeToNodeMeshEnabled"].as_bool().unwrap_or(true),
            port: port.unwrap_or(PORT),
            longest_restart: seconds(&spec["nodeMeshMaxRestartTime"]),
            mesh_password: has(spec, "nodeMeshPassword"),
            unused: unused(spec, &["serviceClusterIPs", "serviceExternalIPs", "serviceLoadBalancerIPs", "communities", "prefixAdvertisements"]),
        }
    }
}

impl ResourcePeer {
    /// Reads the member `spec`.
    ///
    /// # Errors
    /// The reason why it names no peer.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let text = |name: &str| spec[name].as_str().filter(|text| !text.is_empty());
        let selector = |name: &str| {
            let parsed = text(name).map(Selector::parse).transpose();
            parsed.map_err(|error| format!("{name} is no selector: {error}"))
        };
        let remote = match (text("peerIP"), selector("peerSelector")?) {
            (Some(_), Some(_)) => return Err("it has both peerIP and peerSelector".to_owned()),
            (None, Some(selector)) => Remote::Nodes(selector),
            (None, None) => return Err("it has neither peerIP nor peerSelector".to_owned()),
            (Some(text), None) => {
                let (ip, port) =
                    endpoint(text).ok_or_else(|| format!("peerIP {:?} is no address of a host", text.chars().take(60).collect::<String>()))?;
                Remote::Address { ip, port, asn: asn(&spec["asNumber"]).ok_or("asNumber is missing, or no AS number")? }
            }
        };
        let node = text("node").map(str::to_owned);
        let nodes = selector("nodeSelector")?;
        if node.is_some() && nodes.is_some() {
            return Err("it has both node and nodeSelector".to_owned());
        }
        Ok(Self {
            node,
            nodes: nodes.map_or_else(|| Selector::parse("").map_err(|error| error.to_string()), Ok)?,
            remote,
            keep_next_hop: spec["keepOriginalNextHop"].as_bool() == Some(true) || text("nextHopMode") == Some("Keep"),
            own_as_allowed: spec["numAllowedLocalASNumbers"].as_u64().map_or(0, |times| u8::try_from(times).unwrap_or(u8::MAX)),
            longest_restart: seconds(&spec["maxRestartTime"]),
            password: has(spec, "password"),
            unused: unused(spec, &["filters", "ttlSecurity", "reachableBy", "localASNumber", "reversePeering"]),
        })
    }
}

/// An address, with a port or without: `10.0.0.1`, `10.0.0.1:1179`, `fd00::1`, `[fd00::1]:1179`.
fn endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let plain = text.parse().ok().map(|ip: IpAddr| (ip, PORT));
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|at| (at.ip(), at.port()));
    plain.or_else(with_port).filter(|(ip, port)| is_host(*ip) && *port != 0)
}

impl Pool {
    /// Reads the member `spec`.
    ///
    /// # Errors
    /// The reason why it is no pool.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let cidr: IpNet = spec["cidr"].as_str().and_then(|text| text.parse().ok()).ok_or("its cidr is no network")?;
        let tunnel = ["ipipMode", "vxlanMode"].into_iter().find_map(|name| {
            let mode = spec[name].as_str().filter(|mode| !["", "Never"].contains(mode))?;
            Some((name, mode.chars().take(20).collect()))
        });
        let (disabled, silent) = (spec["disabled"].as_bool() == Some(true), spec["disableBGPExport"].as_bool() == Some(true));
        Ok(Self { cidr: cidr.trunc(), tunnel, disabled, silent })
    }
}
