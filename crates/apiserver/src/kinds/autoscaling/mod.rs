//! The kinds of `autoscaling`.

pub mod horizontal_pod_autoscaler;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![horizontal_pod_autoscaler::kind(), horizontal_pod_autoscaler::old_kind()]
}
