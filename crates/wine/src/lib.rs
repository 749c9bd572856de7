//! Windows programs on Linux: Wine, the Windows template that all containers share, accounts and command lines.
//!
//! A container's drive C is an overlay: its own files over the image's layers, over the registry of the node's build,
//! over the template. container-sim's shim mounts it and starts programs in it.

#![cfg(target_os = "linux")]

mod account;
pub mod command;
mod find;
mod modules;
pub mod needs;
pub mod pe;
mod registry;
pub mod template;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use template::STAMP;

pub use account::{Account, AccountError};
pub use find::{is_brought, unfit};
pub use modules::copies;

/// Directory of a prefix, and of a layer of an image, that is drive C.
pub const DRIVE: &str = "drive_c";

/// Where Wine's loader and server may be. Debian has no `wine64` on the path that could be started without a shell.
const LOADERS: &[(&str, &str)] = &[
    ("/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64"),
    ("/usr/bin/wine64", "/usr/bin/wineserver"),
    ("/opt/wine-stable/bin/wine64", "/opt/wine-stable/bin/wineserver"),
];

/// Wine on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Loader {
    /// The program loader.
    pub wine: &'static str,
    /// `wineserver` of the same version.
    pub server: &'static str,
}

impl Loader {
    /// The first that is installed.
    pub fn find() -> Option<Self> {
        let installed = |path: &str| Path::new(path).is_file();
        LOADERS.iter().find(|(wine, server)| installed(wine) && installed(server)).map(|(wine, server)| Self { wine, server })
    }
}

/// Applies what layers (lowest first) bring for the registry to files that the first argument reads by name; returns the files that changed.
pub type Compose<'a> = &'a dyn Fn(&dyn Fn(&str) -> std::io::Result<String>, &[PathBuf]) -> std::io::Result<Vec<(&'static str, String)>>;

/// What a container's prefix is made of.
pub struct Prefix<'a> {
    /// The Windows template.
    pub template: PathBuf,
    /// Identifiers and directories of unpacked layers, lowest first.
    pub layers: Vec<(&'a str, PathBuf)>,
    /// The Windows build that programs find.
    pub build: u32,
    /// The user that programs run as.
    pub account: Account,
}

/// The directories of a prefix, highest first. Makes the one with the registry below `cache_dir` when it is missing.
///
/// # Errors
/// When the registry cannot be made.
pub fn lowers(cache_dir: &Path, prefix: Prefix<'_>, compose: Compose<'_>) -> Result<Vec<PathBuf>> {
    let Prefix { template, layers, build, account } = prefix;
    let (ids, layers): (Vec<&str>, Vec<PathBuf>) = layers.into_iter().unzip();
    let registry = cache_dir.join("registries").join(registry::name(&template.join(STAMP), build, &ids, account)?);
    if !registry.is_dir() {
        let made = compose(&|file| std::fs::read_to_string(template.join(file)), &layers).map_err(anyhow::Error::from);
        let made = made.and_then(|changed| registry::make(&registry, &template, build, changed, account));
        made.with_context(|| format!("cannot make the registry of build {build}"))?;
    }
    let mut lowers: Vec<PathBuf> = layers.into_iter().rev().collect();
    lowers.extend([registry, template]);
    Ok(lowers)
}

/// The directory of a prefix that is drive C.
pub fn drive(prefix: &Path) -> PathBuf {
    prefix.join(DRIVE)
}
