//! Units of systemd: their text, what there is of them, and the steps from one to the other.

mod apply;
mod units;

use std::collections::BTreeMap;
use std::fmt;

use crate::{Desired, InputError, MARK, Part, Plan};

pub use apply::{ApplyError, apply, observe, runs};
pub use units::{ENABLED, UNITS, unit, word};

/// What is added to the name of a file of others that is put aside.
pub const ASIDE: &str = ".before-mullion";
/// Where kubeadm looks for the node agent, to ask for its version.
const KUBELET: &str = "/usr/local/bin/kubelet";

/// A file or link, by its path on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    File(String),
    Link(String),
}

/// What a service consists of, in the order in which it is written.
#[must_use]
pub fn artefacts(desired: &Desired) -> Vec<(String, Content)> {
    let service = desired.part().service();
    let mut all: Vec<(String, Content)> = units::files(desired).into_iter().map(|(path, text)| (path, Content::File(text))).collect();
    all.push((enabling(service), Content::Link(format!("{UNITS}/{service}.service"))));
    if desired.part() != Part::KubeProxy {
        all.push((KUBELET.to_owned(), Content::Link(desired.program().to_owned())));
    }
    all
}

/// The link that has a service started with the machine.
fn enabling(service: &str) -> String {
    format!("{ENABLED}/{service}.service")
}

/// What was seen on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// By path on the machine; what is absent has no entry.
    pub present: BTreeMap<String, Content>,
    /// Whether systemd runs this machine.
    pub runs: bool,
    /// Whether the service runs.
    pub is_active: bool,
}

/// What is to be done besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Start the service, or start it again where it has changed.
    pub starts: bool,
    /// Put files of others aside.
    pub replaces: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{path} was not written by mullion install: move it away, or give --replace, which keeps it as {path}{ASIDE} until mullion uninstall")]
    Foreign { path: String },
    #[error("{path}{ASIDE} is there already, from an earlier --replace: move it away, it would be lost")]
    Aside { path: String },
    #[error("there is no service {0} of mullion install here: nothing is removed")]
    NotInstalled(&'static str),
    #[error("systemd does not run this machine, so that nothing can be started: leave --now out")]
    NoSystemd,
    #[error(transparent)]
    Input(#[from] InputError),
}

/// One step. Paths are those on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    PutAside(String),
    Write {
        path: String,
        text: String,
    },
    Link {
        path: String,
        target: String,
    },
    Remove(String),
    GiveBack(String),
    /// Where it is empty.
    RemoveDirectory(String),
    Reload,
    Start(&'static str),
    Restart(&'static str),
    Stop(&'static str),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PutAside(path) => write!(f, "move {path} to {path}{ASIDE}"),
            Self::Write { path, text } => write!(f, "write {path} ({} bytes)", text.len()),
            Self::Link { path, target } => write!(f, "link {path} to {target}"),
            Self::Remove(path) => write!(f, "remove {path}"),
            Self::GiveBack(path) => write!(f, "move {path}{ASIDE} to {path}"),
            Self::RemoveDirectory(path) => write!(f, "remove the directory {path} if it is empty"),
            Self::Reload => f.write_str("systemctl daemon-reload"),
            Self::Start(service) => write!(f, "systemctl start {service}.service"),
            Self::Restart(service) => write!(f, "systemctl restart {service}.service"),
            Self::Stop(service) => write!(f, "systemctl stop {service}.service"),
        }
    }
}

impl Plan<Step> {
    /// The files that the plan writes, for `--dry-run`.
    #[must_use]
    pub fn contents(&self) -> String {
        let written = self.steps.iter().filter_map(|step| if let Step::Write { path, text } = step { Some((path, text)) } else { None });
        written.map(|(path, text)| format!("\n{path}:\n{text}")).collect()
    }
}

/// The unit's path.
fn unit_path(part: Part) -> String {
    format!("{UNITS}/{}.service", part.service())
}

/// The program that our unit runs, where the unit is ours.
fn installed_program(part: Part, observed: &Observed) -> Option<&str> {
    let Some(Content::File(text)) = observed.present.get(&unit_path(part)) else { return None };
    let command = text.lines().filter_map(|line| line.strip_prefix("ExecStart=")).next_back();
    text.contains(MARK).then(|| command.and_then(|command| command.split(' ').next()).unwrap_or_default())
}

/// Whether what is at a path is what an install wrote. Of the links those are ours that belong to a unit of ours: administrators make the same
/// ones.
fn is_own(path: &str, content: &Content, part: Part, observed: &Observed) -> bool {
    match content {
        Content::File(text) => text.contains(MARK),
        Content::Link(target) if path == KUBELET => installed_program(part, observed).is_some_and(|program| word(target) == program),
        Content::Link(target) => *target == unit_path(part) && installed_program(part, observed).is_some(),
    }
}

/// The steps after which the service is there as it is desired.
///
/// # Errors
/// [`PlanError`].
pub fn plan(desired: &Desired, observed: &Observed, wishes: Wishes) -> Result<Plan<Step>, PlanError> {
    let service = desired.part().service();
    if wishes.starts && !observed.runs {
        return Err(PlanError::NoSystemd);
    }
    let mut plan = Plan::default();
    for (path, content) in artefacts(desired) {
        match observed.present.get(&path) {
            Some(present) if *present == content => continue,
            // Another unit of the name, in the place where packages have theirs, is enabled by this link too.
            Some(_) if path == enabling(service) => continue,
            Some(present) if !is_own(&path, present, desired.part(), observed) => {
                if path == KUBELET {
                    plan.remarks.push(format!("{path} is another program and stays: kubeadm asks it for its version"));
                    continue;
                }
                if !wishes.replaces {
                    return Err(PlanError::Foreign { path });
                }
                if observed.present.contains_key(&format!("{path}{ASIDE}")) {
                    return Err(PlanError::Aside { path });
                }
                plan.steps.push(Step::PutAside(path.clone()));
            }
            Some(_) | None => {}
        }
        plan.steps.push(match content {
            Content::File(text) => Step::Write { path, text },
            Content::Link(target) => Step::Link { path, target },
        });
    }
    let is_changed = !plan.steps.is_empty();
    if is_changed && observed.runs {
        plan.steps.push(Step::Reload);
    }
    match (wishes.starts, observed.is_active) {
        (true, false) => plan.steps.push(Step::Start(service)),
        (true, true) if is_changed => plan.steps.push(Step::Restart(service)),
        (false, true) if is_changed => {
            plan.remarks.push(format!("the service runs as it was before: systemctl restart {service}.service puts the change into effect"));
        }
        _ => {}
    }
    if is_changed && !observed.runs {
        plan.remarks.push("systemd does not run here: it reads the units when it starts".to_owned());
    }
    Ok(plan)
}

/// The steps after which nothing of the service is left, and what it had put aside is back: a unit that comes back stays enabled, and runs where
/// ours ran.
///
/// # Errors
/// [`PlanError::NotInstalled`].
pub fn removal(desired: &Desired, observed: &Observed) -> Result<Plan<Step>, PlanError> {
    let (part, service) = (desired.part(), desired.part().service());
    let paths: Vec<String> = artefacts(desired).into_iter().map(|(path, _)| path).collect();
    let is_ours = |path: &str| observed.present.get(path).is_some_and(|present| is_own(path, present, part, observed));
    // What a removal that was cut off has left is put aside still.
    let aside: Vec<&String> = paths.iter().filter(|path| observed.present.contains_key(&format!("{path}{ASIDE}"))).collect();
    let (back, kept): (Vec<&String>, Vec<&String>) = aside.into_iter().partition(|path| is_ours(path) || !observed.present.contains_key(*path));
    let unit_returns = back.iter().any(|path| **path == unit_path(part));
    let goes = |path: &&String| is_ours(path) && !(unit_returns && **path == enabling(service));
    let own: Vec<&String> = paths.iter().filter(goes).collect();
    if own.is_empty() && back.is_empty() {
        return Err(PlanError::NotInstalled(service));
    }
    let mut plan = Plan::default();
    // A service that others wrote does not end.
    let ran = observed.is_active && is_ours(&unit_path(part));
    if ran {
        plan.steps.push(Step::Stop(service));
    }
    // What starts it goes first, and the unit last: by it the others are known as ours.
    plan.steps.extend(own.iter().rev().map(|path| Step::Remove((*path).clone())));
    plan.steps.extend(back.into_iter().cloned().map(Step::GiveBack));
    plan.steps.push(Step::RemoveDirectory(format!("{UNITS}/{service}.service.d")));
    if observed.runs {
        plan.steps.push(Step::Reload);
    }
    if ran && unit_returns {
        plan.steps.push(Step::Start(service));
    }
    plan.remarks.extend(kept.into_iter().map(|path| format!("{path}{ASIDE} stays: {path} is another's by now")));
    Ok(plan)
}

#[cfg(test)]
mod tests;
