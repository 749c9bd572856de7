//! Services of Windows: what is registered with the service control manager, and the steps to it. Pure.

use std::fmt;
use std::time::Duration;

use crate::{Desired, MARK, Part, Plan};

/// Where the program's logs are.
pub const LOGS: &str = r"C:\var\log\mullion";
/// The library whose messages are their first parameter alone, and which every Windows has.
pub const MESSAGES: &str = r"%SystemRoot%\System32\EventCreate.exe";
/// The container runtime's service, which has to be there while pods run and end.
pub const CONTAINERD: &str = "containerd";

/// How the control manager starts a service again that has ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The delays after the first, the second and every further failure.
    pub delays: [Duration; 3],
    /// After so long without a failure they are counted anew.
    pub reset: Duration,
}

impl Recovery {
    /// Soon, and then with more time for whatever is missing.
    pub const RESTART: Self =
        Self { delays: [Duration::from_secs(5), Duration::from_secs(15), Duration::from_secs(60)], reset: Duration::from_secs(24 * 3600) };
}

/// A service as it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub name: &'static str,
    pub display_name: String,
    pub description: String,
    pub program: String,
    pub arguments: Vec<String>,
    /// Services that are started before it.
    pub dependencies: Vec<String>,
}

impl Registration {
    /// Program and arguments as one line, with Windows' quotes.
    #[must_use]
    pub fn command_line(&self) -> String {
        let words: Vec<String> = std::iter::once(&self.program).chain(&self.arguments).map(|word| quoted(word)).collect();
        words.join(" ")
    }

    /// The file of its log.
    #[must_use]
    pub fn log(&self) -> String {
        format!(r"{LOGS}\{}.log", self.name)
    }
}

/// A word as programs of Windows take it apart (`CommandLineToArgvW`).
fn quoted(word: &str) -> String {
    if !word.is_empty() && !word.contains(['"', ' ', '\t', '\n', '\u{b}']) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    let mut backslashes = 0;
    for c in word.chars() {
        // Those before a quote, and the quote itself.
        let more = if c == '"' { backslashes + 1 } else { 0 };
        text.extend(std::iter::repeat_n('\\', more));
        text.push(c);
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
    }
    text.extend(std::iter::repeat_n('\\', backslashes));
    text.push('"');
    text
}

/// What is to be registered. The service depends on containerd's where the machine has that; kube-proxy's on none, since it can wait by itself.
#[must_use]
pub fn registration(desired: &Desired, has_containerd: bool) -> Registration {
    let part = desired.part();
    let mut registration = Registration {
        name: part.service(),
        display_name: format!("Mullion {}", part.command()),
        description: format!("{}. {MARK}", part.what()),
        program: desired.program().to_owned(),
        arguments: Vec::new(),
        dependencies: Vec::new(),
    };
    let mut arguments: Vec<String> = vec![part.command().into(), "--windows-service".into(), format!("--log-file={}", registration.log())];
    match part {
        Part::Node | Part::Kubelet => {
            registration.dependencies.extend(has_containerd.then(|| CONTAINERD.to_owned()));
            arguments.extend(
                [
                    // Busy pods would starve it.
                    "--windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS",
                    r"--bootstrap-kubeconfig=C:\etc\kubernetes\bootstrap-kubelet.conf",
                    r"--kubeconfig=C:\etc\kubernetes\kubelet.conf",
                    r"--config=C:\var\lib\kubelet\config.yaml",
                    r"--kubeadm-flags=C:\var\lib\kubelet\kubeadm-flags.env",
                ]
                .map(str::to_owned),
            );
        }
        Part::KubeProxy if desired.goes_with_a_file() => arguments.push(r"--config=C:\var\lib\kube-proxy\config.conf".to_owned()),
        Part::KubeProxy => {}
    }
    registration.arguments = arguments.into_iter().chain(desired.flags().iter().cloned()).collect();
    registration
}

/// A service that the control manager has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    pub command_line: String,
    pub display_name: String,
    pub description: String,
    pub dependencies: Vec<String>,
    /// Whether it starts with the machine.
    pub is_automatic: bool,
    /// None where the system does not tell, as Wine.
    pub recovery: Option<Recovery>,
    pub is_active: bool,
}

/// What was seen on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub service: Option<Registered>,
    /// The library of messages of the service's source in the event log.
    pub source: Option<String>,
    /// Whether the directory of the logs is there.
    pub has_logs: bool,
    pub has_containerd: bool,
    /// Whether Windows' order of ends at a shutdown names the service.
    pub is_in_order: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("service {name} was not made by mullion install; it runs {command_line:?}: remove it with sc delete {name}, and install again")]
    Foreign { name: &'static str, command_line: String },
    #[error("there is no service {0} of mullion install here: nothing is removed")]
    NotInstalled(&'static str),
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    MakeDirectory(String),
    Register(Registration),
    /// Registers it anew; with what differs.
    Change(Registration, Vec<&'static str>),
    SetRecovery(&'static str, Recovery),
    AddSource(&'static str),
    Start(&'static str),
    Stop(&'static str),
    Unregister(&'static str),
    RemoveSource(&'static str),
    LeaveOrder(&'static str),
    RemoveLogs(&'static str),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeDirectory(path) => write!(f, "make the directory {path}"),
            Self::Register(service) => {
                write!(f, "make the service {}, started with Windows: {}", service.name, service.command_line())?;
                if service.dependencies.is_empty() { Ok(()) } else { write!(f, "; it depends on {}", service.dependencies.join(", ")) }
            }
            Self::Change(service, what) => write!(f, "change {} of the service {}: {}", what.join(", "), service.name, service.command_line()),
            Self::SetRecovery(name, recovery) => {
                let [first, second, further] = recovery.delays.map(|delay| delay.as_secs());
                write!(f, "have the service {name} started again when it fails: after {first}s, {second}s, and then {further}s")
            }
            Self::AddSource(name) => write!(f, "add the source {name} to the event log Application"),
            Self::Start(name) => write!(f, "start the service {name}"),
            Self::Stop(name) => write!(f, "stop the service {name}"),
            Self::Unregister(name) => write!(f, "delete the service {name}"),
            Self::RemoveSource(name) => write!(f, "remove the source {name} from the event log Application"),
            Self::LeaveOrder(name) => write!(f, "remove {name} from the order in which services end at a shutdown"),
            Self::RemoveLogs(name) => write!(f, r"remove {LOGS}\{name}.log, and the directory if it is empty"),
        }
    }
}

/// Whether a service was made by an installation. The description, which says so, comes after the service: where there is none yet, the first
/// words of the command line say it.
fn is_ours(wanted: &Registration, present: &Registered) -> bool {
    let begin = Registration { arguments: wanted.arguments.iter().take(3).cloned().collect(), ..wanted.clone() };
    present.description.contains(MARK) || (present.description.is_empty() && present.command_line.starts_with(&begin.command_line()))
}

/// Whether a service is in a list; names count without their case.
fn has(list: &[String], name: &str) -> bool {
    list.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// What differs, in words. Dependencies that an administrator has added are fine.
fn differences(wanted: &Registration, present: &Registered) -> Vec<&'static str> {
    let pairs = [
        ("the command line", present.command_line == wanted.command_line()),
        ("the name", present.display_name == wanted.display_name),
        ("the description", present.description == wanted.description),
        ("the dependencies", wanted.dependencies.iter().all(|wanted| has(&present.dependencies, wanted))),
        ("the start with Windows", present.is_automatic),
    ];
    pairs.into_iter().filter(|(_, is_same)| !is_same).map(|(what, _)| what).collect()
}

/// The steps after which the service is there as it is desired.
///
/// # Errors
/// [`PlanError::Foreign`].
pub fn plan(desired: &Desired, observed: &Observed, starts: bool) -> Result<Plan<Step>, PlanError> {
    let wanted = registration(desired, observed.has_containerd);
    let name = wanted.name;
    let mut plan = Plan::default();
    if !observed.has_logs {
        plan.steps.push(Step::MakeDirectory(LOGS.to_owned()));
    }
    let is_active = observed.service.as_ref().is_some_and(|service| service.is_active);
    let mut is_changed = false;
    match &observed.service {
        None => plan.steps.extend([Step::Register(wanted.clone()), Step::SetRecovery(name, Recovery::RESTART)]),
        Some(present) if !is_ours(&wanted, present) => {
            return Err(PlanError::Foreign { name, command_line: present.command_line.clone() });
        }
        Some(present) => {
            let differences = differences(&wanted, present);
            is_changed = !differences.is_empty();
            if is_changed {
                let added = present.dependencies.iter().filter(|name| !has(&wanted.dependencies, name)).cloned();
                let dependencies = wanted.dependencies.iter().cloned().chain(added).collect();
                plan.steps.push(Step::Change(Registration { dependencies, ..wanted.clone() }, differences));
            }
            // Without a description the installation was cut off before it.
            let is_cut_off = present.description.is_empty();
            if is_cut_off || present.recovery.as_ref().is_some_and(|recovery| *recovery != Recovery::RESTART) {
                plan.steps.push(Step::SetRecovery(name, Recovery::RESTART));
            }
        }
    }
    if observed.source.as_deref() != Some(MESSAGES) {
        plan.steps.push(Step::AddSource(name));
    }
    if desired.part() != Part::KubeProxy && !observed.has_containerd {
        plan.remarks.push(format!(
            "there is no service {CONTAINERD}: install again when there is, so that a shutdown of Windows ends pods before their runtime"
        ));
    }
    match (starts, is_active) {
        (true, true) if is_changed => plan.steps.extend([Step::Stop(name), Step::Start(name)]),
        (true, false) => plan.steps.push(Step::Start(name)),
        (false, true) if is_changed => {
            plan.remarks.push(format!("the service runs as it was before: Restart-Service {name} puts the change into effect"))
        }
        _ => {}
    }
    Ok(plan)
}

/// The steps after which nothing of the service is left.
///
/// # Errors
/// [`PlanError`].
pub fn removal(desired: &Desired, observed: &Observed) -> Result<Plan<Step>, PlanError> {
    let name = desired.part().service();
    let mut plan = Plan::default();
    match &observed.service {
        Some(present) if !is_ours(&registration(desired, false), present) => return Err(PlanError::NotInstalled(name)),
        Some(present) => {
            plan.steps.extend(present.is_active.then_some(Step::Stop(name)));
            plan.steps.push(Step::Unregister(name));
        }
        None if observed.source.as_deref() != Some(MESSAGES) => return Err(PlanError::NotInstalled(name)),
        // An earlier removal was cut off.
        None => {}
    }
    if observed.source.as_deref() == Some(MESSAGES) {
        plan.steps.push(Step::RemoveSource(name));
    }
    plan.steps.extend(observed.is_in_order.then_some(Step::LeaveOrder(name)));
    plan.steps.extend(observed.has_logs.then_some(Step::RemoveLogs(name)));
    Ok(plan)
}

#[cfg(test)]
mod tests;
