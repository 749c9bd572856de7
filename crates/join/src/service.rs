//! The service that runs the node agent: systemd's, or nobody's.

use std::future::Future;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// The unit of the node agent, by kubeadm's name.
const UNIT: &str = "kubelet.service";
/// How long systemctl may take: a unit's stop takes up to 90 s by default.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes that are kept of its answer.
const MOST: u64 = 16 << 10;

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
}

/// systemd, over `systemctl`.
#[derive(Clone, Debug)]
pub struct Systemd {
    program: PathBuf,
}

impl Default for Systemd {
    fn default() -> Self {
        Self { program: "systemctl".into() }
    }
}

impl Service for Systemd {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        self.run(&["show", "--property=LoadState,ActiveState,UnitFileState", UNIT]).await.map(|text| Some(parse(&text)))
    }

    async fn start(&self) -> Result<(), ServiceError> {
        self.run(&["daemon-reload"]).await?;
        self.run(&["start", UNIT]).await.map(drop)
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        self.run(&["stop", UNIT]).await.map(drop)
    }
}

impl Systemd {
    async fn run(&self, arguments: &[&str]) -> Result<String, ServiceError> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_unit_is_read() {
        let state = |exists, is_enabled, is_active| ServiceState { exists, is_enabled, is_active };
        for (text, expected) in [
            ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n", state(true, true, true)),
            ("LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n", state(true, false, false)),
            ("LoadState=loaded\nActiveState=activating\nUnitFileState=static\n", state(true, true, true)),
            ("LoadState=not-found\nActiveState=inactive\nUnitFileState=\n", state(false, false, false)),
            ("", state(false, false, false)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    /// A program in the place of systemctl that writes down what it is asked.
    #[cfg(unix)]
    #[tokio::test]
    async fn systemd_reads_its_units_before_it_starts_one() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (program, log) = (dir.path().join("systemctl"), dir.path().join("log"));
        let text = format!("#!/bin/sh\necho \"$@\" >> {}\necho LoadState=loaded\necho ActiveState=active\n", log.display());
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let service = Systemd { program };
        let state = service.state().await.unwrap().unwrap();
        assert!(state.exists && state.is_active && !state.is_enabled);
        service.start().await.unwrap();
        service.stop().await.unwrap();
        let asked = std::fs::read_to_string(log).unwrap();
        let asked: Vec<&str> = asked.lines().collect();
        let show = "show --property=LoadState,ActiveState,UnitFileState kubelet.service";
        assert_eq!(asked, [show, "daemon-reload", "start kubelet.service", "stop kubelet.service"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_missing_systemctl_says_what_to_do() {
        use thiserror_ext::AsReport as _;
        let service = Systemd { program: "/nonexistent/systemctl".into() };
        let error = service.state().await.unwrap_err().to_report_string();
        assert!(error.contains("--no-service does without it"), "{error}");
        // A program that fails: its complaint is the reason.
        let error = Systemd { program: "/bin/false".into() }.start().await.unwrap_err();
        assert!(matches!(error, ServiceError::Failed { .. }), "{error}");
    }
}
