//! Getting images: pull policy, credentials, the pulls themselves (upstream pkg/kubelet/images).
//!
//! Credentials of a pod's image are those of its pull secrets (`keyring`), then the node's (`node_keyring`), then those of credential
//! providers (`providers`); each is tried. With which an image came, and who may use it then, is in `records`, how many
//! are pulled at once in `pulls`.

pub(crate) mod keyring;
mod location;
pub(crate) mod node_keyring;
pub(crate) mod providers;
mod pulls;
pub(crate) mod records;

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};

use cri::v1;
use kube_rules::{Reference, ReferenceError};
use thiserror_ext::AsReport as _;

use crate::config::ImagePulls;
use crate::cri_config::ImageUse;
use crate::error::RuntimeError;
use crate::go_time::go_duration;
use crate::pod::WaitingReason;
use keyring::{Credential, SecretError};
use pulls::Turns;
use records::RecordError;

/// A pull that takes longer is followed by events about how far it is: after this time, and each time it has doubled.
const FIRST_PROGRESS: Duration = Duration::from_secs(5);

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("Failed to apply default image tag {image:?}")]
    InvalidName { image: String, source: ReferenceError },
    #[error("Failed to inspect image {image:?}")]
    Inspect { image: String, source: RuntimeError },
    #[error("Container image {image:?} is not present with pull policy of Never")]
    NeverPull { image: String },
    #[error("Failed to record image pull intent for container image {image:?}")]
    Record { image: String, source: RecordError },
    #[error("Failed to pull image {image:?}")]
    Secret { image: String, source: SecretError },
    #[error("Failed to pull image {image:?}")]
    Pull { image: String, source: Refusals },
}

/// What the runtime said to each credential that was tried.
#[derive(Debug)]
pub(crate) struct Refusals(Vec<RuntimeError>);

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(|error| error.to_report_string()).collect();
        f.write_str(&providers::config::aggregate(&texts))
    }
}

impl std::error::Error for Refusals {}

impl Refusals {
    /// Whether the runtime said each time that the pull has ended: one that was lost sight of may go on.
    pub(crate) fn are_answers(&self) -> bool {
        self.0.iter().all(RuntimeError::is_answer)
    }
}

/// How the runtime begins to say why a pull failed (upstream cri-api pkg/errors), the reason, and what upstream says then.
const TOLD: [(&str, WaitingReason, &str); 2] = [
    ("RegistryUnavailable", WaitingReason::RegistryUnavailable, "the registry is unavailable"),
    ("SignatureValidationFailed", WaitingReason::SignatureValidationFailed, "the signature validation failed"),
];

/// Reason and message of a failed pull (upstream `evalCRIPullErr`).
fn judge_pull(image: &str, text: String) -> (WaitingReason, String) {
    let told = TOLD.iter().find_map(|(begin, reason, why)| Some((reason, why, text.strip_prefix(begin)?)));
    match told {
        Some((reason, why, rest)) => (*reason, format!("image pull failed for {image} because {why}{rest}")),
        None => (WaitingReason::ErrImagePull, text),
    }
}

impl ImageError {
    /// The reason of the container's waiting state.
    pub(crate) fn reason(&self) -> WaitingReason {
        match self {
            ImageError::InvalidName { .. } => WaitingReason::InvalidImageName,
            ImageError::Inspect { .. } => WaitingReason::ImageInspectError,
            ImageError::NeverPull { .. } => WaitingReason::ErrImageNeverPull,
            ImageError::Pull { image, source } => judge_pull(image, source.to_string()).0,
            ImageError::Record { .. } | ImageError::Secret { .. } => WaitingReason::ErrImagePull,
        }
    }

    /// The message of the container's waiting state.
    pub(crate) fn message(&self) -> String {
        match self {
            // The reason says already that it was a pull, and of which image the status says beside it.
            ImageError::Pull { image, source } => judge_pull(image, source.to_string()).1,
            ImageError::Secret { source, .. } => source.to_report_string(),
            other => other.to_report_string(),
        }
    }

    pub(crate) fn event_reason(&self) -> &'static str {
        match self {
            ImageError::InvalidName { .. } | ImageError::Inspect { .. } => "InspectFailed",
            ImageError::NeverPull { .. } => "ErrImageNeverPull",
            ImageError::Record { .. } | ImageError::Secret { .. } | ImageError::Pull { .. } => "Failed",
        }
    }
}

/// An image made ready.
#[derive(Debug)]
pub(crate) struct Ready {
    pub reference: String,
    /// How long the pull itself took, and with waiting; None when it was present.
    pub pulled: Option<(Duration, Duration)>,
    pub size: u64,
    /// With what it was pulled.
    pub used: Option<Credential>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Always,
    IfNotPresent,
    Never,
}

impl Policy {
    /// In the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::Always => "always",
            Policy::IfNotPresent => "ifnotpresent",
            Policy::Never => "never",
        }
    }

    /// A container's policy; by default Always for `:latest` or no tag.
    pub(crate) fn of(policy: Option<&str>, image: &str) -> Policy {
        match policy {
            Some("Always") => Policy::Always,
            Some("Never") => Policy::Never,
            Some(_) => Policy::IfNotPresent,
            None => {
                let last = image.rsplit('/').next().unwrap_or(image);
                let latest = !last.contains('@') && last.split_once(':').is_none_or(|(_, t)| t == "latest");
                if latest { Policy::Always } else { Policy::IfNotPresent }
            }
        }
    }
}

/// The image side of the runtime.
pub(crate) struct Images {
    client: cri::Client,
    turns: Turns,
}

impl Images {
    pub(crate) fn new(client: cri::Client, pulls: ImagePulls) -> Self {
        Images { client, turns: Turns::new(pulls, Instant::now()) }
    }

    /// What the runtime knows of an image; None when it has none of that name.
    pub(crate) async fn status(&self, image: &str) -> Result<Option<v1::Image>, cri::Error> {
        let spec = v1::ImageSpec { image: image.to_owned(), ..Default::default() };
        let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
        Ok(self.client.image_status(request).await?.image)
    }

    /// The image as a container uses it.
    pub(crate) async fn usage(&self, image: &str, reference: &str) -> Result<ImageUse, cri::Error> {
        let found = self.status(reference).await?;
        let found = if found.is_some() { found } else { self.status(image).await? }.unwrap_or_default();
        Ok(ImageUse { reference: reference.to_owned(), uid: found.uid.map(|u| u.value), username: found.username })
    }

    /// Whether the policy is met without a pull: the reference, or None when it must be pulled.
    pub(crate) async fn present(&self, image: &str, policy: Policy) -> Result<Option<String>, ImageError> {
        let name = || image.to_owned();
        image.parse::<Reference>().map_err(|source| ImageError::InvalidName { image: name(), source })?;
        let found = self.status(image).await.map_err(|error| ImageError::Inspect { image: name(), source: error.into() })?;
        match (found, policy) {
            (Some(found), Policy::IfNotPresent | Policy::Never) => Ok(Some(found.id)),
            (None, Policy::Never) => Err(ImageError::NeverPull { image: name() }),
            _ => Ok(None),
        }
    }

    /// Pulls an image, trying each credential in turn. `tell` is called with the progress now and then.
    pub(crate) async fn pull(
        &self,
        image: &str,
        credentials: &[Credential],
        sandbox: v1::PodSandboxConfig,
        tell: impl Fn(String),
    ) -> Result<Ready, ImageError> {
        let asked = Instant::now();
        let _place = self.turns.next().await;
        let began = Instant::now();
        tokio::select! {
            result = self.pull_now(image, credentials, sandbox, asked) => result,
            never = self.follow_pull(image, began, tell) => match never {},
        }
    }

    /// Says how far a pull is, at growing distances, where the runtime knows it.
    async fn follow_pull(&self, image: &str, began: Instant, tell: impl Fn(String)) -> Infallible {
        let mut wait = FIRST_PROGRESS;
        loop {
            tokio::time::sleep(wait).await;
            wait = began.elapsed();
            let spec = v1::ImageSpec { image: image.to_owned(), ..Default::default() };
            let answer = self.client.image_status(v1::ImageStatusRequest { image: Some(spec), verbose: true }).await;
            let known = answer.ok().and_then(|mut answer| answer.info.remove(cri::info::PULL_PROGRESS));
            if let Some((done, total)) = known.as_deref().and_then(progress) {
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                let seconds = Duration::from_secs(began.elapsed().as_secs());
                tell(format!("Pulling image {image:?}: {:.1} of {:.1} MiB after {}", mib(done), mib(total), go_duration(seconds)));
            }
        }
    }

    async fn pull_now(&self, image: &str, credentials: &[Credential], sandbox: v1::PodSandboxConfig, asked: Instant) -> Result<Ready, ImageError> {
        let began = Instant::now();
        let mut refusals = Vec::new();
        let all: Vec<_> = if credentials.is_empty() { vec![None] } else { credentials.iter().map(Some).collect() };
        for credential in all {
            let auth = credential.map(|credential| v1::AuthConfig {
                username: credential.login.username.clone(),
                password: credential.login.password.clone(),
                ..Default::default()
            });
            let request = v1::PullImageRequest {
                image: Some(v1::ImageSpec { image: image.to_owned(), user_specified_image: image.to_owned(), ..Default::default() }),
                auth,
                sandbox_config: Some(sandbox.clone()),
            };
            match self.client.pull_image(request).await {
                Ok(reference) => {
                    let pulled = Some((began.elapsed(), asked.elapsed()));
                    let size = self.status(image).await.ok().flatten().map_or(0, |i| i.size);
                    return Ok(Ready { reference, pulled, size, used: credential.cloned() });
                }
                Err(error) => refusals.push(error.into()),
            }
        }
        Err(ImageError::Pull { image: image.to_owned(), source: Refusals(refusals) })
    }

    /// All images, for the Node.
    pub(crate) async fn list(&self) -> Result<Vec<v1::Image>, cri::Error> {
        self.client.list_images(v1::ListImagesRequest { filter: None }).await
    }
}

/// `DONE/TOTAL`, of something.
fn progress(text: &str) -> Option<(u64, u64)> {
    let (done, total) = text.split_once('/')?;
    Some((done.parse().ok()?, total.parse().ok()?)).filter(|(_, total)| *total > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        for (policy, image, want) in [
            (None, "a", Policy::Always),
            (None, "a:latest", Policy::Always),
            (None, "host:5000/a", Policy::Always),
            (None, "a:1", Policy::IfNotPresent),
            (None, "a@sha256:00", Policy::IfNotPresent),
            (Some("Never"), "a", Policy::Never),
            (Some("IfNotPresent"), "a", Policy::IfNotPresent),
        ] {
            assert_eq!(Policy::of(policy, image), want, "{policy:?} {image}");
        }
    }

    #[test]
    fn events_and_waiting_states_say_why_there_is_no_image() {
        let source = || cri::Error::Answered { call: "Call", kind: cri::Kind::Failed, message: "no such host".into() }.into();
        let other = cri::Error::Answered { call: "Call", kind: cri::Kind::Failed, message: "denied".into() };
        let image = || "reg.io/a".to_owned();
        let invalid = ImageError::InvalidName { image: "A".into(), source: "A".parse::<Reference>().unwrap_err() };
        assert!(invalid.message().starts_with("Failed to apply default image tag \"A\": "), "{}", invalid.message());
        for (error, waiting, event) in [
            (
                ImageError::Pull { image: image(), source: Refusals(vec![source()]) },
                ("ErrImagePull", "no such host"),
                ("Failed", "Failed to pull image \"reg.io/a\": no such host"),
            ),
            (
                ImageError::Pull { image: image(), source: Refusals(vec![source(), source(), other.into()]) },
                ("ErrImagePull", "[no such host, denied]"),
                ("Failed", "Failed to pull image \"reg.io/a\": [no such host, denied]"),
            ),
            (
                ImageError::Inspect { image: image(), source: source() },
                ("ImageInspectError", "Failed to inspect image \"reg.io/a\": no such host"),
                ("InspectFailed", "Failed to inspect image \"reg.io/a\": no such host"),
            ),
            (
                ImageError::NeverPull { image: image() },
                ("ErrImageNeverPull", "Container image \"reg.io/a\" is not present with pull policy of Never"),
                ("ErrImageNeverPull", "Container image \"reg.io/a\" is not present with pull policy of Never"),
            ),
        ] {
            assert_eq!((error.reason().to_string().as_str(), error.message().as_str()), waiting);
            assert_eq!((error.event_reason(), error.to_report_string().as_str()), event);
        }
    }

    #[test]
    fn what_the_runtime_says_of_a_failed_pull_is_its_reason() {
        let answered = |text: &str| cri::Error::Answered { call: "PullImage", kind: cri::Kind::Failed, message: text.into() }.into();
        for (texts, reason, message) in [
            (
                &["RegistryUnavailable: pinging reg.io: connection refused"][..],
                "RegistryUnavailable",
                "image pull failed for reg.io/a because the registry is unavailable: pinging reg.io: connection refused",
            ),
            (&["RegistryUnavailable"], "RegistryUnavailable", "image pull failed for reg.io/a because the registry is unavailable"),
            (
                &["SignatureValidationFailed: no signature exists", "SignatureValidationFailed: no signature exists"],
                "SignatureValidationFailed",
                "image pull failed for reg.io/a because the signature validation failed: no signature exists",
            ),
            (&["RegistryUnavailable: a", "denied"], "ErrImagePull", "[RegistryUnavailable: a, denied]"),
            (&["failed to resolve: RegistryUnavailable"], "ErrImagePull", "failed to resolve: RegistryUnavailable"),
        ] {
            let error = ImageError::Pull { image: "reg.io/a".into(), source: Refusals(texts.iter().map(|text| answered(text)).collect()) };
            assert_eq!((error.reason().to_string().as_str(), error.message().as_str()), (reason, message));
            assert!(error.reason().is_failed_pull() && error.event_reason() == "Failed", "{reason}");
            let raw = Refusals(texts.iter().map(|text| answered(text)).collect());
            assert_eq!(error.to_report_string(), format!("Failed to pull image \"reg.io/a\": {raw}"), "events have the runtime's words");
        }
    }

    #[test]
    fn progress_is_of_something() {
        let all = ["1048576/4194304", "0/1", "0/0", "1", "a/b", ""].map(progress);
        assert_eq!(all, [Some((1 << 20, 4 << 20)), Some((0, 1)), None, None, None, None]);
    }
}
