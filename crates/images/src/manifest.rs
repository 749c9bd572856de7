//! Manifests: descriptors, indexes and layers, as archives and registries have them.

use std::collections::HashMap;

use serde::Deserialize;

use crate::config::ImageConfig;
use crate::platform::Platform;
use kube_rules::reference::{Reference, is_digest};

/// Largest manifest or configuration document.
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;
/// How deep manifest lists may nest.
pub(crate) const MAX_DEPTH: u32 = 4;

/// One image of an archive or a registry: what is needed to unpack it.
#[derive(Debug)]
pub struct ImageContents {
    /// Names it is to be known by; may be empty.
    pub names: Vec<Reference>,
    /// Digest of its manifest, where it has one.
    pub manifest: Option<String>,
    /// Digest of its configuration: the image's id.
    pub id: String,
    pub config: ImageConfig,
    /// Where its layers lie, lowest first.
    pub layers: Vec<LayerBlob>,
}

/// A layer as it is stored in an archive or a registry.
#[derive(Clone, Debug)]
pub struct LayerBlob {
    /// Name of the member in an OCI layout.
    pub member: String,
    /// Digest of the member as it lies there; docker-save archives do not state it.
    pub digest: Option<String>,
    /// Its size, where that is stated.
    pub size: Option<u64>,
    /// Digest of the layer uncompressed.
    pub diff_id: String,
    /// Whether it is one of Windows itself, which the archive need not hold.
    pub base: bool,
}

/// What a manifest says of a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: Option<u64>,
    pub platform: Option<Platform>,
    #[serde(default, deserialize_with = "crate::config::or_default")]
    pub annotations: HashMap<String, String>,
}

impl Descriptor {
    /// Whether it is a list of manifests.
    pub fn is_index(&self) -> bool {
        is_index(&self.media_type)
    }

    /// Attestations, which buildx puts beside the images.
    pub fn is_attestation(&self) -> bool {
        let unknown = self.platform.as_ref().is_some_and(|platform| platform.os == "unknown");
        unknown || self.annotations.contains_key("vnd.docker.reference.type")
    }

    /// Layers that may not be passed on: Microsoft's, until 2023.
    fn is_foreign(&self) -> bool {
        self.media_type.contains("foreign") || self.media_type.contains("nondistributable")
    }
}

/// A list of manifests: OCI's index, or Docker's manifest list.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

/// The manifest of one image.
#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    /// Where the layers lie, if the configuration is about the same ones.
    pub fn blobs(&self, config: &ImageConfig) -> Result<Vec<LayerBlob>, &'static str> {
        let diff_ids = &config.rootfs.diff_ids;
        if diff_ids.len() != self.layers.len() || !diff_ids.iter().all(|id| is_digest(id)) {
            return Err("the configuration's rootfs.diff_ids do not match the manifest's layers");
        }
        if !self.layers.iter().all(|layer| is_digest(&layer.digest)) {
            return Err("a layer's digest is not a sha256 digest");
        }
        let blob = |(number, (layer, diff_id)): (usize, (&Descriptor, &String))| LayerBlob {
            member: member_name(&layer.digest),
            digest: Some(layer.digest.clone()),
            size: layer.size,
            diff_id: diff_id.clone(),
            base: config.platform.os == "windows" && (layer.is_foreign() || config.is_base_layer(number)),
        };
        Ok(self.layers.iter().zip(diff_ids).enumerate().map(blob).collect())
    }
}

/// Where an OCI layout holds a blob.
pub(crate) fn member_name(digest: &str) -> String {
    digest.replacen("sha256:", "blobs/sha256/", 1)
}

/// Whether a media type is a list of manifests: `application/vnd.oci.image.index.v1+json`, or
/// `application/vnd.docker.distribution.manifest.list.v2+json`. Parameters and versions differ, so that the middle decides.
pub(crate) fn is_index(media_type: &str) -> bool {
    media_type.contains("image.index") || media_type.contains("manifest.list")
}

/// Whether a document is a list of manifests: by its media type, and where none is stated, by what it holds.
pub(crate) fn is_index_document(media_type: &str, bytes: &[u8]) -> bool {
    if media_type.contains("manifest.v") {
        return false;
    }
    is_index(media_type) || serde_json::from_slice::<Index>(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_decides_whether_a_document_is_a_list_and_else_its_content() {
        let list = br#"{"manifests": []}"#.as_slice();
        let image = br#"{"config": {"digest": "x"}, "layers": []}"#.as_slice();
        for (media_type, bytes, expected) in [
            ("application/vnd.oci.image.index.v1+json", list, true),
            ("application/vnd.docker.distribution.manifest.list.v2+json; charset=utf-8", list, true),
            ("application/vnd.oci.image.manifest.v1+json", image, false),
            ("application/vnd.docker.distribution.manifest.v2+json", list, false),
            ("", list, true),
            ("application/json", list, true),
            ("", image, false),
        ] {
            assert_eq!(is_index_document(media_type, bytes), expected, "{media_type:?}");
        }
    }
}
