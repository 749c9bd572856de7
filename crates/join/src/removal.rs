//! What `mullion reset` and `mullion leave` remove from a machine: what a join wrote, and nothing else. The plan is pure.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, Client};
use thiserror_ext::AsReport as _;

use crate::apply::{self, Site};
use crate::journal::{Journal, State};
use crate::places::Places;
use crate::pods;
use install::control::Service;

/// Nothing here was made by a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no join of mullion has written anything here: nothing is removed; mullion reset --force removes the files of kubeadm join too")]
pub struct NothingToRemove;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    StopService,
    /// Removes the service that the join made.
    RemoveService,
    DeleteNode(String),
    /// Of the container runtime at this endpoint.
    RemovePods(String),
    Remove(PathBuf),
    /// Takes an unfinished join back: what was there before comes again.
    Undo,
    RemoveDirectory(PathBuf),
}

/// What a plan is made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub places: &'a Places,
    pub journal: Option<&'a Journal>,
    /// Files that are there.
    pub present: &'a BTreeSet<PathBuf>,
    pub has_service: bool,
    /// The Node that is to be deleted.
    pub delete_node: Option<&'a str>,
    /// The container runtime whose pods go.
    pub pods_of: Option<&'a str>,
    /// Whether files of a join go of which no journal tells, as kubeadm's.
    pub is_forced: bool,
}

/// Files that a join of kubeadm writes, and the journal.
#[must_use]
pub fn known_files(places: &Places) -> Vec<PathBuf> {
    let fixed = [
        places.kubelet_conf(),
        places.bootstrap_conf(),
        places.at("/etc/kubernetes/pki/ca.crt"),
        places.config(),
        places.instance_config(),
        places.flags_env(),
    ];
    let certificates = apply::certificates(&places.cert_dir());
    fixed.into_iter().chain(certificates.into_iter().map(|name| places.cert_dir().join(name))).chain([places.journal()]).collect()
}

/// The steps in their order.
///
/// # Errors
/// [`NothingToRemove`].
pub fn plan(inputs: &Inputs<'_>) -> Result<Vec<Step>, NothingToRemove> {
    let Inputs { places, journal, present, .. } = *inputs;
    let mut steps = Vec::new();
    if inputs.has_service {
        // A running agent would register its Node again.
        steps.push(Step::StopService);
    }
    let is_finished = journal.is_some_and(|journal| journal.state == State::Joined);
    // Before the Node: without it controllers make others in their place, which must not meet them at their volumes.
    steps.extend(inputs.pods_of.filter(|_| is_finished || inputs.is_forced).map(|endpoint| Step::RemovePods(endpoint.to_owned())));
    steps.extend(inputs.delete_node.map(|name| Step::DeleteNode(name.to_owned())));
    let is_unfinished = journal.is_some_and(|journal| journal.state == State::Joining);
    if !is_unfinished && journal.is_some_and(|journal| journal.installed_service) {
        steps.push(Step::RemoveService);
    }
    let is_ours = |path: &Path| match journal {
        Some(journal) => {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_certificate = path.parent() == Some(&places.cert_dir()) && !journal.foreign_certificates.contains(name);
            is_certificate || journal.files.iter().any(|entry| entry.path == path) || path == places.journal()
        }
        None => false,
    };
    if is_unfinished {
        steps.push(Step::Undo);
    }
    match journal {
        Some(_) if is_unfinished && !inputs.is_forced => {}
        None if !inputs.is_forced => return Err(NothingToRemove),
        _ => {
            let of_journal = journal.into_iter().flat_map(|journal| journal.files.iter().map(|entry| entry.path.clone()));
            let all: Vec<PathBuf> = of_journal.chain(known_files(places)).collect();
            let mut seen = BTreeSet::new();
            // The journal goes last: a removal that is cut off is finished by the next one.
            let (last, files): (Vec<_>, Vec<_>) =
                all.into_iter().filter(|path| seen.insert(path.clone())).partition(|path| *path == places.journal());
            let there = files.into_iter().chain(last).filter(|path| present.contains(path) && (inputs.is_forced || is_ours(path)));
            steps.extend(there.map(Step::Remove));
            let directories = journal.map(|journal| journal.directories.as_slice()).unwrap_or_default();
            steps.extend(directories.iter().rev().cloned().map(Step::RemoveDirectory));
        }
    }
    Ok(steps)
}

impl Step {
    /// The step in words.
    #[must_use]
    pub fn text(&self, places: &Places) -> String {
        match self {
            Self::StopService => "stop the service kubelet".to_owned(),
            Self::RemoveService => "remove the service kubelet, which the join has made".to_owned(),
            Self::DeleteNode(name) => format!("delete Node {name:?}"),
            Self::RemovePods(endpoint) => format!("remove the pods of the container runtime {endpoint}"),
            Self::Remove(path) => format!("remove {}", places.shown(path)),
            Self::Undo => "take the unfinished join back".to_owned(),
            Self::RemoveDirectory(path) => format!("remove the directory {} if it is empty", places.shown(path)),
        }
    }
}

/// Steps that failed; the others are done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Incomplete(pub Vec<String>);

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not everything is removed: {}; run the command again", self.0.join("; "))
    }
}

/// Carries the steps out. An agent that does not stop, a Node that cannot be deleted and pods that cannot be removed end it, since what another
/// attempt needs would go: the record, the credentials, the runtime's address. Other failures do not.
///
/// # Errors
/// [`Incomplete`].
pub async fn apply<S: Service>(steps: &[Step], journal: Option<&Journal>, site: &Site<'_, S>, client: Option<Client>) -> Result<(), Incomplete> {
    let mut problems = Vec::new();
    for step in steps {
        let done = match step {
            Step::StopService => site.service.stop().await.map_err(|error| error.to_report_string()),
            Step::RemovePods(endpoint) if pods::is_absent(endpoint) => Ok(()),
            Step::RemovePods(endpoint) => match cri::Client::connect(endpoint) {
                Ok(runtime) => pods::remove(&runtime).await.map(drop),
                Err(error) => Err(error.to_report_string()),
            },
            Step::RemoveService => site.service.uninstall().await.map_err(|error| error.to_report_string()),
            Step::DeleteNode(name) => delete_node(client.as_ref(), name).await,
            Step::Remove(path) => apply::remove(path).map_err(|error| error.to_string()),
            Step::Undo => match journal {
                Some(journal) => match apply::undo(journal, site).await {
                    problems if problems.is_empty() => Ok(()),
                    problems => Err(problems.join("; ")),
                },
                None => Ok(()),
            },
            Step::RemoveDirectory(path) => {
                // One that others use stays.
                let _ = std::fs::remove_dir(path);
                Ok(())
            }
        };
        if let Err(reason) = done {
            problems.push(format!("cannot {}: {reason}", step.text(site.places)));
            if matches!(step, Step::StopService | Step::DeleteNode(_) | Step::RemovePods(_)) {
                break;
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Incomplete(problems)) }
}

/// Deletes a Node; one that is gone is fine.
async fn delete_node(client: Option<&Client>, name: &str) -> Result<(), String> {
    let client = client.ok_or("there are no credentials for it")?;
    match Api::<Node>::all(client.clone()).delete(name, &DeleteParams::default()).await {
        Err(error) if cluster::is_forbidden(&error) => {
            Err(format!("these credentials may not: give --kubeconfig of an administrator, or run kubectl delete node {name} and mullion reset"))
        }
        Err(error) if !cluster::is_not_found(&error) => Err(error.to_report_string()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
