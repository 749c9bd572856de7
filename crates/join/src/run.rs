//! One join from its first look at the machine to its last step, in kubeadm's order.

use std::future::Future;

use crate::apply::{self, ApplyError, Site};
use crate::discovery::{self, ClusterError, DiscoveryError};
use crate::journal::{Journal, JournalError};
use crate::lock::{Lock, LockError};
use crate::observe;
use crate::pins::{PinError, pins_of};
use crate::places::Places;
use crate::plan::{self, Inputs, Plan, PlanError, Step};
use crate::preflight::{self, Finding, Refused};
use crate::settings::Settings;
use crate::version::Version;
use install::control::{Service, ServiceError};

/// What is asked for.
pub struct Request<'a, S> {
    pub settings: &'a Settings,
    pub places: &'a Places,
    pub service: &'a S,
    /// Version of the node agent.
    pub agent: Version,
    /// Told of findings before anything is changed.
    pub report: &'a (dyn Fn(&Finding) + Sync),
    /// Told of each step before it is done.
    pub progress: &'a (dyn Fn(&Step) + Sync),
}

/// What was done, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `https://HOST:PORT` of the cluster.
    pub server: String,
    pub findings: Vec<Finding>,
    pub plan: Plan,
    /// Whether the plan was carried out.
    pub is_done: bool,
}

/// Why the machine has not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Preflight(#[from] Refused),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("the cluster's certificate authority cannot be used")]
    Authority(#[source] PinError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("cannot see whether there is a service kubelet")]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("the command was interrupted; nothing was changed")]
    Interrupted,
}

/// Joins the machine to the cluster; a dry run ends with the plan.
///
/// # Errors
/// [`JoinError`]; files and service are as before, unless the error says otherwise.
pub async fn run<S: Service>(request: &Request<'_, S>, interrupted: impl Future<Output = ()>) -> Result<Outcome, JoinError> {
    tokio::pin!(interrupted);
    let _lock = if request.settings.is_dry_run { None } else { Some(Lock::take(request.places)?) };
    let Prepared { server, findings, plan, journal } = tokio::select! {
        prepared = prepare(request) => prepared?,
        () = &mut interrupted => return Err(JoinError::Interrupted),
    };
    let is_done = !request.settings.is_dry_run;
    if is_done {
        let site = Site { places: request.places, service: request.service, progress: request.progress };
        apply::apply(&plan, journal, &site, interrupted).await?;
    }
    Ok(Outcome { server, findings, plan, is_done })
}

struct Prepared {
    server: String,
    findings: Vec<Finding>,
    plan: Plan,
    journal: Journal,
}

/// Everything before the first change.
async fn prepare<S: Service>(request: &Request<'_, S>) -> Result<Prepared, JoinError> {
    let Request { settings, places, service, .. } = *request;
    let journal = Journal::read(places)?;
    // Said before the findings that follow from it.
    journal.as_ref().map_or(Ok(()), plan::check_joined)?;
    let mut findings = Vec::new();
    let mut judge = |found: Vec<Finding>| {
        let judged = preflight::judge(found, &settings.ignored);
        let all = judged.as_ref().unwrap_or_else(|refused| &refused.findings);
        all.iter().for_each(request.report);
        judged.map(|found| findings.extend(found))
    };
    if settings.has_preflight {
        let facts = observe::facts(settings, places, service, journal.as_ref()).await;
        judge(preflight::findings(&facts, &settings.node_name, &settings.cri_socket))?;
    }
    let discovered = discovery::discover(settings).await?;
    let authority = pins_of(&discovered.ca_pem).map_err(JoinError::Authority)?;
    let client = discovery::client_of(&discovered.kubeconfig).await?;
    let cluster = discovery::read_cluster(&client, &settings.node_name, settings.call_timeout).await?;
    if settings.has_preflight {
        judge(preflight::version_finding(request.agent, cluster.version).into_iter().collect())?;
    }
    let observed = observe::observe(settings, places, &discovered).await?;
    // A machine that is asked not to look would join without an agent, and call itself a node.
    let state = service.state().await?;
    let plan = plan::plan(&Inputs {
        settings,
        places,
        discovered: &discovered,
        authority: &authority,
        cluster: &cluster,
        journal: journal.as_ref(),
        there: &observed.there,
        has_certificate: observed.has_certificate,
        has_service: state.is_some_and(|state| state.exists),
        installs_service: state.is_some() && service.can_install(),
    })?;
    let journal = journal.unwrap_or_else(|| Journal::new(&discovered.server, authority, &settings.node_name));
    Ok(Prepared { server: discovered.server, findings, plan, journal })
}
