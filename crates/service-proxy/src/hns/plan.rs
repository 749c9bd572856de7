//! What must be done in the Host Networking Service (pure).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use hcn::{Guid, HostComputeLoadBalancer};

use super::document::{Rules, backends_of_one_port, load_balancer, load_balancer_id, remote_id, same};
use super::mirror::Mirror;
use crate::backend::Failure;
use crate::table::{Front, FrontKey, Table};

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

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Makes an address on another host usable as a backend.
    CreateRemote {
        /// Its id.
        id: Guid,
        /// The address.
        address: IpAddr,
    },
    /// Makes a load balancer what it should be.
    Put {
        /// Its front end.
        key: FrontKey,
        /// How.
        how: Put,
        /// What it should be.
        document: HostComputeLoadBalancer,
    },
    /// Removes a load balancer.
    Delete {
        /// Its front end.
        key: FrontKey,
        /// Its id.
        id: Guid,
    },
    /// Removes a remote endpoint that no load balancer of ours names any more.
    DeleteRemote {
        /// Its id.
        id: Guid,
        /// The address.
        address: IpAddr,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateRemote { address, .. } => write!(f, "create remote endpoint {address}"),
            Self::Put { key, how, document } => {
                let verb = match how {
                    Put::Create => "create",
                    Put::Modify => "modify",
                    Put::Replace => "replace",
                };
                let port = document.port_mappings.first().map_or(0, |m| m.internal_port);
                let dsr = if document.flags.0 & 1 == 1 { " dsr" } else { "" };
                write!(f, "{verb} load balancer {key} -> {} endpoints at {port}{dsr}", document.host_compute_endpoints.len())
            }
            Self::Delete { key, .. } => write!(f, "delete load balancer {key}"),
            Self::DeleteRemote { address, .. } => write!(f, "delete remote endpoint {address}"),
        }
    }
}

/// Steps in the order in which they must happen, and what cannot be planned.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The writes.
    pub steps: Vec<Step>,
    /// Front ends that will not be complete.
    pub failures: Vec<Failure>,
    /// Local pods without an endpoint in the mirror: list again before believing it.
    pub missing: BTreeSet<IpAddr>,
    /// Properties that this version of the service cannot express.
    pub notes: Vec<String>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "wait {}: {}", failure.key, failure.reason))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note {note}"))
    }
}

/// Which front ends to look at.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// These.
    Some(&'a BTreeSet<FrontKey>),
    /// Every one in the table or in the mirror, and every remote endpoint of ours.
    All,
}

/// Plans from the table and the mirror.
pub fn plan(cluster_uid: &str, mirror: &Mirror, table: &Table, scope: Scope<'_>, rules: Rules) -> Plan {
    let mut planner = Planner { cluster_uid, mirror, rules, plan: Plan::default(), new_remotes: BTreeMap::new(), uses: HashMap::new() };
    let mut keys: Vec<FrontKey> = match scope {
        Scope::Some(keys) => keys.iter().copied().collect(),
        Scope::All => table.iter().map(|(key, _)| *key).chain(mirror.load_balancers().keys().copied()).collect::<BTreeSet<_>>().into_iter().collect(),
    };
    // Names and the API server first, then what serves from this node.
    keys.sort_by_key(|key| match table.get(key) {
        Some(front) if front.urgent => 0,
        Some(front) if front.backends.iter().any(|b| b.local) => 1,
        Some(_) => 2,
        None => 3,
    });
    let mut puts = Vec::new();
    for key in keys {
        puts.extend(planner.front(key, table.get(&key).map(|front| &**front)));
    }
    let creates = planner.new_remotes.iter().map(|(address, id)| Step::CreateRemote { id: *id, address: *address });
    let mut steps: Vec<Step> = creates.collect();
    steps.extend(puts);
    steps.extend(planner.unused_remotes(matches!(scope, Scope::All)));
    planner.plan.steps = steps;
    planner.plan
}

struct Planner<'a> {
    cluster_uid: &'a str,
    mirror: &'a Mirror,
    rules: Rules,
    plan: Plan,
    new_remotes: BTreeMap<IpAddr, Guid>,
    /// How the plan changes the number of load balancers that name an endpoint.
    uses: HashMap<Guid, isize>,
}

impl Planner<'_> {
    fn front(&mut self, key: FrontKey, front: Option<&Front>) -> Option<Step> {
        let existing = self.mirror.load_balancers().get(&key);
        let wanted = front.and_then(|front| self.document(&key, front));
        let step = match (existing, wanted) {
            (None, None) => None,
            (Some(old), None) => Some(Step::Delete { key, id: old.id }),
            (Some(old), Some(new)) if same(&new, old) => None,
            (Some(_), Some(document)) => {
                let how = if self.rules.modify { Put::Modify } else { Put::Replace };
                Some(Step::Put { key, how, document })
            }
            (None, Some(document)) => Some(Step::Put { key, how: Put::Create, document }),
        }?;
        let count = |uses: &mut HashMap<Guid, isize>, document: &HostComputeLoadBalancer, by: isize| {
            for id in &document.host_compute_endpoints {
                *uses.entry(*id).or_default() += by;
            }
        };
        existing.into_iter().for_each(|old| count(&mut self.uses, old, -1));
        if let Step::Put { document, .. } = &step {
            count(&mut self.uses, document, 1);
        }
        Some(step)
    }

    fn document(&mut self, key: &FrontKey, front: &Front) -> Option<HostComputeLoadBalancer> {
        let (port, backends) = backends_of_one_port(front)?;
        let left_out = front.backends.len() - backends.len();
        if left_out > 0 {
            self.plan
                .notes
                .push(format!("{key}: HNS has one port a load balancer, so {left_out} backends with another port than {port} are left out"));
        }
        if front.affinity.is_some() && !self.rules.affinity {
            self.plan.notes.push(format!("{key}: this version of HNS has no session affinity"));
        }
        let mut ids: Vec<Guid> = Vec::with_capacity(backends.len());
        for backend in &backends {
            let id = self.endpoint(backend.address, backend.local);
            match id {
                Some(id) if !ids.contains(&id) => ids.push(id),
                Some(_) => {}
                None => {
                    self.plan.missing.insert(backend.address);
                    let reason = format!("the pod at {} has no endpoint in HNS yet", backend.address);
                    self.plan.failures.push(Failure { key: *key, reason });
                }
            }
        }
        (!ids.is_empty()).then(|| load_balancer(load_balancer_id(self.cluster_uid, key), key, front, port, ids, self.rules))
    }

    /// The endpoint for a backend: CNI's when there is one, whatever the slice says; else a remote one.
    fn endpoint(&mut self, address: IpAddr, local: bool) -> Option<Guid> {
        let known = self.mirror.local.get(&address);
        if known.is_some() || local {
            return known.copied();
        }
        let remote = self.mirror.remotes.get(&address).or_else(|| self.mirror.foreign_remotes.get(&address));
        Some(*remote.unwrap_or_else(|| self.new_remotes.entry(address).or_insert_with(|| remote_id(self.cluster_uid, address))))
    }

    /// Remote endpoints of ours that nothing names after the plan. Without `all`, only those the plan itself freed.
    fn unused_remotes(&self, all: bool) -> Vec<Step> {
        let unused = |id: &Guid| {
            let change = self.uses.get(id).copied();
            (all || change.is_some()) && self.mirror.uses(id).checked_add_signed(change.unwrap_or(0)) == Some(0)
        };
        let remotes = self.mirror.remotes.iter().filter(|(_, id)| unused(id));
        remotes.map(|(address, id)| Step::DeleteRemote { id: *id, address: *address }).collect()
    }
}
