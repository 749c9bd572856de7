//! Media of emptyDir volumes, and the size of the pages of those in huge pages (upstream pkg/volume/emptydir/empty_dir.go).

use host::NodeOs;
use k8s_openapi::api::core::v1::Pod;
use kube_rules::{Quantity, QuantityError};

/// Pages of the size that the pod requests.
const HUGE_PAGES: &str = "HugePages";
/// Pages of this size.
const OF_SIZE: &str = "HugePages-";
const RESOURCE: &str = "hugepages-";

/// What an emptyDir is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    Memory,
    /// The size of a page in bytes.
    HugePages(u64),
}

/// Why an emptyDir cannot have its medium. Upstream's words, but for Windows and impossible sizes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MediumError {
    #[error("unknown storage medium {0:?}")]
    Unknown(String),
    #[error("medium {0}: Windows nodes have no huge pages for volumes; leave the medium out, or place the pod on a Linux node")]
    Windows(String),
    #[error("{name} names no size of pages")]
    Size { name: String, source: QuantityError },
    #[error("{0} names no size of pages: it has to be whole bytes, at least one")]
    NotWhole(String),
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    Several(String),
    #[error("medium {0}: hugePages storage requested, but there is no resource request for huge pages")]
    NotRequested(String),
}

/// The medium of a volume of this pod.
pub(super) fn medium(name: &str, pod: &Pod, os: NodeOs) -> Result<Medium, MediumError> {
    match name {
        "" => Ok(Medium::Disk),
        // Windows has no memory file systems.
        "Memory" => Ok(if os.is_windows() { Medium::Disk } else { Medium::Memory }),
        _ if name != HUGE_PAGES && !name.starts_with(OF_SIZE) => Err(MediumError::Unknown(name.to_owned())),
        _ if os.is_windows() => Err(MediumError::Windows(name.to_owned())),
        _ => page_size(name, pod).map(Medium::HugePages),
    }
}

/// The size of pages that the medium names and the pod requests, or the only one that the pod requests where the medium names none.
fn page_size(medium: &str, pod: &Pod) -> Result<u64, MediumError> {
    let wanted = medium.strip_prefix(OF_SIZE).map(|size| bytes(medium, size)).transpose()?;
    let mut found = None;
    for name in requests(pod) {
        let Some(size) = name.strip_prefix(RESOURCE) else { continue };
        let size = bytes(name, size)?;
        if wanted.is_none() && found.is_some_and(|found| found != size) {
            return Err(MediumError::Several(medium.to_owned()));
        }
        if wanted.is_none_or(|wanted| wanted == size) {
            found = Some(size);
        }
    }
    found.ok_or_else(|| MediumError::NotRequested(medium.to_owned()))
}

fn bytes(name: &str, size: &str) -> Result<u64, MediumError> {
    let size = Quantity::parse(size).map_err(|source| MediumError::Size { name: name.to_owned(), source })?;
    u64::try_from(size.value()).ok().filter(|bytes| *bytes > 0).ok_or_else(|| MediumError::NotWhole(name.to_owned()))
}

/// Names of what the pod as a whole and its containers request. Requests of huge pages are their limits.
fn requests(pod: &Pod) -> impl Iterator<Item = &String> {
    let containers = pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let whole = pod.spec.iter().filter_map(|spec| spec.resources.as_ref());
    whole.chain(containers.filter_map(|container| container.resources.as_ref())).flat_map(|all| all.requests.iter().flat_map(|list| list.keys()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const MI: u64 = 1 << 20;

    fn pod(whole: &Value, init: &Value, own: &Value) -> Pod {
        let container = |requests: &Value| json!([{"name": "c", "resources": {"requests": requests}}]);
        let spec = json!({"resources": {"requests": whole}, "initContainers": container(init), "containers": container(own)});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn pages_are_those_that_the_pod_requests() {
        let (none, small, large) = (json!({"cpu": "1"}), json!({"hugepages-2Mi": "4Mi"}), json!({"hugepages-1Gi": "1Gi"}));
        let both = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"});
        let several = "medium: HugePages can't be used if container requests multiple huge page sizes";
        let nothing = |medium: &str| format!("medium {medium}: hugePages storage requested, but there is no resource request for huge pages");
        for (name, whole, init, own, want) in [
            ("HugePages", &none, &none, &small, Ok(2 * MI)),
            ("HugePages", &none, &small, &none, Ok(2 * MI)),
            ("HugePages", &large, &none, &none, Ok(1024 * MI)),
            ("HugePages", &small, &small, &small, Ok(2 * MI)),
            ("HugePages", &none, &none, &both, Err(several.to_owned())),
            ("HugePages", &none, &large, &small, Err(several.to_owned())),
            ("HugePages", &none, &none, &none, Err(nothing("HugePages"))),
            ("HugePages-2Mi", &none, &none, &both, Ok(2 * MI)),
            ("HugePages-1Gi", &large, &none, &small, Ok(1024 * MI)),
            ("HugePages-2048Ki", &none, &none, &small, Ok(2 * MI)),
            ("HugePages-1Gi", &none, &none, &small, Err(nothing("HugePages-1Gi"))),
            ("HugePages-0", &none, &none, &small, Err("HugePages-0 names no size of pages: it has to be whole bytes, at least one".to_owned())),
            ("HugePages-", &none, &none, &small, Err("HugePages- names no size of pages".to_owned())),
        ] {
            let found = medium(name, &pod(whole, init, own), NodeOs::Linux).map_err(|error| error.to_string());
            assert_eq!(found, want.map(Medium::HugePages), "{name} {whole} {init} {own}");
        }
    }

    #[test]
    fn media_depend_on_the_system() {
        let windows = NodeOs::Windows { build: 20348 };
        let pod = pod(&json!({}), &json!({}), &json!({"hugepages-2Mi": "4Mi"}));
        let of = |name: &str, os| medium(name, &pod, os).map_err(|error| error.to_string());
        assert_eq!([of("", NodeOs::Linux), of("", windows), of("Memory", windows)], [const { Ok(Medium::Disk) }; 3]);
        assert_eq!(of("Memory", NodeOs::Linux), Ok(Medium::Memory));
        let refused = |name: &str| {
            Err(format!("medium {name}: Windows nodes have no huge pages for volumes; leave the medium out, or place the pod on a Linux node"))
        };
        assert_eq!([of("HugePages", windows), of("HugePages-2Mi", windows)], [refused("HugePages"), refused("HugePages-2Mi")]);
        for name in ["Tape", "hugepages", "HugePagesX"] {
            let unknown = || Err(format!("unknown storage medium {name:?}"));
            assert_eq!([of(name, NodeOs::Linux), of(name, windows)], [unknown(), unknown()]);
        }
    }
}
