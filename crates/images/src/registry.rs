//! Pulls images from registries.
//!
//! A reference is resolved at its mirrors and then at the registry itself; the variant for the node is chosen; layers that
//! are not unpacked yet are fetched into `ingest/` of the cache, each checked against its digest and continued where an
//! earlier attempt ended; then they are unpacked like an archive's. Bases of Windows are never fetched.

mod client;
mod download;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};

pub use client::RegistryError;
pub use settings::{Credentials, Mirror, MirrorError, Registries};

use super::blob::{Checked, digest_of};
use super::config::ImageConfig;
use super::manifest::{Descriptor, ImageContents, Index, LayerBlob, MAX_DEPTH, MAX_DOCUMENT, Manifest, is_index_document, member_name};
use super::platform::{self, Fit, Platform};
use super::tarball::Limits;
use super::unpack::Source;
use super::windows::Unpacked;
use super::{Image, ImageError, Store, digests, insert, io_error};
use client::{Client, MANIFESTS};
use download::Blob;
use kube_rules::reference::{self, Reference};

/// How far a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are here.
    pub done: u64,
    /// Bytes to fetch.
    pub total: u64,
}

/// Options of [`Store::fetch`].
pub struct FetchOptions<'a> {
    /// How registries are reached.
    pub registries: &'a Registries,
    /// The credentials of the request.
    pub credentials: &'a Credentials,
    /// Which variants run.
    pub fit: Fit<'a>,
    /// Bounds of what is unpacked.
    pub limits: Limits,
    /// Called as bytes arrive.
    pub progress: &'a (dyn Fn(Progress) + Sync),
}

/// A manifest as a registry gave it.
struct Document {
    digest: String,
    media_type: String,
    bytes: Vec<u8>,
}

impl Store {
    /// Pulls an image from a registry, or finds that the one here is what the registry has.
    ///
    /// # Errors
    /// Worded as containerd words it.
    pub async fn fetch(&self, reference: &Reference, options: &FetchOptions<'_>) -> Result<Image, ImageError> {
        let unresolved = |source| ImageError::Pull { reference: reference.to_string(), stage: Stage::Resolve, source };
        let mut last = None;
        for endpoint in options.registries.endpoints(reference) {
            let mut client = Client::new(endpoint, reference.path(), options.credentials).map_err(unresolved)?;
            match resolve(&mut client, reference).await {
                Ok(document) => return self.take(&mut client, reference, document, options).await,
                // The registry's own answer counts, which comes last.
                Err(error) => last = Some(error),
            }
        }
        Err(unresolved(last.unwrap_or_else(|| RegistryError::NotFound(reference.to_string()))))
    }

    async fn take(&self, client: &mut Client, reference: &Reference, top: Document, options: &FetchOptions<'_>) -> Result<Image, ImageError> {
        let failed = |source| ImageError::Pull { reference: reference.to_string(), stage: Stage::Copy, source };
        let name = Reference { digest: None, ..reference.clone() };
        let (document, manifest, config) = self.variant(client, reference, &top, options.fit).await?;
        let layers = manifest.blobs(&config).map_err(|reason| failed(RegistryError::Content(reason.to_owned())))?;
        let found = ImageContents { names: vec![name.clone()], manifest: Some(document), id: manifest.config.digest.clone(), config, layers };
        let _in_use = self.in_use()?;
        let files = self.download(client, &found, options).await.map_err(|error| match error {
            Failure::Registry(source) => failed(source),
            Failure::Image(error) => error,
        })?;
        let (store, limits) = (self.clone(), options.limits);
        let unpacked = tokio::task::spawn_blocking(move || {
            let open = |blob: &LayerBlob| {
                let path = files.get(&blob.member).cloned().unwrap_or_default();
                let file = File::open(&path).map_err(io_error("open", &path))?;
                Checked::new(BufReader::with_capacity(128 * 1024, file), blob).map_err(|source| ImageError::damaged(&path, source))
            };
            let source = Source { size: &|blob| Ok(blob.size.unwrap_or(0)), open: &open };
            let result = store.unpack(&found, limits, &source);
            files.values().for_each(|path| drop(std::fs::remove_file(path)));
            result.map(|(layers, size)| (found, layers, size))
        });
        let (found, layers, size) = unpacked.await.map_err(|error| failed(RegistryError::Content(error.to_string())))??;
        let image = Image {
            tags: name.tag.is_some().then(|| name.to_string()).into_iter().collect(),
            digests: digests(std::slice::from_ref(&name), &top.digest).collect(),
            platform: found.config.platform.clone(),
            layers,
            size,
            config: found.config.config.clone(),
            stand_in: None,
            catalogue: false,
            pulled: true,
            id: found.id,
        };
        self.change(|index| insert(index, image.clone()))?;
        Ok(self.find(&image.id)?.unwrap_or(image))
    }

    /// The manifest and configuration of the variant for the node, behind any number of lists.
    async fn variant(
        &self,
        client: &mut Client,
        reference: &Reference,
        top: &Document,
        fit: Fit<'_>,
    ) -> Result<(String, Manifest, ImageConfig), ImageError> {
        let failed = |source| ImageError::Pull { reference: reference.to_string(), stage: Stage::Copy, source };
        let wrong = |what: &str, error: serde_json::Error| failed(RegistryError::Content(format!("{what} cannot be read: {error}")));
        let name = reference.to_string();
        let mut current = Document { digest: top.digest.clone(), media_type: top.media_type.clone(), bytes: top.bytes.clone() };
        let mut depth = 0;
        while is_index_document(&current.media_type, &current.bytes) {
            let index: Index = serde_json::from_slice(&current.bytes).map_err(|error| wrong(&current.digest, error))?;
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(failed(RegistryError::Content("manifest lists are nested too deeply".to_owned())));
            }
            let variants: Vec<(Descriptor, Platform)> = index
                .manifests
                .into_iter()
                .filter(|entry| !entry.is_attestation())
                .map(|entry| (entry.clone(), entry.platform.unwrap_or_default()))
                .collect();
            let (chosen, _) = platform::choose(&name, self.os(), &variants, |(_, platform)| platform, fit)?;
            let mut inner = manifest(client, reference, &chosen.digest).await.map_err(failed)?;
            if inner.media_type.is_empty() {
                inner.media_type.clone_from(&chosen.media_type);
            }
            current = inner;
        }
        let manifest: Manifest = serde_json::from_slice(&current.bytes).map_err(|error| wrong(&current.digest, error))?;
        let bytes = document(client, &manifest.config.digest).await.map_err(failed)?;
        let config: ImageConfig = serde_json::from_slice(&bytes).map_err(|error| wrong(&manifest.config.digest, error))?;
        platform::choose(&name, self.os(), std::slice::from_ref(&config.platform), |platform| platform, fit)?;
        Ok((current.digest, manifest, config))
    }

    /// Fetches the layers that are not unpacked yet.
    async fn download(&self, client: &mut Client, image: &ImageContents, options: &FetchOptions<'_>) -> Result<HashMap<String, PathBuf>, Failure> {
        let dir = self.cache.join("ingest");
        std::fs::create_dir_all(&dir).map_err(|error| Failure::Image(io_error("make directory", &dir)(error)))?;
        let missing = self.missing(image);
        let total: u64 = missing.iter().map(|blob| blob.size).sum();
        if total > options.limits.bytes {
            let limit = options.limits.bytes;
            return Err(Failure::Image(super::tarball::TarError::TooLarge { limit, unit: "bytes" }.into()));
        }
        let mut files = HashMap::new();
        let mut before = 0;
        for blob in missing {
            let progress = |done: u64| (options.progress)(Progress { done: before + done, total });
            let path = download::fetch(client, &blob, &dir, &progress).await?;
            before += blob.size;
            files.insert(member_name(&blob.digest), path);
        }
        (options.progress)(Progress { done: before, total });
        Ok(files)
    }

    fn missing(&self, image: &ImageContents) -> Vec<Blob> {
        let windows = image.config.platform.os == "windows";
        let mut below: Vec<String> = Vec::new();
        let mut missing: Vec<Blob> = Vec::new();
        for layer in &image.layers {
            match self.has(&below, layer, windows) {
                _ if layer.base => below.clear(),
                Some((_, Unpacked::Base)) => below.clear(),
                Some((id, Unpacked::Layer)) => below.push(id),
                None => {
                    below.push(super::unpack::id_of(&below, layer, windows));
                    let digest = layer.digest.clone().unwrap_or_default();
                    if missing.iter().all(|blob| blob.digest != digest) {
                        missing.push(Blob { digest, size: layer.size.unwrap_or(0) });
                    }
                }
            }
        }
        missing
    }
}

enum Failure {
    Registry(RegistryError),
    Image(ImageError),
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

/// The step of a pull, as containerd names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finding the manifest.
    Resolve,
    /// Fetching what it names.
    Copy,
}

impl Stage {
    pub(super) fn message(self, reference: &str) -> String {
        match self {
            Self::Resolve => format!("failed to resolve reference \"{reference}\""),
            Self::Copy => "failed to copy".to_owned(),
        }
    }
}

async fn resolve(client: &mut Client, reference: &Reference) -> Result<Document, RegistryError> {
    let version = reference.digest.as_deref().or(reference.tag.as_deref()).unwrap_or("latest");
    // HEAD first, as containerd does: registries count GETs.
    let path = format!("manifests/{version}");
    let head = client.ask(Method::HEAD, &path, &[MANIFESTS]).await?;
    match head.status() {
        StatusCode::OK | StatusCode::METHOD_NOT_ALLOWED => manifest(client, reference, version).await,
        status => Err(client.refuse(Method::HEAD, &path, status, &reference.to_string())),
    }
}

async fn manifest(client: &mut Client, reference: &Reference, version: &str) -> Result<Document, RegistryError> {
    let path = format!("manifests/{version}");
    let response = client.ask(Method::GET, &path, &[MANIFESTS]).await?;
    if response.status() != StatusCode::OK {
        return Err(client.refuse(Method::GET, &path, response.status(), &reference.to_string()));
    }
    let media_type = media_type(response.headers());
    let bytes = limited(response, version).await?;
    let digest = digest_of(&bytes);
    if version.contains(':') && version != digest {
        return Err(RegistryError::Content(format!("manifest {version} has digest {digest}: the registry or the way to it changes content")));
    }
    Ok(Document { digest, media_type, bytes })
}

fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_owned()
}

async fn document(client: &mut Client, digest: &str) -> Result<Vec<u8>, RegistryError> {
    if !reference::is_digest(digest) {
        return Err(RegistryError::Content(format!("{digest:?} is not a sha256 digest")));
    }
    let path = format!("blobs/{digest}");
    let response = client.ask(Method::GET, &path, &[]).await?;
    if response.status() != StatusCode::OK {
        return Err(client.refuse(Method::GET, &path, response.status(), digest));
    }
    let bytes = limited(response, digest).await?;
    let actual = digest_of(&bytes);
    if actual != digest {
        return Err(RegistryError::Content(format!("configuration {digest} has digest {actual}: the registry or the way to it changes content")));
    }
    Ok(bytes)
}

async fn limited(response: http::Response<hyper::body::Incoming>, what: &str) -> Result<Vec<u8>, RegistryError> {
    let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
    let body = Limited::new(response.into_body(), limit).collect().await;
    Ok(body.map_err(|error| RegistryError::Content(format!("cannot read {what} (at most {limit} bytes): {error}")))?.to_bytes().into())
}
