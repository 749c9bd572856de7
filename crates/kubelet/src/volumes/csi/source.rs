//! Which volume of which driver a pod asks for: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod, SecretReference, Volume};
use kube_rules::csi::migration::{self, MigrationError};

/// A volume of a driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CsiVolume {
    pub driver: String,
    /// What the driver calls it.
    pub handle: String,
    /// The name that its directory has: the persistent volume's, or the volume's in its pod.
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    /// "" where the driver chooses.
    pub fs_type: String,
    pub read_only: bool,
    pub access_modes: Vec<String>,
    pub options: Vec<String>,
    /// A device, not a file system.
    pub block: bool,
    /// It is written into the pod, and begins and ends with it.
    pub ephemeral: bool,
    pub publish_secret: Option<SecretReference>,
    pub stage_secret: Option<SecretReference>,
    pub expand_secret: Option<SecretReference>,
}

impl CsiVolume {
    /// A persistent volume, as a pod's claim asks for it; that of a cloud's disk in the terms of its driver. None when no driver makes it.
    pub(crate) fn persistent(volume: &PersistentVolume, read_only: bool) -> Result<Option<Self>, MigrationError> {
        let migrated = migration::persistent(volume)?;
        Ok(Self::of(migrated.as_ref().unwrap_or(volume), read_only))
    }

    fn of(volume: &PersistentVolume, read_only: bool) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref()?;
        Some(CsiVolume {
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            // As upstream writes a name that is a path.
            name: volume.metadata.name.clone().unwrap_or_default().replace('/', "~"),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            fs_type: csi.fs_type.clone().unwrap_or_default(),
            read_only,
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            options: spec.mount_options.clone().unwrap_or_default(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            ephemeral: false,
            publish_secret: csi.node_publish_secret_ref.clone(),
            stage_secret: csi.node_stage_secret_ref.clone(),
            expand_secret: csi.node_expand_secret_ref.clone(),
        })
    }

    /// A volume that is written into the pod, or a cloud's disk that is named there.
    pub(crate) fn inline(pod: &Pod, volume: &Volume) -> Result<Option<Self>, MigrationError> {
        let namespace = pod.metadata.namespace.clone();
        let migrated = migration::inline(volume, namespace.as_deref().unwrap_or_default())?;
        Ok(match migrated {
            Some(volume) => Self::of(&volume, false),
            None => Self::ephemeral(pod, volume, namespace),
        })
    }

    fn ephemeral(pod: &Pod, volume: &Volume, namespace: Option<String>) -> Option<Self> {
        let csi = volume.csi.as_ref()?;
        let secret = csi.node_publish_secret_ref.as_ref();
        Some(CsiVolume {
            driver: csi.driver.clone(),
            handle: kube_rules::csi::inline_handle(pod.metadata.uid.as_deref().unwrap_or_default(), &volume.name),
            name: volume.name.clone(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            fs_type: csi.fs_type.clone().unwrap_or_default(),
            read_only: csi.read_only == Some(true),
            ephemeral: true,
            publish_secret: secret.map(|secret| SecretReference { name: Some(secret.name.clone()), namespace }),
            ..CsiVolume::default()
        })
    }

    /// Its name in the node's status.
    pub(crate) fn unique_name(&self) -> String {
        kube_rules::csi::unique_name(&self.driver, &self.handle)
    }

    /// The first access mode; drivers are told of no more (upstream: a TODO since the first day).
    pub(crate) fn access_mode(&self) -> &str {
        self.access_modes.first().map_or("ReadWriteOnce", String::as_str)
    }

    /// How long the volume lives, in upstream's terms.
    pub(crate) fn mode(&self) -> &'static str {
        if self.ephemeral { "Ephemeral" } else { "Persistent" }
    }

    /// Whether the agent gives the volume's files to the pod's group (upstream: `supportsFSGroup`).
    pub(crate) fn is_given_to_group(&self, policy: &str) -> bool {
        let exclusive = || self.access_modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
        match policy {
            _ if self.read_only || self.block => false,
            "None" => false,
            "File" => true,
            _ => !self.fs_type.is_empty() && (self.ephemeral || exclusive()),
        }
    }
}

/// What a driver learns of the pod, where it wants to (upstream: `getPodInfoAttrs`).
pub(crate) fn pod_info(pod: &Pod, volume: &CsiVolume) -> BTreeMap<String, String> {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_ref());
    let of = |name: &str, value: Option<&String>| (format!("csi.storage.k8s.io/{name}"), value.cloned().unwrap_or_default());
    BTreeMap::from([
        of("pod.name", pod.metadata.name.as_ref()),
        of("pod.namespace", pod.metadata.namespace.as_ref()),
        of("pod.uid", pod.metadata.uid.as_ref()),
        of("serviceAccount.name", account),
        of("ephemeral", Some(&volume.ephemeral.to_string())),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_group_is_given_what_the_policy_says() {
        let volume = |fs_type: &str, modes: &[&str]| CsiVolume {
            fs_type: fs_type.into(),
            access_modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
            ..CsiVolume::default()
        };
        let usual = "ReadWriteOnceWithFSType";
        assert!(volume("ext4", &["ReadWriteOnce"]).is_given_to_group(usual));
        assert!(volume("ext4", &["ReadWriteOncePod"]).is_given_to_group(usual));
        assert!(!volume("", &["ReadWriteOnce"]).is_given_to_group(usual));
        assert!(!volume("ext4", &["ReadWriteMany"]).is_given_to_group(usual));
        assert!(!volume("ext4", &[]).is_given_to_group(usual));
        assert!(volume("", &["ReadWriteMany"]).is_given_to_group("File"));
        assert!(!volume("ext4", &["ReadWriteOnce"]).is_given_to_group("None"));
        assert!(!CsiVolume { read_only: true, ..volume("ext4", &["ReadWriteOnce"]) }.is_given_to_group("File"));
        assert!(CsiVolume { ephemeral: true, ..volume("ext4", &[]) }.is_given_to_group(usual));
    }

    #[test]
    fn volumes_are_read_from_persistent_volumes_and_from_pods() {
        let pv = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteMany"], "mountOptions": ["noatime"],
            "volumeMode": "Block", "csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"a": "b"}, "fsType": "xfs",
            "nodeStageSecretRef": {"name": "s", "namespace": "n"}}}}))
        .unwrap();
        let found = CsiVolume::persistent(&pv, true).unwrap().unwrap();
        assert_eq!((found.unique_name().as_str(), found.access_mode(), found.mode()), ("kubernetes.io/csi/d^h", "ReadWriteMany", "Persistent"));
        assert!(found.block && found.read_only && found.publish_secret.is_none() && found.stage_secret.is_some());
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u", "namespace": "ns", "name": "p"}, "spec": {"containers": [],
            "serviceAccountName": "sa", "volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]}}))
        .unwrap();
        let inline = CsiVolume::inline(&pod, &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0]).unwrap().unwrap();
        assert!(inline.handle.starts_with("csi-") && inline.handle.len() == 68, "{}", inline.handle);
        assert_eq!(inline.publish_secret.as_ref().unwrap().namespace.as_deref(), Some("ns"));
        let disk = serde_json::from_value(json!({"name": "v", "azureDisk": {"diskName": "d", "diskURI": "/a/d"}})).unwrap();
        let disk = CsiVolume::inline(&pod, &disk).unwrap().unwrap();
        assert_eq!((disk.driver.as_str(), disk.name.as_str(), disk.ephemeral), ("disk.csi.azure.com", "~a~d", false));
        let info = pod_info(&pod, &inline);
        assert_eq!(info["csi.storage.k8s.io/ephemeral"], "true");
        assert_eq!(info["csi.storage.k8s.io/serviceAccount.name"], "sa");
    }
}
