//! Volumes that name a cloud's disk as Kubernetes once mounted it by itself, in the terms of the CSI driver that does it today
//! (k8s.io/csi-translation-lib). Node affinity is left as it is: it speaks of the cluster's own zone labels, which nodes have.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The plug-ins whose volumes CSI drivers mount, as a CSINode's annotation lists them.
pub const MIGRATED: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];
/// The annotation of a CSINode that lists them.
pub const ANNOTATION: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// Why a volume cannot be mounted by a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrationError {
    #[error("kind({0}) is not supported in csi migration")]
    DiskKind(String),
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    NoSecretNamespace,
    #[error("Invalid format for AWS volume ({0})")]
    AwsId(String),
    #[error("failed to get region from zones: {0}")]
    Zones(String),
}

type Attributes = BTreeMap<String, String>;

fn csi(driver: &str, handle: String, fs_type: Option<&String>, read_only: Option<bool>, attributes: Attributes) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle,
        fs_type: fs_type.cloned(),
        read_only,
        volume_attributes: Some(attributes),
        ..CSIPersistentVolumeSource::default()
    }
}

const AWS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const GCE: &str = "pd.csi.storage.gke.io";
const PORTWORX: &str = "pxd.portworx.com";
const VSPHERE: &str = "csi.vsphere.vmware.com";

/// A persistent volume in its driver's terms; None for one that no such driver mounts, and for one that is in CSI's terms already.
///
/// # Errors
/// When it says something that the driver has no terms for.
pub fn persistent(volume: &PersistentVolume) -> Result<Option<PersistentVolume>, MigrationError> {
    let Some(spec) = &volume.spec else { return Ok(None) };
    let mut to = volume.clone();
    let into = to.spec.get_or_insert_default();
    let source = if let Some(disk) = into.azure_disk.take() {
        azure_disk(&disk.disk_uri, disk.kind.as_ref(), disk.caching_mode.as_ref(), disk.fs_type.as_ref(), disk.read_only)?
    } else if let Some(file) = into.azure_file.take() {
        let claimed = || spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
        let namespace = file.secret_namespace.or_else(claimed).filter(|namespace| !namespace.is_empty()).ok_or(MigrationError::NoSecretNamespace)?;
        let group = volume.metadata.annotations.as_ref().and_then(|all| all.get("kubernetes.io/azure-file-resource-group"));
        let name = volume.metadata.name.clone().unwrap_or_default();
        azure_file(group.map_or("", String::as_str), &file.secret_name, &file.share_name, &name, namespace, file.read_only)
    } else if let Some(disk) = into.gce_persistent_disk.take() {
        into.access_modes = spec.access_modes.as_deref().map(gce_modes);
        let handle = gce_handle(volume, &disk.pd_name)?;
        csi(GCE, handle, disk.fs_type.as_ref(), disk.read_only, gce_attributes(disk.partition))
    } else if let Some(disk) = into.aws_elastic_block_store.take() {
        csi(AWS, aws_id(&disk.volume_id)?, disk.fs_type.as_ref(), disk.read_only, aws_attributes(disk.partition))
    } else if let Some(disk) = into.cinder.take() {
        csi(CINDER, disk.volume_id, disk.fs_type.as_ref(), disk.read_only, Attributes::new())
    } else if let Some(disk) = into.vsphere_volume.take() {
        csi(VSPHERE, disk.volume_path, disk.fs_type.as_ref(), None, vsphere_attributes(disk.storage_policy_name))
    } else if let Some(disk) = into.portworx_volume.take() {
        let source = csi(PORTWORX, disk.volume_id, disk.fs_type.as_ref(), None, Attributes::new());
        let secret = portworx_secret(&volume.metadata);
        CSIPersistentVolumeSource {
            controller_publish_secret_ref: secret.clone(),
            node_stage_secret_ref: secret.clone(),
            node_publish_secret_ref: secret.clone(),
            controller_expand_secret_ref: secret.clone(),
            node_expand_secret_ref: secret,
            ..source
        }
    } else {
        return Ok(None);
    };
    into.csi = Some(source);
    Ok(Some(to))
}

/// Whether a pod's volume is such a volume.
pub fn is_inline(volume: &Volume) -> bool {
    volume.azure_disk.is_some()
        || volume.azure_file.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.cinder.is_some()
        || volume.vsphere_volume.is_some()
        || volume.portworx_volume.is_some()
}

/// A volume that a pod names by itself, as a persistent volume of its driver.
///
/// # Errors
/// When it says something that the driver has no terms for.
pub fn inline(volume: &Volume, namespace: &str) -> Result<Option<PersistentVolume>, MigrationError> {
    let once = "ReadWriteOnce";
    let (name, mode, source) = if let Some(disk) = &volume.azure_disk {
        let source = azure_disk(&disk.disk_uri, disk.kind.as_ref(), disk.caching_mode.as_ref(), disk.fs_type.as_ref(), disk.read_only)?;
        (disk.disk_uri.clone(), once, source)
    } else if let Some(file) = &volume.azure_file {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        let source = azure_file("", &file.secret_name, &file.share_name, &volume.name, namespace.to_owned(), file.read_only);
        (source.volume_handle.clone(), "ReadWriteMany", source)
    } else if let Some(disk) = &volume.gce_persistent_disk {
        let handle = format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{}", disk.pd_name);
        let source = csi(GCE, handle, disk.fs_type.as_ref(), disk.read_only, gce_attributes(disk.partition));
        (format!("{GCE}-{}", disk.pd_name), if disk.read_only == Some(true) { "ReadOnlyMany" } else { once }, source)
    } else if let Some(disk) = &volume.aws_elastic_block_store {
        let handle = aws_id(&disk.volume_id)?;
        let source = csi(AWS, handle.clone(), disk.fs_type.as_ref(), disk.read_only, aws_attributes(disk.partition));
        (format!("{AWS}-{handle}"), once, source)
    } else if let Some(disk) = &volume.cinder {
        let source = csi(CINDER, disk.volume_id.clone(), disk.fs_type.as_ref(), disk.read_only, Attributes::new());
        (format!("{CINDER}-{}", disk.volume_id), once, source)
    } else if let Some(disk) = &volume.vsphere_volume {
        let attributes = vsphere_attributes(disk.storage_policy_name.clone());
        (format!("{VSPHERE}-{}", disk.volume_path), once, csi(VSPHERE, disk.volume_path.clone(), disk.fs_type.as_ref(), None, attributes))
    } else if let Some(disk) = &volume.portworx_volume {
        let source = csi(PORTWORX, disk.volume_id.clone(), disk.fs_type.as_ref(), None, Attributes::new());
        (format!("{PORTWORX}-{}", disk.volume_id), if disk.read_only == Some(true) { "ReadOnlyMany" } else { once }, source)
    } else {
        return Ok(None);
    };
    let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
    let spec = PersistentVolumeSpec { csi: Some(source), access_modes: Some(vec![mode.to_owned()]), ..PersistentVolumeSpec::default() };
    Ok(Some(PersistentVolume { metadata, spec: Some(spec), ..PersistentVolume::default() }))
}

fn azure_disk(
    uri: &str,
    kind: Option<&String>,
    caching: Option<&String>,
    fs_type: Option<&String>,
    read_only: Option<bool>,
) -> Result<CSIPersistentVolumeSource, MigrationError> {
    if let Some(kind) = kind.filter(|kind| !kind.eq_ignore_ascii_case("Managed")) {
        return Err(MigrationError::DiskKind(kind.clone()));
    }
    let mut attributes = Attributes::from([("kind".to_owned(), "Managed".to_owned())]);
    attributes.extend(caching.filter(|caching| !caching.is_empty()).map(|caching| ("cachingmode".to_owned(), caching.clone())));
    attributes.extend(fs_type.map(|fs_type| ("fstype".to_owned(), fs_type.clone())));
    Ok(csi(AZURE_DISK, uri.to_owned(), fs_type, read_only, attributes))
}

fn azure_file(group: &str, secret: &str, share: &str, name: &str, namespace: String, read_only: Option<bool>) -> CSIPersistentVolumeSource {
    let handle = format!("{group}#{}#{share}#{name}#{namespace}", azure_account(secret));
    CSIPersistentVolumeSource {
        node_stage_secret_ref: Some(SecretReference { name: Some(secret.to_owned()), namespace: Some(namespace) }),
        ..csi(AZURE_FILE, handle, None, read_only, Attributes::from([("sharename".to_owned(), share.to_owned())]))
    }
}

/// The account in a secret's name, `azure-storage-account-ACCOUNT-secret`; any other name stands for itself.
fn azure_account(secret: &str) -> &str {
    let after = secret.split_once("azure-storage-account-").map(|(_, rest)| rest);
    let account = after.and_then(|rest| rest.rfind("-secret").map(|end| &rest[..end]));
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}

const UNSPECIFIED: &str = "UNSPECIFIED";

fn gce_handle(volume: &PersistentVolume, disk: &str) -> Result<String, MigrationError> {
    let label = |name: &str| volume.metadata.labels.as_ref().and_then(|labels| labels.get(name)).filter(|value| !value.is_empty());
    let zones = label("failure-domain.beta.kubernetes.io/zone").or_else(|| label("topology.kubernetes.io/zone"));
    let zones: Vec<&str> = zones.map(|zones| zones.split("__").collect()).unwrap_or_default();
    Ok(match zones.as_slice() {
        [] => format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{disk}"),
        [zone] => format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}"),
        zones => format!("projects/{UNSPECIFIED}/regions/{}/disks/{disk}", gce_region(zones)?),
    })
}

/// The one region of zones that are called LOCALE-REGION-ZONE.
fn gce_region(zones: &[&str]) -> Result<String, MigrationError> {
    let region = |zone: &&str| match zone.split('-').collect::<Vec<_>>().as_slice() {
        [locale, region, _] => Ok(format!("{locale}-{region}")),
        _ => Err(MigrationError::Zones(format!("zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"))),
    };
    let regions: BTreeSet<String> = zones.iter().map(region).collect::<Result<_, _>>()?;
    match regions.into_iter().collect::<Vec<_>>().as_slice() {
        [region] => Ok(region.clone()),
        several => Err(MigrationError::Zones(format!("multiple or no regions gotten from zones, got: {several:?}"))),
    }
}

/// What drivers hold of access modes; in the tree nobody checked them.
fn gce_modes(modes: &[String]) -> Vec<String> {
    let has = |mode: &str| modes.iter().any(|known| known == mode);
    let reads = has("ReadOnlyMany") && !has("ReadWriteOnce") && !has("ReadWriteMany");
    vec![if reads { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()]
}

fn gce_attributes(partition: Option<i32>) -> Attributes {
    let partition = partition.filter(|number| *number != 0).map(|number| number.to_string());
    Attributes::from([("partition".to_owned(), partition.unwrap_or_default())])
}

fn aws_attributes(partition: Option<i32>) -> Attributes {
    Attributes::from([("partition".to_owned(), partition.unwrap_or(0).to_string())])
}

/// The id in `aws://ZONE/ID`, or the id itself.
fn aws_id(text: &str) -> Result<String, MigrationError> {
    let Some(rest) = text.strip_prefix("aws://") else { return Ok(text.to_owned()) };
    let id = rest.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
    if id.starts_with("vol-") && !id.contains('/') { Ok(id.to_owned()) } else { Err(MigrationError::AwsId(text.to_owned())) }
}

fn vsphere_attributes(policy: Option<String>) -> Attributes {
    policy.filter(|policy| !policy.is_empty()).map(|policy| ("storagepolicyname".to_owned(), policy)).into_iter().collect()
}

fn portworx_secret(metadata: &ObjectMeta) -> Option<SecretReference> {
    let annotation = |name: &str| metadata.annotations.as_ref()?.get(&format!("openstorage.io/auth-secret-{name}")).cloned();
    Some(SecretReference { name: Some(annotation("name")?), namespace: Some(annotation("namespace")?) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn translated(spec: Value, metadata: Value) -> Result<Value, MigrationError> {
        let volume = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        Ok(json!(persistent(&volume)?.and_then(|volume| volume.spec).unwrap_or_default()))
    }

    #[test]
    fn persistent_volumes_of_clouds_are_their_drivers() {
        let named = json!({"name": "pv"});
        let azure = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
        for (spec, csi) in [
            (
                json!({"azureDisk": {"diskName": "d", "diskURI": azure, "cachingMode": "ReadOnly", "fsType": "ntfs", "kind": "managed", "readOnly": true}}),
                json!({"driver": AZURE_DISK, "volumeHandle": azure, "fsType": "ntfs", "readOnly": true,
                    "volumeAttributes": {"kind": "Managed", "cachingmode": "ReadOnly", "fstype": "ntfs"}}),
            ),
            (
                json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "share", "secretNamespace": "n"}}),
                json!({"driver": AZURE_FILE, "volumeHandle": "#acc#share#pv#n", "volumeAttributes": {"sharename": "share"},
                    "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret", "namespace": "n"}}),
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "d", "fsType": "ext4", "partition": 2}}),
                json!({"driver": GCE, "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "fsType": "ext4",
                    "volumeAttributes": {"partition": "2"}}),
            ),
            (
                json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-02399794d890f9375", "fsType": "ext4"}}),
                json!({"driver": AWS, "volumeHandle": "vol-02399794d890f9375", "fsType": "ext4", "volumeAttributes": {"partition": "0"}}),
            ),
            (
                json!({"cinder": {"volumeID": "v", "fsType": "ext4", "readOnly": false}}),
                json!({"driver": CINDER, "volumeHandle": "v", "fsType": "ext4", "readOnly": false, "volumeAttributes": {}}),
            ),
            (
                json!({"vsphereVolume": {"volumePath": "[ds] a.vmdk", "storagePolicyName": "gold"}}),
                json!({"driver": VSPHERE, "volumeHandle": "[ds] a.vmdk", "volumeAttributes": {"storagepolicyname": "gold"}}),
            ),
            (json!({"portworxVolume": {"volumeID": "p"}}), json!({"driver": PORTWORX, "volumeHandle": "p", "volumeAttributes": {}})),
        ] {
            assert_eq!(translated(spec.clone(), named.clone()).unwrap(), json!({"csi": csi}), "{spec}");
        }
        assert_eq!(translated(json!({"nfs": {"path": "/", "server": "s"}}), named.clone()).unwrap(), json!({}));
        assert_eq!(translated(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), named).unwrap(), json!({}));
    }

    #[test]
    fn what_a_driver_has_no_terms_for_is_refused() {
        let of = |spec: Value| translated(spec, json!({"name": "pv"})).unwrap_err().to_string();
        assert_eq!(of(json!({"azureDisk": {"diskName": "d", "diskURI": "u", "kind": "Shared"}})), "kind(Shared) is not supported in csi migration");
        assert!(of(json!({"azureFile": {"secretName": "s", "shareName": "s"}})).starts_with("could not find a secret namespace"));
        assert_eq!(of(json!({"awsElasticBlockStore": {"volumeID": "aws://a/b"}})), "Invalid format for AWS volume (aws://a/b)");
    }

    #[test]
    fn disks_of_gce_are_in_zones_or_regions() {
        let handle = |zone: &str| {
            let labels = json!({"name": "pv", "labels": {"topology.kubernetes.io/zone": zone}});
            let spec = translated(json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": ["ReadWriteMany"]}), labels)?;
            assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
            Ok::<_, MigrationError>(spec["csi"]["volumeHandle"].as_str().unwrap().to_owned())
        };
        assert_eq!(handle("us-central1-a").unwrap(), "projects/UNSPECIFIED/zones/us-central1-a/disks/d");
        assert_eq!(handle("us-central1-a__us-central1-b").unwrap(), "projects/UNSPECIFIED/regions/us-central1/disks/d");
        assert!(handle("us-central1-a__europe-west1-b").is_err() && handle("a__b").is_err());
        let modes = |list: &[&str]| gce_modes(&list.iter().map(|mode| (*mode).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            (modes(&["ReadOnlyMany"]), modes(&["ReadOnlyMany", "ReadWriteOnce"])),
            (vec!["ReadOnlyMany".into()], vec!["ReadWriteOnce".into()])
        );
    }

    #[test]
    fn pods_name_disks_by_themselves() {
        let of = |volume: Value| inline(&serde_json::from_value(volume).unwrap(), "ns").unwrap();
        let file = of(json!({"name": "v", "azureFile": {"secretName": "plain", "shareName": "share", "readOnly": true}})).unwrap();
        assert_eq!(file.metadata.name.as_deref(), Some("#plain#share#v#ns"));
        let spec = file.spec.unwrap();
        assert_eq!(
            (spec.access_modes.unwrap(), spec.csi.unwrap().node_stage_secret_ref.unwrap().namespace.unwrap()),
            (vec!["ReadWriteMany".to_owned()], "ns".to_owned())
        );
        let disk = of(json!({"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": true}})).unwrap();
        assert_eq!(
            (disk.metadata.name.as_deref(), disk.spec.unwrap().access_modes.unwrap()),
            (Some("pd.csi.storage.gke.io-d"), vec!["ReadOnlyMany".to_owned()])
        );
        assert!(of(json!({"name": "v", "emptyDir": {}})).is_none());
        assert!(is_inline(&serde_json::from_value(json!({"name": "v", "cinder": {"volumeID": "x"}})).unwrap()));
    }
}
