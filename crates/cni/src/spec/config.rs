//! Network configurations: a single plug-in's (`.conf`) and a list's (`.conflist`).

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::error::{CniError, code};
use super::result::AddResult;
use super::version::SpecVersion;
use crate::fold::{fold, fold_map};

/// Name resolution, as configurations and results state it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Servers, in order of preference.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search list.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    pub(crate) const KEYS: &'static [&'static str] = &["nameservers", "domain", "search", "options"];

    /// Whether nothing is stated.
    pub fn is_empty(&self) -> bool {
        self.nameservers.is_empty() && self.domain.is_empty() && self.search.is_empty() && self.options.is_empty()
    }
}

/// The runtime's `dns` capability; its keys are not those of [`Dns`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeDns {
    /// Servers, in order of preference.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// Search list.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// One entry of the `portMappings` capability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    #[serde(rename = "hostPort")]
    pub host_port: u16,
    #[serde(rename = "containerPort")]
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`; empty means tcp.
    #[serde(default)]
    pub protocol: String,
    /// Address of the host to listen on; empty means every one.
    #[serde(rename = "hostIP", default, skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

/// What the runtime adds to a plug-in's configuration, limited to the capabilities the plug-in declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeConfig {
    #[serde(rename = "portMappings", default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Name resolution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<RuntimeDns>,
    /// Requested addresses.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Requested hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Ranges for host-local, in its own form.
    #[serde(rename = "ipRanges", default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ip_ranges: Vec<Value>,
}

/// A plug-in's configuration: the keys that the specification owns, with the whole document beside them.
/// Unknown keys are kept and tolerated.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConfig {
    /// Version of the configuration, and of the result that is desired.
    pub cni_version: SpecVersion,
    /// The network's name.
    pub name: String,
    /// The plug-in's binary.
    pub kind: String,
    /// The whole document, its specification-owned keys in canonical case.
    pub document: Map<String, Value>,
}

const PLUGIN_KEYS: &[&str] = &["cniVersion", "name", "type", "args", "ipMasq", "ipam", "dns", "capabilities", "runtimeConfig", "prevResult"];
const RUNTIME_KEYS: &[&str] = &["portMappings", "dns", "ips", "mac", "ipRanges"];

impl PluginConfig {
    /// Reads one plug-in's configuration. `name` and `cniVersion` may be missing (inside a list they are the list's).
    pub fn from_value(value: Value) -> Result<Self, CniError> {
        let Value::Object(mut document) = value else {
            return Err(CniError::new(code::DECODE, "a network configuration must be a JSON object"));
        };
        fold_map(&mut document, PLUGIN_KEYS);
        if let Some(dns) = document.get_mut("dns") {
            fold(dns, Dns::KEYS);
        }
        if let Some(runtime) = document.get_mut("runtimeConfig") {
            fold(runtime, RUNTIME_KEYS);
        }
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, kind) = (text("name"), text("type"));
        let cni_version = text("cniVersion").parse()?;
        Ok(Self { cni_version, name, kind, document })
    }

    /// Decodes the top level into a plug-in's own configuration type.
    pub fn decode<T: serde::de::DeserializeOwned>(&self) -> Result<T, CniError> {
        serde_json::from_value(Value::Object(self.document.clone()))
            .map_err(|e| CniError::decode(format_args!("the configuration of network {:?}", self.name), &e))
    }

    /// The runtime's part; empty when absent.
    pub fn runtime_config(&self) -> Result<RuntimeConfig, CniError> {
        self.part("runtimeConfig")
    }

    /// Static name resolution; empty when absent.
    pub fn dns(&self) -> Result<Dns, CniError> {
        self.part("dns")
    }

    fn part<T: serde::de::DeserializeOwned + Default>(&self, key: &str) -> Result<T, CniError> {
        match self.document.get(key) {
            None | Some(Value::Null) => Ok(T::default()),
            Some(value) => T::deserialize(value).map_err(|e| CniError::decode(key, &e)),
        }
    }

    /// The previous plug-in's result, or on DEL and CHECK the attachment's.
    pub fn prev_result(&self) -> Result<Option<AddResult>, CniError> {
        match self.document.get("prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(value) => AddResult::from_json(value, self.cni_version).map(Some),
        }
    }

    /// `ipam.type`; empty when the configuration has no address management.
    pub fn ipam_type(&self) -> &str {
        let Some(Value::Object(ipam)) = self.document.get("ipam") else { return "" };
        ipam.iter().find(|(key, _)| key.eq_ignore_ascii_case("type")).and_then(|(_, v)| v.as_str()).unwrap_or_default()
    }

    /// Whether the plug-in declares capability `name`.
    pub fn has_capability(&self, name: &str) -> bool {
        self.document.get("capabilities").and_then(|c| c.get(name)).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// A network: plug-ins in the order in which ADD runs them.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// Name, unique on the host.
    pub name: String,
    /// Version of all its plug-ins' configurations.
    pub cni_version: SpecVersion,
    /// CHECK does nothing.
    pub disable_check: bool,
    /// GC does nothing.
    pub disable_gc: bool,
    /// At least one.
    pub plugins: Vec<PluginConfig>,
}

impl NetworkList {
    /// Reads a `.conflist`, or a `.conf` as a list of one. Errors: code 6 or 7; the message names the defect.
    pub fn parse(bytes: &[u8]) -> Result<Self, CniError> {
        let text = host::decode_text(bytes);
        let mut value: Value = serde_json::from_str(&text).map_err(|e| CniError::decode("the network configuration", &e))?;
        fold(&mut value, &["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "plugins"]);
        let Some(Value::Array(plugins)) = value.get_mut("plugins").map(Value::take) else {
            let plugin = PluginConfig::from_value(value)?;
            return Self::checked(plugin.name.clone(), plugin.cni_version, false, false, vec![plugin]);
        };
        let name = value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let cni_version = list_version(&value)?;
        let flag = |key: &str| match value.get(key) {
            Some(Value::Bool(flag)) => *flag,
            Some(Value::String(text)) => text == "true",
            _ => false,
        };
        let plugins = plugins.into_iter().map(PluginConfig::from_value).collect::<Result<Vec<_>, _>>()?;
        Self::checked(name, cni_version, flag("disableCheck"), flag("disableGC"), plugins)
    }

    fn checked(
        name: String,
        cni_version: SpecVersion,
        disable_check: bool,
        disable_gc: bool,
        mut plugins: Vec<PluginConfig>,
    ) -> Result<Self, CniError> {
        if !valid_id(&name) {
            return Err(CniError::config(format!("network name {name:?} is missing or has characters other than letters, digits, _ . -")));
        }
        if plugins.is_empty() {
            return Err(CniError::config(format!("network {name:?} lists no plug-ins")));
        }
        for plugin in &mut plugins {
            if plugin.kind.is_empty() {
                return Err(CniError::config(format!("a plug-in of network {name:?} has no type")));
            }
            plugin.name.clone_from(&name);
            plugin.cni_version = cni_version;
        }
        Ok(Self { name, cni_version, disable_check, disable_gc, plugins })
    }
}

/// The newest version that both sides support, of `cniVersions` (1.1.0) or `cniVersion`.
fn list_version(value: &Value) -> Result<SpecVersion, CniError> {
    let single: Option<SpecVersion> = value.get("cniVersion").and_then(Value::as_str).map(str::parse).transpose()?;
    let newest = value.get("cniVersions").and_then(Value::as_array).and_then(|list| list.iter().filter_map(|v| v.as_str()?.parse().ok()).max());
    Ok(newest.max(single).unwrap_or(SpecVersion::V0_1_0))
}

/// Container ids and network names: a letter or digit first, then letters, digits, `_`, `.` and `-`.
pub fn valid_id(id: &str) -> bool {
    id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Go prints empty lists as `null`.
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration of the 2017 Windows scripts, in Microsoft's spelling.
    const WINCNI: &str = r#"{"cniVersion":"0.2.0","name":"l2bridge","type":"wincni.exe","master":"Ethernet",
        "ipam":{"environment":"azure","subnet":"10.10.187.64/26","routes":[{"GW":"10.10.187.66"}]},
        "dns":{"Nameservers":["11.0.0.10"]},
        "AdditionalArgs":[{"Name":"EndpointPolicy","Value":{"Type":"OutBoundNAT","ExceptionList":["11.0.0.0/8"]}}]}"#;

    #[test]
    fn a_conf_is_a_list_of_one() {
        let list = NetworkList::parse(WINCNI.as_bytes()).unwrap();
        assert_eq!((list.name.as_str(), list.cni_version, list.plugins.len()), ("l2bridge", SpecVersion::V0_2_0, 1));
        assert_eq!(list.plugins[0].dns().unwrap().nameservers, ["11.0.0.10"]);
        assert_eq!(list.plugins[0].ipam_type(), "");
        assert!(list.plugins[0].document.contains_key("AdditionalArgs"), "unknown keys are kept");
    }

    #[test]
    fn configuration_written_by_powershell_is_read() {
        let mut utf16 = vec![0xff, 0xfe];
        utf16.extend(WINCNI.encode_utf16().flat_map(u16::to_le_bytes));
        let mut utf8 = vec![0xef, 0xbb, 0xbf];
        utf8.extend(WINCNI.as_bytes());
        assert_eq!(NetworkList::parse(&utf16).unwrap(), NetworkList::parse(WINCNI.as_bytes()).unwrap());
        assert_eq!(NetworkList::parse(&utf8).unwrap().name, "l2bridge");
    }

    #[test]
    fn a_list_gives_its_name_and_version_to_its_plugins() {
        let list = NetworkList::parse(br#"{"cniVersion":"0.4.0","cniVersions":["1.0.0","9.9.9"],"name":"n","disableCheck":"true","plugins":[{"type":"a"},{"type":"b","name":"other"}]}"#).unwrap();
        assert_eq!(list.cni_version, SpecVersion::V1_0_0);
        assert!(list.disable_check);
        assert!(list.plugins.iter().all(|p| p.name == "n" && p.cni_version == SpecVersion::V1_0_0));
    }

    #[test]
    fn defects_are_named() {
        for (text, part) in [
            ("{", "cannot decode"),
            (r#"{"type":"a"}"#, "network name"),
            (r#"{"name":"n","plugins":[]}"#, "lists no plug-ins"),
            (r#"{"name":"n","plugins":[{}]}"#, "has no type"),
            (r#"{"name":"../n","type":"a"}"#, "network name"),
            (r#"{"name":"n","type":"a","cniVersion":"7.0.0"}"#, "incompatible CNI versions"),
        ] {
            let error = NetworkList::parse(text.as_bytes()).unwrap_err();
            assert!(error.msg.contains(part), "{text}: {}", error.msg);
        }
    }
}
