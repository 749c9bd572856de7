//! Unpacks an image's layers into the cache, each once.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::blob::{Checked, digest_of};
use super::manifest::{ImageContents, LayerBlob};
use super::tarball::Limits;
use super::windows::{self, Unpacked};
use super::{ImageError, Store, io_error, layer};

/// A layer on its way out of where it comes from.
type Opened = Checked<Box<dyn Read>>;

/// Where an image's layers come from.
pub(super) struct Source<'a> {
    /// Bytes of the layer as it is stored, checked.
    pub size: &'a dyn Fn(&LayerBlob) -> Result<u64, ImageError>,
    pub open: &'a dyn Fn(&LayerBlob) -> Result<Opened, ImageError>,
}

/// Held while layers are unpacked and not yet in an index, so that they are not collected as garbage.
pub(super) struct InUse(#[expect(dead_code, reason = "closing it gives the lock back")] File);

impl Store {
    /// Keeps the garbage collection of every store of the cache from running.
    pub(super) fn in_use(&self) -> Result<InUse, ImageError> {
        let (path, file) = self.cache_lock()?;
        file.lock_shared().map_err(io_error("lock", &path))?;
        Ok(InUse(file))
    }

    pub(super) fn cache_lock(&self) -> Result<(PathBuf, File), ImageError> {
        let path = self.cache.join("layers.lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io_error("open", &path))?;
        Ok((path, file))
    }

    /// Unpacks what is missing; returns the layers' ids lowest first, and their bytes as stored.
    pub(super) fn unpack(&self, image: &ImageContents, limits: Limits, source: &Source<'_>) -> Result<(Vec<String>, u64), ImageError> {
        let windows = image.config.platform.os == "windows";
        let mut ids: Vec<String> = Vec::new();
        let mut bytes = 0;
        for blob in &image.layers {
            if blob.base {
                ids.clear();
                continue;
            }
            bytes += (source.size)(blob)?;
            let id = id_of(&ids, blob, windows);
            let unpacked =
                if windows { self.unpack_windows(&id, &ids, blob, limits, source)? } else { self.unpack_linux(&id, blob, limits, source)? };
            match unpacked {
                Unpacked::Layer => ids.push(id),
                Unpacked::Base => ids.clear(),
            }
        }
        Ok((ids, bytes))
    }

    fn unpack_linux(&self, id: &str, blob: &LayerBlob, limits: Limits, source: &Source<'_>) -> Result<Unpacked, ImageError> {
        self.fill(id, |target| {
            let mut reader = (source.open)(blob)?;
            layer::unpack(&mut reader, target, limits).map_err(|source| ImageError::Layer { diff_id: blob.diff_id.clone(), source })?;
            reader.finish(limits.bytes).map(|()| Unpacked::Layer)
        })
    }

    fn unpack_windows(&self, id: &str, below: &[String], blob: &LayerBlob, limits: Limits, source: &Source<'_>) -> Result<Unpacked, ImageError> {
        if self.base_mark(id).exists() {
            return Ok(Unpacked::Base);
        }
        if !self.template.join(windows::DRIVE).is_dir() {
            return Err(wine::template::absent(&self.template).into());
        }
        let mut lowers: Vec<PathBuf> = below.iter().rev().map(|id| self.layer_dir(id)).collect();
        lowers.push(self.template.clone());
        self.fill(id, |target| {
            let mut reader = (source.open)(blob)?;
            let unpacked = windows::unpack(&mut reader, target, &lowers, limits)
                .map_err(|source| ImageError::Layer { diff_id: blob.diff_id.clone(), source })?;
            // What is left of a base is not read: it is not used.
            if unpacked == Unpacked::Layer {
                reader.finish(limits.bytes)?;
            }
            Ok(unpacked)
        })
    }

    /// Where an unpacked layer is.
    pub fn layer_dir(&self, id: &str) -> PathBuf {
        self.layers_dir().join(Self::layer_name(id))
    }

    /// The file that says that a layer is a base, and so not unpacked.
    fn base_mark(&self, id: &str) -> PathBuf {
        self.layers_dir().join(format!("{}.base", Self::layer_name(id)))
    }

    /// Whether a layer need not be fetched, over those that are known to be below it.
    pub(super) fn has(&self, below: &[String], blob: &LayerBlob, windows: bool) -> Option<(String, Unpacked)> {
        let id = id_of(below, blob, windows);
        if self.layer_dir(&id).is_dir() {
            return Some((id, Unpacked::Layer));
        }
        (windows && self.base_mark(&id).exists()).then_some((id, Unpacked::Base))
    }

    /// Makes a directory of the cache by filling one beside it: what has its name is complete.
    pub(super) fn fill(&self, id: &str, fill: impl FnOnce(&Path) -> Result<Unpacked, ImageError>) -> Result<Unpacked, ImageError> {
        let target = self.layer_dir(id);
        if target.is_dir() {
            return Ok(Unpacked::Layer);
        }
        let layers = self.layers_dir();
        let scratch = tempfile::Builder::new().prefix(".unpacking-").tempdir_in(&layers).map_err(io_error("make a directory in", &layers))?;
        let inner = scratch.path().join("layer");
        std::fs::create_dir(&inner).map_err(io_error("make directory", &inner))?;
        if fill(&inner)? == Unpacked::Base {
            let mark = self.base_mark(id);
            return File::create(&mark).map(|_| Unpacked::Base).map_err(io_error("write", &mark));
        }
        match std::fs::rename(&inner, &target) {
            Ok(()) => Ok(Unpacked::Layer),
            Err(_) if target.is_dir() => Ok(Unpacked::Layer), // another process was faster
            Err(error) => Err(io_error("rename a layer to", &target)(error)),
        }
    }
}

/// The id of a layer over others.
pub(super) fn id_of(below: &[String], blob: &LayerBlob, windows: bool) -> String {
    if windows { chained(below, &blob.diff_id) } else { blob.diff_id.clone() }
}

/// The id of a Windows layer: how it is unpacked depends on those below.
fn chained(below: &[String], diff_id: &str) -> String {
    digest_of(format!("windows {} {diff_id}", below.last().map_or("", String::as_str)).as_bytes())
}
