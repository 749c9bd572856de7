//! Disks that a pod names itself, of which some can be on one node only once. Pure (upstream: plug-in VolumeRestrictions,
//! `isVolumeConflict`).

use k8s_openapi::api::core::v1::{PodSpec, Volume};

/// A disk by what names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Disk {
    Gce { name: String, read_only: bool },
    Ebs { id: String },
    Iscsi { iqn: String, read_only: bool },
    Rbd { monitors: Vec<String>, pool: String, image: String, read_only: bool },
}

impl Disk {
    /// The disks among the volumes of a pod.
    pub fn all(spec: &PodSpec) -> Vec<Self> {
        spec.volumes.iter().flatten().filter_map(Self::of).collect()
    }

    fn of(volume: &Volume) -> Option<Self> {
        let read_only = |flag: Option<bool>| flag.unwrap_or_default();
        if let Some(disk) = &volume.gce_persistent_disk {
            return Some(Self::Gce { name: disk.pd_name.clone(), read_only: read_only(disk.read_only) });
        }
        if let Some(disk) = &volume.aws_elastic_block_store {
            return Some(Self::Ebs { id: disk.volume_id.clone() });
        }
        if let Some(disk) = &volume.iscsi {
            return Some(Self::Iscsi { iqn: disk.iqn.clone(), read_only: read_only(disk.read_only) });
        }
        let disk = volume.rbd.as_ref()?;
        let (monitors, pool, image) = (disk.monitors.clone(), disk.pool.clone().unwrap_or_default(), disk.image.clone());
        Some(Self::Rbd { monitors, pool, image, read_only: read_only(disk.read_only) })
    }

    /// Whether one node cannot mount both: they are one disk, and not all only read it.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gce { name, read_only }, Self::Gce { name: other, read_only: also }) => name == other && !(*read_only && *also),
            (Self::Ebs { id }, Self::Ebs { id: other }) => id == other,
            (Self::Iscsi { iqn, read_only }, Self::Iscsi { iqn: other, read_only: also }) => iqn == other && !(*read_only && *also),
            (
                Self::Rbd { monitors, pool, image, read_only },
                Self::Rbd { monitors: other_monitors, pool: other_pool, image: other_image, read_only: also },
            ) => {
                let shared = monitors.iter().any(|monitor| other_monitors.contains(monitor));
                shared && (pool, image) == (other_pool, other_image) && !(*read_only && *also)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn one_disk_is_mounted_once_unless_all_only_read_it() {
        let disk = |source: Value| {
            let mut volume = source;
            volume["name"] = json!("v");
            Disk::of(&serde_json::from_value(volume).unwrap())
        };
        let gce = |name: &str, read_only: bool| disk(json!({"gcePersistentDisk": {"pdName": name, "readOnly": read_only}})).unwrap();
        let ebs = |id: &str| disk(json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": true}})).unwrap();
        let iscsi = |iqn: &str, read_only: bool| disk(json!({"iscsi": {"iqn": iqn, "lun": 0, "targetPortal": "p", "readOnly": read_only}})).unwrap();
        let rbd = |monitors: &[&str], image: &str, read_only: bool| {
            disk(json!({"rbd": {"monitors": monitors, "image": image, "pool": "rbd", "readOnly": read_only}})).unwrap()
        };
        for (one, other, conflicts) in [
            (gce("a", false), gce("a", true), true),
            (gce("a", true), gce("a", true), false),
            (gce("a", false), gce("b", false), false),
            (ebs("a"), ebs("a"), true),
            (ebs("a"), ebs("b"), false),
            (iscsi("a", false), iscsi("a", false), true),
            (iscsi("a", true), iscsi("a", true), false),
            (rbd(&["m", "n"], "a", false), rbd(&["n"], "a", false), true),
            (rbd(&["m"], "a", false), rbd(&["n"], "a", false), false),
            (rbd(&["m"], "a", false), rbd(&["m"], "b", false), false),
            (rbd(&["m"], "a", true), rbd(&["m"], "a", true), false),
            (gce("a", false), ebs("a"), false),
        ] {
            assert_eq!((one.conflicts_with(&other), other.conflicts_with(&one)), (conflicts, conflicts), "{one:?} {other:?}");
        }
        assert_eq!(disk(json!({"emptyDir": {}})), None);
    }
}
