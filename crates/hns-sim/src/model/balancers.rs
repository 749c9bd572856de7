//! Load balancers and routing rules.

use std::net::Ipv4Addr;

use hcn::{Args, Guid, HResult, HnsVersion, HostComputeLoadBalancer, HostComputeRoute, LoadBalancerFlags};

use super::{Context, Result, Staged, error, explained, new_id, read};
use crate::realise::is_balanced;
use crate::state::{Balancer, Change, Object};

/// The version that says yes to a modify and does nothing.
const MODIFIES_NOTHING: HnsVersion = HnsVersion::new(15, 4);

/// A load balancer that works.
const HEALTHY: u32 = 2;

impl Context<'_> {
    pub(super) fn create_balancer(&self, args: &Args<'_>) -> Result<Staged> {
        let document: HostComputeLoadBalancer = read(args.settings)?;
        let id = new_id(args, document.id);
        if self.state.balancers.contains_key(&id) {
            return Err(error(self.switches.duplicate_load_balancer));
        }
        self.put_balancer(id, document)
    }

    pub(super) fn modify_balancer(&self, id: Guid, _balancer: &Balancer, settings: Option<&str>) -> Result<Staged> {
        let document: HostComputeLoadBalancer = read(settings)?;
        if self.switches.version == MODIFIES_NOTHING {
            return Ok(Staged::default());
        }
        if !self.switches.features().modify_load_balancer {
            return Err(error(HResult::NOT_IMPLEMENTED));
        }
        self.put_balancer(id, document)
    }

    fn put_balancer(&self, id: Guid, mut document: HostComputeLoadBalancer) -> Result<Staged> {
        if document.flags.contains(LoadBalancerFlags::IPV6) {
            return Err(explained(HResult::INVALID_PARAMETER, "The simulated host has no IPv6."));
        }
        if document.frontend_vips.iter().any(|vip| vip.parse::<Ipv4Addr>().is_err()) {
            return Err(error(HResult::INVALID_IP));
        }
        if document.port_mappings.is_empty() {
            return Err(error(HResult::INVALID_POLICY));
        }
        for mapping in &document.port_mappings {
            if mapping.internal_port == 0 {
                return Err(error(HResult::INVALID_INTERNAL_PORT));
            }
            if mapping.external_port == 0 || !is_balanced(mapping.protocol) {
                return Err(error(HResult::INVALID_PARAMETER));
            }
        }
        let backends = self.backends(&document.host_compute_endpoints)?;
        document.id = id;
        document.state = HEALTHY;
        document.version = self.switches.version.packed();
        let balancer = Balancer { document, backends };
        let mut frontends = std::collections::BTreeSet::new();
        for frontend in balancer.frontends() {
            let taken = self.state.listener(&frontend).is_some_and(|owner| owner != id);
            if taken || !frontends.insert(frontend) {
                return Err(error(self.switches.duplicate_load_balancer));
            }
        }
        Ok(Staged::change(Change::put(id, Object::Balancer(balancer))))
    }

    /// The addresses of backends; none, or one that does not exist, is a bad reference.
    fn backends(&self, endpoints: &[Guid]) -> Result<Vec<Ipv4Addr>> {
        let bad = || error(HResult::INVALID_JSON_REFERENCE);
        let address = |id: &Guid| self.state.endpoints.get(id)?.addresses().next().map(|address| address.addr());
        let addresses: Option<Vec<_>> = endpoints.iter().map(address).collect();
        addresses.filter(|addresses| !addresses.is_empty()).ok_or_else(bad)
    }

    pub(super) fn create_route(&self, args: &Args<'_>) -> Result<Staged> {
        let mut route: HostComputeRoute = read(args.settings)?;
        let id = new_id(args, route.id);
        if self.state.routes.contains_key(&id) {
            return Err(error(HResult::ALREADY_EXISTS));
        }
        self.backends(&route.host_compute_endpoints)?;
        route.id = id;
        route.state = 1;
        route.version = self.switches.version.packed();
        Ok(Staged::change(Change::put(id, Object::Route(route))))
    }
}
