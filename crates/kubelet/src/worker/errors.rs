//! Why an action on a pod failed, and the reason that its event and its waiting state carry.

use host::{HostError, PathError};

use crate::bundles::BundleError;
use crate::cgroups::GroupError;
use crate::claims::ClaimError;
use crate::cri_config::{NameTooLong, SecurityError};
use crate::devices::DeviceError;
use crate::env::EnvError;
use crate::error::{ApiError, RuntimeError};
use crate::pod::{RecursiveError, WaitingReason};
use crate::probes::ProbeError;
use crate::sources::SourceError;
use crate::tokens::TokenError;
use crate::users::UsersError;
use crate::volumes::{SetUpError, SubPathError};

/// The volumes of a pod could not be mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum MountError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    SetUp(#[from] SetUpError),
}

impl MountError {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            MountError::SetUp(error) => error.reason(),
            _ => "FailedMount",
        }
    }
}

/// A pod's RuntimeClass names no handler.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuntimeClassError {
    #[error("RuntimeClass {class:?} not found")]
    Missing { class: String },
    #[error("reading RuntimeClass {class:?} failed")]
    Read { class: String, source: ApiError },
}

/// A pod's sandbox could not be created or stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    #[error("Failed to create pod sandbox")]
    Class(#[from] RuntimeClassError),
    #[error("Failed to create pod sandbox")]
    Name(#[from] NameTooLong),
    #[error("Failed to create pod sandbox")]
    Users(#[from] UsersError),
    #[error("Failed to create pod sandbox")]
    LogDirectory(#[from] HostError),
    #[error("unable to ensure pod container exists")]
    Group(#[from] GroupError),
    #[error("Failed to create pod sandbox")]
    Run(#[source] RuntimeError),
    #[error("error killing pod")]
    Stop(#[source] RuntimeError),
}

impl SandboxError {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            SandboxError::Class(_) | SandboxError::Name(_) | SandboxError::Users(_) | SandboxError::LogDirectory(_) | SandboxError::Run(_) => {
                "FailedCreatePodSandBox"
            }
            SandboxError::Group(_) => "FailedCreatePodContainer",
            SandboxError::Stop(_) => "FailedKillPod",
        }
    }
}

/// A container could not be created or started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    InspectImage(RuntimeError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Devices(#[from] DeviceError),
    #[error("the pod's network policies are not in effect after {0:?}; trying again: the node's log says why")]
    Policies(std::time::Duration),
    #[error(transparent)]
    Create(RuntimeError),
    #[error(transparent)]
    Start(RuntimeError),
}

impl StartError {
    pub(super) fn reason(&self) -> WaitingReason {
        match self {
            StartError::InspectImage(_) => WaitingReason::ImageInspectError,
            StartError::Config(_) | StartError::Devices(_) => WaitingReason::CreateContainerConfigError,
            StartError::Policies(_) | StartError::Create(_) => WaitingReason::CreateContainerError,
            StartError::Start(_) => WaitingReason::RunContainerError,
        }
    }
}

/// The runtime's request for a container could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnread,
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Name(#[from] NameTooLong),
    #[error(transparent)]
    Recursive(#[from] RecursiveError),
    #[error("image {image:?} of volume {volume:?} is not on the node any more")]
    ImageMissing { volume: String, image: String },
    #[error("volume {volume:?} of a volumeMount is not among the pod's volumes")]
    VolumeMissing { volume: String },
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    DeviceMissing { volume: String, container: String },
    #[error("error DevicePath `{0}` must be an absolute path")]
    RelativeDevice(String),
    #[error("missing value for {0}")]
    SubPathExpression(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    SubPathUp(String),
    #[error("error SubPath `{0}` must not be an absolute path")]
    AbsoluteSubPath(String),
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    #[error("unable to find target container {container}: it does not run")]
    TargetNotRunning { container: String },
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Users(#[from] UsersError),
    #[error(transparent)]
    Class(#[from] RuntimeClassError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A postStart or preStop hook did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("PostStartHook failed")]
    PostStart(#[source] ProbeError),
    #[error("PreStopHook failed")]
    PreStop(#[source] ProbeError),
}

impl HookError {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            HookError::PostStart(_) => "FailedPostStartHook",
            HookError::PreStop(_) => "FailedPreStopHook",
        }
    }
}

#[cfg(test)]
mod tests {
    use thiserror_ext::AsReport as _;

    use super::*;

    fn runtime() -> RuntimeError {
        cri::Error::Answered { call: "Call", kind: cri::Kind::Failed, message: "no such file".into() }.into()
    }

    #[test]
    fn every_failure_has_the_reason_and_message_of_upstream() {
        let class = RuntimeClassError::Missing { class: "gvisor".into() };
        let sandboxes = [
            (SandboxError::from(class), "FailedCreatePodSandBox", "Failed to create pod sandbox: RuntimeClass \"gvisor\" not found"),
            (SandboxError::Run(runtime()), "FailedCreatePodSandBox", "Failed to create pod sandbox: no such file"),
            (
                GroupError::Uid("a/b".into()).into(),
                "FailedCreatePodContainer",
                "unable to ensure pod container exists: the pod's UID \"a/b\" names no control group: it may have letters, digits and hyphens",
            ),
            (SandboxError::Stop(runtime()), "FailedKillPod", "error killing pod: no such file"),
        ];
        for (error, reason, message) in sandboxes {
            assert_eq!((error.reason(), error.to_report_string().as_str()), (reason, message));
        }
        let starts = [
            (StartError::InspectImage(runtime()), "ImageInspectError", "no such file"),
            (
                ConfigError::ServicesUnread.into(),
                "CreateContainerConfigError",
                "services have not yet been read at least once, cannot construct envvars",
            ),
            (StartError::Create(runtime()), "CreateContainerError", "no such file"),
            (StartError::Start(runtime()), "RunContainerError", "no such file"),
        ];
        for (error, reason, message) in starts {
            assert_eq!((error.reason().to_string().as_str(), error.to_report_string().as_str()), (reason, message));
        }
    }
}
