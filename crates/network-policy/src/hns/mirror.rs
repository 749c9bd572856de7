//! What is known of the service: endpoints by address, sets by network, and what was written.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hcn::document::{NamespaceType, Query, RequestType, SetPolicy, SetPolicyType};
use hcn::{EndpointPolicy, EndpointState, Guid, HcnClient, HostComputeEndpoint, HostComputeNetwork, NetworkPolicy};

use super::rules::{MARK, Sets, group_of, holds, is_ours};
use super::{HnsError, failed};

/// A local endpoint.
#[derive(Debug, Default)]
pub struct Found {
    pub network: Guid,
    ips: Vec<IpAddr>,
    /// The rules of ours that it has, as they were written or read.
    written: Option<Vec<EndpointPolicy>>,
}

/// A network with local endpoints.
#[derive(Debug, Default)]
struct Network {
    /// Addresses by which the host itself reaches endpoints.
    host: BTreeSet<IpAddr>,
    /// Our sets.
    sets: Sets,
}

/// The endpoints of one service.
#[derive(Debug, Default)]
pub struct Mirror {
    endpoints: BTreeMap<Guid, Found>,
    /// Remote endpoints, and those of the host.
    others: BTreeSet<Guid>,
    by_ip: BTreeMap<IpAddr, Guid>,
    networks: BTreeMap<Guid, Network>,
    host_namespaces: BTreeSet<Guid>,
    is_read: bool,
}

impl Found {
    /// Whether it was read or written since it was made.
    pub fn is_known(&self) -> bool {
        self.written.is_some()
    }
}

impl Mirror {
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// Reads everything.
    pub async fn read(&mut self, client: &HcnClient) -> Result<(), HnsError> {
        let networks = client.networks().await.map_err(failed("list the networks"))?;
        let endpoints = client.endpoints().await.map_err(failed("list the endpoints"))?;
        let namespaces = client.namespaces().await.map_err(failed("list the namespaces"))?;
        let of_host = namespaces.iter().filter(|one| one.is_default || one.namespace_type == NamespaceType::HostDefault);
        *self = Self { host_namespaces: of_host.map(|one| one.id).collect(), ..Self::default() };
        networks.iter().for_each(|network| self.put_network(network));
        endpoints.into_iter().for_each(|endpoint| self.put(endpoint));
        self.is_read = true;
        Ok(())
    }

    /// Looks which endpoints came and went, and reads those that came: two calls for each.
    pub async fn refresh(&mut self, client: &HcnClient) -> Result<(), HnsError> {
        let list =
            |port: &std::sync::Arc<dyn hcn::HostNetwork>| hcn::blocking::Client::new(port.clone()).ids::<HostComputeEndpoint>(&Query::default());
        let ids = client.run(|| "listing the ids of endpoints".into(), list).await.map_err(failed("list the endpoints"))?;
        let ids: BTreeSet<Guid> = ids.into_iter().collect();
        let gone: Vec<Guid> = self.endpoints.keys().filter(|id| !ids.contains(id)).copied().collect();
        gone.iter().for_each(|id| self.lost(id));
        self.others.retain(|id| ids.contains(id));
        for id in &ids {
            if self.others.contains(id) || self.endpoints.contains_key(id) {
                continue;
            }
            let Some(endpoint) = client.endpoint(id).await.map_err(failed(format!("read endpoint {id}")))? else { continue };
            let network = endpoint.host_compute_network;
            if !self.networks.contains_key(&network)
                && let Some(network) = client.network(&network).await.map_err(failed(format!("read network {network}")))?
            {
                self.put_network(&network);
            }
            self.put(endpoint);
        }
        Ok(())
    }

    fn put_network(&mut self, network: &HostComputeNetwork) {
        let gateways = network.subnets().filter_map(hcn::Subnet::gateway);
        let ours = network.policies.iter().filter_map(NetworkPolicy::as_set).filter(|set| set.id.starts_with(MARK));
        let members = |set: &SetPolicy| set.members().filter_map(|member| member.parse().ok()).collect();
        let sets = ours.map(|set| (set.id.clone(), members(&set))).collect();
        self.networks.insert(network.id, Network { host: gateways.chain(network.management_ip()).collect(), sets });
    }

    fn put(&mut self, endpoint: HostComputeEndpoint) {
        let ips: Vec<IpAddr> = endpoint.ip_configurations.iter().filter_map(|config| config.ip_address.parse().ok()).collect();
        // The older call attaches to the host without a namespace.
        let old = endpoint.host_compute_namespace.is_nil() && endpoint.state == EndpointState::ATTACHED;
        let of_host = old || self.host_namespaces.contains(&endpoint.host_compute_namespace);
        if of_host {
            self.networks.entry(endpoint.host_compute_network).or_default().host.extend(ips.iter().copied());
        }
        if of_host || endpoint.is_remote() {
            self.others.insert(endpoint.id);
            return;
        }
        self.by_ip.extend(ips.iter().map(|ip| (*ip, endpoint.id)));
        let written = Some(endpoint.policies.into_iter().filter(is_ours).collect());
        self.endpoints.insert(endpoint.id, Found { network: endpoint.host_compute_network, ips, written });
    }

    /// An endpoint may have been made again with its id, and so without rules.
    pub fn forget_named(&mut self, text: &str) {
        let text = text.to_ascii_lowercase();
        self.endpoints.iter_mut().filter(|(id, _)| text.contains(&id.to_string())).for_each(|(_, found)| found.written = None);
    }

    pub fn find(&self, ip: IpAddr) -> Option<(Guid, &Found)> {
        let id = self.by_ip.get(&ip)?;
        Some((*id, self.endpoints.get(id)?))
    }

    pub fn networks(&self) -> impl Iterator<Item = Guid> {
        self.networks.keys().copied()
    }

    /// The endpoints with rules of ours.
    pub fn marked(&self) -> impl Iterator<Item = Guid> {
        self.endpoints.iter().filter(|(_, found)| found.written.as_ref().is_some_and(|ours| !ours.is_empty())).map(|(id, _)| *id)
    }

    pub fn host_ips(&self, network: &Guid) -> impl Iterator<Item = IpAddr> {
        self.networks.get(network).into_iter().flat_map(|network| network.host.iter().copied())
    }

    /// Whether exactly these rules are known to be there.
    pub fn has_written(&self, id: &Guid, ours: &[EndpointPolicy]) -> bool {
        self.endpoints.get(id).is_none_or(|found| found.written.as_ref().is_some_and(|written| holds(written, ours)))
    }

    pub fn wrote(&mut self, id: &Guid, ours: &[EndpointPolicy]) {
        if let Some(found) = self.endpoints.get_mut(id) {
            found.written = Some(ours.to_vec());
        }
    }

    pub fn lost(&mut self, id: &Guid) {
        if let Some(found) = self.endpoints.remove(id) {
            self.by_ip.retain(|ip, held| held != id || !found.ips.contains(ip));
        }
    }

    /// The requests that make sets of a network these: they add and change; with `trim` they take away, of those groups or of all.
    pub fn set_changes(&self, network: &Guid, sets: &Sets, trim: Option<Option<&BTreeSet<String>>>) -> Vec<(RequestType, Vec<SetPolicy>)> {
        let nothing = Sets::new();
        let there = self.networks.get(network).map_or(&nothing, |network| &network.sets);
        let document = |(id, ips): (&String, &Vec<IpAddr>)| SetPolicy {
            id: id.clone(),
            name: id.clone(),
            policy_type: SetPolicyType::IpSet,
            values: ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            ..SetPolicy::default()
        };
        let requests = if let Some(scope) = trim {
            let concerned = |id: &String| scope.is_none_or(|scope| group_of(id).is_some_and(|group| scope.contains(group)));
            vec![(RequestType::Remove, there.iter().filter(|(id, _)| !sets.contains_key(*id) && concerned(id)).map(document).collect())]
        } else {
            let differs = |id: &String, ips: &Vec<IpAddr>| there.get(id).is_some_and(|held| held != ips);
            vec![
                (RequestType::Add, sets.iter().filter(|(id, _)| !there.contains_key(*id)).map(document).collect()),
                (RequestType::Update, sets.iter().filter(|(id, ips)| differs(id, ips)).map(document).collect()),
            ]
        };
        requests.into_iter().filter(|(_, policies): &(_, Vec<_>)| !policies.is_empty()).collect()
    }

    pub fn note_sets(&mut self, network: &Guid, request: &RequestType, policies: Vec<SetPolicy>) {
        let sets = &mut self.networks.entry(*network).or_default().sets;
        for set in policies {
            match request {
                RequestType::Remove => drop(sets.remove(&set.id)),
                _ => drop(sets.insert(set.id.clone(), set.members().filter_map(|member| member.parse().ok()).collect())),
            }
        }
    }
}
