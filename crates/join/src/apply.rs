//! Carries a plan out, and takes it back when a step fails.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backoff::Backoff;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kubelet::certificates::bootstrap::{Bootstrap, BootstrapError};
use serde_json::json;
use thiserror_ext::AsReport as _;

use crate::health;
use crate::journal::{self, CURRENT, Entry, Journal, JournalError, Previous, State};
use crate::places::Places;
use crate::plan::{CRI_SOCKET, File, Plan, Step};
use install::control::{AGENT_LOG, Service, ServiceError};

/// What the names of the agent's certificates, keys and of its unfinished key begin with.
const CERTIFICATES: [&str; 4] = ["kubelet-client", "kubelet-server", "kubelet.crt", "kubelet.key"];

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("the disk refused it")]
    File(#[source] io::Error),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Bootstrap(#[from] Box<BootstrapError>),
    #[error("no certificate came within {}s: look at kubectl get csr; requests of nodes must be approved and signed", .0.as_secs())]
    NoCertificate(Duration),
    #[error("it did not answer within {}s: {last}; read the agent's log: {AGENT_LOG}", .within.as_secs())]
    Unhealthy { within: Duration, last: String },
    #[error("it was not there within {}s: {last}; read the agent's log: {AGENT_LOG}", .within.as_secs())]
    Unregistered { within: Duration, last: String },
    #[error("the node's kubeconfig cannot be used")]
    Client(#[source] Box<cluster::Error>),
    #[error("the API server refused it")]
    Request(#[source] Box<kube::Error>),
    #[error("the command was interrupted")]
    Interrupted,
}

/// A plan that was not carried out to its end.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("cannot {step}; {after}")]
    Step {
        /// The step in words.
        step: String,
        /// What holds for the machine now.
        after: String,
        #[source]
        source: StepError,
    },
    #[error("cannot keep the record of what the join changes")]
    Journal(#[from] JournalError),
    #[error("cannot make the directory {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Where a plan is carried out.
pub struct Site<'a, S> {
    pub places: &'a Places,
    pub service: &'a S,
    /// Told of each step before it is done.
    pub progress: &'a (dyn Fn(&Step) + Sync),
}

/// Carries the plan out. What it changes stands in the journal before it changes; a step that fails, or `interrupted`, takes everything
/// back that this join has changed, also in earlier runs that were cut off.
///
/// # Errors
/// [`ApplyError`]; it says whether the machine is as before.
pub async fn apply<S: Service>(plan: &Plan, journal: Journal, site: &Site<'_, S>, interrupted: impl Future<Output = ()>) -> Result<(), ApplyError> {
    let journal = begin(plan, journal, site).await?;
    tokio::pin!(interrupted);
    for step in &plan.steps {
        (site.progress)(step);
        let done = tokio::select! {
            // No step is begun after an interruption.
            biased;
            () = &mut interrupted => Err(StepError::Interrupted),
            done = carry_out(step, site) => done,
        };
        if let Err(source) = done {
            let after = match undo(&journal, site).await {
                problems if problems.is_empty() => "the machine is as it was before".to_owned(),
                problems => format!("the machine is not quite as before: {}; run mullion reset", problems.join("; ")),
            };
            return Err(ApplyError::Step { step: step.text(site.places), after, source });
        }
    }
    Ok(journal.finished().write(site.places)?)
}

/// Records what the plan will change, and makes the directories for it.
async fn begin<S: Service>(plan: &Plan, mut journal: Journal, site: &Site<'_, S>) -> Result<Journal, ApplyError> {
    let places = site.places;
    let is_new = journal.files.is_empty();
    let mut paths: Vec<PathBuf> =
        plan.steps.iter().filter_map(|step| if let Step::Write(file) = step { Some(file.path.clone()) } else { None }).collect();
    // One that is good already is somebody else's, and stays when this machine leaves.
    if plan.steps.iter().any(|step| matches!(step, Step::RequestCertificate { .. })) {
        paths.push(places.kubelet_conf());
    }
    for path in paths.iter().filter(|path| !journal.files.iter().any(|entry| entry.path == **path)).cloned().collect::<Vec<_>>() {
        let previous = journal::content(&path)?;
        journal.files.push(Entry { path, previous });
    }
    if is_new {
        note_current(places, &mut journal)?;
        journal.foreign_certificates = certificates(&places.cert_dir()).into_iter().collect();
        journal.was_active = site.service.state().await.ok().flatten().is_some_and(|state| state.is_active);
    }
    journal.installed_service |= plan.steps.contains(&Step::InstallService);
    let parents = paths.iter().filter_map(|path| path.parent()).map(Path::to_owned);
    let wanted: BTreeSet<PathBuf> = parents.chain([places.kubelet_dir(), places.manifests()]).collect();
    let known = journal.directories.len();
    let begun = (|| {
        for directory in wanted {
            let made = make_directory(places, &directory).map_err(|source| ApplyError::Directory { path: directory.clone(), source })?;
            journal.directories.extend(made.into_iter().filter(|made| places.is_below_root(made)));
        }
        if !places.cert_dir().exists() {
            // Made with the certificate.
            journal.directories.push(places.cert_dir());
        }
        journal.state = State::Joining;
        Ok(journal.write(places)?)
    })();
    if begun.is_err() {
        // Nothing tells of them.
        for directory in journal.directories.iter().skip(known).rev() {
            let _ = std::fs::remove_dir(directory);
        }
    }
    begun.map(|()| journal)
}

/// Records the agent's certificate of before: the link to it, or where it is a file, what it holds.
fn note_current(places: &Places, journal: &mut Journal) -> Result<(), JournalError> {
    let path = places.cert_dir().join(CURRENT);
    match std::fs::read_link(&path) {
        Ok(target) => drop(journal.links.insert(CURRENT.to_owned(), target)),
        Err(_) if path.exists() => journal.files.push(Entry { previous: journal::content(&path)?, path }),
        Err(_) => {}
    }
    Ok(())
}

/// Makes a directory, and tells which ones were not there, the outer ones first.
fn make_directory(places: &Places, path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut made: Vec<PathBuf> = path.ancestors().take_while(|ancestor| !ancestor.exists()).map(Path::to_owned).collect();
    made.reverse();
    // On Windows a directory's access list is all that keeps others out. Somebody else's, in which a configuration has its certificates, stays.
    if !made.is_empty() || (cfg!(windows) && places.is_of_node(path)) {
        // The bootstrap token will be in one of them.
        host::make_private_dir(path)?;
    }
    Ok(made)
}

/// Names of the agent's certificates in a directory.
pub(crate) fn certificates(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| CERTIFICATES.iter().any(|start| name.starts_with(start))).collect()
}

async fn carry_out<S: Service>(step: &Step, site: &Site<'_, S>) -> Result<(), StepError> {
    let places = site.places;
    match step {
        Step::Write(file) => write(file).map_err(StepError::File),
        Step::StopService => Ok(site.service.stop().await?),
        Step::InstallService => Ok(site.service.install().await?),
        Step::StartService => Ok(site.service.start().await?),
        Step::Remove(path) => remove(path).map_err(StepError::File),
        Step::RequestCertificate { node_name, within } => {
            let bootstrap = Bootstrap {
                kubeconfig: places.kubelet_conf(),
                bootstrap_kubeconfig: places.bootstrap_conf(),
                cert_dir: places.cert_dir(),
                node_name: node_name.clone(),
            };
            match tokio::time::timeout(*within, bootstrap.run()).await {
                Ok(got) => got.map(drop).map_err(|error| Box::new(error).into()),
                Err(_) => Err(StepError::NoCertificate(*within)),
            }
        }
        Step::WaitHealthy { url, within } => wait_healthy(url, *within).await,
        Step::WaitRegistered { node_name, within } => wait_registered(places, node_name, *within).await,
        Step::Annotate { node_name, cri_socket } => {
            let patch = json!({"metadata": {"annotations": {CRI_SOCKET: cri_socket}}});
            let patched = nodes(places).await?.patch(node_name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.map(drop).map_err(|source| StepError::Request(Box::new(source)))
        }
    }
}

fn write(file: &File) -> io::Result<()> {
    let mode = if file.is_secret { 0o600 } else { 0o644 };
    atomic_file::Options::new().mode(mode).synced().write(&file.path, &file.content)
}

/// Removes a file that may be gone already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn nodes(places: &Places) -> Result<Api<Node>, StepError> {
    let client = cluster::client_from_kubeconfig(&places.kubelet_conf()).await;
    client.map(Api::all).map_err(|error| StepError::Client(Box::new(error)))
}

async fn wait_registered(places: &Places, node_name: &str, within: Duration) -> Result<(), StepError> {
    let nodes = nodes(places).await?;
    let mut last = "the API server does not answer".to_owned();
    let found = async {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            match nodes.get_opt(node_name).await {
                Ok(Some(_)) => return,
                Ok(None) => "there is no such Node".clone_into(&mut last),
                Err(error) => last = error.to_report_string(),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    };
    let found = tokio::time::timeout(within, found).await;
    found.map_err(|_| StepError::Unregistered { within, last })
}

async fn wait_healthy(url: &str, within: Duration) -> Result<(), StepError> {
    let mut last = "nothing listens there".to_owned();
    let healthy = async {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            match tokio::time::timeout(Duration::from_secs(2), health::ask(url)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => "it does not answer within 2s".clone_into(&mut last),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    };
    let healthy = tokio::time::timeout(within, healthy).await;
    healthy.map_err(|_| StepError::Unhealthy { within, last })
}

fn relink(path: &Path, target: &Path) -> io::Result<()> {
    remove(path)?;
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, path);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_file(target, path);
}

/// Takes back what a join has changed; what cannot be taken back is told, and the rest is done all the same.
pub(crate) async fn undo<S: Service>(journal: &Journal, site: &Site<'_, S>) -> Vec<String> {
    let places = site.places;
    let mut problems = Vec::new();
    let mut note = |what: String, result: Result<(), String>| {
        if let Err(reason) = result {
            problems.push(format!("{what}: {reason}"));
        }
    };
    // The agent must not write its files again. A service that there is not cannot be stopped, and was not started.
    if site.service.state().await.ok().flatten().is_some_and(|state| state.exists) {
        note("the service".to_owned(), site.service.stop().await.map_err(|error| error.to_report_string()));
    }
    if journal.installed_service {
        note("the service".to_owned(), site.service.uninstall().await.map_err(|error| error.to_report_string()));
    }
    for name in certificates(&places.cert_dir()).iter().filter(|name| !journal.foreign_certificates.contains(*name)) {
        let path = places.cert_dir().join(name);
        note(places.shown(&path), remove(&path).map_err(|error| error.to_string()));
    }
    for (name, target) in &journal.links {
        let path = places.cert_dir().join(name);
        let result = if std::fs::read_link(&path).is_ok_and(|present| present == *target) { Ok(()) } else { relink(&path, target) };
        note(places.shown(&path), result.map_err(|error| error.to_string()));
    }
    for Entry { path, previous } in journal.files.iter().rev() {
        let result = match previous {
            Some(Previous { text, mode }) => atomic_file::Options::new().mode(*mode).synced().write(path, text),
            None => remove(path),
        };
        note(places.shown(path), result.map_err(|error| error.to_string()));
    }
    if journal.was_active {
        note("the service".to_owned(), site.service.start().await.map_err(|error| error.to_report_string()));
    }
    if problems.is_empty() {
        let journal_file = places.journal();
        if let Err(error) = remove(&journal_file) {
            problems.push(format!("{}: {error}", places.shown(&journal_file)));
        }
        // Directories of others' files stay.
        for directory in journal.directories.iter().rev() {
            let _ = std::fs::remove_dir(directory);
        }
    }
    problems
}

#[cfg(test)]
mod tests;
