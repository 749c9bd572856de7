//! The readings of kubelets that are kept between requests.

use super::usage::Reading;
use std::collections::HashMap;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last two readings of a node.
pub struct Pair {
    pub before: Reading,
    pub after: Reading,
    pub read: Instant,
}

/// The readings, by node.
#[derive(Default)]
pub struct Kept(pub Mutex<HashMap<String, Pair>>);
