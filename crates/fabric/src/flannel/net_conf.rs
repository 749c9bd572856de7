//! flannel's `net-conf.json`, as far as a cluster with Windows nodes can have it.
//!
//! Source: flannel's `pkg/subnet/config.go` and the backends' configurations. Keys are matched without regard to case, as Go does; files of
//! Windows PowerShell are UTF-16 or begin with a byte order mark.

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::HOST_GATEWAY;
use crate::mode::{Mode, Vxlan};

/// The longest file that is read.
const LONGEST: usize = 64 * 1024;

/// A cluster's network, as flannel's nodes are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConf {
    /// Every pod's address lies here.
    pub network: IpNet,
    pub backend: Backend,
}

/// How pods of different nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    HostGateway,
    Vxlan(Vxlan),
}

impl Backend {
    /// The mode that is the same.
    pub fn mode(self) -> Mode {
        match self {
            Self::HostGateway => Mode::HostGateway,
            Self::Vxlan(_) => Mode::Vxlan,
        }
    }
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetConfError {
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("it is no JSON object: {0}")]
    Json(String),
    #[error("its {key} is {value}; write {expected}")]
    Value { key: &'static str, value: String, expected: &'static str },
    #[error("its backend {0} is not for Windows nodes: use vxlan with \"VNI\": 4096 and \"Port\": 4789, or host-gw where the nodes are neighbours")]
    Backend(String),
    #[error("it asks for {0}, which no Windows node does; remove it")]
    Setting(&'static str),
}

impl NetConf {
    /// Reads the file's content.
    ///
    /// # Errors
    /// Files that are no such configuration, and settings that Windows nodes cannot have.
    pub fn parse(bytes: &[u8]) -> Result<Self, NetConfError> {
        if bytes.len() > LONGEST {
            return Err(NetConfError::TooLong);
        }
        let value: Value = serde_json::from_str(&host::decode_text(bytes)).map_err(|error| NetConfError::Json(error.to_string()))?;
        let Value::Object(map) = value else { return Err(NetConfError::Json("it has no members".to_owned())) };
        if is_set(&map, "EnableIPv6") {
            return Err(NetConfError::Setting("EnableIPv6"));
        }
        if get(&map, "EnableIPv4") == Some(&Value::Bool(false)) {
            return Err(NetConfError::Setting("EnableIPv4: false"));
        }
        let network = match get(&map, "Network") {
            Some(Value::String(text)) => text.parse::<IpNet>().ok().filter(|net| net.addr().is_ipv4()).ok_or(text.clone()),
            other => Err(other.map_or_else(|| "missing".to_owned(), short)),
        };
        let network = network.map_err(|value| NetConfError::Value { key: "Network", value, expected: "an IPv4 network as \"10.244.0.0/16\"" })?;
        Ok(Self { network: network.trunc(), backend: backend(&map)? })
    }
}

fn backend(map: &Map<String, Value>) -> Result<Backend, NetConfError> {
    let backend = match get(map, "Backend") {
        Some(Value::Object(backend)) => backend,
        // flannel's default.
        None | Some(Value::Null) => return Err(NetConfError::Backend("udp (the default)".to_owned())),
        Some(other) => return Err(NetConfError::Value { key: "Backend", value: short(other), expected: "an object with a Type" }),
    };
    match get(backend, "Type").and_then(Value::as_str) {
        Some(HOST_GATEWAY) => Ok(Backend::HostGateway),
        Some("vxlan") => vxlan(backend).map(Backend::Vxlan),
        Some(other) => Err(NetConfError::Backend(other.chars().take(40).collect())),
        None => Err(NetConfError::Value { key: "Backend.Type", value: "missing".to_owned(), expected: "\"vxlan\" or \"host-gw\"" }),
    }
}

fn vxlan(backend: &Map<String, Value>) -> Result<Vxlan, NetConfError> {
    if let Some(setting) = ["DirectRouting", "GBP", "Learning"].into_iter().find(|setting| is_set(backend, setting)) {
        return Err(NetConfError::Setting(setting));
    }
    let number = |key: &'static str, default: u64, range: std::ops::RangeInclusive<u64>, expected: &'static str| {
        let given = get(backend, key).filter(|value| !value.is_null());
        let value = given.map_or(Some(default), Value::as_u64).filter(|value| range.contains(value));
        let shown = || given.map_or_else(|| format!("{default} (the default)"), short);
        value.ok_or_else(|| NetConfError::Value { key, value: shown(), expected })
    };
    // flannel's own defaults are 1 and the kernel's 8472.
    let vni = number("VNI", 1, u64::from(Vxlan::LEAST_VNI)..=0xffff, "a number from 4096 to 65535: Windows has no other")?;
    let port = number("Port", 8472, u64::from(Vxlan::PORT)..=u64::from(Vxlan::PORT), "4789: Windows has no other")?;
    let mtu = number("MTU", 0, 0..=65_535, "bytes of the largest packet, or 0 for that of the nodes' network")?;
    // The ranges are those of the types.
    Ok(Vxlan { vni: vni as u32, port: port as u16, mtu: Some(mtu as u32).filter(|mtu| *mtu != 0) })
}

fn get<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    map.get(key).or_else(|| map.iter().find(|(known, _)| known.eq_ignore_ascii_case(key)).map(|(_, value)| value))
}

fn is_set(map: &Map<String, Value>, key: &str) -> bool {
    get(map, key) == Some(&Value::Bool(true))
}

/// A value as an error shows it.
fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 4096, "Port": 4789}}"#;

    fn parse(text: &str) -> Result<NetConf, NetConfError> {
        NetConf::parse(text.as_bytes())
    }

    #[test]
    fn mixed_clusters_configurations_are_read() {
        let read = parse(MIXED).unwrap();
        assert_eq!((read.network.to_string().as_str(), read.backend), ("10.244.0.0/16", Backend::Vxlan(Vxlan::default())));
        assert_eq!(read.backend.mode(), Mode::Vxlan);
        let gateway = parse(r#"{"network": "10.244.0.0/16", "EnableNFTables": false, "backend": {"type": "host-gw"}}"#).unwrap();
        assert_eq!((gateway.backend, gateway.backend.mode()), (Backend::HostGateway, Mode::HostGateway));
        let other = parse(&MIXED.replace("4096", "4100, \"MTU\": 1400, \"Name\": \"vxlan0\"")).unwrap();
        assert_eq!(other.backend, Backend::Vxlan(Vxlan { vni: 4100, mtu: Some(1400), ..Vxlan::default() }));
        let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(MIXED.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        assert_eq!(NetConf::parse(&utf16).unwrap(), read, "as Out-File of Windows PowerShell writes it");
    }

    #[test]
    fn what_windows_cannot_do_is_refused_with_the_way_out() {
        let with = |backend: &str| format!(r#"{{"Network": "10.244.0.0/16", "Backend": {backend}}}"#);
        for (text, words) in [
            (r#"{"Network": "10.244.0.0/16"}"#.to_owned(), "backend udp (the default) is not for Windows"),
            (with(r#"{"Type": "ipip"}"#), "backend ipip is not for Windows nodes: use vxlan"),
            (with(r#"{"Type": "wireguard"}"#), "backend wireguard"),
            (with(r#"{"Type": "vxlan"}"#), "its VNI is 1 (the default); write a number from 4096"),
            (with(r#"{"Type": "vxlan", "VNI": 70000}"#), "its VNI is 70000"),
            (with(r#"{"Type": "vxlan", "VNI": 4096}"#), "its Port is 8472 (the default); write 4789"),
            (with(r#"{"Type": "vxlan", "VNI": 4096, "Port": 4789, "DirectRouting": true}"#), "DirectRouting, which no Windows node does"),
            (with(r#"{"Type": "vxlan", "VNI": 4096, "Port": 4789, "MTU": -1}"#), "its MTU is -1"),
            (with("7"), "its Backend is 7"),
            (with("{}"), "its Backend.Type is missing"),
            (MIXED.replace("10.244.0.0/16", "pods"), "its Network is pods; write an IPv4 network"),
            (MIXED.replace("\"Network\"", "\"EnableIPv6\": true, \"Network\""), "EnableIPv6"),
            (MIXED.replace("\"Network\"", "\"Net\""), "its Network is missing"),
            ("[]".to_owned(), "no JSON object"),
            (String::new(), "no JSON object"),
            (" ".repeat(LONGEST + 1), "longer than"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_read_without_harm(bytes: Vec<u8>, backend in "[a-z-]{0,8}", vni: i64, port: i64) {
            let _ = NetConf::parse(&bytes);
            if let Ok(NetConf { backend: Backend::Vxlan(vxlan), .. }) =
                parse(&format!(r#"{{"Network": "10.0.0.0/8", "Backend": {{"Type": "{backend}", "VNI": {vni}, "Port": {port}}}}}"#))
            {
                assert!((4096..=65_535).contains(&vxlan.vni) && vxlan.port == 4789);
            }
        }
    }
}
