//! The kinds of `policy`.

pub mod pod_disruption_budget;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![pod_disruption_budget::kind()]
}
