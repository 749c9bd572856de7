//! The plug-in's configuration and the endpoint document it asks for.

use std::net::{IpAddr, Ipv4Addr};

use hcn::document::{EndpointPolicyType, OutBoundNat, PortMapping as HnsPortMapping};
use hcn::{EndpointPolicy, HostComputeEndpoint, HostComputeNetwork, Protocol};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::OWNER;
use crate::fold::fold;
use crate::plugin::Request;
use crate::spec::{AddResult, CniError, Dns, PortMapping};

/// What the configuration asks for, independent of the address.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
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
    #[serde(rename = "HcnPolicyArgs")]
    hcn_policy_args: Vec<Value>,
    #[serde(rename = "AdditionalArgs")]
    additional_args: Vec<Value>,
}

const KEYS: &[&str] = &["ipMasq", "ipMasqNetwork", "loopbackDSR", "policies", "skipAttachCheck", "HcnPolicyArgs", "AdditionalArgs"];

impl Config {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let mut document = Value::Object(request.config.document.clone());
        fold(&mut document, KEYS);
        if let Value::Object(map) = &mut document {
            map.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        }
        let keys: Keys = serde_json::from_value(document).map_err(|e| CniError::decode("the configuration of win-bridge", &e))?;
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
        Ok(Self { policies, dns, loopback_dsr: keys.loopback_dsr, skip_attach_check, masquerade, port_mappings: runtime.port_mappings })
    }

    /// The endpoint to create. The default route goes by the network's address plus 2, where the host's own endpoint
    /// is; HNS keeps plus 1 for itself. Without IPAM, HNS chooses address and route.
    pub fn endpoint(&self, name: &str, network: &HostComputeNetwork, addresses: Option<&AddResult>) -> HostComputeEndpoint {
        let address = addresses.and_then(|a| a.ips.first()).map(|ip| ip.address);
        let mut endpoint = match address {
            Some(address) => HostComputeEndpoint::local(name, address, Some(gateway(address))),
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
        endpoint
    }

    /// One OutBoundNAT policy that leaves out `ipMasqNetwork`, or with `ipMasq` alone the pod network itself.
    fn apply_masquerade(&self, endpoint: &mut HostComputeEndpoint, network: &HostComputeNetwork, address: Option<IpNet>) {
        let has_nat = endpoint.policies.iter().any(|p| p.policy_type == EndpointPolicyType::OutBoundNat);
        let own = || network.subnets().next().and_then(hcn::Subnet::prefix).or(address.map(|a| a.trunc()));
        let exception = match self.masquerade.network {
            Some(given) => Some(given),
            None if self.masquerade.desired && !has_nat => own(),
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

/// The host's endpoint of an L2Bridge network: the third address of the subnet.
fn gateway(address: IpNet) -> IpAddr {
    match address.network() {
        IpAddr::V4(network) => IpAddr::V4(Ipv4Addr::from(u32::from(network) + 2)),
        IpAddr::V6(network) => IpAddr::V6((u128::from(network) + 2).into()),
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
