//! Getting the image of a container, beside the worker's other work.

use std::sync::Arc;
use std::time::Instant;

use cluster::EventType;
use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};
use kube_rules::Reference;
use thiserror_ext::AsReport as _;
use tokio::sync::OnceCell;

use super::site::Site;
use crate::go_time::go_duration;
use crate::images::keyring::{self, Coordinates, Credential, PullSecret};
use crate::images::records::decide::Verdict;
use crate::images::{ImageError, Policy, Ready};
use crate::pod::{Failed, WaitingReason};
use crate::sources::{Data, Kind};

/// The images that a container mounts, by the volume's name.
pub(super) fn volumes_of<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let mounted = |name: &str| container.volume_mounts.iter().flatten().any(|m| m.name == name);
    let all = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    all.filter_map(|v| Some((v.name.as_str(), v.image.as_ref()?))).filter(move |(name, _)| mounted(name))
}

/// Finds or pulls the image of `container` and those that it mounts, and says so in events. Returns the reference of its own.
pub(super) async fn ensure(site: &Site, container: &Container, sandbox: v1::PodSandboxConfig) -> Result<String, Failed> {
    let name = container.name.as_str();
    let own = container.image.clone().unwrap_or_default();
    let reference = ensure_one(site, name, &own, container.image_pull_policy.as_deref(), &sandbox).await?;
    for (_, source) in volumes_of(&site.pod, container) {
        let image = source.reference.clone().unwrap_or_default();
        let ensured = ensure_one(site, name, &image, source.pull_policy.as_deref(), &sandbox).await;
        ensured.map_err(|failed| Failed { image: Some(image), ..failed })?;
    }
    Ok(reference)
}

async fn ensure_one(site: &Site, container: &str, image: &str, policy: Option<&str>, sandbox: &v1::PodSandboxConfig) -> Result<String, Failed> {
    let name = Some(container);
    let policy = Policy::of(policy, image);
    let (records, lookup) = (&site.agent.records, Lookup { site, image, found: OnceCell::new() });
    let counted = |present, pull| records.count_request(policy.name(), present, pull);
    records.adopt(&site.agent.cri).await;
    let present = site.agent.images.present(image, policy).await;
    let is_present = match (&present, policy) {
        (Ok(_), Policy::Always) | (Err(_), _) => None,
        (Ok(found), _) => Some(found.is_some()),
    };
    let allowed = match present {
        Ok(Some(reference)) => may_use(&lookup, &reference).await.map(|may| may.then_some(reference)),
        Ok(None) => Ok(None),
        Err(error) => {
            counted(is_present, None);
            Err(error)
        }
    };
    let pulled = match allowed {
        Ok(Some(reference)) => {
            counted(is_present, Some(false));
            let message = format!("Container image {image:?} already present on machine and can be accessed by the pod");
            site.event(name, EventType::Normal, "Pulled", message);
            return Ok(reference);
        }
        // Whoever may not pull an image is not told that it is there.
        Ok(None) if policy == Policy::Never => {
            counted(is_present, Some(true));
            Err(ImageError::NeverPull { image: image.to_owned() })
        }
        Ok(None) => {
            counted(is_present, Some(true));
            pull(&lookup, container, sandbox.clone()).await
        }
        Err(error) => Err(error),
    };
    match pulled {
        Ok(ready) => {
            if let Some((own, whole)) = ready.pulled {
                site.agent.timings.pulled(ready.size, whole);
                let message = format!(
                    "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                    go_duration(own),
                    go_duration(whole),
                    ready.size
                );
                site.event(name, EventType::Normal, "Pulled", message);
            }
            Ok(ready.reference)
        }
        Err(error) => {
            site.event(name, EventType::Warning, error.event_reason(), error.to_report_string());
            site.event(name, EventType::Warning, "Failed", format!("Error: {}", error.reason()));
            Err(Failed { reason: error.reason(), message: error.message(), image: None })
        }
    }
}

/// Whether the pod may use an image that is there, with whose credentials it was pulled.
async fn may_use(lookup: &Lookup<'_>, reference: &str) -> Result<bool, ImageError> {
    let (records, image) = (&lookup.site.agent.records, lookup.image);
    match records.check(image, reference) {
        Verdict::Allowed(_) => Ok(true),
        Verdict::Pull => Ok(false),
        Verdict::Like(recorded) => match lookup.credentials().await {
            Ok(credentials) => Ok(records.compare(image, reference, &recorded, credentials)),
            Err(error) => {
                records.check_failed();
                Err(error)
            }
        },
    }
}

async fn pull(lookup: &Lookup<'_>, container: &str, sandbox: v1::PodSandboxConfig) -> Result<Ready, ImageError> {
    let (site, image, name) = (lookup.site, lookup.image, Some(container));
    let credentials = lookup.credentials().await?;
    let intent = site.agent.records.intend(image).map_err(|source| ImageError::Record { image: image.to_owned(), source })?;
    site.event(name, EventType::Normal, "Pulling", format!("Pulling image {image:?}"));
    let say = |message| site.event(name, EventType::Normal, "Pulling", message);
    let began = Timestamp::now();
    let pulled = site.agent.images.pull(image, credentials, sandbox, say).await;
    if pulled.is_ok() {
        site.pulls.note(began, Timestamp::now());
    }
    match &pulled {
        Ok(ready) => intent.pulled(&ready.reference, ready.used.as_ref()),
        Err(ImageError::Pull { source, .. }) if !source.are_answers() => drop(intent),
        Err(_) => intent.failed(),
    }
    pulled
}

/// The credentials that a pod has for an image, which are looked up once, and only where they are needed.
struct Lookup<'a> {
    site: &'a Site,
    image: &'a str,
    found: OnceCell<Vec<Credential>>,
}

impl Lookup<'_> {
    async fn credentials(&self) -> Result<&[Credential], ImageError> {
        Ok(self.found.get_or_try_init(|| self.look_up()).await?)
    }

    /// Those of the pod's secrets, then the node's, then those of providers.
    async fn look_up(&self) -> Result<Vec<Credential>, ImageError> {
        let (site, image) = (self.site, || self.image.to_owned());
        let reference = self.image.parse::<Reference>().map_err(|source| ImageError::InvalidName { image: image(), source })?;
        let repository = &reference.repository;
        let secrets = pull_secrets(site).await;
        let namespace = site.pod.metadata.namespace.clone().unwrap_or_default();
        let secrets: Vec<_> = secrets
            .iter()
            .map(|(name, data)| PullSecret {
                coordinates: Coordinates { uid: data.uid.clone(), namespace: namespace.clone(), name: name.clone() },
                type_: &data.type_,
                items: &data.items,
            })
            .collect();
        let of_secrets = keyring::of_secrets(&secrets).map_err(|source| ImageError::Secret { image: image(), source })?;
        let mut found = of_secrets.lookup(repository);
        found.extend(site.agent.node_keyring.lookup(repository, Instant::now()));
        found.extend(site.agent.providers.lookup(repository, &site.pod).await);
        Ok(found)
    }
}

/// The pod's pull secrets, in its order.
async fn pull_secrets(site: &Site) -> Vec<(String, Arc<Data>)> {
    let names = site.pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    // A missing pull secret is no error: the image may be public, or another secret serve it.
    let (mut found, mut lost) = (Vec::new(), Vec::new());
    for name in names.map(|reference| reference.name.clone()).filter(|name| !name.is_empty()) {
        match site.fetch(vec![(Kind::Secret, name.clone())]).await.map(|mut all| all.remove(&(Kind::Secret, name.clone()))) {
            Ok(Some(Some(data))) => found.push((name, data)),
            _ => lost.push(name),
        }
    }
    if !lost.is_empty() {
        let message = format!("Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.", lost.join(", "));
        site.event(None, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}

/// The events of a pull that waits.
pub(super) fn back_off(site: &Site, container: &str, of_volume: Option<String>) {
    let image = of_volume.or_else(|| crate::pod::spec_of(&site.pod, container)?.image).unwrap_or_default();
    site.event(Some(container), EventType::Normal, "BackOff", format!("Back-off pulling image {image:?}"));
    site.event(Some(container), EventType::Warning, "Failed", format!("Error: {}", WaitingReason::ImagePullBackOff));
}
