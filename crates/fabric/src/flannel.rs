//! What nodes announce about themselves in annotations, as flannel writes and reads them.
//!
//! Source: flannel's `pkg/subnet/kube` and `pkg/backend/vxlan`. flannel reads its own MAC out of `backend-data` by splitting the
//! text, so keys, order and the absence of blanks are part of the format.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde_json::Value;

mod net_conf;

pub use net_conf::{Backend, NetConf, NetConfError};

/// flannel's name of the backend that the mode host-gateway is.
pub const HOST_GATEWAY: &str = "host-gw";
const PREFIX: &str = "flannel.alpha.coreos.com/";
/// The longest annotation that is read.
const LONGEST: usize = 1024;
/// Numbers of VXLAN segments have 24 bits.
const LAST_VNI: u64 = (1 << 24) - 1;

/// A hardware address of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `AA-BB-CC-DD-EE-FF`, as HNS writes it.
    pub fn dashed(self) -> String {
        self.0.map(|byte| format!("{byte:02X}")).join("-")
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|byte| format!("{byte:02x}")).join(":"))
    }
}

/// A text that is no hardware address of one host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no MAC address of a host")]
pub struct NoMac(String);

impl FromStr for Mac {
    type Err = NoMac;

    /// Six bytes in hexadecimal with colons or dashes between them; not zero, and no group address.
    fn from_str(text: &str) -> Result<Self, NoMac> {
        let refuse = || NoMac(text.chars().take(40).collect());
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit())).ok_or_else(refuse)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() || mac == [0; 6] || mac[0] & 1 != 0 {
            return Err(refuse());
        }
        Ok(Self(mac))
    }
}

/// What a node announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Announcement {
    /// Nothing yet.
    #[default]
    None,
    /// Others route its pods to it.
    HostGateway {
        /// Where, of IPv4; absent means the node's own address.
        public_ip: Option<IpAddr>,
        /// The same of IPv6.
        public_ipv6: Option<IpAddr>,
    },
    Vxlan {
        vni: u32,
        /// The MAC of its tunnel; a Windows node has none before its network exists.
        mac: Option<Mac>,
        /// Where its tunnel is; absent means the node's own address.
        public_ip: Option<IpAddr>,
    },
    /// Another backend of flannel.
    Other(String),
    /// What cannot be read, with the reason.
    Bad(String),
}

impl Announcement {
    /// Reads the annotations of a Node.
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let get = |name: &str| annotations.get(&format!("{PREFIX}{name}")).map(String::as_str).filter(|text| !text.is_empty());
        match get("backend-type") {
            None => Self::None,
            Some("vxlan") => vxlan(get("backend-data").unwrap_or_default(), get("public-ip")).unwrap_or_else(Self::Bad),
            Some(HOST_GATEWAY) => host_gateway(get("public-ip"), get("public-ipv6")).unwrap_or_else(Self::Bad),
            // Shown in logs and Events, where a line end or a colour of somebody's choice has no place.
            Some(other) => Self::Other(other.chars().filter(|letter| !letter.is_control()).take(40).collect()),
        }
    }
}

fn host_gateway(v4: Option<&str>, v6: Option<&str>) -> Result<Announcement, String> {
    let (public_ip, public_ipv6) = (public_ip("public-ip", v4)?, public_ip("public-ipv6", v6)?);
    Ok(Announcement::HostGateway { public_ip: public_ip.filter(IpAddr::is_ipv4), public_ipv6: public_ipv6.filter(IpAddr::is_ipv6) })
}

fn vxlan(data: &str, public_ip: Option<&str>) -> Result<Announcement, String> {
    if data.len() > LONGEST {
        return Err(format!("annotation {PREFIX}backend-data is longer than {LONGEST} bytes"));
    }
    let not_read = || format!("annotation {PREFIX}backend-data has no VNI and VtepMAC of a vxlan");
    let data: Value = serde_json::from_str(data).map_err(|_| not_read())?;
    let vni = data["VNI"].as_u64().filter(|vni| (1..=LAST_VNI).contains(vni)).ok_or_else(not_read)?;
    let mac = match data["VtepMAC"].as_str() {
        None => return Err(not_read()),
        Some("") => None,
        Some(text) => Some(text.parse().map_err(|error: NoMac| format!("annotation {PREFIX}backend-data: {error}"))?),
    };
    let public_ip = self::public_ip("public-ip", public_ip)?;
    Ok(Announcement::Vxlan { vni: vni as u32, mac, public_ip })
}

fn public_ip(name: &str, text: Option<&str>) -> Result<Option<IpAddr>, String> {
    let host = |text: &str| {
        let ip: IpAddr = text.parse().ok()?;
        let is_host = !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback()) && ip != IpAddr::from([255; 4]);
        is_host.then_some(ip)
    };
    text.map(|text| host(text).ok_or_else(|| format!("annotation {PREFIX}{name} is no address of a host"))).transpose()
}

/// The annotations of a node with a vxlan tunnel.
pub fn announce_vxlan(vni: u32, mac: Mac, public_ip: IpAddr) -> BTreeMap<String, String> {
    annotations("vxlan", format!("{{\"VNI\":{vni},\"VtepMAC\":\"{mac}\"}}"), Some(public_ip), None)
}

/// The annotations of a node that others route to, at its address of each family that its pods have.
pub fn announce_host_gateway(public_ip: Option<IpAddr>, public_ipv6: Option<IpAddr>) -> BTreeMap<String, String> {
    annotations(HOST_GATEWAY, "null".to_owned(), public_ip, public_ipv6)
}

fn annotations(backend: &str, data: String, public_ip: Option<IpAddr>, public_ipv6: Option<IpAddr>) -> BTreeMap<String, String> {
    let of_ipv4 = |ip: IpAddr| [("backend-data", data.clone()), ("public-ip", ip.to_string())];
    let of_ipv6 = |ip: IpAddr| [("backend-v6-data", data.clone()), ("public-ipv6", ip.to_string())];
    let annotations = [("kube-subnet-manager", "true".to_owned()), ("backend-type", backend.to_owned())];
    let families = public_ip.into_iter().flat_map(of_ipv4).chain(public_ipv6.into_iter().flat_map(of_ipv6));
    annotations.into_iter().chain(families).map(|(name, value)| (format!("{PREFIX}{name}"), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(backend: &str, data: &str, public_ip: &str) -> Announcement {
        let all = [("backend-type", backend), ("backend-data", data), ("public-ip", public_ip)];
        Announcement::read(&all.into_iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.to_owned())).collect())
    }

    #[test]
    fn what_is_written_is_flannels_text_and_is_read_back() {
        let mac: Mac = "0e:2a:0a:f4:01:05".parse().unwrap();
        let written = announce_vxlan(4096, mac, "192.0.2.1".parse().unwrap());
        let lines: Vec<String> = written.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            lines,
            [
                r#"flannel.alpha.coreos.com/backend-data={"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:05"}"#,
                "flannel.alpha.coreos.com/backend-type=vxlan",
                "flannel.alpha.coreos.com/kube-subnet-manager=true",
                "flannel.alpha.coreos.com/public-ip=192.0.2.1",
            ]
        );
        assert_eq!(Announcement::read(&written), Announcement::Vxlan { vni: 4096, mac: Some(mac), public_ip: "192.0.2.1".parse().ok() });
        assert_eq!(mac.dashed(), "0E-2A-0A-F4-01-05");
        let written = announce_host_gateway("192.0.2.1".parse().ok(), "fd00::1".parse().ok());
        assert_eq!(written["flannel.alpha.coreos.com/backend-data"], "null", "the text, not an empty one");
        assert_eq!((&*written["flannel.alpha.coreos.com/backend-v6-data"], &*written["flannel.alpha.coreos.com/public-ipv6"]), ("null", "fd00::1"));
        let announced = Announcement::HostGateway { public_ip: "192.0.2.1".parse().ok(), public_ipv6: "fd00::1".parse().ok() };
        assert_eq!(Announcement::read(&written), announced);
    }

    #[test]
    fn states_of_other_nodes_are_told_apart() {
        assert_eq!(Announcement::read(&BTreeMap::new()), Announcement::None);
        assert_eq!(read("host-gw", "null", "192.0.2.1"), Announcement::HostGateway { public_ip: "192.0.2.1".parse().ok(), public_ipv6: None });
        assert_eq!(read("host-gw", "null", ""), Announcement::HostGateway { public_ip: None, public_ipv6: None });
        assert_eq!(read("udp", "", ""), Announcement::Other("udp".into()));
        assert_eq!(read("udp\n\u{1b}[31mERROR node a: gone", "", ""), Announcement::Other("udp[31mERROR node a: gone".into()), "one line");
        let empty = r#"{"VNI":4096,"VtepMAC":""}"#;
        assert_eq!(read("vxlan", empty, ""), Announcement::Vxlan { vni: 4096, mac: None, public_ip: None });
    }

    #[test]
    fn hostile_announcements_are_bad() {
        let good = r#"{"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:05"}"#;
        assert!(matches!(read("vxlan", good, "10.0.0.1"), Announcement::Vxlan { .. }));
        let long = format!("{}{good}", " ".repeat(LONGEST));
        for data in
            ["", "null", "[]", r#"{"VNI":0,"VtepMAC":""}"#, r#"{"VNI":16777216,"VtepMAC":""}"#, r#"{"VNI":1}"#, r#"{"VNI":"1","VtepMAC":""}"#, &long]
        {
            assert!(matches!(read("vxlan", data, ""), Announcement::Bad(_)), "{data}");
        }
        for mac in ["ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "01:00:5e:00:00:01", "0e:2a", "0e:2a:0a:f4:01:05:06", "+e:2a:0a:f4:01:05", "é:2a"] {
            assert!(matches!(read("vxlan", &format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#), ""), Announcement::Bad(_)), "{mac}");
        }
        for ip in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::", "node"] {
            assert!(matches!(read("vxlan", good, ip), Announcement::Bad(_)), "{ip}");
            assert!(matches!(read("host-gw", "null", ip), Announcement::Bad(_)), "{ip}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_annotation_is_read_without_harm(backend in ".{0,12}", data in ".{0,60}", ip in ".{0,20}", vni: u64, mac: [u8; 6]) {
            read(&backend, &data, &ip);
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            if let Announcement::Vxlan { vni, mac: Some(mac), .. } = read("vxlan", &format!(r#"{{"VtepMAC":"{mac}","VNI":{vni}}}"#), "") {
                assert!((1..1 << 24).contains(&vni) && mac.0[0] & 1 == 0 && mac.0 != [0; 6]);
            }
            for text in [&backend, &data, &ip] {
                if let Ok(mac) = text.parse::<Mac>() {
                    assert_eq!(mac.to_string().parse(), Ok(mac));
                }
            }
        }
    }
}
