//! The kinds of `batch`.

pub mod cron_job;
pub mod job;

use crate::kind::Kind;

pub fn kinds() -> Vec<Kind> {
    vec![cron_job::kind(), job::kind()]
}
