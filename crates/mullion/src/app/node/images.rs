//! What the configuration of a node says of images.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use node_config::KubeletConfiguration;
use node_config::kubelet::VerificationPolicy;
use node_config::node::Complete;

use super::is_simulated;

/// Checks all of it.
pub(super) fn check(config: &Complete) -> Result<()> {
    collection(&config.config.kubelet)?;
    pulls(&config.config.kubelet)?;
    credentials(config).map(drop)
}

/// When images are removed.
pub(super) fn collection(kubelet: &KubeletConfiguration) -> Result<kubelet::ImageCollection> {
    let (high_percent, low_percent) = (kubelet.image_gc_high_threshold_percent, kubelet.image_gc_low_threshold_percent);
    if high_percent > 100 || low_percent >= high_percent {
        bail!(
            "imageGCLowThresholdPercent is {low_percent} and imageGCHighThresholdPercent {high_percent}: \
             the low one must be below the high one, and that at most 100"
        );
    }
    let (min_age, max_age) = (kubelet.image_minimum_gc_age.0, kubelet.image_maximum_gc_age.0);
    if !max_age.is_zero() && max_age <= min_age {
        bail!("invalid configuration: imageMaximumGCAge {max_age:?} must be greater than imageMinimumGCAge {min_age:?}");
    }
    Ok(kubelet::ImageCollection { high_percent, low_percent, min_age, max_age, ..kubelet::ImageCollection::default() })
}

/// How many images are pulled at once, and how many in a while.
pub(super) fn pulls(kubelet: &KubeletConfiguration) -> Result<kubelet::ImagePulls> {
    let not_negative = |member: &str, flag: &str, value: i32| {
        u32::try_from(value).with_context(|| format!("invalid configuration: {member} ({flag}) {value} must not be a negative number"))
    };
    let burst = not_negative("registryBurst", "--registry-burst", kubelet.image_pulls.registry_burst)?;
    let per_second = not_negative("registryPullQPS", "--registry-qps", kubelet.image_pulls.registry_pull_qps)?;
    let most = kubelet.image_pulls.max_parallel_image_pulls;
    let most = usize::try_from(most).with_context(|| format!("invalid configuration: maxParallelImagePulls {most} must be a positive number"))?;
    let most = NonZeroUsize::new(most);
    let one_by_one = kubelet.image_pulls.serialize_image_pulls;
    if one_by_one && most.is_some_and(|most| most.get() > 1) {
        bail!(
            "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false"
        );
    }
    Ok(kubelet::ImagePulls { at_once: if one_by_one { Some(NonZeroUsize::MIN) } else { most }, per_second, burst })
}

/// With which credentials images are pulled, and who may use those that are there.
pub(super) fn credentials(config: &Complete) -> Result<kubelet::ImageCredentials> {
    let (node, kubelet) = (&config.config.node, &config.config.kubelet);
    let recorded = kubelet.has_feature("KubeletEnsureSecretPulledImages");
    let (policy, list) =
        (kubelet.image_pulls.image_pull_credentials_verification_policy, &kubelet.image_pulls.preloaded_images_verification_allowlist);
    if !list.is_empty() && policy != VerificationPolicy::NeverVerifyAllowlistedImages {
        bail!(
            "invalid configuration: can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVerificationPolicy` is not \
             \"NeverVerifyAllowlistedImages\""
        );
    }
    for (member, is_given) in [
        ("imagePullCredentialsVerificationPolicy", policy != VerificationPolicy::default()),
        ("preloadedImagesVerificationAllowlist", !list.is_empty()),
    ] {
        if is_given && !recorded {
            bail!("invalid configuration: `{member}` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled");
        }
    }
    let verification = match policy {
        _ if !recorded => kubelet::Verification::Off,
        VerificationPolicy::NeverVerify => kubelet::Verification::Never,
        VerificationPolicy::NeverVerifyPreloadedImages => kubelet::Verification::NotPreloaded,
        VerificationPolicy::AlwaysVerify => kubelet::Verification::Always,
        VerificationPolicy::NeverVerifyAllowlistedImages => {
            let list = kubelet::Allowlist::new(list.iter().map(String::as_str));
            kubelet::Verification::NotAllowlisted(
                list.context("invalid configuration: invalid image pattern in `preloadedImagesVerificationAllowlist`")?,
            )
        }
    };
    let place = |dir: Option<PathBuf>| dir.filter(|_| !is_simulated(config)).map(|dir| dir.display().to_string()).unwrap_or_default();
    Ok(kubelet::ImageCredentials {
        provider_config: node.image_credential_provider_config.clone(),
        provider_dir: node.image_credential_provider_bin_dir.clone(),
        verification,
        working_dir: place(std::env::current_dir().ok()),
        home_dir: place(std::env::home_dir()),
    })
}
