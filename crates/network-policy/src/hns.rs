//! The backend for Windows: access rules of the endpoints of the Host Networking Service.
//!
//! An endpoint is found by its address, whoever made it: with another owner's network and plug-in too. Of its policies only those with our
//! mark change. HNS's update replaces the whole list, so each one is read right before, and what others made is sent back as it was read.
//! Sets of groups are policies of the network. They come before the rules that name them and go after, so that no rule names a missing one.

pub mod boxes;
mod mirror;
pub mod rules;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use cluster::Key;
use hcn::document::{ModifyRequest, RequestType};
use hcn::{EndpointPolicy, Guid, HcnClient, HcnError, NetworkPolicy};
use thiserror_ext::AsReport as _;

use crate::profile::{GroupKey, Profile};
use crate::world::{Changes, World};
use boxes::{ByPort, by_port};
use mirror::Mirror;
use rules::{Abilities, Context, Sets};

/// Keeps the access rules of endpoints equal to the world's.
pub struct Hns {
    client: HcnClient,
    abilities: Option<Abilities>,
    mirror: Mirror,
}

/// Why rules are not in effect.
#[derive(Debug, thiserror::Error)]
pub enum HnsError {
    #[error("cannot {what}")]
    Call {
        what: String,
        #[source]
        source: HcnError,
    },
    /// The rules of a pod cannot be written for HNS.
    #[error("cannot write the rules of pod {pod}: {reason}")]
    Rules { pod: Key, reason: String },
    /// Some endpoints or networks failed; the others are done.
    #[error("{0}")]
    Several(String),
}

fn failed(what: impl Into<String>) -> impl FnOnce(HcnError) -> HnsError {
    let what = what.into();
    move |source| HnsError::Call { what, source }
}

/// What is to be written: to networks first, then to endpoints.
#[derive(Debug, Default)]
struct Work {
    /// The sets of each network that has endpoints with rules, as far as a change concerns them.
    sets: BTreeMap<Guid, Sets>,
    /// The groups whose sets those are; none stands for all.
    scope: Option<BTreeSet<String>>,
    /// The rules of endpoints.
    endpoints: Vec<(Guid, Vec<EndpointPolicy>)>,
    problems: Vec<String>,
}

/// Gives access to the world for a short time.
pub type Look<'a> = &'a (dyn Fn(&mut dyn FnMut(&World)) + Sync);

impl Hns {
    /// A backend that has not called the service yet.
    pub fn new(client: HcnClient) -> Self {
        Self { client, abilities: None, mirror: Mirror::default() }
    }

    /// Forgets what it knows of the service: anything may have changed there.
    pub fn forget(&mut self) {
        self.mirror = Mirror::default();
    }

    /// Forgets the endpoints whose ids `text` holds: they may have been made again.
    pub fn forget_named(&mut self, text: &str) {
        self.mirror.forget_named(text);
    }

    /// Makes the rules what the world says: those of `changes`, or with `full` those of every endpoint. Returns how many sets and endpoints
    /// were written. What fails holds up nothing else.
    ///
    /// # Errors
    /// [`HnsError`]: everything has to be compared again.
    pub async fn sync(&mut self, world: Look<'_>, changes: &Changes, full: bool) -> Result<usize, HnsError> {
        let abilities = match self.abilities {
            Some(abilities) => abilities,
            None => {
                let features = self.client.features().await.map_err(failed("read the version of the Host Networking Service"))?;
                *self.abilities.insert(Abilities { sets: features.set_policy, tiers: features.tier_acl })
            }
        };
        let full = full || !self.mirror.is_read();
        if full {
            self.mirror.read(&self.client).await?;
        } else if !changes.endpoints.is_empty() {
            self.mirror.refresh(&self.client).await?;
        }
        let mut work = Work::default();
        world(&mut |world| work = self.plan(world, changes, abilities, full));
        let mut problems = std::mem::take(&mut work.problems);
        let mut writes = 0;
        let mut note = |result: Result<usize, HnsError>| match result {
            Ok(count) => writes += count,
            Err(error) => problems.push(error.to_report_string()),
        };
        for (network, sets) in &work.sets {
            note(self.write_sets(network, sets, None).await);
        }
        for (id, policies) in &work.endpoints {
            note(self.write_endpoint(id, policies).await);
        }
        if problems.is_empty() {
            // What rules no longer name.
            let mut note = |result: Result<usize, HnsError>| match result {
                Ok(count) => writes += count,
                Err(error) => problems.push(error.to_report_string()),
            };
            for (network, sets) in &work.sets {
                note(self.write_sets(network, sets, Some(work.scope.as_ref())).await);
            }
        }
        if problems.is_empty() { Ok(writes) } else { Err(HnsError::Several(problems.join("; "))) }
    }

    /// What a change concerns (pure).
    fn plan(&self, world: &World, changes: &Changes, abilities: Abilities, full: bool) -> Work {
        // Many endpoints name the same groups.
        let known = RefCell::new(BTreeMap::<GroupKey, Rc<ByPort>>::new());
        let members = |group: &GroupKey| {
            if let Some(known) = known.borrow().get(group) {
                return known.clone();
            }
            let read = Rc::new(by_port(world.members(group)));
            known.borrow_mut().insert(group.clone(), read.clone());
            read
        };
        let mut work = Work::default();
        let mut kept: BTreeSet<Guid> = BTreeSet::new();
        let mut groups: BTreeSet<Arc<GroupKey>> = changes.groups.keys().cloned().collect();
        // The profiles in use, by network.
        let mut used: BTreeMap<Guid, Vec<Arc<Profile>>> = BTreeMap::new();
        for (key, endpoint) in world.endpoints() {
            let named = || endpoint.all().flat_map(|profile| profile.groups()).any(|group| changes.groups.contains_key(group));
            let touched = full || changes.host || changes.endpoints.contains(key) || named();
            for (id, found) in endpoint.ips.iter().filter_map(|ip| self.mirror.find(*ip)) {
                if !kept.insert(id) {
                    continue;
                }
                used.entry(found.network).or_default().extend(endpoint.all().cloned());
                // One that was made again has none of its rules.
                if !touched && (found.is_known() || endpoint.all().next().is_none()) {
                    continue;
                }
                groups.extend(endpoint.all().flat_map(|profile| profile.groups().cloned()));
                let host: Vec<IpAddr> = self.mirror.host_ips(&found.network).chain(world.host_ips().iter().copied()).collect();
                let context = Context { abilities, own: &endpoint.ips, host: &host, members: &members };
                match rules::policies(&endpoint.profiles, &context) {
                    Ok(policies) => work.endpoints.push((id, policies)),
                    Err(error) => work.problems.push(HnsError::Rules { pod: key.clone(), reason: error.to_string() }.to_string()),
                }
            }
        }
        // Endpoints that have rules of ours, and are of no pod that counts any more.
        work.endpoints.extend(self.mirror.marked().filter(|id| !kept.contains(id)).map(|id| (id, Vec::new())));
        if abilities.sets {
            let concerns = |group: &GroupKey| full || groups.contains(group);
            let sets = |id: Guid| {
                let profiles = used.get(&id).map(Vec::as_slice).unwrap_or_default();
                (id, rules::sets(profiles, &concerns, &members, abilities.tiers))
            };
            work.sets = self.mirror.networks().map(sets).collect();
            work.scope = (!full).then(|| groups.iter().map(|group| group.name()).collect());
        }
        work
    }

    /// Makes the sets of a network what they should be: those that come or change; with `trim` those that go, of these groups or of all.
    async fn write_sets(&mut self, network: &Guid, sets: &Sets, trim: Option<Option<&BTreeSet<String>>>) -> Result<usize, HnsError> {
        let changes = self.mirror.set_changes(network, sets, trim);
        let mut writes = 0;
        for (request, policies) in changes {
            let what = format!("change sets of addresses of network {network}");
            let documents: Vec<NetworkPolicy> = policies.iter().map(NetworkPolicy::set).collect();
            self.client.modify_network(network, ModifyRequest::network_policies(request.clone(), &documents)).await.map_err(failed(what))?;
            self.mirror.note_sets(network, &request, policies);
            writes += documents.len();
        }
        Ok(writes)
    }

    async fn write_endpoint(&mut self, id: &Guid, ours: &[EndpointPolicy]) -> Result<usize, HnsError> {
        if self.mirror.has_written(id, ours) {
            return Ok(0);
        }
        let Some(endpoint) = self.client.endpoint(id).await.map_err(failed(format!("read endpoint {id}")))? else {
            // Its pod is about to end, or has another endpoint, which the next pass finds.
            self.mirror.lost(id);
            return Ok(0);
        };
        if rules::holds(&endpoint.policies, ours) {
            self.mirror.wrote(id, ours);
            return Ok(0);
        }
        let all = rules::with_others(&endpoint.policies, ours);
        let request = ModifyRequest::endpoint_policies(RequestType::Update, &all);
        self.client.modify_endpoint(id, request).await.map_err(failed(format!("set the access rules of endpoint {} ({id})", endpoint.name)))?;
        self.mirror.wrote(id, ours);
        Ok(1)
    }
}

#[cfg(test)]
mod tests;
