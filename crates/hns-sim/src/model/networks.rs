//! Validation and effects of calls on networks.

use std::net::IpAddr;

use hcn::document::{
    Dns, ExtensionSettings, InterfaceConstraint, IpamType, MacPool, MacRange, NetworkPolicyType, NetworkResource, VSwitchExtension, v1,
};
use hcn::{Args, Event, Guid, HResult, HostComputeNetwork, Ipam, Kind, ModifyRequest, NetworkFlags, NetworkPolicy, NetworkType, RequestType, Subnet};
use ipnet::{IpNet, Ipv4Net};

use super::{Context, Result, Staged, explained, failure, has_vfp, is_external, is_nat, new_id, policies, read_either, read_value};
use crate::compile::is_enforced_network;
use crate::latency::mix;
use crate::mac::Mac;
use crate::state::{Change, Object};
use crate::versions::has_network_type;

/// The alias of the host's physical adapter.
pub const ADAPTER: &str = "Ethernet";

/// Extensions that every switch has: the filtering platform's, Hyper-V's, and the capture of packets.
pub(super) const EXTENSIONS: [(&str, &str); 3] = [
    ("e7c3b2f0-f3c5-48df-af2b-10fed6d72e7a", "Microsoft Windows Filtering Platform"),
    ("e9b59cfa-2be1-4b21-828f-b6fbdbddc017", "Microsoft Azure VFP Switch Extension"),
    ("ea24cd6c-d17a-4348-9190-09f0d5be83dd", "Microsoft NDIS Capture"),
];

/// Whether every switch has that extension.
pub(super) fn is_extension(id: &Guid) -> bool {
    EXTENSIONS.iter().any(|(known, _)| known.parse() == Ok(*id))
}

impl Context<'_> {
    pub(super) fn create_network(&self, args: &Args<'_>) -> Result<Staged> {
        let network = read_either(args.settings, v1::network)?;
        self.put_new_network(new_id(args, network.id), network)
    }

    pub(super) fn put_new_network(&self, id: Guid, mut network: HostComputeNetwork) -> Result<Staged> {
        if self.state.networks.contains_key(&id) || self.state.index().named(Kind::Network, &network.name).next().is_some() {
            return Err(failure(HResult::NETWORK_ALREADY_EXISTS));
        }
        self.check_type(&network)?;
        if is_nat(&network.network_type) && network.subnets().next().is_none() {
            let ipam = Ipam { subnets: vec![self.nat_subnet(&id)?], ..Ipam::default() };
            network.ipams.push(ipam);
        }
        self.check_addresses(&network)?;
        let mut accepted: Vec<NetworkPolicy> = Vec::with_capacity(network.policies.len());
        for policy in std::mem::take(&mut network.policies) {
            policies::check_network(&policy, &accepted, self.switches)?;
            accepted.push(policy);
        }
        network.policies = accepted;
        self.check_adapter(&network)?;
        self.complete(id, &mut network);
        let flags = network.flags.0;
        let staged = Staged { opened: Some((Kind::Network, id)), ..Staged::change(Change::put(id, Object::Network(network))) };
        Ok(staged.announce(Event::NETWORK_PRE_CREATE, id, flags).event(Event::NETWORK_CREATE, id, flags, ().into()))
    }

    fn check_type(&self, network: &HostComputeNetwork) -> Result<()> {
        let network_type = &network.network_type;
        if !has_network_type(self.switches.version, network_type) {
            return Err(failure(HResult::INVALID_NETWORK_TYPE));
        }
        if !self.switches.store_unenforced && !is_enforced_network(network_type) {
            let explanation = format!("Invalid network type. The simulator has no packets for {network_type} networks.");
            return Err(explained(HResult::INVALID_NETWORK_TYPE, &explanation));
        }
        if matches!(network_type, NetworkType::Ics | NetworkType::ConstrainedIcs) && !self.switches.connection_sharing {
            return Err(failure(HResult::ICS_DISABLED));
        }
        if network.flags.contains(NetworkFlags::DISABLE_HOST_PORT) && !self.switches.features().disable_host_port {
            return Err(explained(HResult::INVALID_PARAMETER, "This version has no networks without a host port."));
        }
        Ok(())
    }

    /// What a NAT network gets that names no prefix: one of the /20s of 172.16.0.0/12 that no other has.
    fn nat_subnet(&self, id: &Guid) -> Result<Subnet> {
        let start = mix(id.0.as_u64_pair().1) % 256;
        let prefixes = (0..256).map(|step| {
            let [third, fourth] = u16::try_from((start + step) % 256 * 16).unwrap_or_default().to_be_bytes();
            Ipv4Net::new_assert([172, 16 + third, fourth, 0].into(), 20)
        });
        let free = |prefix: &Ipv4Net| !self.is_translated(&IpNet::V4(*prefix), id);
        let prefix = prefixes.into_iter().find(free).ok_or_else(|| explained(HResult::INVALID_PREFIX, "No prefix is free."))?;
        Ok(Subnet::new(prefix.into(), IpAddr::V4((u32::from(prefix.network()) + 1).into())))
    }

    /// Whether a NAT network other than `own` has a part of the prefix.
    fn is_translated(&self, prefix: &IpNet, own: &Guid) -> bool {
        let overlaps = |other: IpNet| other.contains(prefix) || prefix.contains(&other);
        let networks = self.state.networks.iter().filter(|(id, network)| *id != own && is_nat(&network.network_type));
        networks.into_iter().any(|(_, network)| network.subnets().filter_map(Subnet::prefix).any(overlaps))
    }

    /// Prefixes of networks that hide behind the host must differ.
    pub(super) fn check_prefix(&self, own: &Guid, network_type: &NetworkType, subnet: &Subnet) -> Result<()> {
        let taken = is_nat(network_type) && subnet.prefix().is_some_and(|prefix| self.is_translated(&prefix, own));
        if taken { Err(failure(HResult::DUPLICATE_NAME)) } else { Ok(()) }
    }

    fn check_addresses(&self, network: &HostComputeNetwork) -> Result<()> {
        let network_type = &network.network_type;
        if has_vfp(network_type) && network.subnets().next().is_none() {
            return Err(explained(HResult::INVALID_NETWORK, "The network has no subnet."));
        }
        let leases = *network_type == NetworkType::Transparent || is_nat(network_type);
        if !leases && network.ipams.iter().any(|ipam| ipam.ipam_type != IpamType::Static) {
            return Err(explained(HResult::INVALID_NETWORK, "Only static addresses exist on this type of network."));
        }
        for subnet in network.subnets() {
            self.check_subnet(network_type, subnet)?;
            self.check_prefix(&network.id, network_type, subnet)?;
        }
        Ok(())
    }

    /// The adapter must exist, and its switch must be of a type that fits.
    fn check_adapter(&self, network: &HostComputeNetwork) -> Result<()> {
        let known = |alias: &str| alias.is_empty() || alias.eq_ignore_ascii_case(ADAPTER);
        for policy in &network.policies {
            let constraint = policy.settings_as::<InterfaceConstraint>(&NetworkPolicyType::InterfaceConstraint);
            if policy.as_net_adapter_name().is_some_and(|alias| !known(&alias)) || constraint.is_some_and(|it| !known(&it.interface_alias)) {
                return Err(failure(HResult::ADAPTER_NOT_FOUND));
            }
        }
        let differs = |other: &HostComputeNetwork| is_external(&other.network_type) && has_vfp(&other.network_type) != has_vfp(&network.network_type);
        if is_external(&network.network_type) && self.state.networks.values().any(differs) {
            return Err(explained(self.switches.adapter_in_use, "The adapter is in a switch of another type."));
        }
        Ok(())
    }

    /// What the service adds to a network.
    fn complete(&self, id: Guid, network: &mut HostComputeNetwork) {
        network.id = id;
        network.state = 1;
        network.version = self.switches.version.packed();
        let subnets = network.ipams.iter_mut().flat_map(|ipam| &mut ipam.subnets).enumerate();
        subnets.for_each(|(index, subnet)| name_subnet(&id, index, subnet));
        if network.mac_pool.ranges.is_empty() {
            let [start_mac_address, end_mac_address] = Mac::pool(&id).map(|mac| mac.to_string());
            network.mac_pool = MacPool { ranges: vec![MacRange { start_mac_address, end_mac_address, ..MacRange::default() }], ..MacPool::default() };
        }
        if is_external(&network.network_type) {
            network.policies.retain(|policy| policy.policy_type != NetworkPolicyType::ProviderAddress);
            network.policies.extend(self.host.management.map(|address| NetworkPolicy::provider_address(address.into())));
        }
        let has_router = network.policies.iter().any(|policy| policy.policy_type == NetworkPolicyType::DrMacAddress);
        if network.network_type == NetworkType::Overlay && !has_router {
            network.policies.push(NetworkPolicy::dr_mac_address(Mac::router().to_string()));
        }
    }

    pub(super) fn modify_network(&self, id: Guid, mut network: HostComputeNetwork, request: &ModifyRequest) -> Result<Staged> {
        match NetworkResource::parse(request.resource_type.as_str()) {
            NetworkResource::Policy => {
                let given: Vec<NetworkPolicy> = policies::given(request)?;
                let in_use = |set: &str| self.state.index().is_set_used(id, set);
                policies::change_network(&mut network.policies, &request.request_type, given, self.switches, &in_use)?;
            }
            NetworkResource::Dns if matches!(request.request_type, RequestType::Update | RequestType::Add) => {
                network.dns = read_value::<Dns>(&request.settings)?;
            }
            NetworkResource::Extension => self.change_extension(id, &mut network, &read_value(&request.settings)?)?,
            NetworkResource::Subnet => self.change_subnets(&mut network, request)?,
            NetworkResource::IpSubnet => self.change_ip_subnets(&mut network, request)?,
            NetworkResource::Dns | NetworkResource::Other(_) => return Err(failure(HResult::REQUEST_UNSUPPORTED)),
        }
        Ok(Staged::change(Change::put(id, Object::Network(network))))
    }

    /// An extension belongs to a switch; a network that shares its switch may not change it.
    fn change_extension(&self, id: Guid, network: &mut HostComputeNetwork, settings: &ExtensionSettings) -> Result<()> {
        if !is_extension(&settings.id) {
            return Err(failure(HResult::SWITCH_EXTENSION_NOT_FOUND));
        }
        let shares = |(other, network): (&Guid, &HostComputeNetwork)| *other != id && is_external(&network.network_type);
        if is_external(&network.network_type) && self.state.networks.iter().any(shares) {
            return Err(failure(HResult::SHARED_SWITCH_MODIFICATION));
        }
        let policy_type = NetworkPolicyType::VSwitchExtension;
        let is_it = |policy: &NetworkPolicy| policy.settings_as::<VSwitchExtension>(&policy_type).is_some_and(|it| it.extension_id == settings.id);
        network.policies.retain(|policy| !is_it(policy));
        let extension = VSwitchExtension { extension_id: settings.id, enable: settings.is_enabled, ..VSwitchExtension::default() };
        network.policies.push(NetworkPolicy::new(policy_type, &extension));
        Ok(())
    }

    /// A network takes its endpoints with it. Its load balancers and routing rules stay, and have nothing left to do.
    pub(super) fn delete_network(&self, id: Guid, network: &HostComputeNetwork) -> Staged {
        let mut staged = Staged::default();
        let endpoints: Vec<Guid> = self.state.index().endpoints_of(id).collect();
        staged.changes.extend(self.namespaces_without(&endpoints));
        staged.changes.extend(endpoints.into_iter().map(|endpoint| Change::delete(Kind::Endpoint, endpoint)));
        for balancer_id in self.state.index().balancers_of(id) {
            if let Some(mut balancer) = self.state.balancer(&balancer_id) {
                balancer.network = Guid::NIL;
                balancer.backends.clear();
                staged.changes.push(Change::put(balancer_id, Object::Balancer(balancer)));
            }
        }
        staged.changes.push(Change::delete(Kind::Network, id));
        let flags = network.flags.0;
        staged.announce(Event::NETWORK_PRE_DELETE, id, flags).event(Event::NETWORK_DELETE, id, flags, ().into())
    }
}

/// A subnet without an identifier gets one that follows from the network's: a repeated run makes the same.
pub(super) fn name_subnet(network: &Guid, index: usize, subnet: &mut Subnet) {
    if subnet.id.is_nil() {
        subnet.id = hcn::owned_id("hns", "subnet", &format!("{network} {index} {}", subnet.ip_address_prefix));
    }
    subnet.state = 1;
}
