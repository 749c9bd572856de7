//! `imagePullCredentialsVerificationPolicy`

use std::fmt;
use std::str::FromStr;

use crate::values::as_text;

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
