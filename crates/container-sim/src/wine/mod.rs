//! Windows programs: what runs them (Wine, and a template of a Windows that all containers share) and how they are named.
//!
//! A container's drive C is an overlay: its own files over the image's layers, over the registry of the node's build,
//! over the template. How it is mounted and started is the shim's part (`shim::wine`); here is what comes before.

mod account;
pub mod command;
mod find;
mod modules;
pub mod pe;
mod registry;
pub mod template;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::images::Image;
use crate::images::Store;
use crate::images::windows::{self, DRIVE};
use template::STAMP;

pub(crate) use account::Account;
pub(crate) use find::unfit;
pub(crate) use modules::copies;

/// Where Wine's loader and server may be. Debian has no `wine64` on the path that could be started without a shell.
const LOADERS: &[(&str, &str)] = &[
    ("/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64"),
    ("/usr/bin/wine64", "/usr/bin/wineserver"),
    ("/opt/wine-stable/bin/wine64", "/opt/wine-stable/bin/wineserver"),
];

/// Wine on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loader {
    pub wine: &'static str,
    pub server: &'static str,
}

impl Loader {
    /// The first that is installed.
    pub(crate) fn find() -> Option<Self> {
        let installed = |path: &str| Path::new(path).is_file();
        LOADERS.iter().find(|(wine, server)| installed(wine) && installed(server)).map(|(wine, server)| Self { wine, server })
    }
}

/// The directories of which a container's prefix is made, highest first. Makes the one with the registry when it is missing.
pub(crate) fn lowers(store: &Store, cache_dir: &Path, template: PathBuf, image: &Image, build: u32, account: Account) -> Result<Vec<PathBuf>> {
    // Lowest first, as the image has them.
    let layers: Vec<PathBuf> = image.layers.iter().map(|id| store.layer_dir(id)).collect();
    let name = registry::name(&template.join(STAMP), build, &image.layers, account)?;
    let registry = cache_dir.join("registries").join(name);
    if !registry.is_dir() {
        registry::make(&registry, &template, build, &layers, account).with_context(|| format!("cannot make the registry of build {build}"))?;
    }
    let mut lowers: Vec<PathBuf> = layers.into_iter().rev().collect();
    lowers.extend([registry, template]);
    Ok(lowers)
}

/// The directory of a prefix that is drive C.
pub(crate) fn drive(prefix: &Path) -> PathBuf {
    prefix.join(DRIVE)
}

fn compose(template: &Path, layers: &[PathBuf]) -> std::io::Result<Vec<(&'static str, String)>> {
    windows::compose(&|file| std::fs::read_to_string(template.join(file)), layers)
}
