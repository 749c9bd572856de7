//! Content of Secret, ConfigMap, downward API and projected volumes.

use std::collections::{BTreeMap, HashMap};

use host::{FileKind, HostError, HostRoot, PathError, PodPath, VolumeFile};
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, Pod, ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use crate::bundles::{BundleError, Trusted};
use crate::claims::Claims;
use crate::env::{DownwardError, Facts, field_value, resource_value};
use crate::sources::{Fetched, Kind};

/// Kind and name of an object in the pod's namespace.
type ObjectName = (Kind, String);

/// Audience and seconds of a service account token.
pub(crate) type TokenSpec = (String, i64);

/// Service account tokens.
pub(crate) type Tokens = HashMap<TokenSpec, String>;

/// Everything that volumes of one pod may show.
pub(crate) struct Content<'a> {
    pub pod: &'a Pod,
    pub sources: &'a Fetched,
    pub tokens: &'a Tokens,
    pub trusted: &'a Trusted,
    pub claims: &'a Claims,
    pub facts: &'a Facts,
}

type Files = BTreeMap<String, VolumeFile>;

/// Why a volume has no content, or not the file that is wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("{} {name:?} not found", kind.lower())]
    SourceMissing { kind: Kind, name: String },
    #[error("references non-existent {} key: {key}", match kind { Kind::ConfigMap => "config", Kind::Secret => "secret" })]
    KeyMissing { kind: Kind, key: String },
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error("failed to fetch token: the API gave none for this pod's service account")]
    TokenMissing,
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    NoBundle,
    #[error("podCertificate projections are not supported by this node agent")]
    PodCertificate,
    #[error("{0} has no content yet")]
    Empty(PodPath),
    #[error("{0} does not exist in the volume")]
    FileMissing(String),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The objects and tokens the pod's volumes need.
pub(crate) fn references(pod: &Pod) -> (Vec<ObjectName>, Vec<TokenSpec>) {
    let mut objects = Vec::new();
    let mut tokens = Vec::new();
    for v in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        objects.extend(v.config_map.iter().map(|c| (Kind::ConfigMap, c.name.clone())));
        objects.extend(v.secret.iter().filter_map(|s| Some((Kind::Secret, s.secret_name.clone()?))));
        for p in v.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            objects.extend(p.config_map.iter().map(|c| (Kind::ConfigMap, c.name.clone())));
            objects.extend(p.secret.iter().map(|s| (Kind::Secret, s.name.clone())));
            tokens.extend(p.service_account_token.iter().map(token_key));
        }
    }
    (objects, tokens)
}

/// Whether the pod's volumes show certificates of authorities.
pub(crate) fn wants_bundles(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut sources = volumes.flat_map(|volume| volume.projected.iter()).flat_map(|projected| projected.sources.iter().flatten());
    sources.any(|source| source.cluster_trust_bundle.is_some())
}

fn token_key(t: &ServiceAccountTokenProjection) -> (String, i64) {
    (t.audience.clone().unwrap_or_default(), t.expiration_seconds.unwrap_or(3600).max(600))
}

impl Content<'_> {
    pub(super) fn files(&self, volume: &Volume) -> Result<Files, ContentError> {
        let mut out = Files::new();
        if let Some(s) = &volume.secret {
            let name = s.secret_name.as_deref().unwrap_or_default();
            let mode = s.default_mode.unwrap_or(0o644);
            self.object(&mut out, Kind::Secret, name, s.items.as_deref(), s.optional, mode)?;
        } else if let Some(c) = &volume.config_map {
            let mode = c.default_mode.unwrap_or(0o644);
            self.object(&mut out, Kind::ConfigMap, &c.name, c.items.as_deref(), c.optional, mode)?;
        } else if let Some(d) = &volume.downward_api {
            self.downward(&mut out, d.items.as_deref(), d.default_mode.unwrap_or(0o644))?;
        } else if let Some(p) = &volume.projected {
            for source in p.sources.iter().flatten() {
                self.projection(&mut out, source, p.default_mode.unwrap_or(0o644))?;
            }
        }
        Ok(out)
    }

    /// The pod's fsGroup owns the files and may read them (pkg/volume/volume_linux.go `SetVolumeOwnership` of read-only volumes).
    pub(super) fn give_to_group(&self, files: &mut Files) {
        let context = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let Some(group) = context.and_then(|context| context.fs_group).and_then(|group| u32::try_from(group).ok()) else { return };
        for file in files.values_mut() {
            file.group = Some(group);
            file.mode |= 0o440;
        }
    }

    fn projection(&self, out: &mut Files, p: &VolumeProjection, mode: i32) -> Result<(), ContentError> {
        if let Some(s) = &p.secret {
            self.object(out, Kind::Secret, &s.name, s.items.as_deref(), s.optional, mode)?;
        }
        if let Some(c) = &p.config_map {
            self.object(out, Kind::ConfigMap, &c.name, c.items.as_deref(), c.optional, mode)?;
        }
        if let Some(d) = &p.downward_api {
            self.downward(out, d.items.as_deref(), mode)?;
        }
        if let Some(t) = &p.service_account_token {
            let token = self.tokens.get(&token_key(t)).ok_or(ContentError::TokenMissing)?;
            put(out, &t.path, token.clone().into_bytes(), mode);
        }
        if let Some(bundle) = &p.cluster_trust_bundle {
            put(out, &bundle.path, self.authorities(bundle)?.into_bytes(), mode);
        }
        if p.pod_certificate.is_some() {
            return Err(ContentError::PodCertificate);
        }
        Ok(())
    }

    fn authorities(&self, bundle: &ClusterTrustBundleProjection) -> Result<String, ContentError> {
        let optional = bundle.optional == Some(true);
        match (&bundle.name, &bundle.signer_name) {
            (Some(name), _) => Ok(self.trusted.named(name, optional)?),
            (None, Some(signer)) => Ok(self.trusted.of_signer(signer, bundle.label_selector.as_ref(), optional)?),
            (None, None) => Err(ContentError::NoBundle),
        }
    }

    fn object(
        &self,
        out: &mut Files,
        kind: Kind,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: i32,
    ) -> Result<(), ContentError> {
        let optional = optional == Some(true);
        let Some(data) = self.sources.get(&(kind, name.to_owned())).cloned().flatten() else {
            return if optional { Ok(()) } else { Err(ContentError::SourceMissing { kind, name: name.to_owned() }) };
        };
        let Some(items) = items else {
            for (key, value) in &data.items {
                put(out, key, value.clone(), mode);
            }
            return Ok(());
        };
        for item in items {
            match data.items.get(&item.key) {
                Some(value) => put(out, &item.path, value.clone(), item.mode.unwrap_or(mode)),
                None if optional => {}
                None => return Err(ContentError::KeyMissing { kind, key: item.key.clone() }),
            }
        }
        Ok(())
    }

    fn downward(&self, out: &mut Files, items: Option<&[DownwardAPIVolumeFile]>, mode: i32) -> Result<(), ContentError> {
        for item in items.unwrap_or_default() {
            let value = if let Some(f) = &item.field_ref {
                field_value(self.pod, self.facts, &f.field_path)?
            } else if let Some(r) = &item.resource_field_ref {
                resource_value(self.pod, None, r, &self.facts.allocatable)?
            } else {
                continue;
            };
            put(out, &item.path, value.into_bytes(), item.mode.unwrap_or(mode));
        }
        Ok(())
    }
}

fn put(out: &mut Files, path: &str, bytes: Vec<u8>, mode: i32) {
    out.insert(path.to_owned(), VolumeFile { bytes, mode: (mode as u32) & 0o777, group: None });
}

/// The real place of a file in a volume we wrote: in the generation that `..data` names, whose
/// inode outlives the next update.
pub(super) fn current(root: &HostRoot, volume: &PodPath, relative: &[String]) -> Result<PodPath, ContentError> {
    let names = root.read_dir(volume)?;
    let generation = names
        .iter()
        .filter(|(n, k)| *k == FileKind::Directory && n.starts_with(".."))
        .map(|(n, _)| n.as_str())
        .max()
        .ok_or_else(|| ContentError::Empty(volume.clone()))?;
    let full = volume.join(generation)?.join(&relative.join("/"))?;
    match root.kind(&full)? {
        Some(_) => Ok(full),
        None => Err(ContentError::FileMissing(relative.join("/"))),
    }
}
