//! State that survives a restart of the service, a crash of it, or a reboot of its host. Pure.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hcn::document::{NamespaceResourceType, NetworkFlags, NetworkPolicyType};
use hcn::{
    EndpointState, Guid, HnsVersion, HostComputeNamespace, HostComputeNetwork, LoadBalancerFlags, NamespaceResource, NetworkPolicy, NetworkType,
};
use serde::{Deserialize, Serialize};

use crate::compile::awaits_compartment;
use crate::latency::mix;
use crate::model::{HOST_COMPARTMENT, Host, has_vfp, is_external};
use crate::state::{Change, Endpoint, Object, State, endpoint_of};
use crate::switches::Switches;

/// From this version on, NAT networks do not survive a reboot.
const NAT_IS_TRANSIENT: HnsVersion = HnsVersion::new(9, 0);

/// How the service ends before it starts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestartMode {
    /// Restart-Service.
    #[default]
    Clean,
    /// It crashed; the service manager starts it again.
    Crash,
    Reboot,
}

impl FromStr for RestartMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "clean" => Ok(Self::Clean),
            "crash" => Ok(Self::Crash),
            "reboot" => Ok(Self::Reboot),
            other => Err(format!("{other:?} is no way to restart: use clean, crash or reboot")),
        }
    }
}

impl fmt::Display for RestartMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clean => "clean",
            Self::Crash => "crash",
            Self::Reboot => "reboot",
        })
    }
}

/// What is lost, or wrongly kept, over a restart or reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Networks do not come back.
    Networks,
    /// Endpoints do not come back.
    Endpoints,
    /// Endpoints come back from a reboot.
    StaleEndpoints,
    /// Namespaces without containers do not come back.
    Namespaces,
    /// Load balancers do not come back.
    Balancers,
    /// Half of the load balancers do not come back.
    SomeBalancers,
    /// Load balancers come back without DSR.
    DirectServerReturn,
    /// Load balancers are not listed, but what they listened on stays taken.
    Listeners,
}

/// How the service ended, and what is lost when it starts again.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// How it ended.
    pub mode: RestartMode,
    /// What is lost.
    pub losses: Vec<Loss>,
    /// Which endpoints a crash loses follows from it.
    pub seed: u64,
}

impl Ending {
    fn loses(&self, loss: Loss) -> bool {
        self.losses.contains(&loss)
    }

    fn keeps_network(&self, network: &HostComputeNetwork, version: HnsVersion) -> bool {
        let transient =
            network.flags.contains(NetworkFlags::ENABLE_NON_PERSISTENT) || network.network_type == NetworkType::Nat && version >= NAT_IS_TRANSIENT;
        !(self.loses(Loss::Networks) || self.mode == RestartMode::Reboot && transient)
    }

    fn keeps_namespace(&self, namespace: &HostComputeNamespace) -> bool {
        !self.loses(Loss::Namespaces) || namespace.resources.iter().any(|resource| resource.resource_type == NamespaceResourceType::Container)
    }

    /// Whether the object is among the half that is lost.
    fn draws(&self, id: &Guid) -> bool {
        mix(self.seed ^ id.0.as_u64_pair().1) & 1 != 0
    }

    fn keeps_endpoint(&self, id: &Guid) -> bool {
        !self.loses(Loss::Endpoints)
            && match self.mode {
                RestartMode::Clean => true,
                RestartMode::Crash => !self.draws(id),
                RestartMode::Reboot => self.loses(Loss::StaleEndpoints),
            }
    }
}

/// The state after the service has started again.
pub fn survivors(state: &State, ending: &Ending, switches: &Switches, host: &Host) -> State {
    let mut kept = State::default();
    let reboot = ending.mode == RestartMode::Reboot;
    for (id, network) in state.networks.iter().filter(|(_, network)| ending.keeps_network(network, switches.version)) {
        let mut network = network.clone();
        if reboot {
            network.policies.retain(|policy| policy.policy_type != NetworkPolicyType::SetPolicy);
        }
        refresh_management(&mut network, host);
        kept.apply(Change::put(*id, Object::Network(network)));
    }
    for (id, row) in state.endpoints.iter().filter(|(id, _)| ending.keeps_endpoint(id)) {
        if !kept.networks.contains_key(&row.network) {
            continue;
        }
        let mut endpoint = row.read();
        let homeless = state.namespaces.get(&endpoint.document.host_compute_namespace).is_some_and(|namespace| !ending.keeps_namespace(namespace));
        if reboot && !endpoint.document.is_remote() || homeless {
            endpoint = unplugged(endpoint);
        }
        // The switch's extension is off for what was there before.
        let filtered = kept.networks.get(&row.network).is_some_and(|network| has_vfp(&network.network_type)) && !endpoint.document.is_remote();
        endpoint.defects.unfiltered |= filtered && !switches.hns_fix_extension_upon_rehydration;
        kept.apply(Change::put(*id, Object::Endpoint(endpoint)));
    }
    if !reboot {
        let mut next_compartment = state.index().highest_compartment().unwrap_or(0).max(HOST_COMPARTMENT).saturating_add(1);
        for (id, namespace) in state.namespaces.iter().filter(|(_, namespace)| ending.keeps_namespace(namespace)) {
            let mut namespace = namespace.clone();
            let held = |resource: &NamespaceResource| endpoint_of(resource).is_none_or(|endpoint| kept.endpoints.contains_key(&endpoint));
            namespace.resources.retain(held);
            if awaits_compartment(&namespace) && switches.enable_compartment_namespace {
                namespace.namespace_id = next_compartment;
                next_compartment += 1;
            }
            kept.apply(Change::put(*id, Object::Namespace(namespace)));
        }
        keep_balancers(state, ending, switches, &mut kept);
    }
    if ending.mode == RestartMode::Clean {
        state.routes.iter().for_each(|(id, route)| kept.apply(Change::put(*id, Object::Route(route.clone()))));
    }
    kept
}

fn keep_balancers(state: &State, ending: &Ending, switches: &Switches, kept: &mut State) {
    for (id, row) in &state.balancers {
        if !kept.networks.contains_key(&row.network) {
            continue;
        }
        let mut balancer = row.read();
        let crashed = ending.mode == RestartMode::Crash;
        let lost = crashed || ending.loses(Loss::Balancers) || ending.loses(Loss::SomeBalancers) && ending.draws(id);
        if ending.loses(Loss::Listeners) || crashed && !switches.cleanup_reserved_ports {
            balancer.listeners().for_each(|listener| kept.leak(listener));
        } else if !lost {
            if ending.loses(Loss::DirectServerReturn) {
                balancer.document.flags = LoadBalancerFlags(balancer.document.flags.0 & !LoadBalancerFlags::DSR.0);
            }
            kept.apply(Change::put(*id, Object::Balancer(balancer)));
        }
    }
}

/// An endpoint that came back without what it was plugged into.
fn unplugged(mut endpoint: Endpoint) -> Endpoint {
    endpoint.document.host_compute_namespace = Guid::NIL;
    endpoint.document.state = EndpointState::CREATED;
    Endpoint::detached(endpoint.document)
}

/// External networks follow the uplink's address.
fn refresh_management(network: &mut HostComputeNetwork, host: &Host) {
    if !is_external(&network.network_type) || network.management_ip() == host.management.map(IpAddr::V4) {
        return;
    }
    network.policies.retain(|policy| policy.policy_type != NetworkPolicyType::ProviderAddress);
    network.policies.extend(host.management.map(|address| NetworkPolicy::provider_address(address.into())));
}
