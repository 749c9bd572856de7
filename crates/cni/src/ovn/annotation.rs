//! What a pod's annotations say of its network: today's form, that of 2018, and that of 2017, which was text of Python.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

/// The annotation of 2017 and 2018.
const OLD: &str = "ovn";
/// Today's.
const TODAY: &str = "k8s.ovn.org/pod-networks";
/// The most addresses, gateways or routes of a pod.
const MOST: usize = 64;

/// A pod's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// Each with the length of its subnet.
    pub addresses: Vec<IpNet>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its routers.
    pub gateways: Vec<IpAddr>,
    /// Destinations with their next hops, besides the rest by the routers.
    pub routes: Vec<(IpNet, IpAddr)>,
}

/// Why an annotation says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read annotation {name} of the pod: {reason}; look which program writes it")]
pub struct AnnotationError {
    name: &'static str,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ip_addresses: Vec<IpNet>,
    ip_address: Option<IpNet>,
    mac_address: String,
    gateway_ips: Vec<IpAddr>,
    gateway_ip: Option<IpAddr>,
    routes: Vec<DocumentRoute>,
}

#[derive(Deserialize)]
struct DocumentRoute {
    dest: IpNet,
    #[serde(rename = "nextHop")]
    next_hop: IpAddr,
}

impl PodNetwork {
    /// Reads a pod's annotations, today's form first. None: there is none yet.
    ///
    /// # Errors
    /// It is not in one of the forms, or its addresses are of no use.
    pub fn read(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, AnnotationError> {
        let wrong = |name: &'static str| move |reason: String| AnnotationError { name, reason };
        if let Some(text) = annotations.get(TODAY) {
            let mut networks: BTreeMap<String, Value> = serde_json::from_str(text).map_err(|e| wrong(TODAY)(e.to_string()))?;
            let network = networks.remove("default").ok_or_else(|| wrong(TODAY)("it has no network \"default\"".into()))?;
            return Self::of(network).map(Some).map_err(wrong(TODAY));
        }
        let Some(text) = annotations.get(OLD) else { return Ok(None) };
        let document = serde_json::from_str(text).or_else(|error| serde_json::from_str(&from_python(text)).map_err(|_| error));
        document.map_err(|e| e.to_string()).and_then(Self::of).map(Some).map_err(wrong(OLD))
    }

    fn of(value: Value) -> Result<Self, String> {
        let Document { ip_addresses, ip_address, mac_address, gateway_ips, gateway_ip, routes } =
            serde_json::from_value(value).map_err(|e| e.to_string())?;
        let addresses = if ip_addresses.is_empty() { Vec::from_iter(ip_address) } else { ip_addresses };
        let gateways = if gateway_ips.is_empty() { Vec::from_iter(gateway_ip) } else { gateway_ips };
        if addresses.is_empty() {
            return Err("it has no address".into());
        }
        if addresses.len().max(gateways.len()).max(routes.len()) > MOST {
            return Err(format!("it has more than {MOST} addresses, gateways or routes"));
        }
        let usable = |ip: IpAddr| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback();
        let hops = gateways.iter().copied().chain(routes.iter().map(|route| route.next_hop));
        if let Some(ip) = addresses.iter().map(IpNet::addr).chain(hops).find(|ip| !usable(*ip)) {
            return Err(format!("{ip} is no address of a host"));
        }
        if let Some(route) = routes.iter().find(|route| route.dest.addr().is_ipv4() != route.next_hop.is_ipv4()) {
            return Err(format!("{} cannot be reached by {}", route.dest, route.next_hop));
        }
        let mac = mac(&mac_address).ok_or_else(|| format!("{mac_address:?} is no MAC address of a host"))?;
        Ok(Self { addresses, mac, gateways, routes: routes.into_iter().map(|route| (route.dest.trunc(), route.next_hop)).collect() })
    }
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let part = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    let bytes: [u8; 6] = text.split(':').map(part).collect::<Option<Vec<u8>>>()?.try_into().ok()?;
    (bytes != [0; 6] && bytes[0] & 1 == 0).then_some(bytes)
}

/// A dictionary of texts as Python prints it.
fn from_python(text: &str) -> String {
    text.replace("u'", "'").replace('\'', "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Option<PodNetwork>, String> {
        PodNetwork::read(&[(name.to_owned(), text.to_owned())].into()).map_err(|error| error.to_string())
    }

    #[test]
    fn all_three_forms_say_the_same() {
        let expected = PodNetwork {
            addresses: vec!["10.1.1.3/24".parse().unwrap()],
            mac: [10, 0, 0, 0, 0, 1],
            gateways: vec!["10.1.1.1".parse().unwrap()],
            routes: Vec::new(),
        };
        let forms = [
            (OLD, r"{'ip_address': '10.1.1.3/24', 'mac_address': '0a:00:00:00:00:01', 'gateway_ip': '10.1.1.1'}"),
            (OLD, r"{u'ip_address': u'10.1.1.3/24', u'mac_address': u'0a:00:00:00:00:01', u'gateway_ip': u'10.1.1.1'}"),
            (OLD, r#"{"ip_address":"10.1.1.3/24","mac_address":"0a:00:00:00:00:01","gateway_ip":"10.1.1.1"}"#),
            (TODAY, r#"{"default":{"ip_address":"10.1.1.3/24","mac_address":"0a:00:00:00:00:01","gateway_ip":"10.1.1.1"}}"#),
            (
                TODAY,
                r#"{"default":{"ip_addresses":["10.1.1.3/24"],"mac_address":"0a:00:00:00:00:01","gateway_ips":["10.1.1.1"],"role":"primary"},"blue":7}"#,
            ),
        ];
        for (name, text) in forms {
            assert_eq!(read(name, text), Ok(Some(expected.clone())), "{text}");
        }
        assert_eq!(PodNetwork::read(&BTreeMap::new()), Ok(None));
        let both = [(OLD.to_owned(), "no".to_owned()), (TODAY.to_owned(), forms[3].1.to_owned())].into();
        assert_eq!(PodNetwork::read(&both), Ok(Some(expected)), "today's form counts");
    }

    #[test]
    fn routes_and_both_families_are_read() {
        let text = r#"{"default":{"ip_addresses":["10.1.1.3/24","fd00::3/64"],"mac_address":"0a:00:00:00:00:01","gateway_ips":["10.1.1.1","fd00::1"],
            "routes":[{"dest":"10.96.0.0/12","nextHop":"10.1.1.1"}]}}"#;
        let network = read(TODAY, text).unwrap().unwrap();
        assert_eq!((network.addresses.len(), network.gateways.len()), (2, 2));
        assert_eq!(network.routes, [("10.96.0.0/12".parse().unwrap(), "10.1.1.1".parse().unwrap())]);
    }

    #[test]
    fn what_is_of_no_use_is_refused_with_the_reason() {
        let with = |from: &str, to: &str| {
            let text = r#"{"ip_address":"10.1.1.3/24","mac_address":"0a:00:00:00:00:01","gateway_ip":"10.1.1.1"}"#;
            read(OLD, &text.replace(from, to)).unwrap_err()
        };
        for (from, to, reason) in [
            ("10.1.1.3/24", "10.1.1.3", "invalid IP address syntax"),
            ("10.1.1.3/24", "224.0.0.1/24", "no address of a host"),
            ("0a:00:00:00:00:01", "01:00:00:00:00:01", "no MAC address"),
            ("0a:00:00:00:00:01", "0a:00", "no MAC address"),
            ("\"gateway_ip\":\"10.1.1.1\"", "\"gateway_ip\":\"0.0.0.0\"", "no address of a host"),
            ("ip_address", "address", "no address"),
            ("}", "", "cannot read annotation ovn of the pod"),
        ] {
            let error = with(from, to);
            assert!(error.contains(reason), "{to}: {error}");
        }
        assert!(read(TODAY, "{}").unwrap_err().contains("no network \"default\""));
        let mixed =
            r#"{"default":{"ip_addresses":["10.1.1.3/24"],"mac_address":"0a:00:00:00:00:01","routes":[{"dest":"fd00::/8","nextHop":"10.1.1.1"}]}}"#;
        assert!(read(TODAY, mixed).unwrap_err().contains("cannot be reached by"));
    }
}
