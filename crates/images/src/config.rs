//! OCI image configuration: the parts that a runtime needs (`image-spec/config.md`).

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
    /// How it came about.
    #[serde(default, deserialize_with = "or_default")]
    pub history: Vec<Step>,
}

/// One step of an image's making.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// The command.
    #[serde(deserialize_with = "or_default")]
    pub created_by: String,
    /// Whether it made no layer.
    #[serde(deserialize_with = "or_default")]
    pub empty_layer: bool,
}

impl ImageConfig {
    /// Whether the layer of this number is one of Windows itself, by the history that Microsoft's bases have.
    pub fn is_base_layer(&self, number: usize) -> bool {
        let step = self.history.iter().filter(|step| !step.empty_layer).nth(number);
        self.platform.os == "windows"
            && step.is_some_and(|step| ["Apply image ", "Install update "].iter().any(|words| step.created_by.starts_with(words)))
    }
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
    #[serde(deserialize_with = "or_default")]
    pub labels: IndexMap<String, String>,
}

pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
