//! The watcher: pods, Services and policies of the cluster → logical ports, annotations, load balancers, and groups with ACLs.
//!
//! Level-triggered: whatever changes, in the cluster or in the database, the whole plan is made again; at rest it is empty and nothing is
//! written. Several watchers may run: the database's lock lets one of them write.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use cluster::{ApiServer, Informer, Key, Selection};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use ovsdb::session::Wants;
use ovsdb::{Client, Error, Lock, Replica, State};
use serde_json::{Map, Value, json};
use thiserror_ext::AsReport as _;
use tokio::time::Instant;

use crate::cluster_rows::{PodRow, ServiceRow, SliceRow};
use crate::pods::Unannotated;
use crate::policy_feed::Policies;
use crate::rows::{Plan, Problem, Ref, Want, plan};
use crate::schema::{NORTHBOUND, NORTHBOUND_USES};
use crate::{apply, pods, services};

/// The lock of the northbound database that a writing watcher holds, and the owner of its rows.
pub const LOCK: &str = "mullion_ovn_watcher";
const SCOPE: &str = "watcher";
/// How many pods are annotated at a time.
const PATCHES: usize = 16;
/// Delays after a failure.
const DELAYS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// Changes that come together are one pass.
const GATHER: Duration = Duration::from_millis(10);

/// What the watcher keeps of the database.
#[must_use]
pub fn wants() -> Wants {
    Wants { database: NORTHBOUND.to_owned(), uses: NORTHBOUND_USES, lock: Some(LOCK.to_owned()), leader_only: true }
}

/// The watcher's settings.
pub struct Config {
    /// The cluster.
    pub client: cluster::Client,
    /// The northbound database: servers and TLS; what is wanted of it is [`wants`].
    pub northbound: ovsdb::Config,
    /// A pass at least this often.
    pub full_pass: Duration,
}

struct Watcher {
    client: cluster::Client,
    pods: Informer<PodRow>,
    services: Informer<ServiceRow>,
    slices: Informer<SliceRow>,
    policies: Policies,
    northbound: Client,
    unaddressed: pods::Unaddressed,
    /// Problems that were reported, so that each is reported once.
    reported: String,
}

/// Watches until `shutdown` completes. What was written stays.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) {
    let Config { client, northbound, full_pass } = config;
    let api = ApiServer::default();
    let all = || Selection::all().of(&api);
    let headless = "!service.kubernetes.io/headless";
    let watcher = Watcher {
        pods: Informer::start(Api::<Pod>::all(client.clone()), all(), PodRow::of),
        services: Informer::start(Api::<Service>::all(client.clone()), all(), ServiceRow::of),
        slices: Informer::start(Api::<EndpointSlice>::all(client.clone()), Selection::labels(headless).of(&api), SliceRow::of),
        policies: Policies::watch(&client, &api),
        northbound: Client::start(northbound),
        client,
        unaddressed: pods::Unaddressed::default(),
        reported: String::new(),
    };
    tokio::select! {
        () = watcher.forever(full_pass) => {}
        () = shutdown => {}
    }
}

/// What the watcher wants of the database.
#[must_use]
pub fn desired(replica: &Replica, pods: &[(Key, Arc<PodRow>)], services: &[(Key, Arc<ServiceRow>)], slices: &[(Key, Arc<SliceRow>)]) -> Vec<Want> {
    let mut wants = pods::ports(replica, pods);
    wants.extend(services::balancers(replica, services, slices));
    wants
}

impl Watcher {
    async fn forever(mut self, full_pass: Duration) {
        self.pods.synced().await;
        self.services.synced().await;
        self.slices.synced().await;
        self.policies.synced().await;
        let (mut pods, mut services, mut slices) = (self.pods.changed(), self.services.changed(), self.slices.changed());
        let mut policies = self.policies.changed();
        let mut backoff = Backoff::new(DELAYS.0, DELAYS.1);
        loop {
            pods.mark_unchanged();
            services.mark_unchanged();
            slices.mark_unchanged();
            policies.iter_mut().for_each(tokio::sync::watch::Receiver::mark_unchanged);
            let wait = if self.pass().await {
                backoff.reset();
                full_pass
            } else {
                backoff.next_delay()
            };
            let [namespaces, nodes, objects] = &mut policies;
            tokio::select! {
                // None of these ends while the watcher has its informers.
                _ = pods.changed() => {}
                _ = services.changed() => {}
                _ = slices.changed() => {}
                _ = namespaces.changed() => {}
                _ = nodes.changed() => {}
                _ = objects.changed() => {}
                () = self.northbound.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// One pass; false if it has to be tried again soon.
    async fn pass(&mut self) -> bool {
        let state = self.northbound.state();
        if !state.connected || state.lock != Lock::Held {
            self.report(&waiting(&state));
            return true;
        }
        let troubles = [self.pods.trouble(), self.services.trouble(), self.slices.trouble()];
        if let Some(reason) = troubles.into_iter().chain(self.policies.trouble()).flatten().next() {
            // What an old view does not have would be removed.
            self.report(&format!("nothing is written while the API server cannot be watched: {reason}"));
            return false;
        }
        let pods = self.pods.snapshot();
        let mut wants = desired(&state.replica, &pods, &self.services.snapshot(), &self.slices.snapshot());
        let (of_policies, unusable) = self.policies.wants(&state.replica, SCOPE, &pods);
        wants.extend(of_policies);
        let plan = plan(&state.replica, SCOPE, &wants);
        // Ports that were not written may still be those of pods before.
        let Some(problems) = self.write(&plan).await else { return false };
        let refused: HashSet<Ref> = problems.iter().map(|problem| problem.at().clone()).collect();
        let late = self.unaddressed.look(&state.replica, SCOPE, &pods, Instant::now());
        let all: Vec<String> = plan.problems.iter().chain(&problems).map(ToString::to_string).chain(late).chain(unusable).collect();
        self.report(&all.join("; "));
        let written: Vec<_> =
            pods.into_iter().filter(|(key, _)| !refused.contains(&Ref::named("Logical_Switch_Port", pods::port_name(key)))).collect();
        self.annotate(&written).await && refused.is_empty()
    }

    /// Logs what is wrong, once.
    fn report(&mut self, text: &str) {
        if self.reported != text {
            if !text.is_empty() {
                tracing::warn!("{text}");
            }
            text.clone_into(&mut self.reported);
        }
    }

    /// Writes a plan. The rows that the server refuses; none: another client was first, or there is no connection.
    async fn write(&self, plan: &Plan) -> Option<Vec<Problem>> {
        let refused = if plan.is_empty() {
            Ok(Vec::new())
        } else {
            tracing::debug!("writing the northbound database:\n{plan}");
            apply::write(&self.northbound, plan, Some(LOCK)).await
        };
        let refused = match refused {
            Ok(refused) => refused,
            // Another client was first: its change wakes the watcher, or has already.
            Err(Error::Refused(refused)) if refused.is_outdated() || refused.is_not_owner() => {
                tracing::debug!(%refused, "the rows have changed");
                return None;
            }
            Err(error) => {
                tracing::warn!(error = %error.as_report(), "the northbound database was not written");
                return None;
            }
        };
        Some(refused)
    }

    /// Annotates pods to whose ports OVN has given addresses.
    async fn annotate(&self, pods: &[(Key, Arc<PodRow>)]) -> bool {
        let replica = self.northbound.state().replica;
        let missing = pods::missing_annotations(&replica, SCOPE, pods.iter().map(|(key, row)| (key, &**row)));
        let patches: Vec<_> = missing.into_iter().map(|pod| patch(self.client.clone(), pod)).collect();
        // One that is refused keeps no other from its addresses.
        futures::stream::iter(patches).buffer_unordered(PATCHES).fold(true, |all, done| std::future::ready(all && done)).await
    }
}

/// Annotates a pod; false if it has to be tried again. A pod that is gone needs nothing.
async fn patch(client: cluster::Client, pod: Unannotated) -> bool {
    let Unannotated { key, uid, annotations } = pod;
    let annotations: Map<String, Value> = annotations.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    // The UID keeps it from the next pod of that name.
    let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": annotations}}));
    let api = Api::<Pod>::namespaced(client, &key.ns);
    match api.patch_metadata(&key.name, &PatchParams::default(), &patch).await {
        Ok(_) => true,
        Err(error) if cluster::is_not_found(&error) || cluster::is_conflict(&error) => true,
        Err(error) => {
            tracing::warn!(pod = %key, error = %error.as_report(), "the pod was not annotated");
            false
        }
    }
}

fn waiting(state: &State) -> String {
    match &state.problem {
        _ if state.connected => String::new(),
        Some(problem) => format!("there is no connection to the northbound database: {problem}"),
        None => String::new(),
    }
}
