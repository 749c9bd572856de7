//! What we believe is in the Host Networking Service: filled by listing, kept by what our own writes answered.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use hcn::{Guid, HostComputeEndpoint, HostComputeLoadBalancer};

use super::document::{front_key, load_balancer_id, remote_id};
use crate::table::FrontKey;

/// The part of the service that concerns us.
#[derive(Debug, Default)]
pub struct Mirror {
    /// Endpoints of pods on this node, by address. CNI owns them.
    pub local: BTreeMap<IpAddr, Guid>,
    /// Remote endpoints that we made.
    pub remotes: BTreeMap<IpAddr, Guid>,
    /// Remote endpoints that others made; usable, never deleted.
    pub foreign_remotes: BTreeMap<IpAddr, Guid>,
    load_balancers: BTreeMap<FrontKey, HostComputeLoadBalancer>,
    uses: HashMap<Guid, usize>,
}

impl Mirror {
    /// Replaces what is known of endpoints.
    pub fn set_endpoints(&mut self, cluster_uid: &str, endpoints: &[HostComputeEndpoint]) {
        self.local.clear();
        self.remotes.clear();
        self.foreign_remotes.clear();
        for endpoint in endpoints {
            for ip in endpoint.ip_configurations.iter().filter_map(|c| c.ip_address.parse::<IpAddr>().ok()) {
                let map = match (endpoint.is_remote(), endpoint.id == remote_id(cluster_uid, ip)) {
                    (false, _) => &mut self.local,
                    (true, true) => &mut self.remotes,
                    (true, false) => &mut self.foreign_remotes,
                };
                map.insert(ip, endpoint.id);
            }
        }
    }

    /// Replaces what is known of load balancers: those whose id is the one we would give them are ours.
    pub fn set_load_balancers(&mut self, cluster_uid: &str, documents: Vec<HostComputeLoadBalancer>) {
        self.load_balancers.clear();
        self.uses.clear();
        for document in documents {
            if let Some(key) = front_key(&document).filter(|key| load_balancer_id(cluster_uid, key) == document.id) {
                self.put(key, document);
            }
        }
    }

    /// Every load balancer of ours.
    pub fn load_balancers(&self) -> &BTreeMap<FrontKey, HostComputeLoadBalancer> {
        &self.load_balancers
    }

    /// Notes a load balancer.
    pub fn put(&mut self, key: FrontKey, document: HostComputeLoadBalancer) {
        self.remove(&key);
        for id in &document.host_compute_endpoints {
            *self.uses.entry(*id).or_default() += 1;
        }
        self.load_balancers.insert(key, document);
    }

    /// Notes that a load balancer is gone.
    pub fn remove(&mut self, key: &FrontKey) {
        let Some(old) = self.load_balancers.remove(key) else { return };
        for id in &old.host_compute_endpoints {
            if let Some(count) = self.uses.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.uses.remove(id);
                }
            }
        }
    }

    /// How many of our load balancers name endpoint `id`.
    pub fn uses(&self, id: &Guid) -> usize {
        self.uses.get(id).copied().unwrap_or(0)
    }
}
