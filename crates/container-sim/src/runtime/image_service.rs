//! CRI's image service.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use anyhow::anyhow;
use cri::info::PULL_PROGRESS;
use k8s_cri::v1;
use serde_json::json;
use tonic::Status;

use super::Runtime;
use super::isolation::Isolation;
use crate::shim::now;
use images::registry::{Credentials, FetchOptions, Progress, RegistryError};
use images::stand_in::LABEL;
use images::tarball::Limits;
use images::{Image, ImageError, PullOptions};

/// Annotation on CRI's `ImageSpec` with the image's `os.version`.
const OS_VERSION: &str = "mullion.io/os.version";

/// Pulls under way, by name: number of requests, and progress.
pub(super) type Pulls = HashMap<String, (usize, Option<Progress>)>;

/// A pull under way; removed from the table with the value.
struct Pull<'a> {
    runtime: &'a Runtime,
    name: &'a str,
}

impl<'a> Pull<'a> {
    fn begin(runtime: &'a Runtime, name: &'a str) -> Self {
        runtime.pulls().entry(name.to_owned()).or_default().0 += 1;
        Self { runtime, name }
    }

    fn is_at(&self, progress: Progress) {
        if let Some((_, known)) = self.runtime.pulls().get_mut(self.name) {
            *known = Some(progress);
        }
    }
}

impl Drop for Pull<'_> {
    fn drop(&mut self) {
        let mut pulls = self.runtime.pulls();
        if let Some((askers, _)) = pulls.get_mut(self.name) {
            *askers -= 1;
            if *askers == 0 {
                pulls.remove(self.name);
            }
        }
    }
}

impl Runtime {
    fn pulls(&self) -> MutexGuard<'_, Pulls> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn image(&self, image: &Image) -> v1::Image {
        let user = image.config.user.split(':').next().unwrap_or_default();
        let uid = user.parse().ok().map(|value| v1::Int64Value { value });
        let mut annotations = HashMap::new();
        annotations.extend(image.platform.os_version.clone().map(|version| (OS_VERSION.to_owned(), version)));
        annotations.extend(image.stand_in_name().map(|name| (LABEL.to_owned(), name.to_owned())));
        let name = image.tags.first().or(image.digests.first()).unwrap_or(&image.id).clone();
        v1::Image {
            id: image.id.clone(),
            repo_tags: image.tags.clone(),
            repo_digests: image.digests.clone(),
            size: image.size,
            username: if uid.is_none() { user.to_owned() } else { String::new() },
            uid,
            spec: Some(v1::ImageSpec { image: name, annotations, ..Default::default() }),
            pinned: image.stand_in == Some(images::stand_in::StandIn::Pause),
        }
    }

    fn image_info(image: &Image) -> HashMap<String, String> {
        let info = json!({
            "os": image.platform.os,
            "architecture": image.platform.architecture,
            "os.version": image.platform.os_version,
            "standIn": image.stand_in_name().map(|name| format!("Mullion's stand-in {name:?} answers for this image")),
            "imageSpec": { "config": image.config },
        });
        let mut map = HashMap::from([("info".to_owned(), info.to_string())]);
        map.extend(image.platform.os_version.clone().map(|version| ("os.version".to_owned(), version)));
        map
    }

    pub(super) fn list_images(&self, filter: &v1::ImageFilter) -> Result<Vec<v1::Image>, Status> {
        let name = filter.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        let images = if name.is_empty() { self.store.list() } else { self.store.find(name).map(|found| found.into_iter().collect()) };
        Ok(images.map_err(status)?.iter().map(|image| self.image(image)).collect())
    }

    pub(super) fn image_status(&self, request: &v1::ImageStatusRequest) -> Result<v1::ImageStatusResponse, Status> {
        let name = request.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        let found = self.store.find(name).map_err(status)?;
        // A stand-in that was pulled before stand-ins were switched off is not the image.
        let found = found.filter(|image| self.config.stand_ins || image.stand_in_name().is_none());
        let mut info = found.as_ref().filter(|_| request.verbose).map(Self::image_info).unwrap_or_default();
        let pull = request.verbose.then(|| self.pulls().get(name).and_then(|(_, progress)| *progress)).flatten();
        info.extend(pull.map(|Progress { done, total }| (PULL_PROGRESS.to_owned(), format!("{done}/{total}"))));
        Ok(v1::ImageStatusResponse { image: found.map(|image| self.image(&image)), info })
    }

    pub(super) async fn pull_image(&self, request: v1::PullImageRequest) -> Result<String, Status> {
        let spec = request.image.unwrap_or_default();
        let name = spec.image.as_str();
        let sandbox = request.sandbox_config.unwrap_or_default();
        let os = self.config.os;
        let handler = if spec.runtime_handler.is_empty() { self.handler_of(&sandbox) } else { spec.runtime_handler };
        let isolation = Isolation::asked(os, &handler, &sandbox.annotations).map_err(Status::unknown)?;
        let credentials = credentials(request.auth.unwrap_or_default());
        let pull = Pull::begin(self, name);
        let fetch = FetchOptions {
            registries: &self.config.registries,
            credentials: &credentials,
            fit: &|platform| isolation.fit(os, platform),
            limits: Limits::default(),
            progress: &|progress| pull.is_at(progress),
        };
        let pulled = self.store.pull(name, &PullOptions { stand_ins: self.config.stand_ins, fetch }).await;
        let image = pulled.map_err(|error| match error {
            ImageError::NoMatch(no_match) => Status::not_found(format!("failed to pull and unpack image {name:?}: {no_match}")),
            other => self.refused(name, other),
        })?;
        tracing::info!(image = name, id = image.id, stand_in = image.stand_in_name(), "image is here");
        Ok(image.id)
    }

    /// The handler of the pod that an image is pulled for: kubelets name it at the pod's own making alone.
    fn handler_of(&self, config: &v1::PodSandboxConfig) -> String {
        let Some(uid) = config.metadata.as_ref().map(|metadata| metadata.uid.as_str()).filter(|uid| !uid.is_empty()) else { return String::new() };
        let state = self.state();
        let of_pod = state.sandboxes.values().map(|sandbox| &sandbox.record);
        let mut of_pod = of_pod.filter(|record| !record.stopped && record.config.metadata.as_ref().is_some_and(|metadata| metadata.uid == uid));
        of_pod.next().map(|record| record.runtime_handler.clone()).unwrap_or_default()
    }

    /// The registry's error, with the ways out on a simulated node.
    fn refused(&self, name: &str, error: ImageError) -> Status {
        let load = format!("load an archive with `mullion image load FILE --node {}`", self.config.node);
        let hint = match &error {
            ImageError::Pull { source: RegistryError::Unreachable { .. }, .. } => {
                format!("; pull it with this machine's own network by `mullion image pull {name}`, or {load}")
            }
            ImageError::Pull { source: RegistryError::NotFound(_), .. } => format!("; {load}"),
            _ => String::new(),
        };
        let status = status(error);
        Status::new(status.code(), format!("{}{hint}", status.message()))
    }

    pub(super) fn remove_image(&self, request: &v1::RemoveImageRequest) -> Result<(), Status> {
        let name = request.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        self.store.remove(name).map(|_| ()).map_err(status)
    }

    pub(super) fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, Status> {
        let usage = v1::FilesystemUsage {
            timestamp: now(),
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: self.store.layers_dir().to_string_lossy().into_owned() }),
            used_bytes: Some(v1::UInt64Value { value: self.store.used_bytes().map_err(status)? }),
            inodes_used: None,
        };
        Ok(v1::ImageFsInfoResponse { image_filesystems: vec![usage.clone()], container_filesystems: vec![usage] })
    }
}

/// Credentials of a CRI request.
fn credentials(auth: v1::AuthConfig) -> Credentials {
    if !auth.registry_token.is_empty() {
        return Credentials::Bearer(auth.registry_token);
    }
    if !auth.identity_token.is_empty() {
        return Credentials::Identity(auth.identity_token);
    }
    if !auth.username.is_empty() {
        return Credentials::Password { user: auth.username, password: auth.password };
    }
    Credentials::decode(&auth.auth).unwrap_or_default()
}

fn status(error: ImageError) -> Status {
    let code = match &error {
        ImageError::NoMatch(_) | ImageError::Pull { source: RegistryError::NotFound(_), .. } => tonic::Code::NotFound,
        ImageError::Reference(_) => tonic::Code::InvalidArgument,
        _ => tonic::Code::Unknown,
    };
    Status::new(code, format!("{:#}", anyhow!(error)))
}
