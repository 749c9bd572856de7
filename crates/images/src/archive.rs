//! Image archives, as written by `docker save`, `buildah push oci-archive:`, `skopeo` and `docker buildx -o type=oci`.
//!
//! The archive is indexed once; members are then read where they lie. Every blob is checked against the digest that
//! names it before anything in it is used.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::blob::{Checked, Compression, Hashing, check, digest_of};
use super::config::ImageConfig;
use super::manifest::{Descriptor, ImageContents, Index, LayerBlob, MAX_DEPTH, MAX_DOCUMENT, Manifest, member_name};
use super::tarball::{self, Kind, Limits, TarError};
use super::{ImageError, io_error};
use kube_rules::reference::{Reference, is_digest};

/// Members with a meaning of their own.
const DOCUMENTS: &[&str] = &["index.json", "manifest.json", "oci-layout"];

/// An archive opened for reading.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    file: File,
    members: HashMap<String, (u64, u64)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Archive {
    /// Opens and indexes an archive. A compressed one is unpacked into a temporary file in `scratch` first.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or is larger than `limits`.
    pub fn open(path: &Path, scratch: &Path, limits: Limits) -> Result<Self, ImageError> {
        let mut file = File::open(path).map_err(io_error("open", path))?;
        let compressed = Compression::sniff(&mut file).map_err(io_error("read", path))?;
        if compressed != Compression::None {
            let mut plain = tempfile::tempfile_in(scratch).map_err(io_error("make a temporary file in", scratch))?;
            let mut reader = compressed.reader(file).map_err(io_error("read", path))?.take(limits.bytes + 1);
            let size = io::copy(&mut reader, &mut plain).map_err(|source| ImageError::damaged(path, source))?;
            if size > limits.bytes {
                return Err(TarError::TooLarge { limit: limits.bytes, unit: "bytes" }.into());
            }
            plain.flush().map_err(io_error("write", scratch))?;
            file = plain;
        }
        let mut archive = Self { path: path.to_owned(), file, members: HashMap::new() };
        archive.index(limits)?;
        Ok(archive)
    }

    fn index(&mut self, limits: Limits) -> Result<(), ImageError> {
        let mut reader = self.file.try_clone().map_err(io_error("open", &self.path))?;
        reader.seek(SeekFrom::Start(0)).map_err(io_error("read", &self.path))?;
        let mut links = Vec::new();
        let mut twice = None;
        let members = &mut self.members;
        let mut is_tar = false;
        let walked = tarball::each_seek(BufReader::with_capacity(64 * 1024, reader), limits, |member, _| {
            is_tar = true;
            let name = member.path.to_string_lossy().into_owned();
            match (member.kind, member.link) {
                // Readers would disagree about which one is meant.
                (Kind::File, _) if members.contains_key(&name) && DOCUMENTS.contains(&name.as_str()) => twice = Some(name),
                (Kind::File, _) => {
                    members.insert(name, (member.offset, member.size));
                }
                // Old docker versions save a layer that occurs twice as a link to the first.
                (Kind::Symlink | Kind::HardLink, Some(link)) => links.push((member.path, member.kind, link)),
                _ => {}
            }
            Ok::<(), ImageError>(())
        });
        match walked {
            Err(ImageError::Tar(TarError::Damaged(_))) if !is_tar => {
                return Err(self.wrong("it is no tar archive, plain or compressed by gzip or zstd"));
            }
            Err(ImageError::Tar(TarError::Damaged(source))) => return Err(ImageError::damaged(&self.path, source)),
            other => other?,
        }
        if let Some(name) = twice {
            return Err(self.wrong(&format!("it has {name} twice")));
        }
        for (path, kind, link) in links {
            let target = if kind == Kind::Symlink { lexical(path.parent().unwrap_or(Path::new("")), &link) } else { Some(link) };
            let place = target.and_then(|target| self.members.get(target.to_string_lossy().as_ref()).copied());
            if let Some(place) = place {
                self.members.insert(path.to_string_lossy().into_owned(), place);
            }
        }
        Ok(())
    }

    /// All images of the archive, whatever their platform.
    ///
    /// # Errors
    /// When the archive is of neither known form, or a document in it is missing, wrong or does not match its digest.
    pub fn images(&self) -> Result<Vec<ImageContents>, ImageError> {
        let saved: Option<Vec<Saved>> = self.members.contains_key("manifest.json").then(|| self.document("manifest.json")).transpose()?;
        if !self.members.contains_key("index.json") {
            let Some(saved) = saved else {
                let reason = "it has neither index.json (OCI layout) nor manifest.json (docker save)".to_owned();
                return Err(ImageError::NotAnImage { archive: self.path.clone(), reason });
            };
            return saved.iter().map(|image| self.saved(image)).collect();
        }
        let index: Index = self.document("index.json")?;
        let mut found = Vec::new();
        for descriptor in &index.manifests {
            self.follow(descriptor, &names_of(&descriptor.annotations), 0, &mut found)?;
        }
        for image in &mut found {
            let hex = image.id.trim_start_matches("sha256:");
            let twin = saved.iter().flatten().find(|saved| saved.config.contains(hex));
            if let (true, Some(twin)) = (image.names.is_empty(), twin) {
                image.names = parse_names(twin.repo_tags.iter().flatten());
            }
        }
        Ok(found)
    }

    fn follow(&self, descriptor: &Descriptor, names: &[Reference], depth: u32, found: &mut Vec<ImageContents>) -> Result<(), ImageError> {
        if depth > MAX_DEPTH {
            return Err(self.wrong("manifest lists are nested too deeply"));
        }
        if descriptor.is_attestation() {
            return Ok(());
        }
        let bytes = self.blob(&descriptor.digest)?;
        if descriptor.is_index() {
            let index: Index = self.parse(&descriptor.digest, &bytes)?;
            return index.manifests.iter().try_for_each(|inner| self.follow(inner, names, depth + 1, found));
        }
        let manifest: Manifest = self.parse(&descriptor.digest, &bytes)?;
        let config: ImageConfig = self.parse(&manifest.config.digest, &self.blob(&manifest.config.digest)?)?;
        let layers = manifest.blobs(&config).map_err(|reason| self.wrong(reason))?;
        if let Some(missing) = layers.iter().find(|layer| !layer.base && !self.members.contains_key(&layer.member)) {
            let digest = missing.digest.clone().unwrap_or_default();
            return Err(self.wrong(&format!("it refers to {digest}, which it does not contain")));
        }
        let manifest_digest = Some(descriptor.digest.clone());
        found.push(ImageContents { names: names.to_vec(), manifest: manifest_digest, id: manifest.config.digest, config, layers });
        Ok(())
    }

    fn saved(&self, image: &Saved) -> Result<ImageContents, ImageError> {
        let bytes = self.bytes(&image.config)?;
        let config: ImageConfig = self.parse(&image.config, &bytes)?;
        let id = digest_of(&bytes);
        // docker names the document by its digest; skopeo and podman do the same.
        let named = Path::new(&image.config).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if named.len() == 64 && format!("sha256:{named}") != id {
            return Err(ImageError::Digest { what: image.config.clone(), expected: format!("sha256:{named}"), actual: id });
        }
        let diff_ids = &config.rootfs.diff_ids;
        if diff_ids.len() != image.layers.len() || !diff_ids.iter().all(|id| is_digest(id)) {
            return Err(self.wrong("the configuration's rootfs.diff_ids do not match the layers in manifest.json"));
        }
        let layers = image.layers.iter().zip(diff_ids);
        let layers = layers.enumerate().map(|(number, (member, diff_id))| LayerBlob {
            member: member.clone(),
            digest: None,
            size: None,
            diff_id: diff_id.clone(),
            base: config.is_base_layer(number),
        });
        let layers = layers.collect();
        Ok(ImageContents { names: parse_names(image.repo_tags.iter().flatten()), manifest: None, id, config, layers })
    }

    /// The layer uncompressed, as a stream; [`Checked::finish`] checks the digests.
    ///
    /// # Errors
    /// When the archive does not hold the layer.
    pub fn layer(&self, layer: &LayerBlob) -> Result<Checked<Box<dyn Read>>, ImageError> {
        let blob = self.reader(&layer.member)?;
        Checked::new(blob, layer).map_err(|source| ImageError::damaged(&self.path, source))
    }

    /// Bytes of a layer as it lies here; none if it does not.
    pub(super) fn size(&self, layer: &LayerBlob) -> u64 {
        self.members.get(&layer.member).map_or(0, |(_, size)| *size)
    }

    /// Checks a layer's member against the digest of its descriptor.
    ///
    /// # Errors
    /// [`ImageError::Digest`], or when it cannot be read.
    pub fn verify(&self, layer: &LayerBlob) -> Result<u64, ImageError> {
        let stored = self.members.get(&layer.member).map(|(_, size)| *size);
        if let (Some(stated), Some(stored)) = (layer.size, stored)
            && stated != stored
        {
            return Err(self.wrong(&format!("{} has {stored} bytes, its manifest says {stated}", layer.member)));
        }
        let mut hashing = Hashing::new(self.reader(&layer.member)?);
        let size = io::copy(&mut hashing, &mut io::sink()).map_err(|source| ImageError::damaged(&self.path, source))?;
        match &layer.digest {
            Some(expected) => check(&layer.member, expected, hashing.digest()).map(|()| size),
            None => Ok(size),
        }
    }

    fn member_of(&self, digest: &str) -> Result<String, ImageError> {
        if !is_digest(digest) {
            return Err(self.wrong(&format!("{digest:?} is not a sha256 digest")));
        }
        let member = member_name(digest);
        if !self.members.contains_key(&member) {
            return Err(self.wrong(&format!("it refers to {digest}, which it does not contain")));
        }
        Ok(member)
    }

    fn blob(&self, digest: &str) -> Result<Vec<u8>, ImageError> {
        let bytes = self.bytes(&self.member_of(digest)?)?;
        check("blob", digest, digest_of(&bytes))?;
        Ok(bytes)
    }

    fn document<T: for<'de> Deserialize<'de>>(&self, member: &str) -> Result<T, ImageError> {
        self.parse(member, &self.bytes(member)?)
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self, what: &str, bytes: &[u8]) -> Result<T, ImageError> {
        serde_json::from_slice(bytes).map_err(|error| self.wrong(&format!("{what} cannot be read: {error}")))
    }

    fn bytes(&self, member: &str) -> Result<Vec<u8>, ImageError> {
        if self.members.get(member).is_some_and(|(_, size)| *size > MAX_DOCUMENT) {
            return Err(self.wrong(&format!("{member} is larger than {MAX_DOCUMENT} bytes")));
        }
        let mut bytes = Vec::new();
        self.reader(member)?.read_to_end(&mut bytes).map_err(|source| ImageError::damaged(&self.path, source))?;
        Ok(bytes)
    }

    fn reader(&self, member: &str) -> Result<impl BufRead + use<>, ImageError> {
        let Some((offset, size)) = self.members.get(member).copied() else {
            return Err(self.wrong(&format!("it has no {member}")));
        };
        let file = self.file.try_clone().map_err(io_error("open", &self.path))?;
        Ok(BufReader::with_capacity(128 * 1024, Slice { file, offset, left: size }))
    }

    fn wrong(&self, reason: &str) -> ImageError {
        ImageError::NotAnImage { archive: self.path.clone(), reason: reason.to_owned() }
    }
}

/// A part of a file, read by position: clones of the file share one cursor.
struct Slice {
    file: File,
    offset: u64,
    left: u64,
}

impl Read for Slice {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let count = self.file.read_at(&mut buffer[..want], self.offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Names from the annotations of an index entry: containerd's carries the whole name, OCI's often only a tag.
fn names_of(annotations: &HashMap<String, String>) -> Vec<Reference> {
    let full = annotations.get("io.containerd.image.name");
    let short = annotations.get("org.opencontainers.image.ref.name").filter(|name| name.contains([':', '/']));
    parse_names(full.or(short))
}

fn parse_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<Reference> {
    names.into_iter().filter_map(|name| name.parse().ok()).collect()
}

/// Joins a link's target without leaving the archive's root.
fn lexical(base: &Path, link: &Path) -> Option<PathBuf> {
    let mut out = base.to_owned();
    for part in link.components() {
        match part {
            std::path::Component::ParentDir if !out.pop() => return None,
            std::path::Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    Some(out)
}
