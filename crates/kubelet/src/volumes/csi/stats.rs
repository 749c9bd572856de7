//! What volumes of drivers hold, for `/stats/summary` (upstream pkg/volume/csi/csi_metrics.go).

use csi::v1::NodeGetVolumeStatsRequest;
use csi::v1::{NodeGetVolumeStatsResponse, volume_usage::Unit};
use futures::future::join_all;
use host::PodPath;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Csi, Mounted};

/// What the summary says of one volume (upstream: `VolumeStats`).
fn shown(name: &str, claim: Option<(&str, &str)>, answer: &NodeGetVolumeStatsResponse, time: &str) -> Value {
    let mut all = json!({"name": name, "time": time});
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    for usage in &answer.usage {
        let (capacity, available, used) = match usage.unit() {
            Unit::Bytes => ("capacityBytes", "availableBytes", "usedBytes"),
            Unit::Inodes => ("inodes", "inodesFree", "inodesUsed"),
            Unit::Unknown => continue,
        };
        all[capacity] = count(usage.total).into();
        all[available] = count(usage.available).into();
        all[used] = count(usage.used).into();
    }
    if let Some((name, namespace)) = claim {
        all["pvcRef"] = json!({"name": name, "namespace": namespace});
    }
    all
}

impl Csi {
    /// What the volumes of a pod hold. A driver that does not answer within ten seconds is left out.
    pub(crate) async fn usage(&self, uid: &str, namespace: &str) -> Vec<Value> {
        let of_pod: Vec<(String, Mounted)> =
            self.mounted().iter().filter(|((pod, _), _)| pod == uid).map(|((_, name), mounted)| (name.clone(), mounted.clone())).collect();
        let works = of_pod.into_iter().filter(|(_, mounted)| mounted.can.stats).map(|(name, mounted)| async move {
            let driver = self.driver(&mounted.driver).ok()?;
            let staging_target_path = mounted.staging.as_ref().map(PodPath::to_string).unwrap_or_default();
            let request = NodeGetVolumeStatsRequest { volume_id: mounted.handle.clone(), volume_path: mounted.path.to_string(), staging_target_path };
            let now = Timestamp::now();
            let answer = driver.stats(request).await;
            let answer =
                answer.inspect_err(|error| tracing::debug!(driver = mounted.driver, %error, "a driver does not say what a volume holds")).ok()?;
            let time = crate::stats::whole(now).to_string();
            Some(shown(&name, mounted.claim.as_deref().map(|claim| (claim, namespace)), &answer, &time))
        });
        join_all(works).await.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use csi::v1::VolumeUsage;

    use super::*;

    #[test]
    fn bytes_and_inodes_are_shown_and_nothing_below_zero() {
        let usage = vec![
            VolumeUsage { available: 3, total: 5, used: 2, unit: Unit::Bytes.into() },
            VolumeUsage { available: -1, total: 9, used: 1, unit: Unit::Inodes.into() },
            VolumeUsage { unit: 7, ..VolumeUsage::default() },
        ];
        let answer = NodeGetVolumeStatsResponse { usage, volume_condition: None };
        let wanted = json!({"name": "v", "time": "t", "capacityBytes": 5, "availableBytes": 3, "usedBytes": 2, "inodes": 9, "inodesFree": 0,
            "inodesUsed": 1, "pvcRef": {"name": "c", "namespace": "ns"}});
        assert_eq!(shown("v", Some(("c", "ns")), &answer, "t"), wanted);
    }
}
