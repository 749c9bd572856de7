//! Getting the image of a container, beside the worker's other work.

use cluster::EventType;
use cri::v1;
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};
use thiserror_ext::AsReport as _;

use super::site::Site;
use crate::go_time::go_duration;
use crate::images::{self, ImageError, Policy, Ready};
use crate::pod::{Failed, WaitingReason};
use crate::sources::{Fetched, Kind};

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
    let pulled = match site.agent.images.present(image, Policy::of(policy, image)).await {
        Ok(Some(reference)) => {
            site.event(name, EventType::Normal, "Pulled", format!("Container image {image:?} already present on machine"));
            return Ok(reference);
        }
        Ok(None) => pull(site, container, image, sandbox.clone()).await,
        Err(error) => Err(error),
    };
    match pulled {
        Ok(ready) => {
            if let Some((own, whole)) = ready.pulled {
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

async fn pull(site: &Site, container: &str, image: &str, sandbox: v1::PodSandboxConfig) -> Result<Ready, ImageError> {
    let name = Some(container);
    site.event(name, EventType::Normal, "Pulling", format!("Pulling image {image:?}"));
    let auth = credentials(site, image).await;
    let say = |message| site.event(name, EventType::Normal, "Pulling", message);
    site.agent.images.pull(image, auth, sandbox, say).await
}

async fn credentials(site: &Site, image: &str) -> Vec<v1::AuthConfig> {
    let names = site.pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    let wanted: Vec<_> = names.map(|r| (Kind::Secret, r.name.clone())).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    // A missing pull secret is no error: the image may be public, or another secret serve it.
    let (mut fetched, mut lost) = (Fetched::new(), Vec::new());
    for (kind, name) in wanted {
        match site.fetch(vec![(kind, name.clone())]).await {
            Ok(found) if found.values().all(Option::is_some) => fetched.extend(found),
            _ => lost.push(name),
        }
    }
    if !lost.is_empty() {
        let message = format!("Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.", lost.join(", "));
        site.event(None, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    let items: Vec<_> = fetched.values().flatten().map(|d| &d.items).collect();
    images::credentials(image, &items)
}

/// The events of a pull that waits.
pub(super) fn back_off(site: &Site, container: &str, of_volume: Option<String>) {
    let image = of_volume.or_else(|| crate::pod::spec_of(&site.pod, container)?.image).unwrap_or_default();
    site.event(Some(container), EventType::Normal, "BackOff", format!("Back-off pulling image {image:?}"));
    site.event(Some(container), EventType::Warning, "Failed", format!("Error: {}", WaitingReason::ImagePullBackOff));
}
