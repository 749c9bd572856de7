//! `kubelet_volume_stats_*`: what volumes of claims hold, as their drivers say it (upstream pkg/kubelet/metrics/collectors/volume_stats.go).

use std::collections::BTreeMap;
use std::time::Duration;

use exposition::Format;
use futures::future::join_all;
use serde_json::Value;

use super::cadvisor::families::{Kind, head, sample, write_labels};
use crate::agent::Agent;

const FAMILIES: [(&str, &str, &str); 6] = [
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", "availableBytes"),
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", "capacityBytes"),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", "inodes"),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", "inodesFree"),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", "inodesUsed"),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", "usedBytes"),
];

/// How long drivers are waited for: a scrape that took longer would lose the other metrics too.
const PATIENCE: Duration = Duration::from_secs(2);

/// Adds them to a document that is in this format.
pub(super) async fn add(agent: &Agent, document: String, format: Format) -> String {
    let pods = agent.all_pods();
    let works = pods.iter().map(|pod| {
        let (uid, namespace) = (pod.metadata.uid.clone().unwrap_or_default(), pod.metadata.namespace.clone().unwrap_or_default());
        async move { tokio::time::timeout(PATIENCE, agent.csi.usage(&uid, &namespace)).await.unwrap_or_default() }
    });
    let volumes: Vec<Value> = join_all(works).await.into_iter().flatten().collect();
    with(document, &volumes, format)
}

fn with(document: String, volumes: &[Value], format: Format) -> String {
    // Pods can share a claim, of which one is enough.
    let mut claims: BTreeMap<String, &Value> = BTreeMap::new();
    for volume in volumes {
        let text = |name: &str| volume["pvcRef"][name].as_str();
        let (Some(name), Some(namespace)) = (text("name"), text("namespace")) else { continue };
        let mut labels = String::new();
        write_labels(&mut labels, [("namespace", namespace), ("persistentvolumeclaim", name)]);
        claims.insert(labels, volume);
    }
    if claims.is_empty() {
        return document;
    }
    let end = "# EOF\n";
    let mut text = document;
    let is_ended = text.ends_with(end);
    if is_ended {
        text.truncate(text.len() - end.len());
    }
    for (name, help, member) in FAMILIES {
        let samples: Vec<_> = claims.iter().filter_map(|(labels, volume)| Some((labels, volume[member].as_u64()?))).collect();
        if !samples.is_empty() {
            head(&mut text, name, help, Kind::Gauge, format);
            samples.into_iter().for_each(|(labels, value)| sample(&mut text, name, labels, &[], value as f64, None, format));
        }
    }
    if is_ended {
        text.push_str(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_of_claims_are_shown_once_and_before_the_end() {
        let claim = |bytes: u64| json!({"name": "v", "usedBytes": bytes, "pvcRef": {"name": "data", "namespace": "ns"}});
        let volumes = [claim(5), claim(5), json!({"name": "of no claim", "usedBytes": 7})];
        let family = "# HELP kubelet_volume_stats_used_bytes Number of used bytes in the volume\n# TYPE kubelet_volume_stats_used_bytes gauge\n\
                      kubelet_volume_stats_used_bytes{namespace=\"ns\",persistentvolumeclaim=\"data\"} 5\n";
        assert_eq!(with("a 1\n".into(), &volumes, Format::Text), format!("a 1\n{family}"));
        assert_eq!(with("a 1\n# EOF\n".into(), &volumes, Format::OpenMetrics), format!("a 1\n{family}# EOF\n"));
        assert_eq!(with("a 1\n".into(), &volumes[2..], Format::Text), "a 1\n");
    }
}
