//! `azure-vnet-ipam`: addresses that Azure gave to this machine's adapters, for pods. Source: Azure/azure-container-networking, `ipam`.
//!
//! They are read from a file, `interfaces.json` (environment `mas`); Azure's wire server is not asked. The primary addresses are the machine's
//! own; secondary ones are given out. What is given out is kept as host-local keeps it, in `dataDir`.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::host_local::default_data_dir;
use super::host_local::store::{Owner, Store};
use crate::fold::fold;
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Dns, IpConfig, Route, code};

/// The longest file that is read.
const LONGEST: u64 = 4 << 20;
/// The name server of every virtual network.
const NAME_SERVER: &str = "168.63.129.16";

#[derive(Debug)]
struct Config {
    file: PathBuf,
    data_dir: PathBuf,
    /// The only address that is wanted.
    address: Option<IpAddr>,
    /// The subnet that the address is wanted of.
    subnet: Option<IpNet>,
}

const KEYS: &[&str] = &["environment", "interfacesFile", "dataDir", "ipAddress", "subnet"];

impl Config {
    fn read(request: &Request) -> Result<Self, CniError> {
        let mut ipam = request.config.document.get("ipam").cloned().unwrap_or_default();
        fold(&mut ipam, KEYS);
        let text = |key: &str| ipam.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        match text("environment") {
            None | Some("mas" | "azure") => {}
            Some(other) => {
                return Err(CniError::config(format!("environment {other:?} of azure-vnet-ipam is unknown: use mas, with a file of interfaces")));
            }
        }
        let default = if cfg!(windows) { r"C:\k\interfaces.json" } else { "/etc/kubernetes/interfaces.json" };
        let wrong = |key: &str, text: &str| CniError::config(format!("{key} {text:?} of azure-vnet-ipam is no address"));
        Ok(Self {
            file: text("interfacesFile").unwrap_or(default).into(),
            data_dir: text("dataDir").map_or_else(default_data_dir, PathBuf::from),
            address: text("ipAddress").map(|text| text.parse().map_err(|_| wrong("ipAddress", text))).transpose()?,
            subnet: text("subnet").map(|text| text.parse::<IpNet>().map_err(|_| wrong("subnet", text))).transpose()?,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Interfaces {
    interfaces: Vec<Interface>,
}

#[derive(Debug, Deserialize)]
struct Interface {
    #[serde(rename = "IsPrimary", default)]
    is_primary: bool,
    #[serde(rename = "IPSubnets", default)]
    subnets: Vec<Subnet>,
}

#[derive(Debug, Deserialize)]
struct Subnet {
    #[serde(rename = "Prefix")]
    prefix: IpNet,
    #[serde(rename = "IPAddresses", default)]
    addresses: Vec<Address>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Address {
    address: IpAddr,
    #[serde(default)]
    is_primary: bool,
}

/// The pods' addresses of the primary interface, each with its subnet's prefix, in the file's order (pure).
fn secondaries(bytes: &[u8]) -> Result<Vec<IpNet>, String> {
    let Interfaces { interfaces } = serde_json::from_str(&host::decode_text(bytes)).map_err(|error| error.to_string())?;
    let primary = interfaces.iter().find(|interface| interface.is_primary).ok_or("no interface is the primary one")?;
    let mut all = Vec::new();
    for subnet in &primary.subnets {
        for address in subnet.addresses.iter().filter(|address| !address.is_primary) {
            if !subnet.prefix.contains(&address.address) {
                return Err(format!("address {} is not in {}", address.address, subnet.prefix));
            }
            all.extend(IpNet::new(address.address, subnet.prefix.prefix_len()).ok());
        }
    }
    if all.is_empty() { Err("the primary interface has no secondary address".to_owned()) } else { Ok(all) }
}

/// Reads a file of interfaces.
///
/// # Errors
/// What is missing or wrong.
pub fn check_interfaces(bytes: &[u8]) -> Result<(), String> {
    secondaries(bytes).map(drop)
}

fn addresses(config: &Config) -> Result<Vec<IpNet>, CniError> {
    let file = config.file.display();
    let failed = |error: &std::io::Error| {
        let text = format!("cannot read {file}: {error}; write the machine's interfaces there (Azure's wire server is not asked)");
        CniError::new(code::IO, text)
    };
    if fs::metadata(&config.file).map_err(|error| failed(&error))?.len() > LONGEST {
        return Err(CniError::config(format!("{file} is longer than {} MiB", LONGEST >> 20)));
    }
    let bytes = fs::read(&config.file).map_err(|error| failed(&error))?;
    secondaries(&bytes).map_err(|reason| CniError::config(format!("cannot use {file}: {reason}; write the machine's interfaces there as JSON")))
}

/// Serves one request.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    let store = Store::open(&config.data_dir, &request.config.name)?;
    let owner = Owner { container_id: &request.container_id, ifname: &request.ifname };
    match request.command {
        Command::Add => add(&config, &store, owner).map(Some),
        Command::Del => store.lock()?.release(owner).map(|()| None),
        Command::Check => {
            if store.lock()?.held_by(owner)?.is_empty() {
                let text = format!("azure-vnet-ipam: container {} has no address", request.container_id);
                return Err(CniError::new(code::DRIFT, text));
            }
            Ok(None)
        }
        Command::Gc => store.lock()?.release_others(&request.valid_attachments()).map(|()| None),
        Command::Status => addresses(&config).map(|_| None).map_err(|error| CniError { code: code::NOT_AVAILABLE, ..error }),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

fn add(config: &Config, store: &Store, owner: Owner<'_>) -> Result<AddResult, CniError> {
    let known = addresses(config)?;
    let locked = store.lock()?;
    let held = locked.held_by(owner)?;
    let wanted = |address: &&IpNet| {
        config.address.is_none_or(|wanted| wanted == address.addr()) && config.subnet.is_none_or(|subnet| subnet.contains(&address.addr()))
    };
    if let Some(address) = known.iter().filter(wanted).find(|address| held.contains(&address.addr())) {
        return Ok(answer(*address));
    }
    for address in known.iter().filter(wanted) {
        if locked.reserve(address.addr(), owner, 0)? {
            return Ok(answer(*address));
        }
    }
    let text = format!(
        "azure-vnet-ipam: all {} addresses of {} are taken; give the machine more",
        known.iter().filter(wanted).count(),
        config.file.display()
    );
    Err(CniError::new(code::EXHAUSTED, text))
}

/// The gateway is the first address of the subnet, as in every virtual network.
fn answer(address: IpNet) -> AddResult {
    let gateway = address.hosts().next();
    let anywhere = if address.addr().is_ipv4() { IpNet::V4(ipnet::Ipv4Net::default()) } else { IpNet::V6(ipnet::Ipv6Net::default()) };
    AddResult {
        ips: vec![IpConfig { address, gateway, interface: None }],
        routes: vec![Route { dst: anywhere, gw: gateway, mtu: None, priority: None }],
        dns: Dns { nameservers: vec![NAME_SERVER.to_owned()], ..Dns::default() },
        ..AddResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const FILE: &str = r#"{"Interfaces": [
        {"MacAddress": "000D3A6E1825", "IsPrimary": true, "IPSubnets": [{"Prefix": "10.10.187.64/26", "IPAddresses": [
            {"Address": "10.10.187.68", "IsPrimary": true}, {"Address": "10.10.187.69", "IsPrimary": false}, {"Address": "10.10.187.70"}]}]},
        {"MacAddress": "000D3A6E1826", "IsPrimary": false, "IPSubnets": [{"Prefix": "10.1.0.0/16", "IPAddresses": [{"Address": "10.1.0.5"}]}]}]}"#;

    #[test]
    fn secondary_addresses_of_the_primary_interface_are_for_pods() {
        let read = secondaries(FILE.as_bytes()).unwrap();
        assert_eq!(read.iter().map(IpNet::to_string).collect::<Vec<_>>(), ["10.10.187.69/26", "10.10.187.70/26"]);
        let marked = [&[0xef, 0xbb, 0xbf], FILE.as_bytes()].concat();
        assert_eq!(secondaries(&marked).unwrap(), read);
        let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(FILE.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        assert_eq!(secondaries(&utf16).unwrap(), read, "as Windows PowerShell writes it");
        let answer = answer(read[0]);
        assert_eq!((answer.ips[0].gateway, answer.dns.nameservers.join("")), ("10.10.187.65".parse().ok(), NAME_SERVER.to_owned()));
        for (text, words) in [
            ("", "EOF"),
            ("{}", "Interfaces"),
            (r#"{"Interfaces": []}"#, "no interface is the primary one"),
            (r#"{"Interfaces": [{"IsPrimary": true}]}"#, "no secondary address"),
            (&FILE.replace("10.10.187.70", "10.10.188.70"), "is not in 10.10.187.64/26"),
            (&FILE.replace("10.10.187.64/26", "10.10.187.64"), "invalid IP address syntax"),
        ] {
            let error = secondaries(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn half_written_file_gives_no_address() {
        let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(FILE.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        for whole in [FILE.as_bytes(), &utf16] {
            assert!(secondaries(whole).is_ok());
            for cut in 0..whole.len() {
                secondaries(&whole[..cut]).unwrap_err();
            }
        }
    }
}
