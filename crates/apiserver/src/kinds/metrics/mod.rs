//! The kinds of `metrics.k8s.io`.

pub mod node_metrics;
pub mod pod_metrics;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![node_metrics::kind(), pod_metrics::kind()]
}
