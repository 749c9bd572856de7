//! The network of a pod's endpoint: found, and for wincni and azure-vnet made where it is missing.

use hcn::blocking::{Client, Opened};
use hcn::document::{Isolation, NetworkPolicyType};
use hcn::{Guid, HcnError, HostComputeNetwork, NetworkPolicy, NetworkType, Query, Subnet, owned_id};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::config::Config;
use super::{Kind, OWNER, hns};
use crate::spec::{AddResult, CniError, Dns, code};

/// Names of networks that wincni makes: the network's name is its type.
pub(super) const MADE: [(&str, NetworkType); 5] = [
    ("l2bridge", NetworkType::L2Bridge),
    ("l2tunnel", NetworkType::L2Tunnel),
    ("transparent", NetworkType::Transparent),
    ("overlay", NetworkType::Overlay),
    ("nat", NetworkType::Nat),
];

/// What a network is made from.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub subnet: IpNet,
    /// The pods' gateway.
    pub gateway: std::net::IpAddr,
    pub policies: Vec<NetworkPolicy>,
}

/// What of its configuration azure-vnet makes a network from; the rest comes from the addresses.
#[derive(Clone, Debug)]
pub(super) struct Azure {
    /// `mode` is `tunnel`.
    pub tunnel: bool,
    /// `master`, unless it is a virtual adapter; empty for the one that HNS chooses.
    pub adapter: String,
    pub policies: Vec<NetworkPolicy>,
}

/// A network: open, and as it was when it was opened.
pub(super) struct Network<'a> {
    pub opened: Opened<'a, HostComputeNetwork>,
    pub document: HostComputeNetwork,
}

/// The network of that name. `hint` is the id that it has by its owner's word: where that is so, HNS need not look for the name.
pub(super) fn find_network<'a>(client: &'a Client, name: &str, kind: Kind, hint: Option<&Guid>) -> Result<Network<'a>, CniError> {
    let Some(network) = look_up(client, name, hint)? else {
        let text = format!("HNS network {name:?} does not exist; the pod network creates it when the node has its pod CIDR");
        return Err(CniError::new(code::TRY_AGAIN, text));
    };
    let network_type = &network.document.network_type;
    if !kind.serves(network_type) {
        let (plugin, types) = kind.names();
        let text = format!("HNS network {name:?} is of type {network_type:?}; {plugin} needs {types}");
        return Err(CniError::config(text));
    }
    Ok(network)
}

fn look_up<'a>(client: &'a Client, name: &str, hint: Option<&Guid>) -> Result<Option<Network<'a>>, CniError> {
    let failed = |error: HcnError| hns(format_args!("look up HNS network {name:?}"), &error);
    let open = |id: &Guid| -> Result<Option<Network<'a>>, HcnError> {
        let Some(opened) = client.open::<HostComputeNetwork>(id)? else { return Ok(None) };
        Ok(opened.read()?.filter(|document| document.name == name).map(|document| Network { opened, document }))
    };
    if let Some(id) = hint
        && let Some(network) = open(id).map_err(failed)?
    {
        return Ok(Some(network));
    }
    for id in client.ids::<HostComputeNetwork>(&Query::by_name(name)).map_err(failed)? {
        if let Some(network) = open(&id).map_err(failed)? {
            return Ok(Some(network));
        }
    }
    Ok(None)
}

/// The network; none where it is missing and ADD makes it.
pub(super) fn present<'a>(client: &'a Client, name: &str, config: &Config) -> Result<Option<Network<'a>>, CniError> {
    match find_network(client, name, config.kind, config.hns_network.as_ref()) {
        Err(error) if error.code == code::TRY_AGAIN && config.makes_network() && look_up(client, name, None)?.is_none() => Ok(None),
        found => found.map(Some),
    }
}

/// Makes the network. Of two calls at once one makes it.
pub(super) fn make<'a>(client: &'a Client, name: &str, config: &Config, addresses: Option<&AddResult>) -> Result<Network<'a>, CniError> {
    let network = match (&config.network, &config.azure) {
        (Some(plan), _) => plan.document(name, type_of(name)?, &config.dns),
        (None, Some(azure)) => azure.document(name, &config.dns, addresses)?,
        (None, None) => return find_network(client, name, config.kind, None),
    };
    match client.create(owned_id(config.kind.names().0, "network", name), &network) {
        Ok(_) => {}
        Err(error) if error.is_already_exists() => {}
        Err(error) => return Err(hns(format_args!("create HNS network {name:?}"), &error)),
    }
    find_network(client, name, config.kind, None)
}

/// wincni's network is named after its type.
fn type_of(name: &str) -> Result<NetworkType, CniError> {
    let known = MADE.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    known.map(|(_, network_type)| network_type.clone()).ok_or_else(|| {
        let known = MADE.map(|(known, _)| known).join(", ");
        CniError::config(format!(
            "HNS network {name:?} does not exist, and wincni makes networks only by the name of their type; create it, or name one of {known}"
        ))
    })
}

impl Plan {
    /// The network `name`, on whichever adapter HNS chooses.
    fn document(&self, name: &str, network_type: NetworkType, dns: &Dns) -> HostComputeNetwork {
        let mut subnet = Subnet::new(self.subnet, self.gateway);
        let (of_subnet, of_network): (Vec<NetworkPolicy>, Vec<NetworkPolicy>) =
            self.policies.iter().cloned().partition(|policy| matches!(policy.policy_type, NetworkPolicyType::Vsid | NetworkPolicyType::Vlan));
        subnet.policies = of_subnet;
        let mut network = HostComputeNetwork::new(name, network_type, subnet);
        network.owner = OWNER.to_owned();
        network.policies = of_network;
        network.dns.server_list.clone_from(&dns.nameservers);
        network.dns.search.clone_from(&dns.search);
        network
    }
}

impl Azure {
    /// The network of the subnet that the pod's address is in.
    fn document(&self, name: &str, dns: &Dns, addresses: Option<&AddResult>) -> Result<HostComputeNetwork, CniError> {
        let given = addresses.and_then(|addresses| addresses.ips.first()).and_then(|ip| Some((ip.address.trunc(), ip.gateway?)));
        let Some((subnet, gateway)) = given else {
            return Err(CniError::config("azure-vnet gets no address and gateway; write ipam with the type azure-vnet-ipam"));
        };
        let network_type = if self.tunnel { NetworkType::L2Tunnel } else { NetworkType::L2Bridge };
        let network = Plan { subnet, gateway, policies: self.policies.clone() }.document(name, network_type, dns);
        let named = !self.adapter.is_empty();
        Ok(if named { network.with_policy(NetworkPolicy::net_adapter_name(&self.adapter)) } else { network })
    }
}

/// Reads `{Type, Settings}`, or the flat form of the first Windows plug-ins. What is neither is dropped, as upstream.
pub(super) fn policy(value: &Value) -> Option<NetworkPolicy> {
    let map = value.as_object()?;
    if map.contains_key("Settings") {
        return serde_json::from_value(value.clone()).ok();
    }
    let mut settings: Map<String, Value> = map.clone();
    let kind = settings.shift_remove("Type")?;
    for (key, policy_type) in [("VSID", NetworkPolicyType::Vsid), ("VLAN", NetworkPolicyType::Vlan)] {
        if kind == key {
            let isolation_id = settings.get(key)?.as_u64()?.try_into().ok()?;
            return Some(NetworkPolicy::new(policy_type, &Isolation { isolation_id, ..Isolation::default() }));
        }
    }
    serde_json::from_value(json!({"Type": kind, "Settings": settings})).ok()
}
