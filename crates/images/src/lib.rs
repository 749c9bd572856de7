//! Image store of a node: layers in a cache shared by all clusters, references in the node's own directory.
//!
//! [`Store`] works from any process: the command line loads an archive while the runtime runs. Both lock the node's
//! index (`index.json`, replaced as a whole) and read it afresh at every call, so neither has to notify the other.
//!
//! Cache: `layers/DIFFID/` holds an unpacked layer, made in a temporary directory and renamed into place when its
//! digests held. Nothing else counts as complete.

#![cfg(target_os = "linux")]

pub mod archive;
pub mod blob;
pub mod config;
mod gc;
pub mod layer;
pub mod manifest;
pub mod platform;
pub mod registry;
pub mod stand_in;
pub mod tarball;
#[cfg(test)]
mod tests;
mod unpack;
pub mod windows;
mod zstd;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use kube_rules::{NodeOs, Reference, ReferenceError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use thiserror_ext::AsReport as _;

use archive::Archive;
use blob::digest_of;
use config::RunConfig;
use manifest::{ImageContents, LayerBlob};
use platform::{Fit, NoMatch, Platform};
use registry::{FetchOptions, Progress, RegistryError};
use stand_in::StandIn;
use tarball::{Limits, TarError};
use unpack::Source;

/// Why an image operation failed.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The name.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// No variant for this node.
    #[error(transparent)]
    NoMatch(#[from] NoMatch),
    /// The archive's form.
    #[error("{archive:?} is not an image archive that can be loaded: {reason}")]
    NotAnImage {
        archive: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Hostile, damaged or too large.
    #[error(transparent)]
    Tar(#[from] TarError),
    #[error("cannot unpack layer {diff_id}")]
    Layer {
        diff_id: String,
        #[source]
        source: layer::LayerError,
    },
    /// Windows layers fit over Wine's files, which are missing.
    #[error("cannot unpack a layer of a Windows image")]
    Template(#[from] wine::template::Missing),
    /// Content is not what its name says.
    #[error("{what} has digest {actual}, expected {expected}: the archive is damaged or was tampered with")]
    Digest {
        what: String,
        /// As named.
        expected: String,
        /// As found.
        actual: String,
    },
    /// Compressed data ends early or is wrong.
    #[error("{archive:?} is damaged or truncated")]
    Damaged {
        archive: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A registry. Worded as containerd does.
    #[error("failed to pull and unpack image \"{reference}\": {}", .stage.message(reference))]
    Pull {
        /// The full name.
        reference: String,
        /// What was being done.
        stage: registry::Stage,
        /// Why it failed.
        #[source]
        source: RegistryError,
    },
    #[error("cannot {operation} {path:?}")]
    Io {
        /// What was tried.
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    fn damaged(archive: &Path, source: io::Error) -> Self {
        Self::Damaged { archive: archive.to_owned(), source }
    }
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Io { operation, path, source }
}

/// An image that a node has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Image {
    /// Digest of its configuration.
    pub id: String,
    /// Full names with tags.
    pub tags: Vec<String>,
    /// Full names with digests.
    pub digests: Vec<String>,
    /// What it is made for.
    pub platform: Platform,
    /// Uncompressed digests of its layers, lowest first.
    pub layers: Vec<String>,
    /// Bytes of its layers as they were loaded.
    pub size: u64,
    /// How to run it.
    pub config: RunConfig,
    /// The program of ours that answers for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<StandIn>,
    /// Whether it was made here from the catalogue of stand-ins, not loaded or pulled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub catalogue: bool,
    /// Whether a registry has it, and so may have a newer one by now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pulled: bool,
}

impl Image {
    /// The program of ours that answers in a container whose pod names this command: it stands for the image's own
    /// program, not for another. (On Linux there is nothing else to run in such an image.)
    pub fn stand_in_for(&self, command: &[String]) -> Option<StandIn> {
        self.stand_in.filter(|_| self.platform.os != "windows" || command.is_empty())
    }

    /// What answers instead of the image's own files, for labels: a program of ours, or Wine.
    pub fn stand_in_name(&self) -> Option<&'static str> {
        match self.stand_in {
            Some(stand_in) => Some(stand_in.program()),
            None => self.catalogue.then_some(stand_in::WINE),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    format: u32,
    images: Vec<Image>,
}

/// Version of `index.json`.
const FORMAT: u32 = 1;

/// Options of [`Store::load`].
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Name for an archive that has none, or instead of its own; only for archives with one image.
    pub name: Option<String>,
    /// Bounds; the default has room for the largest images known.
    pub limits: Limits,
    /// Also variants for older Windows builds, which run with Hyper-V isolation.
    pub hypervisor: bool,
}

/// Options of [`Store::pull`].
pub struct PullOptions<'a> {
    /// Whether stand-ins may answer for images that need a real Windows.
    pub stand_ins: bool,
    /// How to ask registries.
    pub fetch: FetchOptions<'a>,
}

/// The images of one node.
#[derive(Clone, Debug)]
pub struct Store {
    state: PathBuf,
    cache: PathBuf,
    template: PathBuf,
    os: NodeOs,
}

impl Store {
    /// The store of a node of kind `os` with its index in `state`, over the layer cache `cache`. Makes both directories.
    /// Wine's template is `wine-template` beside the cache.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn open(state: &Path, cache: &Path, os: NodeOs) -> Result<Self, ImageError> {
        use std::os::unix::fs::DirBuilderExt;
        for dir in [state, cache, &cache.join("layers"), &cache.join("users")] {
            // Layers may hold set-uid files: no other user may run them.
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("make directory", dir))?;
        }
        let template = cache.with_file_name(wine::template::NAME);
        let store = Self { state: state.to_owned(), cache: cache.to_owned(), template, os };
        store.register()?;
        Ok(store)
    }

    /// The kind of node.
    pub fn os(&self) -> NodeOs {
        self.os
    }

    /// Where the unpacked layers are.
    pub fn layers_dir(&self) -> PathBuf {
        self.cache.join("layers")
    }

    /// Name of a layer's directory in [`Store::layers_dir`]: short, since many of them go into one line of mount options.
    pub fn layer_name(diff_id: &str) -> &str {
        let hex = diff_id.strip_prefix("sha256:").unwrap_or(diff_id);
        hex.get(..32).unwrap_or(hex)
    }

    /// Loads the archive's images that fit the node; returns what was loaded.
    ///
    /// # Errors
    /// When the archive is refused or holds nothing for this node. Then the index is unchanged.
    pub fn load(&self, archive: &Path, options: &LoadOptions) -> Result<Vec<Image>, ImageError> {
        self.load_with(archive, options, &|_| {})
    }

    /// As [`Store::load`], with progress in bytes of layers as they lie in the archive.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn load_with(&self, archive: &Path, options: &LoadOptions, progress: &dyn Fn(Progress)) -> Result<Vec<Image>, ImageError> {
        let opened = Archive::open(archive, &self.cache, options.limits)?;
        let mut found = opened.images()?;
        if let Some(name) = &options.name {
            let name: Reference = name.parse()?;
            found.iter_mut().for_each(|image| image.names = vec![name.clone()]);
        }
        let chosen = self.choose(archive, &found, options.hypervisor)?;
        let blobs = chosen.iter().flat_map(|image| &image.layers).filter(|blob| !blob.base);
        let (total, done) = (blobs.map(|blob| opened.size(blob)).sum(), std::cell::Cell::new(0));
        // Reported when the next layer begins: those before are unpacked.
        let size = |blob: &LayerBlob| {
            progress(Progress { done: done.get(), total });
            done.set(done.get() + opened.size(blob));
            opened.verify(blob)
        };
        let source = Source { size: &size, open: &|blob| opened.layer(blob) };
        let _in_use = self.in_use()?;
        let mut images = Vec::new();
        for image in chosen {
            let (layers, size) = self.unpack(image, options.limits, &source)?;
            images.push(Image {
                id: image.id.clone(),
                tags: image.names.iter().filter(|name| name.tag.is_some()).map(Reference::to_string).collect(),
                digests: image.manifest.iter().flat_map(|digest| digests(&image.names, digest)).collect(),
                platform: image.config.platform.clone(),
                layers,
                size,
                config: image.config.config.clone(),
                stand_in: None,
                catalogue: false,
                pulled: false,
            });
        }
        self.change(|index| images.iter().for_each(|image| insert(index, image.clone())))?;
        Ok(images)
    }

    /// One variant per set of names; those without names stand for themselves.
    fn choose<'a>(&self, archive: &Path, found: &'a [ImageContents], hypervisor: bool) -> Result<Vec<&'a ImageContents>, ImageError> {
        let mut groups: Vec<Vec<&ImageContents>> = Vec::new();
        for image in found {
            match groups.iter_mut().find(|group| group[0].names == image.names) {
                Some(group) => group.push(image),
                None => groups.push(vec![image]),
            }
        }
        if groups.is_empty() {
            return Err(ImageError::NotAnImage { archive: archive.to_owned(), reason: "it lists no image".to_owned() });
        }
        let fit = |platform: &Platform| if hypervisor { platform.fit_hypervisor(self.os) } else { platform.fit(self.os) };
        let mut chosen = Vec::new();
        let mut refused = None;
        for group in &groups {
            let name = group[0].names.first().map_or_else(|| archive.display().to_string(), Reference::to_string);
            match platform::choose(&name, self.os, group, |image| &image.config.platform, &fit) {
                Ok(image) => chosen.push(*image),
                Err(no_match) => refused = Some(no_match),
            }
        }
        match refused {
            Some(no_match) if chosen.is_empty() => Err(no_match.into()),
            _ => Ok(chosen),
        }
    }

    /// Every image of the node.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        Ok(self.read()?.images)
    }

    /// The image meant by a name, an id, or the beginning of an id.
    ///
    /// # Errors
    /// When the index cannot be read. A name that cannot be parsed is not found.
    pub fn find(&self, name: &str) -> Result<Option<Image>, ImageError> {
        Ok(find(&self.read()?.images, name).cloned())
    }

    /// Removes the image that a name, a digest or an id means, with all its names, and the layers that nothing else uses.
    /// Returns whether there was one.
    ///
    /// # Errors
    /// When the index cannot be read or written.
    pub fn remove(&self, name: &str) -> Result<bool, ImageError> {
        let removed = self.change(|index| {
            let Some(id) = find(&index.images, name).map(|image| image.id.clone()) else { return false };
            index.images.retain(|image| image.id != id);
            true
        })?;
        if removed {
            // The image is gone whether or not its layers could be removed.
            match self.collect_garbage() {
                Ok(count) => tracing::debug!(count, "removed layers"),
                Err(error) => tracing::warn!(error = %error.as_report(), "cannot remove unused layers"),
            }
        }
        Ok(removed)
    }

    /// Gives an image one more name, which any other image loses. Returns the image, if there is one.
    ///
    /// # Errors
    /// When the name is wrong, or the index cannot be read or written.
    pub fn tag(&self, name: &str, new: &str) -> Result<Option<Image>, ImageError> {
        let new: Reference = new.parse()?;
        if new.digest.is_some() {
            return Err(ReferenceError::digest(&new.to_string()).into());
        }
        self.change(|index| {
            let mut image = find(&index.images, name)?.clone();
            image.tags.push(new.to_string());
            image.tags.dedup();
            let manifest = image.digests.first().and_then(|digest| digest.split_once('@')).map(|(_, digest)| digest.to_owned());
            let digest = manifest.map(|manifest| format!("{}@{manifest}", new.repository));
            image.digests.extend(digest.filter(|digest| !image.digests.contains(digest)));
            insert(index, image.clone());
            Some(image)
        })
    }

    /// Takes a tag from an image that has others too; false when it has not.
    ///
    /// # Errors
    /// When the index cannot be read or written.
    pub fn untag(&self, name: &str) -> Result<bool, ImageError> {
        let Some(tag) = name.parse::<Reference>().ok().filter(|reference| reference.digest.is_none()) else { return Ok(false) };
        self.change(|index| {
            let image = index.images.iter_mut().find(|image| image.tags.len() > 1 && image.tags.contains(&tag.to_string()));
            image.map(|image| image.tags.retain(|other| *other != tag.to_string())).is_some()
        })
    }

    /// Pulls an image for `PullImage`. An image that was loaded, or a stand-in, is current while it runs here; a pulled one is
    /// while its registry has no other, or cannot be reached. Then come stand-ins, where they are allowed, and registries.
    ///
    /// # Errors
    /// Worded as containerd words it.
    pub async fn pull(&self, name: &str, options: &PullOptions<'_>) -> Result<Image, ImageError> {
        let reference: Reference = name.parse()?;
        let here = self.find(name)?.filter(|image| options.stand_ins || image.stand_in_name().is_none());
        let here = here.filter(|image| (options.fetch.fit)(&image.platform).is_some());
        if let Some(image) = here.as_ref().filter(|image| !image.pulled || reference.digest.is_some()) {
            return Ok(image.clone());
        }
        if let Some(image) = options.stand_ins.then(|| self.stand_in(&reference, options.fetch.fit)).transpose()?.flatten() {
            return Ok(image);
        }
        match (self.fetch(&reference, &options.fetch).await, here) {
            (Err(ImageError::Pull { source: RegistryError::Unreachable { reason, .. }, .. }), Some(image)) => {
                tracing::info!(image = name, reason, "the registry cannot be asked, the image that is here is used");
                Ok(image)
            }
            (result, _) => result,
        }
    }

    /// Makes the image of a stand-in, if there is one.
    fn stand_in(&self, reference: &Reference, fit: Fit<'_>) -> Result<Option<Image>, ImageError> {
        let Some(offer) = stand_in::offer(reference) else { return Ok(None) };
        let platform = platform::choose(&reference.to_string(), self.os, &offer.platforms, |platform| platform, fit)?;
        let config = stand_in::config(reference, offer.program, platform);
        let document = serde_json::to_vec(&config).unwrap_or_default();
        let id = digest_of(&document);
        let tag = reference.tag.is_some().then(|| Reference { digest: None, ..reference.clone() }.to_string());
        let image = Image {
            digests: digests(std::slice::from_ref(reference), &id).collect(),
            tags: tag.into_iter().collect(),
            platform: platform.clone(),
            layers: Vec::new(),
            size: document.len() as u64,
            config: config.config,
            stand_in: offer.program,
            catalogue: true,
            pulled: false,
            id,
        };
        self.change(|index| insert(index, image.clone()))?;
        Ok(Some(image))
    }

    /// Bytes of the images that this node refers to, layers counted once.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub fn used_bytes(&self) -> Result<u64, ImageError> {
        let mut seen = HashSet::new();
        let images = self.list()?;
        Ok(images.iter().filter(|image| seen.insert(image.layers.clone())).map(|image| image.size).sum())
    }

    fn index_path(&self) -> PathBuf {
        self.state.join("index.json")
    }

    fn read(&self) -> Result<Index, ImageError> {
        let path = self.index_path();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Index { format: FORMAT, images: Vec::new() }),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| io_error("read", &path)(error.into()))?;
        if index.format > FORMAT {
            let newer = io::Error::new(io::ErrorKind::Unsupported, format!("format {} is newer than this program knows", index.format));
            return Err(io_error("read", &path)(newer));
        }
        Ok(index)
    }

    /// Reads, changes and replaces the index under the node's lock.
    fn change<T>(&self, change: impl FnOnce(&mut Index) -> T) -> Result<T, ImageError> {
        let lock = self.state.join("index.lock");
        let file = File::options().create(true).truncate(false).write(true).open(&lock).map_err(io_error("open", &lock))?;
        file.lock().map_err(io_error("lock", &lock))?;
        let mut index = self.read()?;
        let result = change(&mut index);
        let path = self.index_path();
        let bytes = serde_json::to_vec_pretty(&index).map_err(|error| io_error("write", &path)(error.into()))?;
        atomic_file::Options::new().mode(0o600).write(&path, &bytes).map_err(io_error("write", &path))?;
        Ok(result)
    }
}

/// Adds an image; other images lose its names. An image that loses its last name stays, known by its id.
fn insert(index: &mut Index, mut image: Image) {
    for other in &mut index.images {
        other.tags.retain(|tag| !image.tags.contains(tag));
        if other.id == image.id {
            image.tags.extend(std::mem::take(&mut other.tags));
            let missing: Vec<String> = other.digests.iter().filter(|digest| !image.digests.contains(digest)).cloned().collect();
            image.digests.extend(missing);
        }
    }
    index.images.retain(|other| other.id != image.id);
    index.images.push(image);
}

fn digests<'a>(names: &'a [Reference], digest: &'a str) -> impl Iterator<Item = String> + 'a {
    let mut repositories: Vec<&str> = names.iter().map(|name| name.repository.as_str()).collect();
    repositories.dedup();
    repositories.into_iter().map(move |repository| format!("{repository}@{digest}"))
}

fn find<'a>(images: &'a [Image], name: &str) -> Option<&'a Image> {
    let hex = name.strip_prefix("sha256:").unwrap_or(name);
    if hex.len() >= 12 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        let by_id = images.iter().find(|image| image.id.trim_start_matches("sha256:").starts_with(hex));
        if by_id.is_some() {
            return by_id;
        }
    }
    let reference: Reference = name.parse().ok()?;
    images.iter().find(|image| match &reference.digest {
        Some(digest) => image.id == *digest || image.digests.contains(&format!("{}@{digest}", reference.repository)),
        None => image.tags.contains(&reference.to_string()),
    })
}
