//! The kinds of `events.k8s.io`.

pub mod event;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![event::kind()]
}
