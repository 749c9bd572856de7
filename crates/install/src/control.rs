//! Who runs a program of the node: systemd, the service control manager of Windows, or nobody.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use thiserror_ext::AsReport as _;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::{Desired, systemd};

/// How long systemctl may take: a unit's start and stop take up to 90 s by default.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes that are kept of its answer.
const MOST: u64 = 16 << 10;

/// Where the node agent's service writes its log, in words.
pub const AGENT_LOG: &str = if cfg!(windows) { r"it is in C:\var\log\mullion\kubelet.log" } else { "journalctl -u kubelet shows it" };

/// Why a service could not be controlled.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("cannot run {program:?} {arguments}: is this machine run by systemd? --no-service does without it")]
    Start {
        program: PathBuf,
        arguments: String,
        #[source]
        source: std::io::Error,
    },
    #[error("systemctl {arguments} did not end within {}s and was killed", LIMIT.as_secs())]
    Late { arguments: String },
    #[error("systemctl {arguments} failed: {complaint}")]
    Failed { arguments: String, complaint: String },
    #[error("cannot {operation} service {service}: {complaint}")]
    Manager { operation: &'static str, service: String, complaint: String },
}

/// What a service does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    pub exists: bool,
    pub is_enabled: bool,
    pub is_active: bool,
}

/// Who runs the node agent.
pub trait Service: Send + Sync {
    /// Its state; none where it is the caller's to run the agent.
    fn state(&self) -> impl Future<Output = Result<Option<ServiceState>, ServiceError>> + Send;

    /// Starts the agent.
    fn start(&self) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Stops the agent; pods go on.
    fn stop(&self) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Whether the service can be made where there is none.
    fn can_install(&self) -> bool;

    /// Makes the service, so that it starts with the machine.
    fn install(&self) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Takes [`Service::install`] back; a service that there is not, or that others made, is none of its business.
    fn uninstall(&self) -> impl Future<Output = Result<(), ServiceError>> + Send;
}

/// The program `systemctl`.
#[derive(Clone, Debug)]
pub struct Systemctl {
    program: PathBuf,
}

impl Default for Systemctl {
    fn default() -> Self {
        Self::new("systemctl")
    }
}

impl Systemctl {
    /// Another program in its place.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// The state of a service.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub async fn state(&self, service: &str) -> Result<ServiceState, ServiceError> {
        self.run(&["show", "--property=LoadState,ActiveState,UnitFileState", &format!("{service}.service")]).await.map(|text| parse(&text))
    }

    /// Runs it, and gives what it prints.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub async fn run(&self, arguments: &[&str]) -> Result<String, ServiceError> {
        let shown = arguments.join(" ");
        let failed = |source| ServiceError::Start { program: self.program.clone(), arguments: shown.clone(), source };
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let (mut answer, mut complaint) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = async {
            if let (Some(stdout), Some(stderr)) = (stdout, stderr) {
                let (mut stdout, mut stderr) = (stdout.take(MOST), stderr.take(MOST));
                tokio::try_join!(stdout.read_to_end(&mut answer), stderr.read_to_end(&mut complaint))?;
            }
            child.wait().await
        };
        let status = tokio::time::timeout(LIMIT, ended).await.map_err(|_| ServiceError::Late { arguments: shown.clone() })?.map_err(failed)?;
        if !status.success() {
            let text: String = String::from_utf8_lossy(&complaint).trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let complaint = if text.is_empty() { status.to_string() } else { text };
            return Err(ServiceError::Failed { arguments: shown, complaint });
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// Reads properties of `systemctl show`.
fn parse(text: &str) -> ServiceState {
    let property = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default();
    ServiceState {
        exists: property("LoadState") == "loaded",
        is_enabled: matches!(property("UnitFileState"), "enabled" | "enabled-runtime" | "static" | "generated" | "alias" | "indirect"),
        is_active: matches!(property("ActiveState"), "active" | "activating" | "reloading"),
    }
}

/// A service of systemd, over `systemctl`.
#[derive(Clone, Debug)]
pub struct Systemd {
    systemctl: Systemctl,
    service: &'static str,
    desired: Option<Desired>,
    root: PathBuf,
}

impl Systemd {
    #[must_use]
    pub fn new(service: &'static str) -> Self {
        Self { systemctl: Systemctl::default(), service, desired: None, root: "/".into() }
    }

    /// What [`Service::install`] makes.
    #[must_use]
    pub fn installing(self, desired: Desired) -> Self {
        Self { service: desired.part().service(), desired: Some(desired), ..self }
    }

    fn complaint(&self, operation: &'static str, error: &impl std::error::Error) -> ServiceError {
        ServiceError::Manager { operation, service: self.service.to_owned(), complaint: error.to_report_string() }
    }

    async fn observed(&self, desired: &Desired, operation: &'static str) -> Result<systemd::Observed, ServiceError> {
        systemd::observe(desired, &self.root, &self.systemctl).await.map_err(|error| self.complaint(operation, &error))
    }

    async fn apply(&self, plan: &crate::Plan<systemd::Step>, root: &Path, operation: &'static str) -> Result<(), ServiceError> {
        systemd::apply(plan, root, &self.systemctl, &|_| {}).await.map_err(|error| self.complaint(operation, &error))
    }
}

impl Service for Systemd {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        self.systemctl.state(self.service).await.map(Some)
    }

    async fn start(&self) -> Result<(), ServiceError> {
        self.systemctl.run(&["daemon-reload"]).await?;
        self.systemctl.run(&["start", &format!("{}.service", self.service)]).await.map(drop)
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        self.systemctl.run(&["stop", &format!("{}.service", self.service)]).await.map(drop)
    }

    fn can_install(&self) -> bool {
        self.desired.is_some()
    }

    async fn install(&self) -> Result<(), ServiceError> {
        let Some(desired) = &self.desired else { return Ok(()) };
        // Below another root nothing says who may write.
        #[cfg(unix)]
        if self.root == Path::new("/") {
            crate::program::only_root_replaces(Path::new(desired.program())).map_err(|error| self.complaint("install", &error))?;
        }
        let observed = self.observed(desired, "install").await?;
        let plan = systemd::plan(desired, &observed, systemd::Wishes::default()).map_err(|error| self.complaint("install", &error))?;
        self.apply(&plan, &self.root, "install").await
    }

    async fn uninstall(&self) -> Result<(), ServiceError> {
        let Some(desired) = &self.desired else { return Ok(()) };
        let observed = self.observed(desired, "remove").await?;
        match systemd::removal(desired, &observed) {
            Ok(plan) => self.apply(&plan, &self.root, "remove").await,
            Err(systemd::PlanError::NotInstalled(_)) => Ok(()),
            Err(error) => Err(self.complaint("remove", &error)),
        }
    }
}

/// No service: the caller of the join starts the agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmanaged;

impl Service for Unmanaged {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        Ok(None)
    }

    async fn start(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    fn can_install(&self) -> bool {
        false
    }

    async fn install(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    async fn uninstall(&self) -> Result<(), ServiceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
