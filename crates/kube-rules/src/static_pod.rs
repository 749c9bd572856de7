//! Static pods: which pod a manifest means to a node (upstream pkg/kubelet/config/common.go, pkg/kubelet/types/pod_update.go,
//! pkg/api/pod/util.go `HasAPIObjectReference`).

mod checks;
mod defaults;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use serde_json::Value;

/// Annotation with the hash of a static pod's manifest, which is its UID on the node.
pub const HASH: &str = "kubernetes.io/config.hash";
/// Annotation that says where a node has a pod from: `file`, `http` or `api`.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// Annotation with the time at which a node first saw a pod.
pub const SEEN: &str = "kubernetes.io/config.seen";
/// Annotation of the API object that shows a static pod: the hash of its manifest.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Largest manifest, in bytes.
pub const MAX_MANIFEST: u64 = 10 << 20;

/// Where a manifest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// A file, by its path on the node.
    File(&'a str),
    /// A web server, by the address that was asked.
    Url(&'a str),
}

/// Why a manifest is no pod of the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The document is something else.
    #[error("apiVersion and kind are {version:?} and {kind:?}: write v1 and Pod")]
    Kind { version: String, kind: String },
    /// A field that a static pod cannot have so.
    #[error("{field}: {reason}")]
    Field { field: String, reason: String },
}

/// The hash of a mirror pod's manifest; None for other pods.
pub fn mirrored(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(MIRROR).map(String::as_str)
}

/// The pods of a document: a Pod, or from a web server a list of them too. Nothing is taken of a list with a wrong pod.
///
/// # Errors
/// The first thing that is wrong, with its field.
pub fn pods(document: &Value, origin: Origin<'_>, node: &str) -> Result<Vec<Pod>, ManifestError> {
    let text = |member: &str| document.get(member).and_then(Value::as_str).unwrap_or_default();
    match (origin, text("apiVersion"), text("kind"), document.get("items")) {
        (Origin::Url(_), "v1", "PodList" | "List", Some(Value::Array(items))) => {
            // Items of a typed list say no kind.
            let prefixed = |(at, item): (usize, &Value)| {
                read(item, origin, node).map_err(|error| match error {
                    ManifestError::Field { field, reason } => ManifestError::Field { field: format!("items[{at}].{field}"), reason },
                    other => ManifestError::Field { field: format!("items[{at}]"), reason: other.to_string() },
                })
            };
            items.iter().enumerate().map(prefixed).collect()
        }
        (_, "v1", "Pod", _) => Ok(vec![read(document, origin, node)?]),
        (_, version, kind, _) => Err(ManifestError::Kind { version: version.to_owned(), kind: kind.to_owned() }),
    }
}

fn read(document: &Value, origin: Origin<'_>, node: &str) -> Result<Pod, ManifestError> {
    let mut pod: Pod = match serde_json::from_value(document.clone()) {
        Ok(pod) => pod,
        Err(error) => {
            let field = checks::culprit(document);
            return Err(ManifestError::Field { field, reason: error.to_string() });
        }
    };
    checks::check(&pod, node)?;
    let hash = match pod.metadata.uid.take().filter(|uid| !uid.is_empty()) {
        Some(given) => given,
        None => hash(&pod, origin, node),
    };
    let meta = &mut pod.metadata;
    meta.name = Some(format!("{}-{}", meta.name.as_deref().unwrap_or_default(), node.to_lowercase()));
    meta.namespace = meta.namespace.take().filter(|ns| !ns.is_empty()).or_else(|| Some("default".to_owned()));
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(HASH.to_owned(), hash.clone());
    annotations.insert(SOURCE.to_owned(), if matches!(origin, Origin::File(_)) { "file" } else { "http" }.to_owned());
    meta.uid = Some(hash);
    // The object's own past means nothing here.
    (meta.resource_version, meta.deletion_timestamp, meta.deletion_grace_period_seconds) = (None, None, None);
    (meta.owner_references, meta.finalizers, meta.managed_fields, meta.generation) = (None, None, None, None);
    pod.status = None;
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    if matches!(origin, Origin::File(_)) {
        // Troubles of the node do not evict what the node itself may consist of.
        let all = Toleration { operator: Some("Exists".to_owned()), effect: Some("NoExecute".to_owned()), ..Toleration::default() };
        let tolerations = spec.tolerations.get_or_insert_default();
        if !tolerations.contains(&all) {
            tolerations.push(all);
        }
    }
    defaults::apply(spec);
    Ok(pod)
}

/// Names a manifest's content and place: FNV-1a of 128 bits, as upstream. The text that is hashed is ours: upstream hashes Go's form of the
/// object, with every field that its release has, so that its UIDs differ from ours and from one release to the next.
fn hash(pod: &Pod, origin: Origin<'_>, node: &str) -> String {
    let object = serde_json::to_string(pod).unwrap_or_default();
    let place = match origin {
        Origin::File(path) => format!("host:{node}file:{path}"),
        Origin::Url(url) => format!("url:{url}"),
    };
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash =
        object.bytes().chain(place.bytes()).fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |h, b| (h ^ u128::from(b)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}
