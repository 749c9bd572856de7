//! How images are pulled, and who may use them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::values::as_text;

/// The members of KubeletConfiguration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImagePulls {
    /// Whether images are pulled one by one.
    pub serialize_image_pulls: bool,
    /// Most images that are pulled at once, where they are not; 0 for no such bound.
    pub max_parallel_image_pulls: i32,
    /// Pulls that begin in a second on average; 0 for no such bound.
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    /// How many may begin at once after a pause.
    pub registry_burst: i32,
    /// Which images a pod must show that it may pull, though they are on the node.
    pub image_pull_credentials_verification_policy: VerificationPolicy,
    /// With `NeverVerifyAllowlistedImages`: names of images, or beginnings as `REGISTRY/*`, that every pod may use.
    pub preloaded_images_verification_allowlist: Vec<String>,
}

impl Default for ImagePulls {
    fn default() -> Self {
        Self {
            serialize_image_pulls: true,
            max_parallel_image_pulls: 0,
            registry_pull_qps: 5,
            registry_burst: 10,
            image_pull_credentials_verification_policy: VerificationPolicy::default(),
            preloaded_images_verification_allowlist: Vec::new(),
        }
    }
}

/// Which images a pod must show that it may pull, though they are on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    NeverVerify,
    /// Those that the agent did not pull are for every pod.
    #[default]
    NeverVerifyPreloadedImages,
    /// Those of `preloadedImagesVerificationAllowlist` are for every pod.
    NeverVerifyAllowlistedImages,
    AlwaysVerify,
}

/// A policy that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid configuration: option {0:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \
     \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
)]
pub struct UnknownPolicy(String);

impl VerificationPolicy {
    const ALL: [Self; 4] = [Self::NeverVerify, Self::NeverVerifyPreloadedImages, Self::NeverVerifyAllowlistedImages, Self::AlwaysVerify];
}

impl fmt::Display for VerificationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverVerify => "NeverVerify",
            Self::NeverVerifyPreloadedImages => "NeverVerifyPreloadedImages",
            Self::NeverVerifyAllowlistedImages => "NeverVerifyAllowlistedImages",
            Self::AlwaysVerify => "AlwaysVerify",
        })
    }
}

impl FromStr for VerificationPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.to_string() == text).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
as_text!(VerificationPolicy);
