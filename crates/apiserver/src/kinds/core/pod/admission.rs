//! Admission of new pods: ServiceAccount, DefaultTolerationSeconds, and what their classes bring
//! (plugin/pkg/admission/{serviceaccount,defaulttolerationseconds}).

use super::{priority, runtime_class};
use crate::kind::{Attributes, Cluster, Part};
use crate::object;
use crate::status::ApiError;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::time::Duration;

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// Upstream's projected token: an hour and seven seconds, so that it differs from one requested by hand.
const TOKEN_SECONDS: i64 = 3607;
/// The `default` account of a new namespace comes a moment after it: as upstream, wait for it a little.
const ACCOUNT_TRIES: u32 = 20;
const ACCOUNT_WAIT: Duration = Duration::from_millis(50);
const TOLERATION_SECONDS: i64 = 300;

pub(super) fn create<'a>(attributes: &'a Attributes<'a>, pod: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
    Box::pin(admit(attributes, pod))
}

async fn admit(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let (cluster, kind) = (attributes.cluster, attributes.kind);
    priority::prioritize(cluster, kind, pod)?;
    runtime_class::apply(cluster, kind, pod)?;
    tolerate(pod);
    if object::lookup(pod, &["metadata", "annotations", MIRROR]).is_some() {
        if !object::text(pod, &["spec", "serviceAccountName"]).is_empty() {
            return Err(ApiError::forbidden(kind, object::name(pod), "a mirror pod may not reference service accounts"));
        }
        return Ok(());
    }
    let name = match object::text(pod, &["spec", "serviceAccountName"]) {
        "" => match object::text(pod, &["spec", "serviceAccount"]) {
            "" => "default".to_string(),
            old => old.to_string(),
        },
        given => given.to_string(),
    };
    let account = find_account(cluster, object::namespace(pod), &name).await;
    let Some(account) = account else {
        let why = format!("error looking up service account {}/{name}: serviceaccount {name:?} not found", object::namespace(pod));
        return Err(ApiError::forbidden(kind, object::name(pod), &why));
    };
    apply_account(&account, pod);
    Ok(())
}

/// An update of the pod itself keeps what admission gave the new pod and the update leaves out, as lists of one owner do when they are
/// applied: the default tolerations, and the priority.
pub(super) fn update(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    if attributes.part == Part::Main && attributes.subresource.is_empty() {
        tolerate(pod);
        if let Some(old) = attributes.old {
            priority::keep(old, pod);
        }
    }
    Ok(())
}

async fn find_account(cluster: &Cluster, namespace: &str, name: &str) -> Option<Value> {
    let key = format!("core/serviceaccounts/{namespace}/{name}");
    let tries = if name == "default" { ACCOUNT_TRIES } else { 1 };
    for attempt in 0..tries {
        if let Some(entry) = cluster.store.get(&key) {
            return Some(entry.value());
        }
        if attempt + 1 < tries {
            tokio::time::sleep(ACCOUNT_WAIT).await;
        }
    }
    None
}

/// Names the account, brings its pull secrets and mounts its token, on Windows pods as on Linux pods.
fn apply_account(account: &Value, pod: &mut Value) {
    let mounts = |object: &Value, path: &[&str]| object::lookup(object, path).and_then(Value::as_bool);
    let automount = mounts(pod, &["spec", "automountServiceAccountToken"]).or(mounts(account, &["automountServiceAccountToken"])).unwrap_or(true);
    let spec = object::map_mut(pod, "spec");
    spec.insert("serviceAccountName".into(), object::name(account).into());
    spec.insert("serviceAccount".into(), object::name(account).into());
    let pulls = object::list(account, &["imagePullSecrets"]);
    if !pulls.is_empty() && object::array_mut(spec, "imagePullSecrets").is_empty() {
        spec.insert("imagePullSecrets".into(), pulls.into());
    } else if spec.get("imagePullSecrets").is_some_and(|list| list == &json!([])) {
        spec.shift_remove("imagePullSecrets");
    }
    if automount {
        mount_token(pod);
    }
}

fn mount_token(pod: &mut Value) {
    let existing = object::list(pod, &["spec", "volumes"]).iter().map(object::name_of).find(|name| name.starts_with(VOLUME_PREFIX));
    let (volume, missing) = match existing {
        Some(name) => (name.to_string(), false),
        None => (format!("{VOLUME_PREFIX}{}", object::random_suffix(5)), true),
    };
    let mut mounted = false;
    let spec = object::map_mut(pod, "spec");
    for list in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let mounts = object::array_mut(container, "volumeMounts");
            if !mounts.iter().any(|mount| object::text(mount, &["mountPath"]) == TOKEN_PATH) {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
                mounted = true;
            }
        }
    }
    if mounted && missing {
        let source = json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}});
        object::array_mut(spec, "volumes").push(source);
    }
}

/// A pod leaves a node that is gone after five minutes, unless it says otherwise.
fn tolerate(pod: &mut Value) {
    let tolerations = object::array_mut(object::map_mut(pod, "spec"), "tolerations");
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = tolerations.iter().any(|toleration| {
            let (own, effect) = (object::text(toleration, &["key"]), object::text(toleration, &["effect"]));
            (own == key || own.is_empty()) && matches!(effect, "" | "NoExecute")
        });
        if !covered {
            tolerations.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(automount: Option<bool>) -> Value {
        let mut account = json!({"metadata": {"name": "default"}, "imagePullSecrets": [{"name": "pull"}]});
        if let Some(automount) = automount {
            account["automountServiceAccountToken"] = automount.into();
        }
        account
    }

    #[test]
    fn tokens_are_mounted_once_into_every_container() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": TOKEN_PATH}]}]}});
        apply_account(&account(None), &mut pod);
        assert_eq!(pod["spec"]["serviceAccountName"], "default");
        assert_eq!(pod["spec"]["imagePullSecrets"][0]["name"], "pull");
        let volume = pod["spec"]["volumes"][0]["name"].as_str().unwrap().to_string();
        assert!(volume.starts_with("kube-api-access-") && volume.len() == "kube-api-access-".len() + 5);
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["name"], volume);
        assert_eq!(pod["spec"]["initContainers"][0]["volumeMounts"][0]["mountPath"], TOKEN_PATH);
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"][0]["name"], "own");
    }

    #[test]
    fn the_pod_s_word_on_mounting_counts_before_the_account_s() {
        let mut pod = json!({"spec": {"automountServiceAccountToken": true, "containers": [{"name": "a"}]}});
        apply_account(&account(Some(false)), &mut pod);
        assert_eq!(object::list(&pod, &["spec", "volumes"]).len(), 1);
        let mut pod = json!({"spec": {"containers": [{"name": "a"}]}});
        apply_account(&account(Some(false)), &mut pod);
        assert!(object::list(&pod, &["spec", "volumes"]).is_empty());
    }

    #[test]
    fn tolerations_are_added_where_none_covers() {
        let mut pod = json!({"spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]}});
        tolerate(&mut pod);
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        assert_eq!(tolerations.len(), 2);
        assert_eq!(tolerations[0]["tolerationSeconds"], 5);
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        tolerate(&mut all);
        assert_eq!(all["spec"]["tolerations"].as_array().unwrap().len(), 1);
    }
}
