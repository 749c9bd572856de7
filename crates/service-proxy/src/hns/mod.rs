//! The backend for Windows: load balancers and remote endpoints of the Host Networking Service.
//!
//! A mirror of the service is listed once and at every full pass; between those, a change costs its own writes only:
//! ids are UUIDv5 of the cluster and the front end, so nothing is looked up before it is deleted, and after a restart
//! our objects are told from others' by their ids. Source of values: kube-proxy's `pkg/proxy/winkernel`.

mod document;
mod mirror;
mod plan;

use std::collections::{BTreeSet, HashSet};

use hcn::{Guid, HcnClient, HcnError, HostComputeEndpoint, HostComputeLoadBalancer};

use crate::backend::{Failure, Outcome};
use crate::table::{FrontKey, Table};
pub use document::{Rules, front_key, load_balancer, load_balancer_id, remote_id};
pub use mirror::Mirror;
pub use plan::{Plan, Put, Scope, Step, plan};

/// Keeps the service equal to the table.
pub struct Hns {
    client: HcnClient,
    cluster_uid: String,
    network_name: String,
    dsr: bool,
    state: Option<State>,
}

/// What was read of the service; absent until the network exists.
struct State {
    network: Guid,
    rules: Rules,
    mirror: Mirror,
    /// A load balancer was refused: its endpoints may not be what the mirror believes.
    doubt: bool,
}

impl Hns {
    /// A backend for the network called `network_name`. `dsr` asks for direct server return where the service has it.
    pub fn new(client: HcnClient, cluster_uid: impl Into<String>, network_name: impl Into<String>, dsr: bool) -> Self {
        Self { client, cluster_uid: cluster_uid.into(), network_name: network_name.into(), dsr, state: None }
    }

    /// Reads the service anew. The error says why nothing can be done now; nothing is concluded from it.
    async fn read(&mut self) -> Result<(), String> {
        let name = &self.network_name;
        let network = self.client.network_by_name(name).await.map_err(|e| e.to_string())?;
        let Some(network) = network else {
            self.state = None;
            return Err(format!("HNS network {name:?} does not exist yet; the pod network creates it"));
        };
        let features = self.client.features().await.map_err(|e| e.to_string())?;
        let mut mirror = Mirror::default();
        let endpoints = self.client.endpoints_of(&network.id).await.map_err(|e| e.to_string())?;
        mirror.set_endpoints(&self.cluster_uid, &endpoints);
        mirror.set_load_balancers(&self.cluster_uid, self.client.load_balancers().await.map_err(|e| e.to_string())?);
        let mut rules = Rules::new(&features, self.dsr);
        // A modify that the service refused stays off.
        rules.modify &= self.state.as_ref().is_none_or(|state| state.rules.modify);
        self.state = Some(State { network: network.id, rules, mirror, doubt: false });
        Ok(())
    }

    /// Makes the front ends of `dirty` what the table says, or with `full` every one after reading the service anew.
    /// `Err` when the service cannot be read; everything is to be tried again.
    pub async fn sync(&mut self, table: &Table, dirty: &BTreeSet<FrontKey>, full: bool) -> Result<Outcome, String> {
        let full = full || self.state.is_none();
        if full {
            self.read().await?;
        }
        let Some(state) = &mut self.state else { return Ok(Outcome::default()) };
        let scope = if full { Scope::All } else { Scope::Some(dirty) };
        let mut plan = plan(&self.cluster_uid, &state.mirror, table, scope, state.rules);
        if (!plan.missing.is_empty() || state.doubt) && !full {
            // A pod's endpoint is made by CNI, which tells nobody: look once.
            state.doubt = false;
            let endpoints = self.client.endpoints_of(&state.network).await.map_err(|e| e.to_string())?;
            state.mirror.set_endpoints(&self.cluster_uid, &endpoints);
            plan = plan::plan(&self.cluster_uid, &state.mirror, table, scope, state.rules);
        }
        if !plan.steps.is_empty() {
            tracing::debug!("plan for HNS:\n{plan}");
        }
        for note in &plan.notes {
            tracing::warn!("{note}");
        }
        Ok(apply(&self.client, &self.cluster_uid, state, plan).await)
    }
}

async fn apply(client: &HcnClient, cluster_uid: &str, state: &mut State, plan: Plan) -> Outcome {
    let mut outcome = Outcome { writes: 0, failures: plan.failures };
    let mut broken: HashSet<Guid> = HashSet::new();
    for step in plan.steps {
        let text = step.to_string();
        let key = match &step {
            Step::Put { key, .. } | Step::Delete { key, .. } => Some(*key),
            Step::CreateRemote { .. } | Step::DeleteRemote { .. } => None,
        };
        match run(client, cluster_uid, state, step, &mut broken).await {
            Ok(true) => outcome.writes += 1,
            Ok(false) => {}
            Err(reason) => match key {
                Some(key) => {
                    state.doubt = true;
                    outcome.failures.push(Failure { key, reason: format!("cannot {text}: {reason}") });
                }
                // Load balancers that need it fail by themselves; a leftover is found by the next full pass.
                None => tracing::warn!("cannot {text}: {reason}"),
            },
        }
    }
    outcome
}

async fn run(client: &HcnClient, cluster_uid: &str, state: &mut State, step: Step, broken: &mut HashSet<Guid>) -> Result<bool, String> {
    match step {
        Step::CreateRemote { id, address } => {
            let made = client.create_endpoint(&state.network, id, &HostComputeEndpoint::remote(address)).await;
            if let Err(error) = made
                && !error.is_already_exists()
            {
                broken.insert(id);
                return Err(error.to_string());
            }
            state.mirror.remotes.insert(address, id);
        }
        Step::Put { key, how, mut document } => {
            let all = document.host_compute_endpoints.len();
            document.host_compute_endpoints.retain(|id| !broken.contains(id));
            let left_out = all - document.host_compute_endpoints.len();
            if document.host_compute_endpoints.is_empty() {
                return Err("none of its endpoints could be created".into());
            }
            put(client, cluster_uid, state, key, how, &document).await?;
            state.mirror.put(key, document);
            if left_out > 0 {
                return Err(format!("{left_out} of its endpoints could not be created; it serves with the others"));
            }
        }
        Step::Delete { key, id } => {
            client.delete_load_balancer(&id).await.map_err(|e| e.to_string())?;
            state.mirror.remove(&key);
        }
        Step::DeleteRemote { id, address } => {
            // A load balancer that could not be changed may still name it.
            if state.mirror.uses(&id) > 0 {
                return Ok(false);
            }
            client.delete_endpoint(&id).await.map_err(|e| e.to_string())?;
            state.mirror.remotes.remove(&address);
        }
    }
    Ok(true)
}

async fn put(
    client: &HcnClient,
    cluster_uid: &str,
    state: &mut State,
    key: FrontKey,
    how: Put,
    document: &HostComputeLoadBalancer,
) -> Result<(), String> {
    if how == Put::Modify {
        match client.modify_load_balancer(&document.id, document).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_unsupported() => state.rules.modify = false,
            // Someone deleted it: make it again.
            Err(error) if error.is_not_found() => state.mirror.remove(&key),
            Err(error) => return Err(error.to_string()),
        }
    }
    if how != Put::Create {
        client.delete_load_balancer(&document.id).await.map_err(|e| e.to_string())?;
        state.mirror.remove(&key);
    }
    match client.create_load_balancer(document.id, document).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Err(occupied(client, cluster_uid, state, key, &error).await),
        Err(error) => Err(error.to_string()),
    }
}

/// A front end is taken: by our own load balancer that the service brought back (then the mirror learns of it and the
/// retry modifies it), or by someone else's.
async fn occupied(client: &HcnClient, cluster_uid: &str, state: &mut State, key: FrontKey, error: &HcnError) -> String {
    let listed = match client.load_balancers().await {
        Ok(listed) => listed,
        Err(unknown) => return format!("{error}; and the load balancers cannot be listed: {unknown}"),
    };
    let Some(holder) = listed.into_iter().find(|document| front_key(document) == Some(key)) else {
        return format!("{error}; no load balancer has this front end, so another program may listen on the port");
    };
    if holder.id == load_balancer_id(cluster_uid, &key) {
        state.mirror.put(key, holder);
        return "the service had brought it back; it is adopted".into();
    }
    format!("load balancer {} of another program has this front end; delete it or change the Service's port", holder.id)
}

#[cfg(test)]
mod tests;
