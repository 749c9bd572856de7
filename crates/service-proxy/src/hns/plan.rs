//! Plan for one VIP (pure): from the table and the mirror to steps in their order.

use std::fmt;
use std::net::IpAddr;

use hcn::Guid;

use super::document::{Capabilities, NetworkContext, Remote, Shape, backends_of_one_port, keeps_destination};
use super::gap::Gap;
use super::mirror::{BalancerState, Mirror};
use crate::table::{BackendAddress, IpFamily, Kind, Vip, VipAddress, VipKey};

/// How a load balancer gets to its new form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It does not exist.
    Create,
    /// In place: no connection is cut.
    Modify,
    /// Deleted and created back to back, where the service cannot modify.
    Replace,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads a load balancer.
    Read,
    /// Reads an endpoint that HNS reports as existing.
    ReadEndpoint { id: Guid },
    /// Makes an address usable.
    CreateEndpoint { id: Guid, remote: Remote },
    /// Makes the load balancer what it should be.
    Put {
        how: Put,
        /// What it should be.
        shape: Shape,
    },
    /// Removes the load balancer.
    Delete,
}

/// The steps for a VIP in their order, and what it will not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Local pods without an endpoint: CNI creates it without a notification.
    pub missing_endpoints: Vec<IpAddr>,
    /// Endpoints are still being read, and one that is needed may be among them.
    pub wait: bool,
    /// What the service cannot do for this VIP.
    pub gaps: Vec<Gap>,
    /// The endpoint that makes the VIP's address known on an overlay.
    pub service_vip: Option<Guid>,
}

impl Plan {
    /// The plan as text, a line a step.
    pub fn display<'a>(&'a self, key: &'a VipKey) -> impl fmt::Display + 'a {
        struct Text<'a>(&'a Plan, &'a VipKey);
        impl fmt::Display for Text<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self(plan, key) = self;
                plan.steps.iter().try_for_each(|step| writeln!(f, "{}", step.display(key)))?;
                plan.missing_endpoints.iter().try_for_each(|address| writeln!(f, "wait {key}: {}", no_endpoint(*address)))?;
                plan.gaps.iter().try_for_each(|gap| writeln!(f, "gap {key}: {gap}"))
            }
        }
        Text(self, key)
    }
}

/// Why a pod is left out.
pub fn no_endpoint(address: IpAddr) -> String {
    format!("the pod at {address} has no endpoint in HNS yet")
}

impl Step {
    /// The step as text; `key` is its VIP.
    pub fn display(&self, key: &VipKey) -> String {
        match self {
            Self::Read => format!("read load balancer {key}"),
            Self::ReadEndpoint { id } => format!("read endpoint {id}"),
            Self::CreateEndpoint { remote: Remote::Backend(address), .. } => format!("create remote endpoint {address}"),
            Self::CreateEndpoint { remote: Remote::ServiceVip(address), .. } => format!("create endpoint of service address {address}"),
            Self::CreateEndpoint { remote: Remote::SourceVip(address), .. } => format!("create endpoint of source VIP {address}"),
            Self::Put { how, shape } => {
                let verb = match how {
                    Put::Create => "create",
                    Put::Modify => "modify",
                    Put::Replace => "replace",
                };
                let dsr = if shape.is_dsr() { " dsr" } else { "" };
                format!("{verb} load balancer {key} -> {} endpoints at {}{dsr}", shape.endpoints.len(), shape.internal_port)
            }
            Self::Delete => format!("delete load balancer {key}"),
        }
    }
}

/// What every plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub cluster_uid: &'a str,
    /// What is there.
    pub mirror: &'a Mirror,
    pub network: &'a NetworkContext,
    /// What the service can do.
    pub capabilities: Capabilities,
}

/// Plans for one VIP; `vip` is absent when the table has none.
pub fn plan(context: &Context<'_>, key: &VipKey, vip: Option<&Vip>) -> Plan {
    let mut plan = Plan::default();
    if matches!(context.mirror.balancer(key), Some(BalancerState::Unread(_))) {
        plan.steps.push(Step::Read);
        plan.service_vip = context.mirror.service_vip(key);
        return plan;
    }
    let vip = vip.filter(|_| {
        let served = key.family() == IpFamily::V4 || (context.capabilities.ipv6 && !context.network.overlay);
        plan.gaps.extend((!served).then_some(Gap::Ipv6));
        served
    });
    let shape = vip.and_then(|vip| context.shape(&mut plan, key, vip));
    if plan.wait {
        plan.steps.clear();
        return plan;
    }
    if let Some(vip) = vip {
        context.service_vip(&mut plan, key, vip);
    }
    let step = match (context.mirror.balancer(key), shape) {
        (Some(BalancerState::Known(old)), Some(new)) if new.is_met_by(old) => None,
        (Some(BalancerState::Known(old) | BalancerState::Stale(old)), Some(new)) => {
            let how = if context.capabilities.modify && new.differs_in_endpoints_at_most(old) { Put::Modify } else { Put::Replace };
            Some(Step::Put { how, shape: new })
        }
        (_, Some(new)) => Some(Step::Put { how: Put::Create, shape: new }),
        (Some(_), None) => Some(Step::Delete),
        (None, None) => None,
    };
    plan.steps.extend(step);
    plan
}

impl Context<'_> {
    /// What the load balancer should be; none without a backend that can be named, for HNS refuses an empty list.
    fn shape(&self, plan: &mut Plan, key: &VipKey, vip: &Vip) -> Option<Shape> {
        if vip.kind == Kind::HealthCheck {
            let root = self.mirror.root();
            plan.wait = root.is_none() && self.mirror.is_reading();
            return root.map(|id| Shape::desired(key, vip, key.port, vec![id], &[], self.capabilities, self.network));
        }
        plan.gaps.extend(Gap::of_vip(vip, self.capabilities));
        let local: Vec<BackendAddress>;
        let candidates: &[BackendAddress] = if keeps_destination(vip, self.capabilities) {
            local = vip.backends.iter().filter(|b| b.local).copied().collect();
            &local
        } else {
            &vip.backends
        };
        let (port, backends) = backends_of_one_port(candidates)?;
        let others = candidates.len() - backends.len();
        if others > 0 {
            plan.gaps.push(Gap::Ports { port, others });
        }
        let (mut ids, mut remotes) = (Vec::with_capacity(backends.len()), Vec::new());
        for backend in &backends {
            ids.extend(self.endpoint(plan, backend, &mut remotes));
        }
        plan.wait |= self.mirror.is_reading() && !plan.missing_endpoints.is_empty() && (!vip.urgent || ids.is_empty());
        if ids.is_empty() {
            return None;
        }
        self.source_vip(plan);
        Some(Shape::desired(key, vip, port, ids, &remotes, self.capabilities, self.network))
    }

    /// The endpoint for a backend: CNI's when there is one, whatever the slice says; else a remote one.
    fn endpoint(&self, plan: &mut Plan, backend: &BackendAddress, remotes: &mut Vec<IpAddr>) -> Option<Guid> {
        let address = backend.address;
        if let Some(id) = self.mirror.local(address) {
            return Some(id);
        }
        if backend.local {
            // A pod of the host's own network has no endpoint and never will.
            if self.network.node_ips.contains(&address) {
                plan.gaps.push(Gap::HostNetwork { address });
            } else {
                plan.missing_endpoints.push(address);
            }
            return None;
        }
        remotes.push(address);
        let remote = Remote::Backend(address);
        let id = remote.id(self.cluster_uid, self.network);
        if self.mirror.endpoint(&id).is_some() {
            return Some(id);
        }
        if let Some(foreign) = self.mirror.foreign(address) {
            return Some(foreign);
        }
        push_new(plan, id, remote);
        Some(id)
    }

    fn source_vip(&self, plan: &mut Plan) {
        let Some(address) = self.network.source_vip else { return };
        let remote = Remote::SourceVip(address);
        let id = remote.id(self.cluster_uid, self.network);
        if self.mirror.endpoint(&id).is_none() && self.mirror.local(address).is_none() {
            plan.wait |= self.mirror.is_reading();
            push_new(plan, id, remote);
        }
    }

    /// Pods of an overlay find an address only where an endpoint has it: every ClusterIP, backends or not.
    fn service_vip(&self, plan: &mut Plan, key: &VipKey, vip: &Vip) {
        let (true, Kind::ClusterIp, VipAddress::Ip(address)) = (self.network.overlay, vip.kind, key.address) else { return };
        let remote = Remote::ServiceVip(address);
        let id = remote.id(self.cluster_uid, self.network);
        let there = self.mirror.endpoint(&id).is_some();
        if !there && self.mirror.foreign(address).is_some() {
            return;
        }
        plan.service_vip = Some(id);
        if !there {
            push_new(plan, id, remote);
        }
    }
}

fn push_new(plan: &mut Plan, id: Guid, remote: Remote) {
    let step = Step::CreateEndpoint { id, remote };
    if !plan.steps.contains(&step) {
        plan.steps.push(step);
    }
}
