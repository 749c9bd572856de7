//! The plug-in's configuration and the endpoint document it asks for.

use std::net::{IpAddr, Ipv4Addr};

use hcn::document::{EndpointPolicyType, NatFlags, OutBoundNat, PortMapping as HnsPortMapping};
use hcn::{EndpointPolicy, Guid, HostComputeEndpoint, HostComputeNetwork, Protocol};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::network::{self, Azure, Plan};
use super::{Kind, OWNER};
use crate::fold::fold;
use crate::plugin::Request;
use crate::spec::{AddResult, CniError, Dns, IpConfig, PortMapping};

/// What the configuration asks for, independent of the address.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    pub kind: Kind,
    /// `endpointMacPrefix` of win-overlay: the first two bytes of every pod's MAC.
    mac_prefix: [u8; 2],
    pub policies: Vec<EndpointPolicy>,
    pub dns: Dns,
    /// `loopbackDSR`: a pod reaches itself through a load balancer that returns directly. Of no use where the service has no DSR.
    pub loopback_dsr: bool,
    /// `skipAttachCheck`: whether the attachment that HNS reports is enough.
    pub skip_attach_check: bool,
    /// `hnsNetwork`: the network's id, by word of the pod network of this node, which has looked what the service can do.
    pub hns_network: Option<Guid>,
    masquerade: Masquerade,
    port_mappings: Vec<PortMapping>,
    /// What wincni makes the network from, and the pods' gateway.
    pub network: Option<Plan>,
    pub azure: Option<Azure>,
}

#[derive(Clone, Debug, Default)]
struct Masquerade {
    /// `ipMasq`.
    desired: bool,
    /// `ipMasqNetwork`: what is not translated.
    network: Option<IpNet>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    ip_masq: bool,
    ip_masq_network: Option<String>,
    #[serde(rename = "loopbackDSR")]
    loopback_dsr: bool,
    policies: Vec<Value>,
    skip_attach_check: bool,
    hns_network: String,
    endpoint_mac_prefix: String,
    #[serde(rename = "HcnPolicyArgs")]
    hcn_policy_args: Vec<Value>,
    #[serde(rename = "AdditionalArgs")]
    additional_args: Vec<Value>,
    master: String,
    mode: String,
    windows_settings: WindowsSettings,
}

/// Of azure-vnet.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WindowsSettings {
    #[serde(rename = "enableLoopbackDSR")]
    enable_loopback_dsr: bool,
}

const KEYS: &[&str] = &[
    "ipMasq",
    "ipMasqNetwork",
    "loopbackDSR",
    "policies",
    "skipAttachCheck",
    "hnsNetwork",
    "endpointMacPrefix",
    "HcnPolicyArgs",
    "AdditionalArgs",
    "master",
    "mode",
    "windowsSettings",
];

impl Config {
    pub fn read(request: &Request, kind: Kind) -> Result<Self, CniError> {
        let mut document = Value::Object(request.config.document.clone());
        fold(&mut document, KEYS);
        if let Value::Object(map) = &mut document {
            map.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        }
        let keys: Keys =
            serde_json::from_value(document).map_err(|e| CniError::decode(format_args!("the configuration of {}", kind.names().0), &e))?;
        let network = keys
            .ip_masq_network
            .as_deref()
            .filter(|text| !text.is_empty())
            .map(|text| text.parse().map_err(|_| CniError::config(format!("ipMasqNetwork {text:?} is not a CIDR"))));
        let runtime = request.config.runtime_config()?;
        let mut dns = request.config.dns()?;
        if kind == Kind::Wincni {
            qualify(&mut dns.search, request);
        }
        if let Some(given) = runtime.dns {
            let replace = |ours: &mut Vec<String>, theirs: Vec<String>| {
                if !theirs.is_empty() {
                    *ours = theirs;
                }
            };
            replace(&mut dns.nameservers, given.servers);
            replace(&mut dns.search, given.searches);
            replace(&mut dns.options, given.options);
        }
        let network = network.transpose()?;
        let made = if kind == Kind::Wincni { wincni_network(request, &keys.additional_args)? } else { None };
        let azure = if kind == Kind::AzureVnet { Some(azure_network(&keys)?) } else { None };
        let named = keys.policies.into_iter().chain(keys.additional_args);
        let policies =
            named.filter_map(|entry| policy_for("EndpointPolicy", entry)).chain(keys.hcn_policy_args).filter_map(|value| policy(&value)).collect();
        let masquerade = Masquerade { desired: keys.ip_masq, network };
        let skip_attach_check = keys.skip_attach_check;
        let id = Some(&keys.hns_network).filter(|id| !id.is_empty());
        let id = id.map(|id| id.parse().map_err(|_| CniError::config(format!("hnsNetwork {id:?} is not a GUID"))));
        let mac_prefix = mac_prefix(&keys.endpoint_mac_prefix)?;
        Ok(Self {
            kind,
            mac_prefix,
            policies,
            dns,
            loopback_dsr: keys.loopback_dsr || (kind == Kind::AzureVnet && keys.windows_settings.enable_loopback_dsr),
            skip_attach_check,
            hns_network: id.transpose()?,
            masquerade,
            port_mappings: runtime.port_mappings,
            network: made,
            azure,
        })
    }

    /// Whether ADD makes a network that is missing.
    pub fn makes_network(&self) -> bool {
        self.network.is_some() || self.azure.is_some()
    }

    /// The endpoint to create. Without IPAM, HNS chooses the address, and the route unless wincni's configuration has a gateway.
    pub fn endpoint(&self, name: &str, network: &HostComputeNetwork, addresses: Option<&AddResult>) -> HostComputeEndpoint {
        let given = addresses.map(|a| a.ips.as_slice()).unwrap_or_default();
        let addresses_given: Vec<IpNet> = given.iter().map(|ip| ip.address).collect();
        let mut endpoint = HostComputeEndpoint { name: name.to_owned(), ..HostComputeEndpoint::default() };
        for ip in given {
            let one = HostComputeEndpoint::local(name, ip.address, Some(self.gateway(network, ip)));
            endpoint.ip_configurations.extend(one.ip_configurations);
            endpoint.routes.extend(one.routes);
        }
        if let Some(Plan { subnet, gateway, .. }) = self.network.as_ref().filter(|_| given.is_empty()) {
            endpoint.routes = HostComputeEndpoint::local(name, *subnet, Some(*gateway)).routes;
        }
        endpoint.owner = OWNER.to_owned();
        let from_ipam = addresses.map(|a| &a.dns).filter(|dns| self.dns.is_empty() && !dns.is_empty());
        let dns = from_ipam.unwrap_or(&self.dns);
        endpoint.dns.domain.clone_from(&dns.domain);
        endpoint.dns.search.clone_from(&dns.search);
        endpoint.dns.server_list.clone_from(&dns.nameservers);
        endpoint.dns.options.clone_from(&dns.options);
        endpoint.policies.clone_from(&self.policies);
        self.apply_masquerade(&mut endpoint, network, &addresses_given);
        for address in addresses_given.iter().filter(|_| self.loopback_dsr) {
            apply_loopback(&mut endpoint, address.addr());
        }
        let of_family = |ipv6: bool| addresses_given.iter().any(|address| address.addr().is_ipv6() == ipv6);
        // Of an address that HNS will choose, IPv4 is what it has.
        let families = [Some(false).filter(|_| of_family(false) || given.is_empty()), Some(true).filter(|_| of_family(true))];
        for ipv6 in families.into_iter().flatten() {
            endpoint.policies.extend(self.port_mappings.iter().filter_map(|mapping| port_mapping(mapping, ipv6)));
        }
        if self.kind == Kind::Overlay {
            self.apply_overlay(&mut endpoint, network, addresses_given.first().copied());
        }
        endpoint
    }

    /// What other nodes know of an overlay's endpoint: a MAC that follows from its address, and the node's address.
    fn apply_overlay(&self, endpoint: &mut HostComputeEndpoint, network: &HostComputeNetwork, address: Option<IpNet>) {
        if let Some(IpNet::V4(address)) = address {
            let bytes = [&self.mac_prefix[..], &address.addr().octets()].concat();
            endpoint.mac_address = bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join("-");
        }
        let known = endpoint.policies.iter().any(|policy| policy.policy_type == EndpointPolicyType::ProviderAddress);
        if let Some(host) = network.management_ip().filter(|_| !known) {
            endpoint.policies.push(EndpointPolicy::provider_address(host));
        }
    }

    /// The next hop of the pod's default route. win-bridge: the network's address plus 2, where the host's own endpoint is (HNS keeps
    /// plus 1 for itself). win-overlay: the distributed router, which has the gateway's address. wincni: what IPAM says, else its
    /// configuration.
    fn gateway(&self, network: &HostComputeNetwork, given: &IpConfig) -> IpAddr {
        let same_family = |gateway: &IpAddr| gateway.is_ipv6() == given.address.addr().is_ipv6();
        let of_network = || network.subnets().filter_map(hcn::Subnet::gateway).find(same_family).unwrap_or_else(|| nth(given.address, 1));
        match self.kind {
            Kind::Bridge => nth(given.address, 2),
            Kind::Overlay => of_network(),
            Kind::AzureVnet => given.gateway.unwrap_or_else(of_network),
            Kind::Wincni => given.gateway.or(self.network.as_ref().map(|plan| plan.gateway)).unwrap_or_else(of_network),
        }
    }

    /// One OutBoundNAT policy that leaves out `ipMasqNetwork`, or with `ipMasq` alone the pod network itself.
    fn apply_masquerade(&self, endpoint: &mut HostComputeEndpoint, network: &HostComputeNetwork, addresses: &[IpNet]) {
        let has_nat = endpoint.policies.iter().any(|p| p.policy_type == EndpointPolicyType::OutBoundNat);
        let own = || {
            let of_network: Vec<IpNet> = network.subnets().filter_map(hcn::Subnet::prefix).collect();
            if of_network.is_empty() { addresses.iter().map(IpNet::trunc).collect() } else { of_network }
        };
        let exceptions = match self.masquerade.network {
            Some(given) => vec![given],
            None if self.masquerade.desired && (!has_nat || self.kind == Kind::Overlay) => own(),
            None => return,
        };
        let existing = endpoint.policies.iter_mut().find_map(|p| p.as_outbound_nat().filter(|nat| nat.destinations.is_empty()).map(|nat| (p, nat)));
        match existing {
            Some((policy, mut nat)) => {
                let missing = exceptions.iter().map(IpNet::to_string).filter(|text| !nat.exceptions.contains(text)).collect::<Vec<_>>();
                nat.exceptions.extend(missing);
                *policy = EndpointPolicy::new::<OutBoundNat>(EndpointPolicyType::OutBoundNat, &nat);
            }
            None if exceptions.is_empty() => {}
            None => endpoint.policies.push(EndpointPolicy::outbound_nat(exceptions)),
        }
    }
}

/// What the endpoint sends to itself gets the host's address, unless a policy says so already.
fn apply_loopback(endpoint: &mut HostComputeEndpoint, address: IpAddr) {
    let own = address.to_string();
    if !endpoint.policies.iter().filter_map(EndpointPolicy::as_outbound_nat).any(|nat| nat.destinations.contains(&own)) {
        let nat = OutBoundNat { destinations: vec![own], ..OutBoundNat::default() };
        endpoint.policies.push(EndpointPolicy::new::<OutBoundNat>(EndpointPolicyType::OutBoundNat, &nat));
    }
}

/// The `n`th address of a subnet, counted from its network address.
fn nth(subnet: IpNet, n: u8) -> IpAddr {
    plus(subnet.network(), n)
}

fn plus(address: IpAddr, n: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from(u32::from(address).wrapping_add(n.into()))),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address).wrapping_add(n.into())).into()),
    }
}

/// `NN-NN`; upstream's default where it is empty.
fn mac_prefix(text: &str) -> Result<[u8; 2], CniError> {
    let byte = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    match text.split_once('-') {
        None if text.is_empty() => Ok([0x0e, 0x2a]),
        pair => {
            let bytes = pair.and_then(|(first, second)| Some([byte(first)?, byte(second)?])).filter(|[first, _]| first & 1 == 0);
            bytes.ok_or_else(|| CniError::config(format!("endpointMacPrefix {text:?} is not the start of a MAC address: write it as 0E-2A")))
        }
    }
}

/// The value of `{name, value}` where the name is that one; wincni's `AdditionalArgs` are of the same form.
fn policy_for(what: &str, mut entry: Value) -> Option<Value> {
    fold(&mut entry, &["name", "value"]);
    let name = entry.get("name")?.as_str()?;
    name.eq_ignore_ascii_case(what).then(|| entry.get("value").cloned()).flatten()
}

/// The network of wincni's `ipam.subnet`. The gateway is the `GW` of the first route, else the address of `subnet` plus 1 (host bits count,
/// as upstream); a key `gateway` is not read, as upstream.
fn wincni_network(request: &Request, additional_args: &[Value]) -> Result<Option<Plan>, CniError> {
    let mut ipam = request.config.document.get("ipam").cloned().unwrap_or_default();
    fold(&mut ipam, &["subnet", "routes"]);
    let Some(text) = ipam.get("subnet").and_then(Value::as_str).filter(|text| !text.is_empty()) else { return Ok(None) };
    let subnet: IpNet = text.parse().map_err(|_| CniError::config(format!("ipam.subnet {text:?} is not a CIDR; write it as 10.10.187.64/26")))?;
    let mut route = ipam.pointer("/routes/0").cloned().unwrap_or_default();
    fold(&mut route, &["gw"]);
    let gateway = match route.get("gw").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        Some(text) => text.parse().map_err(|_| CniError::config(format!("GW {text:?} of ipam.routes is not an IP address")))?,
        None => plus(subnet.addr(), 1),
    };
    if !subnet.trunc().contains(&gateway) {
        return Err(CniError::config(format!("GW {gateway} of ipam.routes is outside ipam.subnet {subnet}; name an address of the subnet")));
    }
    let policies = additional_args.iter().cloned().filter_map(|entry| policy_for("NetworkPolicy", entry));
    Ok(Some(Plan { subnet: subnet.trunc(), gateway, policies: policies.filter_map(|value| network::policy(&value)).collect() }))
}

/// Modes of azure-vnet on Windows are `bridge` and `tunnel`; `transparent` is one of Linux.
fn azure_network(keys: &Keys) -> Result<Azure, CniError> {
    let tunnel = match keys.mode.as_str() {
        "" | "bridge" => false,
        "tunnel" => true,
        other => return Err(CniError::config(format!("mode {other:?} of azure-vnet is not for Windows: use bridge or tunnel"))),
    };
    let adapter = if keys.master.starts_with("vEthernet") { String::new() } else { keys.master.clone() };
    let policies = keys.additional_args.iter().cloned().filter_map(|entry| policy_for("NetworkPolicy", entry));
    Ok(Azure { tunnel, adapter, policies: policies.filter_map(|value| network::policy(&value)).collect() })
}

/// wincni prefixes the first search domain of its configuration with the pod's namespace.
fn qualify(search: &mut [String], request: &Request) {
    let namespace = request.args.get("K8S_POD_NAMESPACE").map_or("default", String::as_str);
    if let Some(first) = search.first_mut() {
        *first = format!("{namespace}.{first}");
    }
}

/// Reads `{Type, Settings}`, or the flat form of the first Windows plug-ins. What is neither is dropped, as upstream.
fn policy(value: &Value) -> Option<EndpointPolicy> {
    let map = value.as_object()?;
    if map.contains_key("Settings") {
        return serde_json::from_value(value.clone()).ok();
    }
    let mut settings: Map<String, Value> = map.clone();
    let kind = settings.shift_remove("Type")?;
    let kind = match kind.as_str()? {
        "ROUTE" => "SDNRoute",
        "NAT" => "PortMapping",
        "PA" => "ProviderAddress",
        same => same,
    };
    if let Some(list) = settings.shift_remove("ExceptionList") {
        settings.insert("Exceptions".into(), list);
    }
    if let Some(address) = settings.shift_remove("PA") {
        settings.insert("ProviderAddress".into(), address);
    }
    serde_json::from_value(serde_json::json!({"Type": kind, "Settings": settings})).ok()
}

/// The mapping to the pod's address of one family. Protocols that HNS does not map are skipped, as upstream, and so are addresses of the host
/// of the other family.
fn port_mapping(mapping: &PortMapping, ipv6: bool) -> Option<EndpointPolicy> {
    if mapping.host_ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() != ipv6) {
        return None;
    }
    let protocol = match mapping.protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        _ => return None,
    };
    let settings = HnsPortMapping {
        protocol,
        internal_port: mapping.container_port,
        external_port: mapping.host_port,
        vip: mapping.host_ip.clone(),
        flags: if ipv6 { NatFlags::IPV6 } else { NatFlags::default() },
        ..HnsPortMapping::default()
    };
    Some(EndpointPolicy::port_mapping(&settings))
}
