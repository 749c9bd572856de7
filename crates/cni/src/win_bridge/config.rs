//! The plug-in's configuration and the endpoint document it asks for.

use std::net::{IpAddr, Ipv4Addr};

use hcn::document::{EndpointPolicyType, OutBoundNat, PortMapping as HnsPortMapping};
use hcn::{EndpointPolicy, HostComputeEndpoint, HostComputeNetwork, Protocol};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Kind, OWNER};
use crate::fold::fold;
use crate::plugin::Request;
use crate::spec::{AddResult, CniError, Dns, PortMapping};

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
    masquerade: Masquerade,
    port_mappings: Vec<PortMapping>,
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
    endpoint_mac_prefix: String,
    #[serde(rename = "HcnPolicyArgs")]
    hcn_policy_args: Vec<Value>,
    #[serde(rename = "AdditionalArgs")]
    additional_args: Vec<Value>,
}

const KEYS: &[&str] =
    &["ipMasq", "ipMasqNetwork", "loopbackDSR", "policies", "skipAttachCheck", "endpointMacPrefix", "HcnPolicyArgs", "AdditionalArgs"];

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
            .filter(|n| !n.is_empty())
            .map(|text| text.parse().map_err(|_| CniError::config(format!("ipMasqNetwork {text:?} is not a CIDR"))));
        let runtime = request.config.runtime_config()?;
        let mut dns = request.config.dns()?;
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
        let policies = keys
            .policies
            .into_iter()
            .chain(keys.additional_args)
            .filter_map(named_endpoint_policy)
            .chain(keys.hcn_policy_args)
            .filter_map(|value| policy(&value))
            .collect();
        let masquerade = Masquerade { desired: keys.ip_masq, network: network.transpose()? };
        let skip_attach_check = keys.skip_attach_check;
        let mac_prefix = mac_prefix(&keys.endpoint_mac_prefix)?;
        Ok(Self {
            kind,
            mac_prefix,
            policies,
            dns,
            loopback_dsr: keys.loopback_dsr,
            skip_attach_check,
            masquerade,
            port_mappings: runtime.port_mappings,
        })
    }

    /// The endpoint to create. The default route goes by the network's address plus 2, where the host's own endpoint
    /// is; HNS keeps plus 1 for itself. Without IPAM, HNS chooses address and route.
    pub fn endpoint(&self, name: &str, network: &HostComputeNetwork, addresses: Option<&AddResult>) -> HostComputeEndpoint {
        let address = addresses.and_then(|a| a.ips.first()).map(|ip| ip.address);
        let mut endpoint = match address {
            Some(address) => HostComputeEndpoint::local(name, address, Some(self.gateway(network, address))),
            None => HostComputeEndpoint { name: name.to_owned(), ..HostComputeEndpoint::default() },
        };
        endpoint.owner = OWNER.to_owned();
        let from_ipam = addresses.map(|a| &a.dns).filter(|dns| self.dns.is_empty() && !dns.is_empty());
        let dns = from_ipam.unwrap_or(&self.dns);
        endpoint.dns.domain.clone_from(&dns.domain);
        endpoint.dns.search.clone_from(&dns.search);
        endpoint.dns.server_list.clone_from(&dns.nameservers);
        endpoint.dns.options.clone_from(&dns.options);
        endpoint.policies.clone_from(&self.policies);
        self.apply_masquerade(&mut endpoint, network, address);
        if let Some(address) = address.filter(|_| self.loopback_dsr) {
            apply_loopback(&mut endpoint, address.addr());
        }
        endpoint.policies.extend(self.port_mappings.iter().filter_map(port_mapping));
        if self.kind == Kind::Overlay {
            self.apply_overlay(&mut endpoint, network, address);
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

    /// An overlay's pods go by the distributed router, which has the gateway's address; those of an L2Bridge by the host.
    fn gateway(&self, network: &HostComputeNetwork, address: IpNet) -> IpAddr {
        match self.kind {
            Kind::Bridge => nth(address, 2),
            Kind::Overlay => network.subnets().next().and_then(hcn::Subnet::gateway).unwrap_or_else(|| nth(address, 1)),
        }
    }

    /// One OutBoundNAT policy that leaves out `ipMasqNetwork`, or with `ipMasq` alone the pod network itself.
    fn apply_masquerade(&self, endpoint: &mut HostComputeEndpoint, network: &HostComputeNetwork, address: Option<IpNet>) {
        let has_nat = endpoint.policies.iter().any(|p| p.policy_type == EndpointPolicyType::OutBoundNat);
        let own = || network.subnets().next().and_then(hcn::Subnet::prefix).or(address.map(|a| a.trunc()));
        let exception = match self.masquerade.network {
            Some(given) => Some(given),
            None if self.masquerade.desired && (!has_nat || self.kind == Kind::Overlay) => own(),
            None => None,
        };
        let Some(exception) = exception else { return };
        let existing = endpoint.policies.iter_mut().find_map(|p| p.as_outbound_nat().filter(|nat| nat.destinations.is_empty()).map(|nat| (p, nat)));
        match existing {
            Some((policy, mut nat)) => {
                let text = exception.to_string();
                if !nat.exceptions.contains(&text) {
                    nat.exceptions.push(text);
                    *policy = EndpointPolicy::new::<OutBoundNat>(EndpointPolicyType::OutBoundNat, &nat);
                }
            }
            None => endpoint.policies.push(EndpointPolicy::outbound_nat([exception])),
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
    match subnet.network() {
        IpAddr::V4(network) => IpAddr::V4(Ipv4Addr::from(u32::from(network).wrapping_add(n.into()))),
        IpAddr::V6(network) => IpAddr::V6((u128::from(network).wrapping_add(n.into())).into()),
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

/// `{name, value}` where the name says that it is for endpoints; wincni's `AdditionalArgs` are of the same form.
fn named_endpoint_policy(mut entry: Value) -> Option<Value> {
    fold(&mut entry, &["name", "value"]);
    let name = entry.get("name")?.as_str()?;
    name.eq_ignore_ascii_case("EndpointPolicy").then(|| entry.get("value").cloned()).flatten()
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

/// Protocols that HNS does not map are skipped, as upstream.
fn port_mapping(mapping: &PortMapping) -> Option<EndpointPolicy> {
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
        ..HnsPortMapping::default()
    };
    Some(EndpointPolicy::port_mapping(&settings))
}
