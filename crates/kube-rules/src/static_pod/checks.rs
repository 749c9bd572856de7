//! What a static pod has to say, and what it must not name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use serde_json::Value;

use super::ManifestError;
use crate::Quantity;

/// Largest document whose wrong field is looked for, in bytes of JSON.
const MAX_SEARCH: usize = 256 << 10;

fn wrong(field: impl Into<String>, reason: impl Into<String>) -> ManifestError {
    ManifestError::Field { field: field.into(), reason: reason.into() }
}

/// Whether a text is a DNS label (RFC 1123).
fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Checks what the node needs to run the pod, and that it asks nothing of the API server.
pub(super) fn check(pod: &Pod, node: &str) -> Result<(), ManifestError> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        return Err(wrong("metadata.name", "a name is needed"));
    }
    if !is_subdomain(&format!("{name}-{}", node.to_lowercase())) {
        return Err(wrong("metadata.name", format!("{name:?} with the node's name is no DNS subdomain of at most 253 characters")));
    }
    if let Some(namespace) = pod.metadata.namespace.as_deref().filter(|ns| !ns.is_empty() && !is_label(ns)) {
        return Err(wrong("metadata.namespace", format!("{namespace:?} is no DNS label")));
    }
    // It becomes the name of a directory.
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if uid.len() > 63 || !uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(wrong("metadata.uid", "at most 63 letters, digits and hyphens are allowed"));
    }
    let Some(spec) = &pod.spec else { return Err(wrong("spec", "containers are needed")) };
    if !matches!(spec.restart_policy.as_deref(), None | Some("Always" | "OnFailure" | "Never")) {
        return Err(wrong("spec.restartPolicy", "write Always, OnFailure or Never"));
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        return Err(wrong("spec.ephemeralContainers", "static pods do not support ephemeral containers"));
    }
    // The API server's validation, which no pod of the API passes by.
    let of_host = [("spec.hostNetwork", spec.host_network), ("spec.hostPID", spec.host_pid), ("spec.hostIPC", spec.host_ipc)];
    if let Some((field, _)) = of_host.into_iter().find(|(_, is)| spec.host_users == Some(false) && *is == Some(true)) {
        return Err(wrong(field, "forbidden when `hostUsers` is false"));
    }
    containers(spec)?;
    match reference(spec) {
        Some((field, what)) => Err(wrong(field, format!("static pods may not reference {what}"))),
        None => Ok(()),
    }
}

fn lists(spec: &PodSpec) -> impl Iterator<Item = (String, &Container)> {
    let inits = spec.init_containers.iter().flatten().enumerate().map(|(at, c)| (format!("spec.initContainers[{at}]"), c));
    inits.chain(spec.containers.iter().enumerate().map(|(at, c)| (format!("spec.containers[{at}]"), c)))
}

fn containers(spec: &PodSpec) -> Result<(), ManifestError> {
    if spec.containers.is_empty() {
        return Err(wrong("spec.containers", "at least one container is needed"));
    }
    let mut volumes = BTreeSet::new();
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        let field = format!("spec.volumes[{at}].name");
        if !is_label(&volume.name) {
            return Err(wrong(field, format!("{:?} is no DNS label", volume.name)));
        }
        if !volumes.insert(volume.name.as_str()) {
            return Err(wrong(field, format!("{:?} is there twice", volume.name)));
        }
    }
    let mut names = BTreeSet::new();
    for (field, container) in lists(spec) {
        if !is_label(&container.name) {
            return Err(wrong(format!("{field}.name"), format!("{:?} is no DNS label", container.name)));
        }
        if !names.insert(container.name.as_str()) {
            return Err(wrong(format!("{field}.name"), format!("{:?} is there twice", container.name)));
        }
        if container.image.as_deref().unwrap_or_default().is_empty() {
            return Err(wrong(format!("{field}.image"), "an image is needed"));
        }
        for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
            if !volumes.contains(mount.name.as_str()) {
                return Err(wrong(format!("{field}.volumeMounts[{at}].name"), format!("there is no volume {:?}", mount.name)));
            }
            if mount.mount_path.is_empty() {
                return Err(wrong(format!("{field}.volumeMounts[{at}].mountPath"), "a path is needed"));
            }
        }
        let resources = container.resources.as_ref();
        for (list, amounts) in [("limits", resources.and_then(|r| r.limits.as_ref())), ("requests", resources.and_then(|r| r.requests.as_ref()))] {
            if let Some((name, amount)) = amounts.into_iter().flatten().find(|(_, amount)| Quantity::parse(&amount.0).is_err()) {
                return Err(wrong(format!("{field}.resources.{list}[{name}]"), format!("{:?} is no quantity", amount.0)));
            }
        }
    }
    Ok(())
}

/// The first object of the API that the pod needs: field and kind.
fn reference(spec: &PodSpec) -> Option<(String, &'static str)> {
    let account = spec.service_account_name.as_deref().or(spec.service_account.as_deref());
    if account.is_some_and(|name| !name.is_empty()) {
        return Some(("spec.serviceAccountName".to_owned(), "serviceaccounts"));
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|list| !list.is_empty()) {
        return Some(("spec.imagePullSecrets".to_owned(), "secrets"));
    }
    if spec.resource_claims.as_ref().is_some_and(|list| !list.is_empty()) {
        return Some(("spec.resourceClaims".to_owned(), "resourceclaims"));
    }
    let environment = lists(spec).find_map(|(field, container)| {
        let from = container.env_from.iter().flatten().enumerate().find_map(|(at, from)| {
            let what = [(from.secret_ref.is_some(), "secrets"), (from.config_map_ref.is_some(), "configmaps")];
            what.into_iter().find(|(is, _)| *is).map(|(_, what)| (format!("{field}.envFrom[{at}]"), what))
        });
        from.or_else(|| {
            container.env.iter().flatten().enumerate().find_map(|(at, variable)| {
                let from = variable.value_from.as_ref()?;
                let what = [(from.secret_key_ref.is_some(), "secrets"), (from.config_map_key_ref.is_some(), "configmaps")];
                what.into_iter().find(|(is, _)| *is).map(|(_, what)| (format!("{field}.env[{at}].valueFrom"), what))
            })
        })
    });
    environment.or_else(|| {
        spec.volumes.iter().flatten().enumerate().find_map(|(at, volume)| {
            let (member, what) = of_volume(volume)?;
            Some((format!("spec.volumes[{at}].{member}"), what))
        })
    })
}

fn of_volume(volume: &Volume) -> Option<(&'static str, &'static str)> {
    let projects = |has: fn(&k8s_openapi::api::core::v1::VolumeProjection) -> bool| {
        volume.projected.as_ref().is_some_and(|p| p.sources.iter().flatten().any(has))
    };
    let all = [
        (volume.config_map.is_some(), "configMap", "configmaps (via configmap volumes)"),
        (volume.secret.is_some(), "secret", "secrets (via secret volumes)"),
        (volume.csi.is_some(), "csi", "csidrivers (via CSI volumes)"),
        (volume.glusterfs.is_some(), "glusterfs", "endpoints (via glusterFS volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentVolumeClaim", "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        (volume.azure_file.is_some(), "azureFile", "secrets (via azureFile volumes)"),
        (projects(|s| s.config_map.is_some()), "projected", "configmaps (via projected volumes)"),
        (projects(|s| s.secret.is_some()), "projected", "secrets (via projected volumes)"),
        (projects(|s| s.service_account_token.is_some()), "projected", "serviceaccounts (via projected volumes)"),
        (projects(|s| s.cluster_trust_bundle.is_some()), "projected", "clustertrustbundles"),
        (projects(|s| s.pod_certificate.is_some()), "projected", "podcertificates"),
    ];
    all.into_iter().find(|(is, _, _)| *is).map(|(_, member, what)| (member, what))
}

/// The field because of which a document is no pod. The decoder says only what it expected, so members are left out one after the other:
/// the one without which the document can be read holds what is wrong.
pub(super) fn culprit(document: &Value) -> String {
    let reads = |document: &Value| serde_json::from_value::<Pod>(document.clone()).is_ok();
    let mut path = String::new();
    if document.to_string().len() > MAX_SEARCH {
        return "the document".to_owned();
    }
    let mut current = document.clone();
    let mut pointer = String::new();
    loop {
        let mut found = None;
        let place = current.pointer(&pointer).cloned().unwrap_or_default();
        match place {
            Value::Object(members) => {
                for (name, value) in members {
                    if let Some(Value::Object(rest)) = current.pointer_mut(&pointer) {
                        rest.remove(&name);
                    }
                    if reads(&current) {
                        if let Some(Value::Object(rest)) = current.pointer_mut(&pointer) {
                            rest.insert(name.clone(), value);
                        }
                        let separator = if path.is_empty() { "" } else { "." };
                        found = Some((format!("{separator}{name}"), format!("/{}", name.replace('~', "~0").replace('/', "~1"))));
                        break;
                    }
                }
            }
            Value::Array(items) => {
                for (at, value) in items.into_iter().enumerate().rev() {
                    if let Some(Value::Array(rest)) = current.pointer_mut(&pointer) {
                        rest.truncate(at);
                    }
                    if reads(&current) {
                        if let Some(Value::Array(rest)) = current.pointer_mut(&pointer) {
                            rest.push(value);
                        }
                        found = Some((format!("[{at}]"), format!("/{at}")));
                        break;
                    }
                }
            }
            _ => {}
        }
        match found {
            Some((shown, step)) => {
                path.push_str(&shown);
                pointer.push_str(&step);
            }
            None if path.is_empty() => return "the document".to_owned(),
            None => return path,
        }
    }
}
