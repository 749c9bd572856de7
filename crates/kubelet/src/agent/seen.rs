//! When the node first saw each pod of the API (upstream pkg/kubelet/config/config.go `recordFirstSeenTime`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_rules::static_pod::{SEEN, SOURCE, mirrored};

use super::uid;

/// Times by pod UID.
#[derive(Debug, Default)]
pub(super) struct FirstSeen(Mutex<BTreeMap<String, String>>);

impl FirstSeen {
    /// Says in annotations that the pod is of the API, and when it was first seen, whatever the API says there. Mirror pods stay as they are:
    /// theirs are those of the static pod.
    pub(super) fn annotate(&self, pod: &mut Pod, now: Timestamp) {
        if mirrored(pod).is_some() {
            return;
        }
        let seen = {
            let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            times.entry(uid(pod)).or_insert_with(|| now.to_string()).clone()
        };
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(SOURCE.to_owned(), "api".to_owned());
        annotations.insert(SEEN.to_owned(), seen);
    }

    /// The pod is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pods_of_the_api_say_where_they_are_from_and_since_when() {
        let seen = FirstSeen::default();
        let shown = |uid: &str, annotations: Value, at: i64| {
            let mut pod: Pod = serde_json::from_value(json!({"metadata": {"uid": uid, "annotations": annotations}})).unwrap();
            seen.annotate(&mut pod, Timestamp::from_millisecond(at).unwrap());
            json!(pod.metadata.annotations)
        };
        let at = |time: &str| json!({"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": time});
        assert_eq!(shown("a", json!(null), 1500), at("1970-01-01T00:00:01.5Z"));
        assert_eq!(shown("a", json!({}), 9000), at("1970-01-01T00:00:01.5Z"), "the first time stays");
        let forged = json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.seen": "long ago"});
        assert_eq!(shown("b", forged, 2000), at("1970-01-01T00:00:02Z"), "a pod of the API cannot pass for a static one");
        let mirror = json!({"kubernetes.io/config.mirror": "h", "kubernetes.io/config.source": "file"});
        assert_eq!(shown("c", mirror.clone(), 2000), mirror);
        seen.forget("a");
        assert_eq!(shown("a", json!(null), 9000), at("1970-01-01T00:00:09Z"));
    }
}
