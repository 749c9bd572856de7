//! The parts of an OCI image configuration that a runtime needs (`image-spec/config.md`).

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};

use super::platform::Platform;

/// An image's configuration document.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Operating system, processor and Windows version.
    #[serde(flatten)]
    pub platform: Platform,
    /// How to run it.
    #[serde(default, deserialize_with = "or_default")]
    pub config: RunConfig,
    /// The layers' uncompressed digests, lowest first.
    #[serde(default)]
    pub rootfs: RootFs,
}

/// The layers of an image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RootFs {
    /// `sha256:…` of each uncompressed layer.
    #[serde(default, deserialize_with = "or_default")]
    pub diff_ids: Vec<String>,
}

/// How a container of the image runs, unless the pod says otherwise. Docker writes `null` for what is not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// `UID[:GID]` or a name.
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// `NAME=value`.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// Program and first arguments.
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// Further arguments.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// Where the program starts.
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    /// `SIGTERM`, `15`, …
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: String,
    /// Windows: the entrypoint is one command line already.
    #[serde(deserialize_with = "or_default")]
    pub args_escaped: bool,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: IndexMap<String, String>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
