//! The result of ADD: one internal form (the newest), written and read in every version's shape.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::config::Dns;
use super::error::{CniError, code};
use super::version::SpecVersion;
use crate::fold::{fold, fold_map};

/// What ADD made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddResult {
    /// Every interface, on the host and in the sandbox. Empty in IPAM results and before 0.3.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// Addresses; `interface` is an index into `interfaces`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    /// Routes inside the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Name resolution inside the sandbox.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}

/// An interface that a plug-in made or used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    /// Its hardware address, in the host's notation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU (1.1.0), when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The sandbox that holds it; empty for an interface of the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

/// An address with its prefix length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// The address and the length of its subnet's prefix.
    pub address: IpNet,
    /// The subnet's default gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Index into [`AddResult::interfaces`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// A route; without `gw` the gateway of the address's subnet is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// MTU of the path (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Metric (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

impl AddResult {
    /// The document in the shape of `version`. Before 0.3.0 only the first address of each family fits.
    pub fn to_json(&self, version: SpecVersion) -> Value {
        if version < SpecVersion::V0_3_0 {
            return self.to_legacy(version);
        }
        let mut doc = json!({"cniVersion": version.as_str()});
        let mut body = serde_json::to_value(self).unwrap_or_default();
        if version < SpecVersion::V1_1_0 {
            strip(&mut body, "interfaces", &["mtu"]);
            strip(&mut body, "routes", &["mtu", "priority"]);
        }
        if version < SpecVersion::V1_0_0
            && let Some(Value::Array(ips)) = body.get_mut("ips")
        {
            for (ip, source) in ips.iter_mut().zip(&self.ips) {
                ip["version"] = json!(if source.address.addr().is_ipv4() { "4" } else { "6" });
            }
        }
        if let (Value::Object(doc), Value::Object(body)) = (&mut doc, body) {
            doc.extend(body);
            doc.entry("dns").or_insert_with(|| json!({}));
        }
        doc
    }

    fn to_legacy(&self, version: SpecVersion) -> Value {
        let mut doc = json!({"cniVersion": version.as_str()});
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4) else { continue };
            let routes: Vec<Value> = self
                .routes
                .iter()
                .filter(|r| r.dst.addr().is_ipv4() == v4)
                .map(|r| match r.gw {
                    Some(gw) => json!({"dst": r.dst, "gw": gw}),
                    None => json!({"dst": r.dst}),
                })
                .collect();
            let mut entry = json!({"ip": ip.address});
            if let Some(gateway) = ip.gateway {
                entry["gateway"] = json!(gateway);
            }
            if !routes.is_empty() {
                entry["routes"] = json!(routes);
            }
            doc[key] = entry;
        }
        doc["dns"] = serde_json::to_value(&self.dns).unwrap_or_default();
        doc
    }

    /// Reads a result of any version; `cniVersion` inside the document decides its shape, `default` when absent.
    /// Errors: code 1 for an unsupported version, 6 when it does not decode.
    pub fn from_json(doc: &Value, default: SpecVersion) -> Result<Self, CniError> {
        let Value::Object(map) = doc else {
            return Err(CniError::new(code::DECODE, "a plug-in's result is not a JSON object"));
        };
        let mut map = map.clone();
        fold_map(&mut map, &["cniVersion", "interfaces", "ips", "routes", "dns", "ip4", "ip6"]);
        let version = match map.get("cniVersion").and_then(Value::as_str) {
            Some(text) => text.parse()?,
            None => default,
        };
        if let Some(dns) = map.get_mut("dns") {
            fold(dns, Dns::KEYS);
        }
        if version >= SpecVersion::V0_3_0 {
            // Go prints empty lists as null.
            map.retain(|_, value| !value.is_null());
            return serde_json::from_value(Value::Object(map)).map_err(|e| CniError::decode("a plug-in's result", &e));
        }
        Self::from_legacy(&map)
    }

    fn from_legacy(map: &Map<String, Value>) -> Result<Self, CniError> {
        #[derive(Deserialize)]
        struct Legacy {
            ip: IpNet,
            #[serde(default)]
            gateway: Option<IpAddr>,
            #[serde(default)]
            routes: Option<Vec<Route>>,
        }
        let mut result = Self::default();
        for key in ["ip4", "ip6"] {
            let Some(entry) = map.get(key).filter(|e| !e.is_null()) else { continue };
            let legacy: Legacy =
                serde_json::from_value(entry.clone()).map_err(|e| CniError::decode(format_args!("{key} of a plug-in's result"), &e))?;
            result.ips.push(IpConfig { address: legacy.ip, gateway: legacy.gateway, interface: None });
            result.routes.extend(legacy.routes.unwrap_or_default());
        }
        if let Some(dns) = map.get("dns").filter(|d| !d.is_null()) {
            result.dns = serde_json::from_value(dns.clone()).map_err(|e| CniError::decode("dns of a plug-in's result", &e))?;
        }
        Ok(result)
    }

    /// The first address, which a runtime reports as the sandbox's own.
    pub fn primary_ip(&self) -> Option<IpAddr> {
        self.ips.first().map(|ip| ip.address.addr())
    }
}

fn strip(body: &mut Value, list: &str, keys: &[&str]) {
    if let Some(Value::Array(items)) = body.get_mut(list) {
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            item.retain(|key, _| !keys.contains(&key.as_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> AddResult {
        AddResult {
            interfaces: vec![Interface { name: "eth0".into(), mac: "00:11:22:33:44:55".into(), mtu: Some(1500), sandbox: "/ns".into() }],
            ips: vec![IpConfig { address: "10.1.0.5/24".parse().unwrap(), gateway: Some("10.1.0.1".parse().unwrap()), interface: Some(0) }],
            routes: vec![Route { dst: "0.0.0.0/0".parse().unwrap(), gw: None, mtu: None, priority: Some(7) }],
            dns: Dns { nameservers: vec!["10.96.0.10".into()], ..Dns::default() },
        }
    }

    #[test]
    fn every_version_has_its_shape() {
        let shapes: Vec<Value> = SpecVersion::ALL.into_iter().map(|v| sample().to_json(v)).collect();
        insta::assert_json_snapshot!(shapes);
    }

    #[test]
    fn every_shape_reads_back() {
        for version in SpecVersion::ALL {
            let read = AddResult::from_json(&sample().to_json(version), SpecVersion::CURRENT).unwrap();
            assert_eq!(read.ips[0].address, sample().ips[0].address, "{version}");
            assert_eq!(read.dns, sample().dns, "{version}");
            assert_eq!(read.routes[0].dst, sample().routes[0].dst, "{version}");
        }
        assert_eq!(AddResult::from_json(&sample().to_json(SpecVersion::V1_1_0), SpecVersion::V1_0_0).unwrap(), sample());
    }

    #[test]
    fn null_lists_of_go_programs_are_read() {
        let doc = json!({"cniVersion": "1.0.0", "interfaces": null, "IPs": [{"address": "10.0.0.2/24"}], "DNS": {"Nameservers": ["1.1.1.1"]}});
        let read = AddResult::from_json(&doc, SpecVersion::CURRENT).unwrap();
        assert_eq!(read.primary_ip(), Some("10.0.0.2".parse().unwrap()));
        assert_eq!(read.dns.nameservers, ["1.1.1.1"]);
    }

    #[test]
    fn unsupported_versions_are_refused() {
        let error = AddResult::from_json(&json!({"cniVersion": "2.0.0"}), SpecVersion::CURRENT).unwrap_err();
        assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
    }
}
